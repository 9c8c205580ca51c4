"""Checks of a coordinator before the first round: credentials, spec, enrolment, profile, and the form of answers."""

import json
from collections.abc import Sequence

from pydantic import ValidationError

from qidpfl_shared.command_line import first_fault
from qidpfl_shared.core.selection import label_distances
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION, spec_digest, unknown_requirements
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode
from qidpfl_shared.protocol.evidence import profile_digest
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import Misconfigured
from .played_client import PlayedClient, RawCaller, Reply
from .report import ConformanceReport

_DISTANCE_ROUNDING = 1e-9


def expect_answer(report: ConformanceReport, check: str, reply: Reply, status: int, *codes: str) -> bool:
    """Record whether an answer has this status and one of these codes."""
    fits = reply.status == status and (not codes or reply.code in codes)
    wanted = f"{status} {' or '.join(codes)}".strip()
    return report.expect(check, fits, f"{reply.said}, expected {wanted}")


def read_task(report: ConformanceReport, caller: RawCaller, code: str) -> TaskSpec:
    """Read the task with the code, as a client does before it enrols.

    Raises:
        Misconfigured: the task cannot be read.
    """
    path = f"/v1/tasks/{code.partition('.')[0]}"
    expect_answer(report, "task.without_token", caller.call("GET", path), 401, "unauthenticated")
    wrong = caller.call("GET", path, token="a-token-that-does-not-exist")
    expect_answer(report, "task.wrong_token", wrong, 401, "unauthenticated")
    view = caller.call("GET", path, token=code)
    if view.status != 200:
        raise Misconfigured(f"the task cannot be read with this code: {view.said}")
    spec, told = view.json.get("spec"), view.json.get("spec_digest")
    if not isinstance(spec, dict):
        raise Misconfigured("the answer has no spec")
    computed = spec_digest(spec)
    report.expect("task.spec_digest", told == computed, f"spec_digest is {told}, and the spec has {computed}")
    unknown = unknown_requirements(spec.get("requires") or [])
    said = f"requires {', '.join(unknown)}, which protocol {PROTOCOL_VERSION} does not have"
    report.expect("task.requires", not unknown, said)
    try:
        return TaskSpec.read(json.dumps(spec))
    except ValidationError as error:
        raise Misconfigured(f"the spec is not valid: {first_fault(error)}") from None


def check_enrolment(report: ConformanceReport, first: PlayedClient, pinned: str) -> None:
    """Enrol the first client, with invalid requests before it and repeats after it."""
    caller, path = first.caller, f"/v1/tasks/{first.task_id}/clients"
    json_type = {"Content-Type": "application/json"}
    malformed = caller.call("POST", path, body=b"{", headers=json_type)
    expect_answer(report, "enrol.malformed", malformed, 400, "malformed_json")
    wrong = {"enrolment_code": f"{first.task_id}.wrong-secret-of-the-task", "enrolment_key": first.key}
    expect_answer(report, "enrol.wrong_code", caller.call("POST", path, body=wrong), 401, "unauthenticated")
    extra = {"enrolment_code": first.code, "enrolment_key": first.key, "unknown_field": 1}
    reply = caller.call("POST", path, body=extra)
    expect_answer(report, "enrol.unknown_field", reply, 422, "invalid_request")
    reply = first.enrol()
    if not expect_answer(report, "enrol", reply, 201):
        raise Misconfigured(f"a client cannot enrol: {reply.said}")
    told = reply.json.get("spec_digest")
    report.expect("enrol.spec_digest", told == pinned, f"spec_digest is {told}, that of the task {pinned}")
    known, old_token = first.client_id, first.token
    first.enrol()
    same = first.client_id == known
    report.expect("enrol.repeated", same, "a repeat with the same key made another client")
    revoked = caller.call("GET", f"/v1/tasks/{first.task_id}", token=old_token)
    expect_answer(report, "enrol.old_token", revoked, 401, "unauthenticated")
    expect_answer(report, "task.with_token", first.call("GET", ""), 200)
    current = first.token
    expect_answer(report, "enrol.after_use", first.enrol(), 409, "already_enrolled")
    first.token = current
    expect_answer(report, "roles.client_is_no_viewer", first.call("GET", "/clients"), 403, "forbidden")


