"""Which rows the chain of a task guards, and the digest of each.

A subject names what an entry of the chain is about: `task`, `code/HASH`, `client/ID`, `model/VERSION`, `round/N`,
`evaluation/N`, `budget/N/ID`, `update/N/ID`, `event/ID`; in the chain of the store `task/ID`, `key/ID` and
`operator/ID`. The newest entry of a subject has the digest of its rows as they must be now. The rows are read with all
columns of their tables, so that a column that is added later is guarded too. It must be nullable, because nulls are
left out of a digest.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, bindparam, select

from qidpfl_shared.protocol.chain import STORE_CHAIN, digest_of_facts, row_facts
from qidpfl_shared.protocol.messages import RoundState

from .prepared import Prepared
from .schema import (
    budgets,
    client_credentials,
    clients,
    enrolment_codes,
    escrow_settlements,
    events,
    invitations,
    models,
    operator_tokens,
    payments,
    rounds,
    signing_keys,
    tasks,
    tombstones,
    updates,
)

# Columns that no digest covers, and why. Everything else is guarded.
UNGUARDED = {
    ("tasks", "last_enrolment_at"): "only decides when the selection starts, and changes with every enrolment",
    ("clients", "token_used"): "a switch of the authentication, written without the lock of the task",
    ("clients", "coming_back"): "a wish of the client, written without the lock of the task",
    ("operator_tokens", "token_used"): "a switch of the authentication",
}
_LEFT_OUT = {table: frozenset(name for place, name in UNGUARDED if place == table) for table, _ in UNGUARDED}
# Settlement writes these into an update that is already recorded. The entry of the closed round covers them.
_OF_SETTLEMENT = {"verdict", "accepted", "alignment"}
# A deferred evaluation writes these into a round that is already settled. They have an entry of their own, so that the
# entry of the settled round stays the newest one of its subject.
_OF_EVALUATION = frozenset({"accuracy", "loss", "evaluation_s", "evaluated_at"})
_MAX_NAMED = 500
_ANNOUNCED = (invitations,)
_CLOSED = (invitations, budgets, updates, payments)
SUBMISSIONS = {"budget": budgets, "update": updates}

_task_id: Any = bindparam("task_id")
_round_number: Any = bindparam("round_number")
_ROWS = {
    table: select(table).where(table.c.task_id == _task_id, table.c.round_number == _round_number)
    for table in (rounds, *_CLOSED)
}
_OF_ROUND = {table: Prepared(query) for table, query in _ROWS.items()}
_SUBMITTED = {
    table: _ROWS[table].where(table.c.client_id.in_(bindparam("client_ids", expanding=True)))
    for table in (budgets, updates)
}


class Fact(NamedTuple):
    """What one entry of a chain records."""

    kind: str
    subject: str
    content: str


def budget_subject(round_number: int, client_id: str) -> str:
    """The subject of the answer of a client to an announcement."""
    return f"budget/{round_number}/{client_id}"


def update_subject(round_number: int, client_id: str) -> str:
    """The subject of the update of a client in a round."""
    return f"update/{round_number}/{client_id}"


def round_subject(round_number: int) -> str:
    """The subject of a round."""
    return f"round/{round_number}"


def evaluation_subject(round_number: int) -> str:
    """The subject of the scores of a round that was evaluated after its settlement."""
    return f"evaluation/{round_number}"


def client_subject(client_id: str) -> str:
    """The subject of a client."""
    return f"client/{client_id}"


def guarded_facts(table: Table, row: Any) -> dict[str, Any]:
    """The guarded columns of a row that are not null."""
    facts = row_facts(row._asdict())
    for name in _LEFT_OUT.get(table.name, ()):
        facts.pop(name, None)
    return facts


def task_row_facts(connection: Connection, row: Any) -> dict[str, Any]:
    """What the entry of a task covers: its row and, once it has ended, what became of the escrow of its clients."""
    query = select(escrow_settlements).where(escrow_settlements.c.task_id == row.task_id)
    settled = [guarded_facts(escrow_settlements, one) for one in connection.execute(query)]
    settled.sort(key=lambda facts: str(facts["client_id"]))
    return guarded_facts(tasks, row) | ({"escrow_settlements": settled} if settled else {})


def task_facts(connection: Connection, task_id: str) -> Iterator[Fact]:
    for row in connection.execute(select(tasks).where(tasks.c.task_id == task_id)):
        yield Fact(f"task.{row.state}", "task", digest_of_facts(task_row_facts(connection, row)))


def code_facts(connection: Connection, *where: Any) -> Iterator[tuple[str, Fact]]:
    for row in connection.execute(select(enrolment_codes).where(*where).order_by(enrolment_codes.c.code_hash)):
        content = digest_of_facts(guarded_facts(enrolment_codes, row))
        yield row.task_id, Fact("code", f"code/{row.code_hash}", content)


def client_facts(connection: Connection, *where: Any) -> Iterator[tuple[str, Fact]]:
    joined = select(
        clients,
        client_credentials.c.pending_hash,
        client_credentials.c.certificate,
        client_credentials.c.task_id.label("credentials_task_id"),
    ).outerjoin(client_credentials, client_credentials.c.client_id == clients.c.client_id)
    for row in connection.execute(joined.where(*where).order_by(clients.c.task_id, clients.c.ordinal)):
        content = digest_of_facts(guarded_facts(clients, row))
        yield row.task_id, Fact(f"client.{row.state}", client_subject(row.client_id), content)


def model_rows(
    connection: Connection, task_id: str, versions: Collection[int] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The versions of the model: for each its subject, and all columns of its row that are not null."""
    query = select(models).where(models.c.task_id == task_id).order_by(models.c.version)
    if versions is not None:
        query = query.where(models.c.version.in_(versions))
    for row in connection.execute(query):
        yield f"model/{row.version}", row_facts(row._asdict())


