"""Rounds whose models and updates are objects, on SQLite and on PostgreSQL; and sweeps that run meanwhile."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from qidpfl_server.clock import SystemClock, seconds
from qidpfl_server.errors import StoreBusy
from qidpfl_server.ops.export import read_export
from qidpfl_server.service import retention
from qidpfl_server.service.retention import sweep
from qidpfl_server.service.tasks import create_task, save_initial_model, task_spec
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.blob_places import BucketPlace
from support.fakes import FakeClock
from support.use_cases import UseCases

CLIENTS = 3
DATA = b"an upload that nothing refers to yet"


@pytest.fixture
def place(bucket_url: str, tmp_path: Path) -> BucketPlace:
    return BucketPlace(bucket_url, tmp_path / "staging")


@pytest.fixture
def servers(store_url: str, place: BucketPlace) -> Iterator[tuple[Store, Store]]:
    """Two processes on one database and one bucket; on SQLite their writes still run one after the other."""
    stores = []
    for _ in range(2):
        engine = open_engine(store_url)
        migrate(engine)
        stores.append(Store(engine, place.open()))
    yield stores[0], stores[1]
    for store in stores:
        store.close()


@pytest.fixture
def store(servers: tuple[Store, Store]) -> Store:
    return servers[0]


@pytest.fixture
def cases(store: Store) -> UseCases:
    """Their clock is a minute behind that of the object store, which tells the time in whole seconds."""
    return UseCases(store, FakeClock(SystemClock().now() - seconds(60)))


def publish(tx: Transaction, data: bytes = DATA) -> str:
    """Publish an upload; a row that refers to it is not needed here."""
    with tx.blobs.stage() as blob:
        blob.write(data)
        blob.sync()
        tx.publish(blob)
    return blob.digest


def claim(store: Store, *digests: str) -> list[str]:
    return retention._Claims(store).claim(digests, 0)


def finish(store: Store, *digests: str) -> None:
    for digest in digests:
        store.blobs.remove(digest)
    retention._Claims(store).finish(digests)


def test_a_task_is_played_exported_and_audited_on_objects(cases: UseCases, place: BucketPlace) -> None:
    task, clients = cases.training(CLIENTS, game={"horizon": 2}, aggregation={"momentum": 0.5})
    for number in (1, 2):
        task.play(clients, number)
    assert cases.violations() == []
    # Two rounds of updates, three models, and the momentum of two of them.
    assert len(cases.store.blobs.digests()) == 2 * CLIENTS + 3 + 2
    assert read_export(cases.store, task.task_id).version == 2
    assert place.staging() == []


def test_the_audit_names_an_object_with_other_bytes_and_a_missing_one(cases: UseCases, place: BucketPlace) -> None:
    task, clients = cases.training(CLIENTS, game={"horizon": 1})
    digests = [client.upload().digest for client in clients if client.declare()]
    task.settle()
    data = cases.store.blobs.get(digests[0])
    place.overwrite(digests[0], data[:-1] + bytes([data[-1] ^ 1]))
    cases.store.blobs.remove(digests[1])
    said = cases.violations()
    assert any("other bytes" in line and digests[0] in line for line in said)
    assert any("missing" in line and digests[1] in line for line in said)


def test_a_sweep_removes_the_orphans_of_refused_uploads_and_keeps_the_task(cases: UseCases) -> None:
    task, clients = cases.training(CLIENTS, game={"horizon": 2}, retention={"last_rounds": 1})
    orphan = cases.store.blobs.put(DATA)
    task.play(clients, 1)
    assert sweep(cases.store) == 0
    assert sweep(cases.store, grace_s=0) == 1
    assert not cases.store.blobs.has(orphan)
    task.play(clients, 2)
    # The updates of round 1 and the model that it started from.
    assert sweep(cases.store, grace_s=0) == CLIENTS + 1
    assert cases.violations() == []


def test_an_upload_is_refused_while_a_sweep_removes_the_same_bytes(servers: tuple[Store, Store]) -> None:
    server, sweeper = servers
    digest = server.blobs.put(DATA)
    assert claim(sweeper, digest) == [digest]
    with pytest.raises(StoreBusy, match="try again"):
        server.write(publish)
    finish(sweeper, digest)
    assert server.write(publish) == digest and server.blobs.get(digest) == DATA


def test_an_upload_that_was_stored_before_its_removal_is_refused_after_it(servers: tuple[Store, Store]) -> None:
    """Its row would refer to an object that is gone."""
    server, sweeper = servers
    with server.blobs.stage() as blob:
        blob.write(DATA)
        blob.sync()
        claim(sweeper, blob.digest)
        finish(sweeper, blob.digest)
        with pytest.raises(StoreBusy, match="try again"):
            server.write(lambda tx: tx.publish(blob))


def test_a_model_whose_objects_were_removed_before_its_task_is_refused(servers: tuple[Store, Store]) -> None:
    server, sweeper = servers
    spec = task_spec("digits", {})
    model = save_initial_model(server.blobs, spec)
    claim(sweeper, model.digest)
    with pytest.raises(StoreBusy, match="try again"):
        server.write(lambda tx: create_task(tx, name="late", preset_name=None, spec=spec, model=model, now=0))
    finish(sweeper, model.digest)
    with pytest.raises(StoreBusy, match="try again"):
        server.write(lambda tx: create_task(tx, name="late", preset_name=None, spec=spec, model=model, now=0))


def test_a_sweep_waits_for_a_transaction_that_publishes_and_then_keeps_its_blob(servers: tuple[Store, Store]) -> None:
    server, sweeper = servers
    spec = task_spec("digits", {})
    model = save_initial_model(server.blobs, spec)
    inside, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        create_task(tx, name="task", preset_name=None, spec=spec, model=model, now=0)
        inside.set()
        assert go_on.wait(30)

    claimed: list[list[str]] = []
    creates = threading.Thread(target=server.write, args=[slow])
    sweeps = threading.Thread(target=lambda: claimed.append(claim(sweeper, model.digest)))
    creates.start()
    assert inside.wait(30)
    sweeps.start()
    time.sleep(0.3)
    assert not claimed
    go_on.set()
    creates.join()
    sweeps.join()
    assert claimed == [[]]


def test_two_sweeps_do_not_remove_the_same_blob(servers: tuple[Store, Store]) -> None:
    one, other = servers
    digest = one.blobs.put(DATA)
    assert claim(one, digest) == [digest] and claim(other, digest) == []
    finish(one, digest)
    one.blobs.put(DATA)
    assert claim(other, digest) == [digest]


def test_a_later_sweep_takes_over_what_a_killed_one_has_claimed(servers: tuple[Store, Store]) -> None:
    killed, other = servers
    digest = killed.blobs.put(DATA)
    claim(killed, digest)
    # It may have removed the object already, so that no list of objects names it.
    killed.blobs.remove(digest)
    assert sweep(other, grace_s=0) == 0
    with other.engine.begin() as connection:
        connection.execute(text("UPDATE blob_removals SET started_at = started_at - 1000000000"))
    assert sweep(other, grace_s=0) == 1
    assert other.write(publish) == digest


def test_finished_claims_are_forgotten_after_some_hours(store: Store) -> None:
    digest = store.blobs.put(DATA)
    claim(store, digest)
    finish(store, digest)
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE blob_removals SET finished_at = finished_at - 15000000000"))
    claim(store)
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM blob_removals")).scalar_one() == 0


def test_an_upload_that_waited_too_long_for_its_row_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.blobs.stage() as blob:
        blob.write(DATA)
        blob.sync()
        later = time.monotonic() + 3600
        monkeypatch.setattr("qidpfl_server.store.blobs.object_store.time.monotonic", lambda: later)
        with pytest.raises(StoreBusy, match="too long ago"):
            store.write(lambda tx: tx.publish(blob))


def test_a_command_that_reads_blobs_for_long_keeps_its_transaction(store: Store) -> None:
    """PostgreSQL ends other transactions that are idle for four seconds, and these after ten minutes."""
    if store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no such limit")
    shown = store.read(
        lambda tx: tx.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one(), snapshot=True
    )
    assert shown == "10min"
