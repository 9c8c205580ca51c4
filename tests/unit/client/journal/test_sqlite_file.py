"""The file of a journal: its names, its lock, its creation, and files that are no journal."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qidpfl_client.errors import JournalError
from qidpfl_client.journal.journal import Entry, Journal, Membership
from qidpfl_client.journal.schema import VERSION
from qidpfl_shared.protocol.ledger import SpendState
from support.faults.kills import killed_at_stop

MEMBERSHIP = Membership(task_id="t", server="http://x", enrolment_key="k", spec="{}", spec_digest="d")


def entry(release: str = "round/1") -> Entry:
    state = SpendState.RESERVED
    return Entry(task_id="t", release=release, mechanism="gradient_once", rho=0.1, proven_rho=0.1, state=state)


def reserve(journal: Journal, item: Entry) -> None:
    journal.reserve(item, account=journal.account())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "journal.sqlite"


@pytest.mark.slow
def test_only_one_process_writes_and_others_may_read(path: Path) -> None:
    script = "import sys; from pathlib import Path; from qidpfl_client.journal.journal import *\n"
    write = "Journal(Path(sys.argv[1]))"
    read = "print(len(Journal(Path(sys.argv[1]), read_only=True).entries()))"
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        reserve(journal, entry())
        refused = subprocess.run([sys.executable, "-c", script + write, str(path)], capture_output=True, text=True)
        assert refused.returncode != 0 and f"{path} is in use by another process" in refused.stderr
        reader = subprocess.run([sys.executable, "-c", script + read, str(path)], capture_output=True, text=True)
        assert (reader.returncode, reader.stdout) == (0, "1\n"), reader.stderr
        with Journal(path, read_only=True) as beside:
            reserve(journal, entry("round/2"))
            assert len(beside.entries()) == 2
            with pytest.raises(JournalError, match="readonly"):
                beside.free("t", "round/1")
    with Journal(path) as journal:
        assert len(journal.entries()) == 2


def symlink(path: Path, beside: Path) -> Path:
    link = beside / "link.sqlite"
    link.symlink_to(path)
    return link


def symlink_to_a_symlink(path: Path, beside: Path) -> Path:
    (beside / "first").symlink_to(path)
    (beside / "second").symlink_to("first")
    return beside / "second"


def symlink_to_the_folder(path: Path, beside: Path) -> Path:
    (beside / "folder").symlink_to(path.parent, target_is_directory=True)
    return beside / "folder" / path.name


def detour(path: Path, beside: Path) -> Path:
    return path.parent / ".." / path.parent.name / path.name


@pytest.mark.slow
@pytest.mark.parametrize("other_name", [symlink, symlink_to_a_symlink, symlink_to_the_folder, detour])
def test_a_journal_is_locked_under_all_its_names(
    path: Path, tmp_path: Path, other_name: Callable[[Path, Path], Path]
) -> None:
    script = (
        "import sys; from pathlib import Path; from qidpfl_client.journal.journal import *; Journal(Path(sys.argv[1]))"
    )
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        other = other_name(path, tmp_path)
        refused = subprocess.run([sys.executable, "-c", script, str(other)], capture_output=True, text=True)
        assert refused.returncode != 0 and f"{other} is in use by another process" in refused.stderr
    with Journal(other) as journal, pytest.raises(JournalError, match="in use by another process"):
        assert journal.memberships() == [MEMBERSHIP]
        Journal(path)


def test_a_new_journal_behind_a_symlink_is_made_at_its_target(path: Path, tmp_path: Path) -> None:
    link = symlink(path, tmp_path)
    with Journal(link):
        pass
    assert list(path.parent.iterdir()) == [] and link.is_symlink()
    with Journal(link) as journal:
        journal.save_membership(MEMBERSHIP)
    with Journal(path) as journal:
        assert journal.memberships() == [MEMBERSHIP]


def test_a_journal_with_a_hard_link_is_refused_and_stays_as_it_is(path: Path, tmp_path: Path) -> None:
    """SQLite would not find the releases that a killed process left beside the other name."""
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
    os.link(path, tmp_path / "hard")
    for name in (path, tmp_path / "hard"):
        with pytest.raises(JournalError, match="has a second name"):
            Journal(name)
    (tmp_path / "hard").unlink()
    with Journal(path) as journal:
        assert journal.memberships() == [MEMBERSHIP]


def test_a_journal_is_readable_by_its_owner_only(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        for file in (path, path.with_name(f"{path.name}-wal")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_new_journal_without_memberships_is_removed(path: Path) -> None:
    with Journal(path):
        pass
    assert list(path.parent.iterdir()) == []
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
    with Journal(path) as journal:
        journal.forget_membership("t")
    assert path.exists()


@pytest.mark.slow
def test_a_journal_whose_creation_was_killed_at_any_system_call_is_a_new_one(tmp_path: Path) -> None:
    def create(path: Path) -> None:
        Journal(path)

    stop = 0
    while killed_at_stop(stop, create, path := tmp_path / f"{stop}" / "journal.sqlite"):
        with Journal(path) as journal:
            assert journal.memberships() == [], f"stop {stop}"
            journal.save_membership(MEMBERSHIP)
            reserve(journal, entry())
        with Journal(path) as journal:
            assert journal.memberships() == [MEMBERSHIP] and journal.entries() == [entry()]
        stop += 1
    assert stop > 50


def test_a_file_with_a_header_and_no_schema_is_a_new_journal(path: Path) -> None:
    """What a kill leaves between the first page and the first commit."""
    path.parent.mkdir()
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.close()
    assert path.stat().st_size > 0
    with Journal(path):
        pass
    assert not path.exists()


def test_a_file_that_is_not_a_journal_is_refused_and_not_changed(tmp_path: Path) -> None:
    damaged, foreign, future = tmp_path / "damaged", tmp_path / "foreign", tmp_path / "future"
    damaged.write_bytes(b"no database at all, but long enough to be looked at " * 100)
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE cats (name TEXT)")
    with Journal(future) as journal:
        journal.save_membership(MEMBERSHIP)
    with sqlite3.connect(future) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = [path.read_bytes() for path in (damaged, foreign, future)]
    for path in (damaged, foreign, future):
        for read_only in (False, True):
            with pytest.raises(JournalError) as caught:
                Journal(path, read_only=read_only)
            assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert [path.read_bytes() for path in (damaged, foreign, future)] == before