def model_facts(connection: Connection, task_id: str, versions: Collection[int] | None = None) -> Iterator[Fact]:
    for subject, row in model_rows(connection, task_id, versions):
        yield Fact("model", subject, digest_of_facts(row))


def model_fact(row: Mapping[str, Any]) -> Fact:
    """A version of the model, from all columns of its row that are not null."""
    return Fact("model", f"model/{row['version']}", digest_of_facts(row_facts(row)))


def event_facts(connection: Connection, *where: Any) -> Iterator[tuple[str, Fact]]:
    for row in connection.execute(select(events).where(*where).order_by(events.c.id)):
        yield row.task_id, event_fact(row._asdict())


def event_fact(row: Mapping[str, Any]) -> Fact:
    """An event, from all columns of its row that are not null."""
    return Fact(f"event.{row['kind']}", f"event/{row['id']}", digest_of_facts(row_facts(row)))


def round_rows(connection: Connection, task_id: str, round_number: int) -> dict[str, list[dict[str, Any]]] | None:
    """The rows that the entry of a round covers: those of a closed round, or the announcement of an open one."""
    key = {"task_id": task_id, "round_number": round_number}
    row = _OF_ROUND[rounds].run(connection, key).one_or_none()
    if row is None:
        return None
    facts = guarded_facts(rounds, row)
    if row.evaluation_deferred:
        facts = {name: value for name, value in facts.items() if name not in _OF_EVALUATION}
    covered = {"rounds": [facts]}
    for table in _ANNOUNCED if row.state == RoundState.OPEN else _CLOSED:
        found = [guarded_facts(table, one) for one in _OF_ROUND[table].run(connection, key)]
        covered[table.name] = sorted(found, key=lambda facts: str(facts["client_id"]))
    return covered


def round_fact(connection: Connection, task_id: str, round_number: int) -> Iterator[Fact]:
    covered = round_rows(connection, task_id, round_number)
    if covered is not None:
        state = covered["rounds"][0]["state"]
        yield Fact(f"round.{state}", round_subject(round_number), digest_of_facts(covered))


def evaluation_row(connection: Connection, task_id: str, round_number: int) -> dict[str, Any] | None:
    """The scores of a round that was evaluated after its settlement; None if it was not."""
    key = {"task_id": task_id, "round_number": round_number}
    row = _OF_ROUND[rounds].run(connection, key).one_or_none()
    if row is None or not row.evaluation_deferred:
        return None
    scores = {name: value for name, value in guarded_facts(rounds, row).items() if name in _OF_EVALUATION}
    return key | scores if scores else None


def evaluation_fact(connection: Connection, task_id: str, round_number: int) -> Iterator[Fact]:
    if (row := evaluation_row(connection, task_id, round_number)) is not None:
        yield Fact("evaluation", evaluation_subject(round_number), digest_of_facts(row))


def submission_facts(
    connection: Connection, of: str, task_id: str, round_number: int, client_ids: Sequence[str] | None = None
) -> Iterator[Fact]:
    """The budgets or updates of a round, of all clients or of some."""
    table = SUBMISSIONS[of]
    key: dict[str, Any] = {"task_id": task_id, "round_number": round_number}
    rows: Sequence[Any]
    if client_ids is None:
        rows = _OF_ROUND[table].run(connection, key).all()
    else:
        rows = connection.execute(_SUBMITTED[table], key | {"client_ids": list(client_ids)}).all()
    for row in sorted(rows, key=lambda row: str(row.client_id)):
        yield submission_fact(of, row._asdict())


def submission_fact(of: str, row: Mapping[str, Any]) -> Fact:
    """A budget or an update, from all columns of its row that are not null."""
    without = _OF_SETTLEMENT if of == "update" else ()
    facts = {name: value for name, value in row_facts(row).items() if name not in without}
    kind = f"budget.{facts['state']}" if of == "budget" else "update"
    return Fact(kind, f"{of}/{facts['round_number']}/{facts['client_id']}", digest_of_facts(facts))


def created_fact(task_id: str, spec_digest: str) -> Fact:
    """The creation of a task, in the chain of the store."""
    content = digest_of_facts({"task_id": task_id, "spec_digest": spec_digest})
    return Fact("task.created", f"task/{task_id}", content)


