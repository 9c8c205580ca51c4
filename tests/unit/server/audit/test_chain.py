"""Rows that are changed, swapped, removed or added behind the coordinator's back, at random, are found by the audit.

Each fault is made with plain SQL on a copy of a store that real use cases have written. The checks catch a column that
no digest covers, an entry that is not compared, and a row or an entry that may be missing.
"""

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qidpfl_server.audit import audit
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.ops.signing import record_key
from qidpfl_server.service.credentials import create_operator_token, rotate_client_token
from qidpfl_server.service.deletion import delete_task
from qidpfl_server.service.enrolment import revoke_client
from qidpfl_server.store.adoption import adopt_tasks
from qidpfl_server.store.guarded import UNGUARDED
from qidpfl_server.store.schema import metadata
from qidpfl_server.store.store import Store
from qidpfl_shared.protocol.credentials import CreateOperatorToken, OperatorRole
from qidpfl_shared.protocol.signatures import ChainHead, SigningKey
from support.fakes import FakeClock
from support.fast_stores import fast_store
from support.use_cases import RHO, UseCases

GUARDED = (
    *("tasks", "enrolment_codes", "clients", "models", "rounds", "invitations", "budgets", "updates", "payments"),
    *("events", "chain", "chain_heads", "signing_keys", "tombstones"),
    *("escrow_settlements", "client_credentials", "operator_tokens"),
)
KEY = SigningKey.new()
# Hundreds of audits: `make unit` leaves them out.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """A store with two tasks, one of them in its third round with a withdrawal, and with two deleted tasks."""
    folder = tmp_path_factory.mktemp("chain")
    with fast_store(folder / "coordinator.db", folder / "blobs", template=migrated_database) as store:
        store.key = KEY
        record_key(store, KEY)
        cases = UseCases(store, FakeClock())
        _play(cases)
        assert not cases.violations()
    return folder


def _play(cases: UseCases) -> None:
    task, clients = cases.training(clients=5, game={"horizon": 5}, rounds={"min_updates": 2, "set_aside_after": 1})
    for place, client in enumerate(clients):
        client.declare(1, rho=RHO * (1 - place / 100))
        client.upload(number=1)
    task.settle()
    for client in clients[:3]:
        client.play(2)
    clients[3].declare(2)
    clients[3].decline(2)
    cases.clock.advance(3600)
    task.settle()
    clients[0].play(3)
    clients[1].declare(3)
    cases.write(lambda tx: revoke_client(tx, task.task_id, clients[2].client_id, cases.clock.now()))
    second = cases.task(single_use_codes=3)
    rotating = second.client()
    cases.write(lambda tx: rotate_client_token(tx, rotating.client_id, hash_secret(rotating.token)))
    wanted = CreateOperatorToken(name="of-the-night", role=OperatorRole.VIEWER)
    for _ in range(2):
        cases.write(lambda tx: create_operator_token(tx, wanted, cases.clock.now()))
    holding, paid = cases.training(3, game={"horizon": 1}, defence={"escrow": 0.5})
    holding.play(paid)
    assert holding.now.ended
    for _ in range(2):
        third = cases.task()
        third.stop()
        cases.write(lambda tx, gone=third: delete_task(tx, gone.task_id, deleted_by="admin", now=cases.clock.now()))  # type: ignore[misc]


class Tampered:
    """Copies of the store, each with one fault."""

    def __init__(self, written: Path, folder: Path) -> None:
        self.written = written
        self._folder = folder
        self._copies = 0
        self.honest = sqlite3.connect(f"file:{written / 'coordinator.db'}?mode=ro", uri=True)

    def copy(self) -> Path:
        self._copies += 1
        return Path(shutil.copyfile(self.written / "coordinator.db", self._folder / f"{self._copies}.db"))

    def violations(self, database: Path, *kept: ChainHead) -> list[str]:
        with fast_store(database, self.written / "blobs") as store:
            return audit(store, kept=kept, public_key=KEY.public_key).violations

    def after(self, *statements: tuple[str, list[Any]]) -> list[str] | None:
        """What the audit finds after these statements; None if the database refuses them or nothing has changed."""
        path = self.copy()
        # Foreign keys are off: an intruder does not need them.
        database = sqlite3.connect(path)
        try:
            changed = sum(database.execute(*statement).rowcount for statement in statements)
            database.commit()
        except sqlite3.IntegrityError:
            return None
        finally:
            database.close()
        return self.violations(path) if changed else None

    def rows(self, table: str) -> list[int]:
        return [row[0] for row in self.honest.execute(f"select rowid from {table}")]

    def signed(self, database: Path, work: Callable[[Store], None]) -> None:
        with fast_store(database, self.written / "blobs") as store:
            store.key = KEY
            work(store)


@pytest.fixture
def tampered(written: Path, tmp_path: Path) -> Iterator[Tampered]:
    tampered = Tampered(written, tmp_path)
    assert not tampered.violations(tampered.copy())
    yield tampered
    tampered.honest.close()


