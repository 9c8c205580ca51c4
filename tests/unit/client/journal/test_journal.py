"""The journal: what it stores, which processes may open it, and how it reports errors."""

import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qidpfl_client.errors import JournalError
from qidpfl_client.journal.journal import Entry, Journal, Membership, RecordsVersion, SeenOffer
from qidpfl_client.journal.ledger import read_ledger
from qidpfl_client.journal.schema import VERSION
from qidpfl_client.owner import LIFETIME_RHO
from qidpfl_shared.core.privacy.account import (
    DuplicateRelease,
    LifetimeExceeded,
    PrivacyAccount,
    Release,
    UnprovenRelease,
)
from qidpfl_shared.core.privacy.running_account import RunningAccount
from qidpfl_shared.protocol.ledger import SpendState

MEMBERSHIP = Membership(task_id="t", server="http://x", enrolment_key="k", spec="{}", spec_digest="d")


def entry(release: str = "round/1", *, task_id: str = "t", rho: float = 0.1, **fields: object) -> Entry:
    values = {"mechanism": "gradient_once", "proven_rho": rho, "state": SpendState.RESERVED} | fields
    return Entry(task_id=task_id, release=release, rho=rho, **values)  # type: ignore[arg-type]


def reserve(journal: Journal, *entries: Entry) -> None:
    for item in entries:
        journal.reserve(item, account=journal.account())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "journal.sqlite"


def test_all_data_are_there_after_closing(path: Path) -> None:
    with Journal(path) as journal:
        journal.bind("some records", 110)
        journal.save_membership(MEMBERSHIP)
        seen = SeenOffer(round_number=1, model_version=0, model_digest="m", reward_micro=7, total=0.3)
        journal.remember_offer("t", seen)
        reserve(journal, entry("round/1"), entry("round/2", proven_rho=0.05))
        journal.spend("t", "round/1", digest="abc", payload=b"bytes", training_s=2.5)
    with Journal(path) as journal:
        assert journal.bind("some records", 110) is None
        assert [item.training_s for item in journal.entries()] == [2.5, None]
        assert journal.memberships() == [MEMBERSHIP]
        assert journal.latest_offer("t") == seen and journal.latest_offer("u") is None
        assert journal.offer("t", 1) == seen and journal.offer("t", 2) is None and journal.offer("u", 1) is None
        assert [(item.release, item.state, item.digest) for item in journal.entries()] == [
            ("round/1", SpendState.SPENT, "abc"),
            ("round/2", SpendState.RESERVED, None),
        ]
        assert journal.payload("t", "round/1") == b"bytes"


