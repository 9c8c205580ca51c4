"""What a journal remembers is what its file has: after each change, and after a rollback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qidpfl_client.errors import JournalError
from qidpfl_client.journal.journal import Entry, Journal, Membership, SeenOffer
from qidpfl_shared.protocol.ledger import SpendState

TASK = "t"


def entry(release: str = "round/1") -> Entry:
    state = SpendState.RESERVED
    return Entry(task_id=TASK, release=release, mechanism="gradient_once", rho=0.1, proven_rho=0.1, state=state)


def offer(round_number: int, *, reward_micro: int = 5) -> SeenOffer:
    return SeenOffer(round_number=round_number, model_version=0, model_digest="d", reward_micro=reward_micro, total=0.5)


def reserve(journal: Journal, release: str = "round/1") -> None:
    journal.reserve(entry(release), account=journal.account())


CHANGES: list[Callable[[Journal], None]] = [
    lambda journal: journal.spend(TASK, "round/1", digest="x", payload=b"abc"),
    lambda journal: journal.acknowledge(TASK, "round/1"),
    lambda journal: journal.pay(TASK, "round/1", 7, accepted=True),
    lambda journal: journal.mark_unpaid(TASK, "round/1"),
    lambda journal: journal.expect_payment(TASK, "round/1"),
]


def test_a_read_after_each_change_is_that_of_the_file(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.sqlite") as journal, Journal(tmp_path / "j.sqlite", read_only=True) as beside:
        assert journal.entry(TASK, "round/1") is None
        reserve(journal)
        for change in CHANGES:
            change(journal)
            # The reader sees what is committed.
            journal.flush()
            found = journal.entry(TASK, "round/1")
            assert found is not None and found == beside.entry(TASK, "round/1")
            assert journal.account().spent_rho == beside.account().spent_rho
        reserve(journal, "round/2")
        journal.free(TASK, "round/2")
        freed = journal.entry(TASK, "round/2")
        assert freed is not None and freed.state is SpendState.FREED
        reserve(journal, "round/2")
        assert journal.entry(TASK, "round/2") == beside.entry(TASK, "round/2") == entry("round/2")


def test_the_first_terms_of_a_round_stay_and_the_latest_round_is_known(tmp_path: Path) -> None:
    membership = Membership(task_id=TASK, server="http://x", enrolment_key="k", spec="{}", spec_digest="d")
    with Journal(tmp_path / "j.sqlite") as journal:
        journal.save_membership(membership)
        for number in (1, 2, 3):
            journal.remember_offer(TASK, offer(number))
            assert journal.latest_offer(TASK) == offer(number)
        journal.remember_offer(TASK, offer(2, reward_micro=9))
        assert journal.offer(TASK, 2) == offer(2) and journal.latest_offer(TASK) == offer(3)
        journal.flush()
    with Journal(tmp_path / "j.sqlite") as journal:
        journal.remember_offer(TASK, offer(1, reward_micro=9))
        assert journal.offer(TASK, 1) == offer(1) and journal.latest_offer(TASK) == offer(3)


def test_nothing_is_remembered_of_changes_that_were_taken_back(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.sqlite") as journal:
        reserve(journal)
        # As SQLite does when the disk is full: the whole transaction is gone, not only the statement.
        journal._file._opened.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON entries BEGIN SELECT RAISE(ROLLBACK, 'disk full'); END"
        )
        journal.remember_offer(TASK, offer(1))
        assert journal.latest_offer(TASK) == offer(1)
        with pytest.raises(JournalError, match="disk full"):
            journal.spend(TASK, "round/1", digest="x", payload=b"abc")
        assert journal.latest_offer(TASK) is None and journal.offer(TASK, 1) is None
        assert journal.entry(TASK, "round/1") == entry()
        with pytest.raises(JournalError, match="disk full"):
            journal.free(TASK, "round/1")
        assert journal.account().spent_rho == 0.1
        journal.remember_offer(TASK, offer(1))
        assert journal.offer(TASK, 1) == offer(1)


def test_a_change_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.sqlite") as journal:
        reserve(journal)
        journal.spend(TASK, "round/1", digest="x", payload=b"abc")
        spent = journal.entry(TASK, "round/1")
        with pytest.raises(JournalError, match="not reserved"):
            journal.spend(TASK, "round/1", digest="y", payload=b"other")
        with pytest.raises(JournalError, match="no entry"):
            journal.pay(TASK, "round/9", 1, accepted=True)
        assert journal.entry(TASK, "round/1") == spent and journal.payload(TASK, "round/1") == b"abc"