def _other(value: Any, rng: random.Random) -> Any:
    """Another value of the same type, which a check of types accepts."""
    match value:
        case int():
            return value + rng.choice((1, 2, 7)) if value > 1 else 1 - value
        case float():
            return value * 1.0000001 if value else 0.25
        case str():
            changed = list(value)
            place = rng.randrange(len(changed))
            changed[place] = "1" if changed[place] == "0" else "0"
            return "".join(changed)
        case _:
            return None


def _columns(table: str) -> list[str]:
    return [name for name in list(metadata.tables[table].columns.keys()) if (table, name) not in UNGUARDED]


def test_every_table_of_a_task_is_guarded() -> None:
    """A table that is added later must be added to the chain, or here with a reason."""
    assert set(metadata.tables) - set(GUARDED) == {"pulse", "blob_folder", "small_blobs", "blob_removals"}
    assert all(column in metadata.tables[table].columns for table, column in UNGUARDED)


@pytest.mark.parametrize("table", GUARDED)
def test_a_changed_value_is_found_in_every_column(table: str, tampered: Tampered) -> None:
    rng = random.Random(table)
    tried = 0
    for column in _columns(table):
        known = tampered.honest.execute(f"select rowid, {column} from {table} where {column} is not null").fetchall()
        if known:
            row, value = rng.choice(known)
            found = tampered.after((f"update {table} set {column} = ? where rowid = ?", [_other(value, rng), row]))
            assert found or found is None, f"{table}.{column} of row {row}"
            tried += found is not None
    assert tried


@pytest.mark.parametrize("table", GUARDED)
def test_a_removed_row_is_found(table: str, tampered: Tampered) -> None:
    known = tampered.rows(table)
    for row in random.Random(table).sample(known, k=min(3, len(known))):
        assert tampered.after((f"delete from {table} where rowid = ?", [row])), f"row {row} of {table}"


@pytest.mark.parametrize("table", ["budgets", "payments", "updates", "invitations", "clients", "events"])
def test_swapped_values_are_found(table: str, tampered: Tampered) -> None:
    """The sums stay as they are: only the chain knows which client had which value."""
    rng = random.Random(table)
    key = {"clients": "task_id", "events": "task_id"}.get(table, "round_number")
    swapped = 0
    for column in _columns(table):
        if column in {"task_id", "round_number", "client_id", "id", "ordinal", "token_hash", "key_hash"}:
            continue
        pairs = tampered.honest.execute(
            f"select a.rowid, b.rowid, a.{column}, b.{column} from {table} a join {table} b"
            f" on a.{key} = b.{key} and a.rowid < b.rowid and a.{column} <> b.{column}"
        ).fetchall()
        if pairs:
            one, other, first, second = rng.choice(pairs)
            change = f"update {table} set {column} = ? where rowid = ?"
            assert tampered.after((change, [second, one]), (change, [first, other])), f"{table}.{column}"
            swapped += 1
    assert swapped


def test_swapping_budgets_and_payments_of_two_clients_is_found(tampered: Tampered) -> None:
    """All sums, shares and limits still hold: without a chain no check can find it."""
    one, other = [
        row[0] for row in tampered.honest.execute("select client_id from payments where round_number = 1 limit 2")
    ]
    found = tampered.after(
        *(
            (f"update {table} set client_id = ? where round_number = 1 and client_id = ?", [after, before])
            for table in ("budgets", "payments", "updates")
            for before, after in ((one, "aside"), (other, one), ("aside", other))
        )
    )
    assert any("round 1 differs from its record in the chain" in violation for violation in found or [])


@pytest.mark.parametrize(
    "statement",
    [
        "insert into events (task_id, at, kind) select task_id, 1, 'task.forged' from tasks limit 1",
        "insert into payments select task_id, 2, client_id, 5, 0 from budgets where state = 'declined'",
        "insert into operator_tokens (token_id, name, role, token_hash, token_used, created_at)"
        " values ('intruder', 'intruder', 'admin', 'ab', 0, 1)",
        "insert into client_credentials select client_id, task_id, 'ab', null from clients where client_id not in"
        " (select client_id from client_credentials) limit 1",
        "insert into escrow_settlements select task_id, client_id, 5, 0, 1 from clients where client_id not in"
        " (select client_id from escrow_settlements) limit 1",
        "insert into budgets (task_id, round_number, client_id, state, rho, recorded_at)"
        " select task_id, round_number, client_id, 'declared', 0.01, 1 from invitations where round_number = 3"
        " and client_id not in (select client_id from budgets where round_number = 3) limit 1",
        "insert into enrolment_codes select upper(code_hash), task_id, 0, null, null from enrolment_codes limit 1",
        "insert into models select task_id, 7, digest, null, 1 from models limit 1",
        "insert into chain select task_id, sequence + 1, kind, subject, content, head from chain"
        " where (task_id, sequence) in (select task_id, max(sequence) from chain group by task_id) limit 1",
    ],
    ids=lambda statement: statement.split()[2],
)
def test_an_added_row_is_found(statement: str, tampered: Tampered) -> None:
    assert tampered.after((statement, []))


