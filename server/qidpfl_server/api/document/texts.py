"""Texts of the OpenAPI document: tags, headers and the events of the live feed."""

from typing import Any

SUMMARY = """The server pays clients for their privacy budget and trains one model with them.

A client reads the task, enrols, stores a profile, waits for an announcement, declares a budget, uploads the noised
update and reads its ledger. Every error is problem+json with a stable `code`. Every call of a client may be repeated.
The guides at [/guide](/guide), as Markdown at `/guide/protocol.md`, `/guide/clients.md` and so on, have the whole
protocol, one checklist for clients and complete clients. `/guide/vectors.json` has inputs and expected results of every
formula and check, `/guide/records.csv` records for tests. The kit that checks a client is `qidpfl-client conform`, from
`pip install qidpfl-client`. The digests and signatures of the examples below are true.

"""
TAGS = [
    {
        "name": "clients",
        "description": "What a client calls, in the order of a task: enrol, profile, rounds, ledger."
        " Before it enrols, it reads the task: `get_task`.",
    },
    {"name": "reading", "description": "Tasks, models, rounds and events, for all who may see them."},
    {"name": "tasks", "description": "What an admin does with tasks."},
    {"name": "operators", "description": "Tokens of admins and viewers, with roles."},
    {"name": "operations", "description": "Health, metrics, public keys, and single updates."},
]

# Every kind of event, and what its `detail` says.
EVENT_KINDS = {
    "client.enrolled": "a client has its place; `detail`: `ordinal N`",
    "client.left": "a client takes part in no further round; `ordinal N`",
    "client.place_freed": "a full task gave away the place of a client without a profile; `ordinal N`",
    "client.profiled": "a client has stored its profile; the first one begins the enrolment window; `ordinal N`",
    "client.revoked": "the operator has revoked the token of a client; `ordinal N`",
    "code.revoked": "an admin has revoked an enrolment code; its id",
    "codes.created": "an admin has made enrolment codes; how many",
    "enrolment.opened": "an admin has begun the enrolment window",
    "escrow.settled": "the task has ended and what was held back is paid or kept; the amounts",
    "model.given": "an admin has replaced version 0 of the model",
    "round.evaluated": "a settled round has its accuracy and loss, if its model was evaluated after the settlement",
    "round.opened": "a round is announced; its reward, the number of invited clients, and the bound that applied",
    "round.settled": "a round is paid and its model is published",
    "round.void": "an attempt had too few updates: the round opens again, or the task ends; `attempt N`",
    "task.created": "the task takes clients; `detail`: its name",
    "task.deadlines": "an admin has set the deadlines of later rounds; `detail`: the seconds as JSON",
    "task.failed": "the task is over; `detail`: the reason",
    "task.finished": "the task is over; the reason",
    "task.paused": "an admin has paused the task: no new round opens until it is resumed",
    "task.resumed": "an admin has continued a task that was paused, or that failed by a fault of the coordinator",
    "task.stopped": "an admin has stopped the task",
    "labels.absent": "own data: the labels that no client seems to have",
    "task.selected": "the selection is done: how many clients of how many",
    "update.late": "an update was read when its round had closed: spent and unpaid; the client and the digest",
    "update.voided": "the operator has voided an update of the open round; `client ID`",
}
EVENTS = (
    "Server-sent events of a task, oldest first, then live until the task has ended. `data` of each event is the JSON"
    " of an `Event`; `event` repeats its `kind` and `id` its `id`. A lost connection is opened again with the header"
    " `Last-Event-ID`: the feed goes on after this event. A line `: still here` comes every 15 seconds.\n\n"
    "| kind | meaning |\n|---|---|\n" + "\n".join(f"| `{kind}` | {text} |" for kind, text in EVENT_KINDS.items())
)
EVENT_EXAMPLE = (
    "id: 12\nevent: round.settled\n"
    'data: {"id": 12, "at": "2026-01-01T00:00:09Z", "kind": "round.settled", "round_number": 1, "detail": null}\n\n'
)

_TEXT: dict[str, Any] = {"type": "string"}
RETRY_AFTER = {"description": "seconds to wait before the same request is sent again", "schema": {"type": "integer"}}
RETRY_AFTER_OF = {429, 503, 507}
CHALLENGE = {"description": "`Bearer`", "schema": _TEXT}
ALLOW = {"description": "the methods of this path", "schema": _TEXT}
ETAG = {"description": "the SHA-256 of the model, in quotation marks; for `If-None-Match`", "schema": _TEXT}
CONTENT_DIGEST = {
    "description": "`sha-256=:…:`, the base64 of the SHA-256 of the body (RFC 9530)",
    "schema": _TEXT,
}


def error_headers(status: int) -> dict[str, Any]:
    """The headers of an error answer."""
    found = {401: {"WWW-Authenticate": CHALLENGE}, 405: {"Allow": ALLOW}}.get(status, {})
    return {"Retry-After": RETRY_AFTER} if status in RETRY_AFTER_OF else found