@pytest.mark.slow
def test_a_change_is_fsynced_before_the_call_returns(path: Path) -> None:
    """Another process is killed right after the call, without cleaning up; the file uses full synchronous mode."""
    script = (
        "import os, signal, sys; from pathlib import Path; from qidpfl_client.journal.journal import *\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        f"journal.save_membership({_source(MEMBERSHIP)})\n"
        "assert journal._file.one('PRAGMA synchronous')[0] == 2\n"
        "assert journal._file.one('PRAGMA journal_mode')[0] == 'wal'\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with Journal(path) as journal:
        assert journal.memberships() == [MEMBERSHIP]


def test_releases_are_committed_at_once_and_receipts_with_the_next_release(path: Path) -> None:
    commits: list[str] = []
    offer = SeenOffer(round_number=1, model_version=0, model_digest="m", reward_micro=7, total=0.3)
    with Journal(path) as journal:
        journal._file._opened.set_trace_callback(lambda said: commits.append(said) if said == "COMMIT" else None)
        journal.save_membership(MEMBERSHIP)
        journal.bind("some records", 110)
        journal.save_profile(MEMBERSHIP, entry("histogram"), account=journal.account())
        reserve(journal, entry("round/1"))
        journal.free("t", "round/1")
        reserve(journal, entry("round/1"))
        journal.spend("t", "round/1", digest="abc", payload=b"bytes")
        journal.mark_unpaid("t", "round/1")
        assert len(commits) == 8
        assert journal._file.one("PRAGMA synchronous")[0] == 2  # type: ignore[index]
        journal.remember_offer("t", offer)
        journal.acknowledge("t", "round/1")
        journal.pay("t", "round/1", 7, accepted=True)
        assert len(commits) == 8
        assert journal.offer("t", 1) == offer
        with Journal(path, read_only=True) as beside:
            assert beside.offer("t", 1) is None
            reserve(journal, entry("round/2"))
            assert len(commits) == 9 and beside.offer("t", 1) == offer


def test_receipts_without_a_further_release_are_written_at_the_end(path: Path) -> None:
    offer = SeenOffer(round_number=1, model_version=0, model_digest="m", reward_micro=7, total=0.3)
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        journal.remember_offer("t", offer)
    with Journal(path) as journal:
        assert journal.offer("t", 1) == offer
        journal.remember_offer("t", SeenOffer(**vars(offer) | {"round_number": 2}))
        journal.flush()
        with Journal(path, read_only=True) as beside:
            assert beside.offer("t", 2) is not None


def test_a_refused_change_leaves_the_changes_before_it(path: Path) -> None:
    offer = SeenOffer(round_number=1, model_version=0, model_digest="m", reward_micro=7, total=0.3)
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        journal.remember_offer("t", offer)
        with pytest.raises(JournalError):
            journal.spend("t", "round/9", digest="abc", payload=b"bytes")
        reserve(journal, entry())
    with Journal(path) as journal:
        assert journal.offer("t", 1) == offer and journal.entries() == [entry()]


@given(st.lists(st.tuples(st.floats(0.0, 1e9), st.booleans(), st.booleans()), max_size=30), st.floats(1e-3, 1e10))
def test_the_running_account_is_the_account_of_all_releases_bit_for_bit(
    drawn: list[tuple[float, bool, bool]], lifetime_rho: float
) -> None:
    running, kept = RunningAccount(), []
    for number, (rho, stays, proven) in enumerate(drawn):
        # A tenth in binary has many digits: sums of such numbers are rounded.
        release = Release(name=f"t/{number}", mechanism="m", rho=rho / 10 if proven else 0.0, proven_rho=rho / 10)
        running.add(release)
        if stays:
            kept.append(release)
        else:
            running.remove(release)
    whole, sums = (
        PrivacyAccount(lifetime_rho=lifetime_rho, releases=tuple(kept)),
        running.account(lifetime_rho=lifetime_rho),
    )
    assert (sums.spent_rho, sums.limited, sums.remaining_rho) == (whole.spent_rho, whole.limited, whole.remaining_rho)
    extra = Release(name="extra", mechanism="m", rho=0.1, proven_rho=0.1)
    assert _charged(sums, extra) == _charged(whole, extra)


def _charged(account: PrivacyAccount, release: Release) -> float | str:
    try:
        return account.charge(release).spent_rho
    except LifetimeExceeded as error:
        return str(error)


@pytest.mark.slow
def test_a_round_reads_no_more_of_a_long_journal_than_of_a_short_one(path: Path) -> None:
    """SQLite's own steps are counted: they grow with every row that it reads, found or not."""
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        steps = [_steps_of_round(journal, number) for number in range(1, 401)]
    # A deeper tree costs a few steps more.
    assert max(steps[-20:]) <= 1.2 * max(steps[10:30])


def _steps_of_round(journal: Journal, number: int) -> int:
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    journal._file._opened.set_progress_handler(step, 1)
    name = f"round/{number}"
    journal.latest_offer("t")
    journal.remember_offer(
        "t", SeenOffer(round_number=number, model_version=0, model_digest="m", reward_micro=7, total=0.3)
    )
    for unpaid in journal.unfinished("t"):
        journal.pay("t", unpaid.release, 5, accepted=True)
    reserve(journal, entry(name))
    journal.spend("t", name, digest=name, payload=b"bytes")
    journal.acknowledge("t", name)
    journal._file._opened.set_progress_handler(None, 0)
    assert [one.release for one in journal.unfinished("t")] == [name]
    return steps


def _source(membership: Membership) -> str:
    return f"Membership(**{vars(membership)!r})"


def test_a_release_goes_from_reserved_to_spent_to_acknowledged_to_paid(path: Path) -> None:
    with Journal(path) as journal:
        reserve(journal, entry())
        assert journal.account().spent_rho == 0.1
        journal.spend("t", "round/1", digest="abc", payload=b"bytes")
        journal.acknowledge("t", "round/1")
        assert journal.payload("t", "round/1") is None
        journal.pay("t", "round/1", 5, accepted=True)
        kept = journal.entry("t", "round/1")
        assert kept == entry(state=SpendState.SPENT, digest="abc", acknowledged=True, payment_micro=5)


def test_a_freed_release_does_not_count_and_may_be_reserved_again(path: Path) -> None:
    with Journal(path) as journal:
        reserve(journal, entry())
        journal.free("t", "round/1")
        assert journal.account().spent_rho == 0
        reserve(journal, entry(rho=0.2))
        assert journal.account().spent_rho == 0.2 and len(journal.entries()) == 1


def test_a_refused_or_rejected_update_stays_spent(path: Path) -> None:
    with Journal(path) as journal:
        reserve(journal, entry("round/1"), entry("round/2"))
        for release in ("round/1", "round/2"):
            journal.spend("t", release, digest=release, payload=b"bytes")
        journal.mark_unpaid("t", "round/1")
        journal.pay("t", "round/2", 0, accepted=False)
        assert {item.state for item in journal.entries()} == {SpendState.SPENT_UNPAID}
        assert journal.account().spent_rho == 0.2
        assert journal.payload("t", "round/1") is None


def test_a_second_reservation_of_a_release_is_refused_and_changes_nothing(path: Path) -> None:
    with Journal(path) as journal:
        stale = journal.account()
        reserve(journal, entry())
        with pytest.raises(DuplicateRelease):
            reserve(journal, entry(rho=0.01))
        with pytest.raises(DuplicateRelease):
            journal.reserve(entry(rho=0.01), account=stale)
        assert journal.entries() == [entry()]


def test_the_account_adds_up_all_tasks_under_one_limit(path: Path) -> None:
    with Journal(path) as journal:
        reserve(journal, entry(task_id="t", rho=0.1), entry(task_id="u", rho=0.2))
        account = journal.account(lifetime_rho=0.35)
        assert account.remaining_rho == pytest.approx(0.05)
        with pytest.raises(LifetimeExceeded):
            journal.reserve(entry("round/2", rho=0.1), account=account)
        assert [item.task_id for item in journal.entries()] == ["t", "u"]
        assert journal.entries("u") == [entry(task_id="u", rho=0.2)]


def test_an_unprotected_release_is_infinite_and_needs_consent(path: Path) -> None:
    with Journal(path) as journal:
        with pytest.raises(UnprovenRelease):
            journal.reserve(entry(proven_rho=math.inf), account=journal.account())
        journal.reserve(entry(proven_rho=math.inf), account=journal.account(accept_unproven=True))
        assert journal.entries()[0].proven_rho == math.inf == journal.account().spent_rho


def test_a_profile_and_its_charge_are_written_together_or_not_at_all(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        profiled = Membership(**vars(MEMBERSHIP) | {"profile": "{}"})
        with pytest.raises(LifetimeExceeded):
            journal.save_profile(profiled, entry("histogram"), account=journal.account(lifetime_rho=0.05))
        assert journal.memberships() == [MEMBERSHIP] and journal.entries() == []
        stale = journal.account()
        journal.save_profile(profiled, entry("histogram"), account=stale)
        with pytest.raises(DuplicateRelease):
            journal.save_profile(MEMBERSHIP, entry("histogram"), account=stale)
        assert journal.memberships() == [profiled] and len(journal.entries()) == 1


def test_a_reserved_release_that_the_coordinator_has_is_spent_at_its_reserved_budget(path: Path) -> None:
    with Journal(path) as journal:
        reserve(journal, entry(rho=0.1))
        journal.mark_sent("t", "round/1", digest="theirs")
        assert journal.entries() == [entry(rho=0.1, state=SpendState.SPENT, digest="theirs", acknowledged=True)]
        assert journal.account().spent_rho == 0.1


def test_a_profile_without_a_histogram_charges_nothing(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_profile(MEMBERSHIP, None, account=journal.account(lifetime_rho=0.05))
        assert journal.memberships() == [MEMBERSHIP] and journal.entries() == []


def test_an_unknown_release_cannot_change(path: Path) -> None:
    with Journal(path) as journal, pytest.raises(JournalError, match="no entry round/9 of task t"):
        journal.spend("t", "round/9", digest="", payload=b"")


def test_only_a_reserved_release_is_spent_and_its_first_bytes_stay(path: Path) -> None:
    with Journal(path) as journal:
        reserve(journal, entry())
        journal.spend("t", "round/1", digest="abc", payload=b"bytes")
        journal.spend("t", "round/1", digest="abc", payload=b"bytes")
        with pytest.raises(JournalError, match=r"round/1 of task t is not reserved in .*, but spent"):
            journal.spend("t", "round/1", digest="def", payload=b"other")
        with pytest.raises(JournalError, match="but spent"):
            journal.free("t", "round/1")
        assert journal.payload("t", "round/1") == b"bytes"
        assert journal.entries() == [entry(state=SpendState.SPENT, digest="abc")]
        reserve(journal, entry("round/2"))
        journal.free("t", "round/2")
        with pytest.raises(JournalError, match="but freed"):
            journal.spend("t", "round/2", digest="abc", payload=b"bytes")
        with pytest.raises(JournalError, match="but freed"):
            journal.mark_sent("t", "round/2", digest="abc")
        assert journal.entries()[1] == entry("round/2", state=SpendState.FREED)


def test_records_that_change_continue_the_same_account(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        assert journal.bind("some records", 110) is None
        reserve(journal, entry(rho=0.1))
        assert journal.bind("some records", 110) is None
        earlier = journal.bind("more records", 120)
        assert earlier is not None and (earlier.fingerprint, earlier.size) == ("some records", 110)
    with Journal(path) as journal:
        assert journal.bind("more records", 120) is None
        assert journal.account().spent_rho == 0.1
        assert journal.bind("some records", 110) is not None
        history = journal.records()
    assert [(version.fingerprint, version.size) for version in history] == [
        ("some records", 110),
        ("more records", 120),
        ("some records", 110),
    ]
    assert all(version.recorded_at is not None and version.recorded_at.endswith("Z") for version in history)


def test_a_token_is_not_shown() -> None:
    secret = {"token": "secret-token", "next_token": "another-secret-token"}
    assert "secret-token" not in repr(Membership(**vars(MEMBERSHIP) | secret))


def test_a_journal_from_before_tokens_were_rotated_goes_on(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(replace(MEMBERSHIP, token="old"))
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE memberships DROP COLUMN next_token")
        database.execute("ALTER TABLE offers DROP COLUMN base_rho")
        for table in ("receipts", "pinned_keys"):
            database.execute(f"DROP TABLE {table}")
        database.execute("PRAGMA user_version = 3")
    database.close()
    with Journal(path, read_only=True) as journal:
        assert journal.memberships() == [replace(MEMBERSHIP, token="old")]
    assert version_of(path) == 3
    with Journal(path) as journal:
        journal.save_membership(replace(MEMBERSHIP, token="old", next_token="new"))
        assert journal.memberships() == [replace(MEMBERSHIP, token="old", next_token="new")]
    assert version_of(path) == VERSION


def downgrade(path: Path, version: int) -> None:
    """Make a journal of an earlier version of this file."""
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE memberships DROP COLUMN next_token")
        database.execute("ALTER TABLE offers DROP COLUMN base_rho")
        for table in ("limits", "receipts", "pinned_keys"):
            database.execute(f"DROP TABLE {table}")
        database.execute("ALTER TABLE memberships DROP COLUMN fingerprint")
        database.execute("ALTER TABLE data_set DROP COLUMN size")
        database.execute("ALTER TABLE data_set DROP COLUMN recorded_at")
        if version == 1:
            database.execute("ALTER TABLE entries DROP COLUMN training_s")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    return int(version)


@pytest.mark.parametrize("version", [1, 2])
def test_a_journal_of_an_earlier_version_is_read_unchanged_and_migrated_on_write(path: Path, version: int) -> None:
    joined = replace(MEMBERSHIP, task_id="u", profile="{}", lifetime_rho=3.0)
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        journal.save_membership(joined)
        journal.bind("some records", 110)
        reserve(journal, entry("round/1"), entry("round/2"))
        journal.spend("t", "round/1", digest="abc", payload=b"bytes")
        before = journal.entries()
    downgrade(path, version)
    with Journal(path, read_only=True) as journal:
        assert journal.entries() == before and journal.limits.history() == []
        assert journal.memberships() == [MEMBERSHIP, joined]
        assert journal.records() == [RecordsVersion(fingerprint="some records")]
        assert read_ledger(journal, delta=1e-5).lifetime_rho == 3.0
    assert version_of(path) == version
    for _ in range(2):
        with Journal(path) as journal:
            assert journal.entries() == before and journal.payload("t", "round/1") == b"bytes"
            assert [limit.lifetime_rho for limit in journal.limits.history()] == [3.0]
            assert journal.memberships() == [MEMBERSHIP, replace(joined, fingerprint="some records")]
    with Journal(path) as journal:
        earlier = journal.bind("more records", 120)
        assert earlier == RecordsVersion(fingerprint="some records")
        journal.spend("t", "round/2", digest="def", payload=b"more", training_s=1.5)
        assert [item.training_s for item in journal.entries("t")] == [None, 1.5]


def test_an_earlier_version_without_a_limit_gets_one_from_the_next_run(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(replace(MEMBERSHIP, lifetime_rho=None))
    downgrade(path, 2)
    with Journal(path) as journal:
        assert journal.limits.history() == []
        assert journal.limits.of_run(None) == LIFETIME_RHO and journal.limits.of_run(0.3) == 0.3


def test_an_earlier_version_without_a_task_takes_the_default(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
    with Journal(path) as journal:
        journal.forget_membership("t")
    downgrade(path, 2)
    with Journal(path) as journal:
        assert journal.limits.history() == [] and journal.limits.of_run(None) == LIFETIME_RHO


def test_an_impossible_path_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "journal", tmp_path):
        with pytest.raises(JournalError) as caught:
            Journal(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(JournalError):
        Journal(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_full_disk_is_a_one_line_error_and_earlier_data_stay(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        reserve(journal, entry())
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(f"{path}-wal"), limits[1]))
        try:
            with pytest.raises(JournalError, match="cannot be used"):
                journal.spend("t", "round/1", digest="abc", payload=bytes(1 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert journal.entries() == [entry()]
    with Journal(path) as journal:
        assert journal.entries() == [entry()]


@pytest.mark.parametrize(("column", "value"), [("state", "lost"), ("rho", "much"), ("proven_rho", "much")])
def test_a_damaged_entry_is_a_one_line_error(path: Path, column: str, value: str) -> None:
    with Journal(path) as journal:
        journal.save_membership(MEMBERSHIP)
        reserve(journal, entry())
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE entries SET {column} = ?", [value])
    database.close()
    for read_only in (False, True):
        with Journal(path, read_only=read_only) as journal, pytest.raises(JournalError) as caught:
            journal.entries()
        assert str(caught.value).startswith(f"{path} is damaged: entry 1: ") and "\n" not in str(caught.value)


def test_a_damaged_spec_is_a_one_line_error_of_the_ledger(path: Path) -> None:
    with Journal(path) as journal:
        journal.save_membership(replace(MEMBERSHIP, spec="{"))
        with pytest.raises(JournalError, match=r"^the journal is damaged: the spec of task t is invalid$"):
            read_ledger(journal)
