"""The log of a fleet: commits of many journals share an fsync, and none is lost in a power cut."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qidpfl_client.errors import JournalError
from qidpfl_client.journal import group_log
from qidpfl_client.journal.entries import Entry, Membership
from qidpfl_client.journal.fleet_journals import open_journals
from qidpfl_client.journal.group_log import NAME, LoggedCommit, read_log
from qidpfl_client.journal.journal import Journal
from qidpfl_shared.protocol.ledger import SpendState

MEMBERSHIP = Membership(task_id="t", server="http://x", enrolment_key="k", spec="{}", spec_digest="d")
BYTES = bytes(range(256)) * 4


def paths(folder: Path, count: int = 3) -> list[Path]:
    return [folder / f"client-{ordinal:05d}.sqlite" for ordinal in range(count)]


def reserve(journal: Journal, round_number: int = 1) -> None:
    entry = Entry(
        task_id="t",
        release=f"round/{round_number}",
        mechanism="gradient_once",
        rho=0.1,
        proven_rho=0.1,
        state=SpendState.RESERVED,
    )
    journal.reserve(entry, account=journal.account())


def power_cut(folder: Path, copy: Path, *, keep: Callable[[str], bool]) -> Path:
    """A copy of the folder as a power cut may leave it: the log, and those other files that had reached the disk."""
    copy.mkdir()
    for path in folder.iterdir():
        if path.name == NAME or keep(path.name):
            shutil.copy(path, copy / path.name)
    return copy


def spent(journal: Journal) -> list[tuple[str, SpendState, bytes | None]]:
    return [(entry.release, entry.state, journal.payload("t", entry.release)) for entry in journal.entries()]


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(lambda name: False, id="no file"),
        pytest.param(lambda name: name.endswith(".sqlite"), id="files without their logs"),
        pytest.param(lambda name: True, id="all files, as after a kill"),
    ],
)
@pytest.mark.parametrize("alone", [False, True], ids=["fleet", "one client"])
def test_a_power_cut_loses_no_commit(tmp_path: Path, keep: Callable[[str], bool], alone: bool) -> None:
    with open_journals(paths(tmp_path / "fleet")) as journals:
        for journal in journals:
            journal.save_membership(MEMBERSHIP)
            reserve(journal)
        journals[1].spend("t", "round/1", digest="d", payload=BYTES, training_s=0.5)
        # Durable only with the next commit: this one may be lost.
        journals[1].acknowledge("t", "round/1")
        copy = power_cut(tmp_path / "fleet", tmp_path / "copy", keep=keep)
    if alone:
        with Journal(paths(copy)[1]) as journal:
            assert spent(journal) == [("round/1", SpendState.SPENT, BYTES)]
            reserve(journal, 2)
    with open_journals(paths(copy)) as journals:
        assert [len(journal.entries()) for journal in journals] == [1, 1 + alone, 1]
        assert spent(journals[1])[0] == ("round/1", SpendState.SPENT, BYTES)
        assert journals[1].entries()[0].training_s == 0.5
        assert journals[0].account().spent_rho == pytest.approx(0.1)


def test_a_commit_that_came_late_to_a_smaller_fleet_is_not_lost(tmp_path: Path) -> None:
    with open_journals(paths(tmp_path / "fleet")) as journals:
        for journal in journals:
            journal.save_membership(MEMBERSHIP)
            reserve(journal)
        copy = power_cut(tmp_path / "fleet", tmp_path / "copy", keep=lambda name: False)
    with open_journals(paths(copy)[:1]):
        pass
    assert not (copy / NAME).exists()
    with Journal(paths(copy)[2], read_only=True) as journal:
        assert len(journal.entries()) == 1


def test_the_log_is_removed_when_all_journals_are_closed(tmp_path: Path) -> None:
    with open_journals(paths(tmp_path)) as journals:
        journals[0].save_membership(MEMBERSHIP)
        assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(RuntimeError), open_journals(paths(tmp_path)) as journals:
        reserve(journals[0])
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["client-00000.sqlite"]
    with open_journals(paths(tmp_path)) as journals:
        assert len(journals[0].entries()) == 1


def test_the_log_stays_if_a_journal_cannot_be_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(journal: Path) -> None:
        raise OSError(5, "Input/output error")

    with open_journals(paths(tmp_path)) as journals:
        journals[0].save_membership(MEMBERSHIP)
        monkeypatch.setattr(group_log, "sync_journal", broken)
    assert read_log(tmp_path)
    with pytest.raises(JournalError, match="Input/output error"), open_journals(paths(tmp_path)):
        pass
    assert read_log(tmp_path)


def test_a_torn_record_ends_the_log(tmp_path: Path) -> None:
    commits = [
        LoggedCommit(journal="a", sequence=number, statements=[("INSERT", ("text", None, 0.1, BYTES, b"", 2**40))])
        for number in (1, 2, 3)
    ]
    records = [commit.encoded() for commit in commits]
    for cut in (0, 1, 20, len(records[2]) - 1):
        (tmp_path / NAME).write_bytes(b"".join(records[:2]) + records[2][:cut])
        assert [commit.sequence for commit in read_log(tmp_path)["a"]] == [1, 2]
    (tmp_path / NAME).write_bytes(b"".join(records))
    read = read_log(tmp_path)["a"]
    assert [tuple(read[0].statements[0][1])] == [("text", None, 0.1, BYTES, b"", 2**40)] and len(read) == 3
    damaged = bytearray(b"".join(records))
    damaged[len(records[0]) + 40] ^= 1
    (tmp_path / NAME).write_bytes(damaged)
    assert [commit.sequence for commit in read_log(tmp_path)["a"]] == [1]


def test_an_older_copy_of_a_journal_is_refused(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    with open_journals(paths(fleet)) as journals:
        journals[0].save_membership(MEMBERSHIP)
    shutil.copytree(fleet, tmp_path / "older")
    with open_journals(paths(fleet)) as journals:
        reserve(journals[0], 1)
    with open_journals(paths(fleet)) as journals:
        reserve(journals[0], 2)
        shutil.copy(fleet / NAME, tmp_path / "older" / NAME)
    with pytest.raises(JournalError, match="older copy"), open_journals(paths(tmp_path / "older")):
        pass


class SlowDisk:
    """An fsync that waits until it may go on."""

    def __init__(self) -> None:
        self.calls = 0
        self.go_on = threading.Event()
        self.began = threading.Event()

    def __call__(self, file: int) -> None:
        self.calls += 1
        self.began.set()
        assert self.go_on.wait(30)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr("qidpfl_client.journal.group_log.os.fdatasync", disk)
    yield disk
    disk.go_on.set()


def test_members_that_commit_at_the_same_time_share_an_fsync_and_wait_for_it(tmp_path: Path, disk: SlowDisk) -> None:
    count = 8
    disk.go_on.set()
    with open_journals(paths(tmp_path, count)) as journals:
        for journal in journals:
            journal.save_membership(MEMBERSHIP)
        disk.calls = 0
        disk.go_on.clear()
        disk.began.clear()
        threads = [threading.Thread(target=reserve, args=(journal,)) for journal in journals]
        threads[0].start()
        assert disk.began.wait(30)
        for thread in threads[1:]:
            thread.start()
        group = journals[0]._file._group
        assert group is not None
        while group._added < 2 * count:
            pass
        assert all(thread.is_alive() for thread in threads)
        disk.go_on.set()
        for thread in threads:
            thread.join(30)
        assert disk.calls == 2
        assert all(len(journal.entries()) == 1 for journal in journals)


def test_after_a_failed_write_no_commit_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    with open_journals(paths(tmp_path)) as journals:
        journals[0].save_membership(MEMBERSHIP)
        with monkeypatch.context() as patched:
            patched.setattr("qidpfl_client.journal.group_log.os.fdatasync", full)
            with pytest.raises(JournalError, match="No space left"):
                reserve(journals[0])
        with pytest.raises(JournalError, match="No space left"):
            reserve(journals[1])


def test_a_long_log_begins_anew_and_a_long_commit_stays_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "_LONGEST_LOG", 20_000)
    synced: list[Path] = []
    monkeypatch.setattr(group_log, "sync_journal", synced.append)
    with open_journals(paths(tmp_path / "fleet")) as journals:
        for journal in journals:
            journal.save_membership(MEMBERSHIP)
        for number in range(1, 30):
            reserve(journals[0], number)
            journals[0].spend("t", f"round/{number}", digest="d", payload=BYTES)
        assert synced and os.path.getsize(tmp_path / "fleet" / NAME) < 25_000
        reserve(journals[1])
        before = os.path.getsize(tmp_path / "fleet" / NAME)
        journals[1].spend("t", "round/1", digest="d", payload=bytes(group_log.LONGEST_RECORD))
        assert os.path.getsize(tmp_path / "fleet" / NAME) == before
        reserve(journals[1], 2)
        copy = power_cut(tmp_path / "fleet", tmp_path / "copy", keep=lambda name: not name.endswith("shm"))
    with open_journals(paths(copy)) as journals:
        assert [len(journal.entries()) for journal in journals] == [29, 2, 0]
        payload = journals[1].payload("t", "round/1")
        assert payload is not None and len(payload) == group_log.LONGEST_RECORD