def check_profile(report: ConformanceReport, first: PlayedClient) -> None:
    """Store the profile of the first client, with invalid ones before it and repeats after it."""
    counts = list(first.profile.label_counts or ())
    uneven = first.store_profile(label_counts=[counts[0] + 1, *counts[1:]])
    expect_answer(report, "profile.uneven", uneven, 422, "histogram_mismatch")
    short = first.store_profile(label_counts=[sum(counts)])
    if len(counts) > 1:
        expect_answer(report, "profile.wrong_labels", short, 422, "histogram_mismatch")
    text = first.call("PUT", "/clients/me/profile", body=b"{}", headers={"Content-Type": "text/plain"})
    expect_answer(report, "profile.media_type", text, 415, "unsupported_media_type")
    reply = first.store_profile()
    if not expect_answer(report, "profile", reply, 200):
        return
    told, digest = reply.json.get("profile_digest"), profile_digest(first.profile)
    report.expect("profile.digest", told == digest, f"profile_digest is {told}, and the profile has {digest}")
    again = first.store_profile()
    report.expect("profile.repeated", again.body == reply.body, "a repeat got another receipt")
    other = first.store_profile(privacy_value=(first.profile.privacy_value or 1.0) * (1 + 2**-10))
    expect_answer(report, "profile.frozen", other, 409, "profile_frozen")


def check_selection(report: ConformanceReport, clients: Sequence[PlayedClient]) -> None:
    """Compare the told label distance with that of the profile."""
    first = clients[0]
    reply = first.call("GET", "/clients/me/selection")
    if not expect_answer(report, "selection", reply, 200):
        return
    if first.spec.selection.reference == "pooled":
        report.not_checked("selection.label_distance", "the reference depends on all clients")
        return
    counts = [client.profile.label_counts or () for client in clients]
    (distance, *_) = label_distances(histograms=counts, reference=first.spec.label_reference(counts))
    told = reply.json.get("label_distance")
    fits = isinstance(told, int | float) and abs(told - distance) <= _DISTANCE_ROUNDING
    report.expect("selection.label_distance", fits, f"label distance {told}, computed {distance}")


def check_document(report: ConformanceReport, caller: RawCaller, spec: TaskSpec) -> None:
    """Compare the version of the document with that of the spec."""
    reply = caller.call("GET", "/openapi.json")
    if reply.status != 200:
        report.not_checked("document.version", f"{reply.said}: the document is not served here")
        return
    info = reply.json.get("info")
    version = info.get("version") if isinstance(info, dict) else None
    report.expect(
        "document.version", version == spec.protocol_version, f"document {version}, spec {spec.protocol_version}"
    )


def check_form(report: ConformanceReport, replies: Sequence[Reply]) -> None:
    """Check the form of every answer that was seen: errors, and the headers that all answers have."""
    errors = [reply for reply in replies if reply.status >= 400]
    known = {code.value: code.status for code in ErrorCode}
    odd = [reply.said for reply in errors if not _is_problem(reply)]
    report.expect("errors.problem_json", not odd, f"not {PROBLEM_MEDIA_TYPE}: {', '.join(odd[:3])}")
    strange = [reply.said for reply in errors if known.get(reply.code or "") != reply.status]
    report.expect("errors.codes", not strange, f"unknown code, or another status: {', '.join(strange[:3])}")
    for header in ("x-request-id", "x-content-type-options"):
        without = [reply.said for reply in replies if header not in reply.headers]
        report.expect(f"headers.{header}", not without, f"missing: {', '.join(without[:3])}")
    busy = [reply for reply in replies if reply.status in (429, 503, 507)]
    if busy:
        without = [reply.said for reply in busy if not reply.headers.get("retry-after", "").isdigit()]
        report.expect("headers.retry-after", not without, f"missing: {', '.join(without[:3])}")
    else:
        report.not_checked("headers.retry-after", "the coordinator was never busy")


def _is_problem(reply: Reply) -> bool:
    media = reply.headers.get("content-type", "").partition(";")[0]
    members = {"type", "title", "status", "code"}
    return media == PROBLEM_MEDIA_TYPE and members <= set(reply.json) and reply.json["status"] == reply.status
