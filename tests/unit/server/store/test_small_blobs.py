"""Small blobs are rows: written with the row that names them, checked at every read, swept, copied and audited."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from qidpfl_server.clock import SystemClock
from qidpfl_server.errors import UnreadableBlob
from qidpfl_server.ops.backup import back_up
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.service.retention import kept_digests, sweep
from qidpfl_server.settings import Settings
from qidpfl_server.store import small_blobs
from qidpfl_server.store.blobs import FolderBlobs, StagedBlob
from qidpfl_server.store.small_blobs import SMALL_BYTES, SmallBlobs
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.fakes import FakeClock
from support.fast_stores import fast_store
from support.use_cases import UseCases

CLIENTS, HORIZON = 3, 5


@pytest.fixture
def store(migrated_database: Path, tmp_path: Path) -> Iterator[Store]:
    with fast_store(
        tmp_path / "coordinator.db", tmp_path / "blobs", template=migrated_database, small_blobs=True
    ) as store:
        yield store


@pytest.fixture
def cases(store: Store) -> UseCases:
    # Files carry the time of the machine, so that the clock starts from it.
    return UseCases(store, FakeClock(SystemClock().now()))


def staged(store: Store, data: bytes) -> StagedBlob:
    blob = store.blobs.stage()
    blob.write(data[:10])
    blob.write(data[10:])
    blob.sync()
    return blob


def publish(store: Store, data: bytes) -> str:
    blob = staged(store, data)
    store.write(lambda tx: tx.publish(blob))
    return blob.digest


def reread(store: Store) -> FolderBlobs:
    """The same blobs, as a process sees them that has written none."""
    return FolderBlobs(Path(store.blobs.place), small=SmallBlobs(store.engine))


def files(store: Store) -> list[str]:
    return store.blobs.digests()


def rows(store: Store) -> set[str]:
    return set(store.read(lambda tx: tx.small_blobs.writes()))


@pytest.mark.parametrize(("length", "is_row"), [(0, True), (4, True), (SMALL_BYTES, True), (SMALL_BYTES + 1, False)])
def test_a_blob_is_a_row_up_to_64_kib_and_a_file_above(store: Store, length: int, is_row: bool) -> None:
    data = bytes(range(256)) * 300
    if length == 0:
        data = b""
    digest = publish(store, data[:length])
    assert (digest in rows(store), digest in files(store)) == (is_row, not is_row)
    for blobs in (store.blobs, reread(store)):
        assert blobs.has(digest) and blobs.get(digest) == data[:length]
    assert not list((Path(store.blobs.place) / "staging").iterdir())


def test_a_write_that_fails_leaves_no_row(store: Store) -> None:
    blob = staged(store, b"the bytes of an update")

    def fails(tx: Transaction) -> None:
        tx.publish(blob)
        raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        store.write(fails)
    assert rows(store) == set() and not reread(store).has(blob.digest)


def test_a_damaged_row_is_found_at_every_read(store: Store) -> None:
    digest = publish(store, b"the bytes of an update")
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE small_blobs SET data = :data"), {"data": b"other bytes"})
    with pytest.raises(UnreadableBlob, match="small_blobs"):
        reread(store).get(digest)
    with pytest.raises(UnreadableBlob, match="small_blobs"):
        reread(store).reader(digest, 22)


def test_the_memory_of_recent_blobs_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_blobs, "_REMEMBERED_BYTES", 100)
    digests = [publish(store, bytes([k]) * 30) for k in range(9)]
    known = SmallBlobs(store.engine)
    for k, digest in enumerate(digests):
        known.remember(digest, bytes([k]) * 30)
    assert [digest for digest in digests if known.recent(digest) is not None] == digests[-3:]
    assert all(store.blobs.get(digest) == bytes([k]) * 30 for k, digest in enumerate(digests))


def test_rounds_write_rows_only_and_the_audit_recomputes_their_models(cases: UseCases) -> None:
    task, clients = cases.training(CLIENTS, game={"horizon": 2})
    for number in (1, 2):
        task.play(clients, number)
    assert task.now.reason == "horizon_reached"
    # Only version 0 is a file: it is written before its task exists.
    assert len(files(cases.store)) == 1
    assert rows(cases.store) | set(files(cases.store)) == cases.read(kept_digests)
    assert cases.violations() == []
    with cases.store.engine.begin() as connection:
        connection.execute(
            text("UPDATE small_blobs SET data = :data WHERE digest = :digest"),
            {"data": b"\0" * 4, "digest": clients[0].upload(number=2).digest},
        )
    cases.store.blobs = reread(cases.store)
    assert any("small_blobs" in violation for violation in cases.violations())


def test_rows_are_swept_like_files(cases: UseCases) -> None:
    task, clients = cases.training(CLIENTS, game={"horizon": HORIZON}, retention={"last_rounds": 2})
    removed = []
    for number in range(1, HORIZON + 1):
        task.play(clients, number)
        removed.append(sweep(cases.store, grace_s=0))
    assert removed == [0, 0, CLIENTS + 1, CLIENTS + 2, CLIENTS + 2]
    assert rows(cases.store) | set(files(cases.store)) == cases.read(kept_digests)
    assert cases.violations() == []


def test_a_row_that_is_written_again_during_a_sweep_survives(store: Store) -> None:
    digest = publish(store, b"the same bytes")
    seen = store.read(lambda tx: tx.small_blobs.writes())
    publish(store, b"the same bytes")
    assert store.write(lambda tx: tx.small_blobs.remove(seen)) == 0 and reread(store).has(digest)
    assert sweep(store, grace_s=0) == 1 and not reread(store).has(digest)


def test_a_backup_has_the_rows(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training(CLIENTS, game={"horizon": 1})
    task.play(clients)
    settings = Settings(state_dir=tmp_path)
    made = back_up(settings, cases.store, tmp_path / "copy", watch=lambda digests: digests)
    assert made.missing == 0
    with opened_store(Settings(state_dir=tmp_path / "copy")) as copied:
        assert UseCases(copied, FakeClock()).violations() == []
        assert rows(copied) == rows(cases.store)