@pytest.mark.parametrize("seed", range(4))
def test_random_faults_are_found(seed: int, tampered: Tampered) -> None:
    _random_faults(seed, 6, tampered)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_random_faults_are_found(seed: int, tampered: Tampered) -> None:
    _random_faults(seed, 40, tampered)


def _random_faults(seed: int, count: int, tampered: Tampered) -> None:
    rng = random.Random(seed)
    made = 0
    while made < count:
        table = rng.choice(GUARDED)
        row, column = rng.choice(tampered.rows(table)), rng.choice(_columns(table))
        (value,) = tampered.honest.execute(f"select {column} from {table} where rowid = ?", [row]).fetchone()
        if rng.random() < 0.3:
            fault: tuple[str, list[Any]] = (f"delete from {table} where rowid = ?", [row])
        elif value is not None:
            fault = (f"update {table} set {column} = ? where rowid = ?", [_other(value, rng), row])
        else:
            continue
        found = tampered.after(fault)
        assert found or found is None, fault
        made += found is not None


def _kept(tampered: Tampered) -> list[ChainHead]:
    """The heads of all tasks, as an operator keeps them elsewhere."""
    with fast_store(tampered.copy(), tampered.written / "blobs") as store:
        return store.read(
            lambda tx: [head for task in tx.tasks.all() if (head := tx.chain.signed_head(task.task_id)) is not None]
        )


def test_a_chain_that_is_cut_off_with_its_rows_is_found_by_the_signature(tampered: Tampered) -> None:
    """The intruder removes the newest event and its entry, and stores the head before it, without the key."""
    path, _ = _without_newest_event(tampered)
    assert any("does not fit the message" in violation for violation in tampered.violations(path))


def test_truncation_by_the_holder_of_the_key_is_found_against_a_kept_head_only(tampered: Tampered) -> None:
    kept = _kept(tampered)
    path, task_id = _without_newest_event(tampered)
    tampered.signed(path, lambda store: store.write(lambda tx: tx.chain.put_head(task_id, KEY)))
    assert not tampered.violations(path)
    assert any("cut off" in violation for violation in tampered.violations(path, *kept))


def test_rewriting_by_the_holder_of_the_key_is_found_against_a_kept_head_only(tampered: Tampered) -> None:
    """The holder changes an event and computes all chains again: everything fits, but the kept heads do not."""
    kept = _kept(tampered)
    path = _without_chain(tampered, "update events set detail = 'ordinal 77' where kind = 'client.left'")
    tampered.signed(path, _write_chain_again)
    assert not tampered.violations(path)
    found = tampered.violations(path, *kept)
    assert any("cut off" in violation or "another head than kept" in violation for violation in found)


def test_a_whole_task_that_is_gone_is_found(tampered: Tampered) -> None:
    """All rows and the chain of the task are removed: the chain of the store still names it."""
    ((task_id,),) = tampered.honest.execute("select task_id from tasks order by opened_at desc, rowid desc limit 1")
    tables = [table for table in GUARDED if "task_id" in metadata.tables[table].columns]
    found = tampered.after(*((f"delete from {table} where task_id = ?", [task_id]) for table in tables))
    assert any(f"task {task_id} is in the chain" in violation for violation in found or [])


def test_another_key_is_found_against_the_known_one(tampered: Tampered) -> None:
    """An intruder who writes everything again with a key of its own has no endorsement by the known key."""
    path, other = _without_chain(tampered), SigningKey.new()
    with fast_store(path, tampered.written / "blobs") as store:
        store.write(lambda tx: adopt_tasks(tx.connection))
        record_key(store, other)
    assert any("does not know the pinned key" in violation for violation in tampered.violations(path))


def _write_chain_again(store: Store) -> None:
    store.write(lambda tx: adopt_tasks(tx.connection))
    record_key(store, KEY)


def _without_chain(tampered: Tampered, *statements: str) -> Path:
    path = tampered.copy()
    with closing(sqlite3.connect(path)) as database:
        for table in ("chain", "chain_heads", "signing_keys", "tombstones"):
            database.execute(f"delete from {table}")
        for statement in statements:
            assert database.execute(statement).rowcount == 1
        database.commit()
    return path


def _without_newest_event(tampered: Tampered) -> tuple[Path, str]:
    """A copy without the last entry of a chain and its event, and the id of the task."""
    path = tampered.copy()
    with closing(sqlite3.connect(path)) as database:
        ((task_id, sequence, subject),) = database.execute(
            "select task_id, sequence, subject from chain where subject like 'event/%' and (task_id, sequence) in"
            " (select task_id, max(sequence) from chain group by task_id) limit 1"
        )
        database.execute("delete from events where id = ?", [subject.removeprefix("event/")])
        database.execute("delete from chain where task_id = ? and sequence = ?", [task_id, sequence])
        database.execute(
            "update chain_heads set sequence = c.sequence, head = c.head from chain c"
            " where c.task_id = chain_heads.task_id and c.task_id = ? and c.sequence = ?",
            [task_id, sequence - 1],
        )
        database.commit()
    return path, str(task_id)
