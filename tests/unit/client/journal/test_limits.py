"""The lifetime limit of a journal: the first one holds, a run may stay below it, and raising it is recorded."""

from pathlib import Path

import pytest

from qidpfl_client.errors import JournalError, Misconfigured
from qidpfl_client.journal.journal import Journal, Membership
from qidpfl_client.owner import LIFETIME_RHO

MEMBERSHIP = Membership(task_id="t", server="http://x", enrolment_key="k", spec="{}", spec_digest="d")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def used(path: Path, wanted: float | None) -> float:
    """The limit of one run with this journal."""
    with Journal(path) as journal:
        limit = journal.limits.of_run(wanted)
        journal.limits.keep_first(wanted)
        journal.save_membership(MEMBERSHIP)
        return limit


def recorded(path: Path) -> list[float]:
    with Journal(path, read_only=True) as journal:
        return [limit.lifetime_rho for limit in journal.limits.history()]


@pytest.mark.parametrize(("wanted", "first"), [(None, LIFETIME_RHO), (3.0, 3.0), (0.01, 0.01)])
def test_the_first_limit_sticks(path: Path, wanted: float | None, first: float) -> None:
    assert used(path, wanted) == used(path, None) == used(path, first) == first
    assert recorded(path) == [first]


def test_a_lower_limit_holds_for_one_run(path: Path) -> None:
    used(path, 1.0)
    assert used(path, 0.5) == 0.5
    assert used(path, None) == 1.0 and recorded(path) == [1.0]


def test_a_higher_limit_is_an_error_that_names_the_way(path: Path) -> None:
    used(path, None)
    with pytest.raises(Misconfigured) as caught:
        used(path, 3.0)
    assert f"qidpfl-client ledger raise --journal {path} --lifetime-rho 3" in str(caught.value)
    assert "\n" not in str(caught.value) and recorded(path) == [LIFETIME_RHO]


def test_raising_is_recorded_and_holds_from_then_on(path: Path) -> None:
    used(path, None)
    with Journal(path) as journal:
        assert journal.limits.raise_to(1.0) == LIFETIME_RHO
    assert used(path, None) == 1.0 and recorded(path) == [LIFETIME_RHO, 1.0]


@pytest.mark.parametrize("lower", [0.1, LIFETIME_RHO])
def test_raising_never_lowers(path: Path, lower: float) -> None:
    used(path, None)
    with Journal(path) as journal, pytest.raises(Misconfigured, match="is already rho"):
        journal.limits.raise_to(lower)
    assert recorded(path) == [LIFETIME_RHO]


def test_a_journal_without_a_limit_cannot_be_raised_and_is_not_made(path: Path) -> None:
    with Journal(path) as journal, pytest.raises(Misconfigured, match="no limit yet"):
        journal.limits.raise_to(1.0)
    assert not path.exists()


def test_a_limit_is_not_changed_in_a_journal_that_is_only_read(path: Path) -> None:
    used(path, None)
    with Journal(path, read_only=True) as journal, pytest.raises(JournalError, match="readonly"):
        journal.limits.raise_to(1.0)