def tombstone_fact(row: Any) -> Fact:
    """The deletion of a task, in the chain of the store."""
    return Fact("task.deleted", f"task/{row.task_id}", digest_of_facts(guarded_facts(tombstones, row)))


def key_fact(row: Any) -> Fact:
    """A key of the coordinator, in the chain of the store."""
    return Fact("key", f"key/{row.key_id}", digest_of_facts(guarded_facts(signing_keys, row)))


def operator_fact(row: Any) -> Fact:
    """The token of an operator, in the chain of the store."""
    return Fact("operator", f"operator/{row.token_id}", digest_of_facts(guarded_facts(operator_tokens, row)))


def store_facts(connection: Connection) -> Iterator[Fact]:
    """The facts of the chain of the store: its tasks, tombstones and keys."""
    for row in connection.execute(select(tasks.c.task_id, tasks.c.spec_digest)):
        yield created_fact(row.task_id, row.spec_digest)
    for row in connection.execute(select(tombstones)):
        yield tombstone_fact(row)
    for row in connection.execute(select(signing_keys)):
        yield key_fact(row)
    for row in connection.execute(select(operator_tokens)):
        yield operator_fact(row)


# A row that a transaction has written: ("task", id), ("code", hash), ("client", id), ("model", task, version),
# ("round" or "evaluation", task, number), ("budget" or "update", task, number, client), ("event", id).
Mark = tuple[Any, ...]


def facts_of(connection: Connection, marks: Mapping[Mark, Mapping[str, Any] | None]) -> dict[str, list[Fact]]:
    """The facts of rows that were written, by chain. Rows that are given are not read again: those of all events, and
    of most models, budgets and updates.
    """
    found: dict[str, list[Fact]] = {}
    marked: dict[str, list[Mark]] = {}
    for kind, *rest in marks:
        marked.setdefault(kind, []).append(tuple(rest))

    def add(task_id: str, facts: Iterable[Fact]) -> None:
        found.setdefault(task_id, []).extend(facts)

    for task_id, spec_digest in marked.get("created", []):
        add(STORE_CHAIN, [created_fact(task_id, spec_digest)])
    for part in _chunks(marked.get("operator", [])):
        query = select(operator_tokens).where(operator_tokens.c.token_id.in_(part))
        add(STORE_CHAIN, [operator_fact(row) for row in connection.execute(query.order_by(operator_tokens.c.token_id))])
    for (task_id,) in marked.get("task", []):
        add(task_id, task_facts(connection, task_id))
    for part in _chunks(marked.get("code", [])):
        for task_id, fact in code_facts(connection, enrolment_codes.c.code_hash.in_(part)):
            add(task_id, [fact])
    for part in _chunks(marked.get("client", [])):
        for task_id, fact in client_facts(connection, clients.c.client_id.in_(part)):
            add(task_id, [fact])
    for task_id, version in marked.get("model", []):
        row = marks["model", task_id, version]
        add(task_id, model_facts(connection, task_id, [version]) if row is None else [model_fact(row)])
    for task_id, number in sorted(marked.get("round", [])):
        add(task_id, round_fact(connection, task_id, number))
    for task_id, number in marked.get("evaluation", []):
        add(task_id, evaluation_fact(connection, task_id, number))
    for of in SUBMISSIONS:
        together: dict[tuple[str, int], list[str]] = {}
        for task_id, number, client_id in sorted(marked.get(of, [])):
            row = marks[of, task_id, number, client_id]
            if row is None:
                together.setdefault((task_id, number), []).append(client_id)
            else:
                add(task_id, [submission_fact(of, row)])
        for (task_id, number), client_ids in together.items():
            add(task_id, submission_facts(connection, of, task_id, number, client_ids))
    for (event_id,) in sorted(marked.get("event", [])):
        row = marks["event", event_id]
        assert row is not None
        add(row["task_id"], [event_fact(row)])
    return found


def whole_task(connection: Connection, task_id: str) -> Iterator[Fact]:
    """The facts of all rows of a task, one table after the other. Submissions only of rounds that are not settled."""
    yield from task_facts(connection, task_id)
    for _, fact in code_facts(connection, enrolment_codes.c.task_id == task_id):
        yield fact
    for _, fact in client_facts(connection, clients.c.task_id == task_id):
        yield fact
    yield from model_facts(connection, task_id)
    for number, state in connection.execute(
        select(rounds.c.round_number, rounds.c.state).where(rounds.c.task_id == task_id).order_by(rounds.c.round_number)
    ).all():
        yield from round_fact(connection, task_id, number)
        yield from evaluation_fact(connection, task_id, number)
        if state != RoundState.SETTLED:
            for of in SUBMISSIONS:
                yield from submission_facts(connection, of, task_id, number)
    for _, fact in event_facts(connection, events.c.task_id == task_id):
        yield fact


def _chunks(marks: list[Mark]) -> Iterator[list[Any]]:
    values = [value for (value,) in marks]
    for start in range(0, len(values), _MAX_NAMED):
        yield values[start : start + _MAX_NAMED]
