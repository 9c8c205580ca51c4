"""Retention: a sweep removes what no task needs, and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from qidpfl_server.audit import audit
from qidpfl_server.clock import SECOND, SystemClock, seconds
from qidpfl_server.errors import RequestRefused, StoreBusy
from qidpfl_server.ops.export import read_export
from qidpfl_server.service.retention import kept_digests, sweep
from qidpfl_server.service.tasks import create_task, save_initial_model, task_spec
from qidpfl_server.store.blobs import FolderBlobs, staged
from qidpfl_server.store.store import Store
from qidpfl_server.store.transaction import Transaction
from support.fakes import FakeClock, NoClaims
from support.use_cases import ServedClient, ServedTask, UseCases

pytestmark = pytest.mark.slow

Result = TypeVar("Result")
HORIZON = 5
KEPT = 2
CLIENTS = 3
HOUR_S = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    """Files carry the time of the machine, so that the clock starts from it."""
    return FakeClock(SystemClock().now())


def retained(cases: UseCases) -> tuple[ServedTask, list[ServedClient]]:
    """A task that keeps its last two rounds, and its clients."""
    return cases.training(CLIENTS, game={"horizon": HORIZON}, retention={"last_rounds": KEPT})


def make_old(folder: Path) -> None:
    old = SystemClock().now() / SECOND - 2 * HOUR_S
    for path in folder.iterdir():
        os.utime(path, (old, old))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_task_is_swept_after_every_round_and_continues(cases: UseCases, tmp_path: Path) -> None:
    task, clients = retained(cases)
    removed = []
    for number in range(1, HORIZON + 1):
        task.play(clients, number)
        removed.append(sweep(cases.store, grace_s=0))
    # The updates of a round, the model it started from and its momentum; version 0 has no momentum.
    assert removed == [0, 0, CLIENTS + 1, CLIENTS + 2, CLIENTS + 2]
    assert sweep(cases.store, grace_s=0) == 0
    report = audit(cases.store)
    assert report.violations == []
    (said,) = report.not_checkable
    assert said.endswith("models before version 3 and updates of rounds up to 3 are not kept")
    assert names(tmp_path / "blobs" / "objects") == cases.read(kept_digests)
    with pytest.raises(RequestRefused, match="versions 3 to 5 are kept"):
        read_export(cases.store, task.task_id, version=2)
    assert read_export(cases.store, task.task_id, version=3).version == 3
    # A repeat gets its receipt also when the bytes are gone.
    for number in range(1, HORIZON + 1):
        assert clients[0].upload(number=number).round_number == number


def test_a_blob_that_was_needed_within_the_last_hour_stays(cases: UseCases, tmp_path: Path) -> None:
    task, clients = retained(cases)
    for number in range(1, HORIZON + 1):
        task.play(clients, number)
    make_old(tmp_path / "blobs" / "objects")
    before = names(tmp_path / "blobs" / "objects")
    assert sweep(cases.store) == 0
    assert names(tmp_path / "blobs" / "objects") == before


class SlowStore:
    """A store in which something happens after each read."""

    def __init__(self, store: Store, meanwhile: Callable[[], None]) -> None:
        self._store = store
        self._meanwhile = meanwhile
        self.blobs = store.blobs

    def read(self, work: Callable[[Transaction], Result], **options: Any) -> Result:
        answer = self._store.read(work, **options)
        self._meanwhile()
        return answer


def test_a_slow_sweep_removes_nothing_that_came_meanwhile(cases: UseCases, tmp_path: Path) -> None:
    orphan = cases.store.blobs.put(b"an orphan")
    make_old(tmp_path / "blobs" / "objects")
    assert sweep(SlowStore(cases.store, lambda: cases.task() and None), grace_s=0) == 1  # type: ignore[arg-type]
    assert not cases.store.blobs.has(orphan)
    assert cases.violations() == []


def test_a_blob_that_gets_its_row_during_a_sweep_survives(cases: UseCases, tmp_path: Path) -> None:
    """Also an old one: the references are read after the files are listed."""
    spec, now = task_spec("digits", {}), cases.clock.now()
    model = save_initial_model(cases.store.blobs, spec)
    make_old(tmp_path / "blobs" / "objects")
    store = cases.store

    class LateRow(SlowStore):
        def read(self, work: Callable[[Transaction], Result], **options: Any) -> Result:
            store.write(lambda tx: create_task(tx, name="late", preset_name=None, spec=spec, model=model, now=now))
            return store.read(work, **options)

    assert sweep(LateRow(store, lambda: None)) == 0  # type: ignore[arg-type]
    assert cases.violations() == []


def test_a_blob_that_is_written_again_during_a_sweep_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderBlobs(tmp_path)
    digest = store.put(b"the same bytes")
    make_old(tmp_path / "objects")
    is_older = staged.is_older

    looks = iter(("in the list", "before it is renamed"))

    def written_meanwhile(path: Path, moment: int) -> bool:
        answer = is_older(path, moment)
        if next(looks, None) == "before it is renamed":
            store.put(b"the same bytes")
        return answer

    monkeypatch.setattr(staged, "is_older", written_meanwhile)
    assert store.sweep(lambda _: set(), NoClaims(), grace=seconds(HOUR_S)) == 0
    assert store.get(digest) == b"the same bytes"
    assert names(tmp_path / "staging") == set()


def test_a_model_that_was_swept_before_its_task_was_recorded_is_not_recorded(cases: UseCases) -> None:
    spec, now = task_spec("digits", {}), cases.clock.now()
    model = save_initial_model(cases.store.blobs, spec)
    assert sweep(cases.store, grace_s=0) == 1
    with pytest.raises(StoreBusy, match="swept"):
        cases.write(lambda tx: create_task(tx, name="late", preset_name=None, spec=spec, model=model, now=now))
    assert cases.read(lambda tx: tx.tasks.all()) == []
    cases.task()
    assert cases.violations() == []


def test_a_blob_that_two_tasks_share_stays_as_long_as_one_of_them_keeps_it(cases: UseCases) -> None:
    """All tasks of a convex workload start from the same zeros."""
    task, clients = retained(cases)
    other = cases.task().task_id
    shared = cases.read(lambda tx: tx.tasks.model(other, 0))
    assert shared is not None
    for number in range(1, KEPT + 2):
        task.play(clients, number)
    sweep(cases.store, grace_s=0)
    assert cases.store.blobs.has(shared.digest)
    assert cases.violations() == []


def test_old_orphans_are_swept_and_young_ones_stay(cases: UseCases, tmp_path: Path) -> None:
    folder = cases.store.blobs
    old = folder.put(b"no task refers to these bytes")
    with folder.stage() as forgotten, folder.stage() as arriving:
        forgotten.write(b"these bytes are never published")
        arriving.write(b"more of these bytes will come")
        make_old(tmp_path / "blobs" / "objects")
        os.utime(forgotten.path, (0, 0))
        young = folder.put(b"a task may soon refer to these bytes")
        assert sweep(cases.store) == 2
        assert not folder.has(old) and not forgotten.path.exists()
        assert names(tmp_path / "blobs" / "objects") == {young}
        assert names(tmp_path / "blobs" / "staging") == {arriving.path.name}
