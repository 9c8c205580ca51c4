"""Joining and taking part, step by step: what is charged, what is freed, and what is sent again."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from qidpfl_client.api import connect
from qidpfl_client.errors import ClientError, JournalError, Misconfigured, OwnerLimit
from qidpfl_client.journal.journal import Entry, Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from qidpfl_client.owner import Prices
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.presets import preset
from support.peers.hostile_coordinator import CODE, TASK, HostileCoordinator, serving
from support.synthetic_clients import TESTBED_OWNER, SyntheticData, SyntheticLearner, enrolment

pytestmark = pytest.mark.live

MORE_RECORDS = SyntheticData(SyntheticLearner(labels=(12,) * 10, fingerprint="more records"))
WITHOUT_PARTITION = preset("digits", {"game": {"horizon": 3}, "workload": {"partition": None}})


@dataclass(frozen=True)
class Interrupted(SyntheticLearner):
    """Records whose training runs a callback, as if something happened meanwhile."""

    meanwhile: Callable[[], None] = field(default=lambda: None)

    def release(self, **options: Any) -> npt.NDArray[np.float64]:
        self.meanwhile()
        return super().release(**options)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def play(coordinator: HostileCoordinator, path: Path, *, first_contact_s: float = 1.0, **options: Any) -> JournalLedger:
    with connect(coordinator.url) as http, Journal(path) as journal:
        run_until_finished(enrolment(http, CODE, journal, **options), patience_s=30, first_contact_s=first_contact_s)
        return read_ledger(journal)


def states(ledger: JournalLedger) -> list[tuple[str, SpendState]]:
    return [(entry.release, entry.state) for entry in ledger.entries if entry.release != "histogram"]


def other_task(path: Path, *, spent: float) -> None:
    """A journal that has spent something in another task."""
    entry = Entry(
        task_id="other", release="round/1", mechanism="m", rho=spent, proven_rho=spent, state=SpendState.SPENT
    )
    with Journal(path) as journal:
        with serving(HostileCoordinator(ended=True)) as coordinator, connect(coordinator.url) as http:
            known = enrolment(http, CODE, journal)._read_task()
        journal.limits.keep_first(TESTBED_OWNER.lifetime_rho)
        journal.save_membership(replace(known, task_id="other"))
        journal.bind(SyntheticLearner().fingerprint, SyntheticLearner().size)
        journal.reserve(entry, account=journal.account())


def test_a_profile_is_made_and_charged_once_and_sent_again_unchanged(journal: Path) -> None:
    with serving(HostileCoordinator(lies={2: {"noise": False}})) as coordinator:
        for _ in range(3):
            with pytest.raises(ClientError):
                play(coordinator, journal)
    assert len(coordinator.profiles) == 3 and len(set(coordinator.profiles)) == 1
    assert coordinator.enrolled == 1
    with Journal(journal, read_only=True) as opened:
        assert [entry.release for entry in opened.entries()] == ["histogram", "round/1"]


def test_options_of_a_later_start_do_not_change_the_profile(journal: Path) -> None:
    with serving(HostileCoordinator(lies={1: {"noise": False}})) as coordinator:
        with pytest.raises(ClientError):
            play(coordinator, journal, owner=replace(TESTBED_OWNER, privacy_value=1.0))
        coordinator.lies = {}
        play(coordinator, journal, owner=replace(TESTBED_OWNER, privacy_value=2.0, no_histogram=True))
    assert len(set(coordinator.profiles)) == 1
    # At a reward of 30, a total of 0.5 and a weight of 30: (1 - 0.5) * 0.5 for a value of 1, nothing for 2.
    assert [request.get("rho") for request in coordinator.declared] == pytest.approx([0.25] * 3)


def test_within_a_task_the_records_are_those_of_the_profile(journal: Path) -> None:
    with serving(HostileCoordinator(lies={2: {"noise": False}})) as coordinator:
        with pytest.raises(ClientError):
            play(coordinator, journal)
        with pytest.raises(
            JournalError, match=r"the profile of this task was made: it has 110 records, and there are 120"
        ):
            play(coordinator, journal, open_data=MORE_RECORDS)
        coordinator.lies = {}
        ledger = play(coordinator, journal)
    assert coordinator.left == 0 and coordinator.enrolled == 1
    assert [entry.state for entry in ledger.entries] == [SpendState.SPENT] * 4


@pytest.mark.parametrize("spec", [None, WITHOUT_PARTITION], ids=["testbed", "own records"])
def test_records_that_have_changed_since_the_last_task_continue_its_account(journal: Path, spec: Any) -> None:
    other_task(journal, spent=2.85)
    said: list[str] = []
    with serving(HostileCoordinator() if spec is None else HostileCoordinator(spec=spec)) as coordinator:
        ledger = play(coordinator, journal, open_data=MORE_RECORDS, report=said.append)
    (line,) = [line for line in said if "have changed" in line]
    assert "(110 then, 120 now): all of them count as having spent what the journal has spent, rho 2.85" in line
    # 0.1 for the histogram leaves 0.05 of 3: added records have no budget of their own.
    assert [request.get("rho") for request in coordinator.declared] == pytest.approx([0.05, None, None])
    assert ledger.spent_rho == pytest.approx(3.0)
    with Journal(journal, read_only=True) as opened:
        assert [version.size for version in opened.records()] == [110, 120]
        assert [membership.fingerprint for membership in opened.memberships()] == [None, "more records"]


def test_unchanged_records_are_not_reported(journal: Path) -> None:
    other_task(journal, spent=0.1)
    said: list[str] = []
    with serving(HostileCoordinator()) as coordinator:
        play(coordinator, journal, report=said.append)
    assert not [line for line in said if "have changed" in line]


@pytest.mark.parametrize(
    ("labels", "said"), [((50, 50), "2 labels, the task 10"), ((2_000_000,) * 10, "20000000 records")]
)
def test_records_that_do_not_fit_are_found_before_enrolling(journal: Path, labels: tuple[int, ...], said: str) -> None:
    data = SyntheticData(SyntheticLearner(labels=labels))
    with serving(HostileCoordinator(spec=WITHOUT_PARTITION)) as own, pytest.raises(OwnerLimit, match=said):
        play(own, journal, open_data=data)
    with serving(HostileCoordinator()) as testbed, pytest.raises(OwnerLimit, match=said):
        play(testbed, journal, open_data=data, ordinal=0)
    assert own.enrolled == testbed.enrolled == 0 and not journal.exists()


@pytest.mark.parametrize(("cap", "lifetime"), [(0.2, 3.0), (0.5, 0.3)])
def test_a_reservation_above_the_limits_of_a_later_run_is_not_released(
    journal: Path, cap: float, lifetime: float
) -> None:
    with serving(HostileCoordinator(budget_lie={"state": "joined"})) as coordinator:
        with pytest.raises(ClientError):
            play(coordinator, journal)
        with Journal(journal, read_only=True) as opened:
            assert opened.entries()[1].state is SpendState.RESERVED and opened.entries()[1].rho == pytest.approx(0.25)
        coordinator.budget_lie = {}
        ledger = play(coordinator, journal, owner=replace(TESTBED_OWNER, rho_cap=cap, lifetime_rho=lifetime))
    assert max(entry.rho for entry in ledger.entries) <= cap and ledger.spent_rho <= lifetime
    assert coordinator.declared[1]["rho"] == pytest.approx(min(cap, lifetime - 0.1))


def test_a_profile_without_a_histogram_is_sent_and_charged_as_none(journal: Path) -> None:
    spec = preset("digits", {"game": {"horizon": 3}, "selection": {"rule": "all"}})
    with serving(HostileCoordinator(spec=spec)) as coordinator:
        ledger = play(coordinator, journal, owner=replace(TESTBED_OWNER, no_histogram=True))
    profile = json.loads(coordinator.profiles[0])
    assert profile["label_counts"] is profile["histogram_rho"] is None
    assert [entry.release for entry in ledger.entries] == ["round/1", "round/2", "round/3"]


def test_a_task_that_needs_a_histogram_is_refused_before_enrolling(journal: Path) -> None:
    with serving(HostileCoordinator()) as coordinator, pytest.raises(OwnerLimit, match="by their label histograms"):
        play(coordinator, journal, owner=replace(TESTBED_OWNER, no_histogram=True))
    assert coordinator.enrolled == 0 and not journal.exists()


def test_a_client_whose_records_do_not_fit_leaves_and_keeps_no_membership(journal: Path) -> None:
    with serving(HostileCoordinator()) as coordinator, pytest.raises(OwnerLimit, match="2 labels, the task 10"):
        play(coordinator, journal, open_data=SyntheticData(SyntheticLearner(labels=(50, 50))))
    assert coordinator.enrolled == coordinator.left == 1 and coordinator.profiles == []
    assert not journal.exists()


def test_the_budget_spent_in_other_tasks_counts(journal: Path) -> None:
    other_task(journal, spent=2.95)
    unlimited = preset("digits", {"game": {"horizon": 3}, "privacy": {"lifetime_rho": None}})
    with serving(HostileCoordinator(spec=unlimited)) as coordinator:
        with pytest.raises(OwnerLimit, match=r"rho 0.05 is left, and the histogram needs 0.1"):
            play(coordinator, journal)
        assert coordinator.enrolled == 0
        with Journal(journal) as opened:
            opened.limits.raise_to(3.35)
        ledger = play(coordinator, journal, owner=replace(TESTBED_OWNER, lifetime_rho=None))
    # 0.1 for the histogram, 0.25 for a round, the rest for another, then nothing.
    assert [request.get("rho") for request in coordinator.declared] == pytest.approx([0.25, 0.05, None])
    assert ledger.spent_rho == pytest.approx(3.35)
    assert {membership.task_id for membership in ledger.memberships} == {"other", TASK}


def test_a_client_waits_longer_for_a_coordinator_that_has_answered_before(journal: Path) -> None:
    said: list[str] = []
    with serving(HostileCoordinator(away_for_s=1.5)) as coordinator:
        ledger = play(coordinator, journal, first_contact_s=0.2, report=said.append)
    assert len(ledger.entries) == 4 and "the coordinator is back" in said


def test_the_cost_of_training_counts_from_the_first_round_on_and_the_owner_sees_its_time(journal: Path) -> None:
    dear = replace(TESTBED_OWNER, prices=Prices(per_second=1e9))
    with serving(HostileCoordinator()) as coordinator:
        play(coordinator, journal, owner=dear)
    assert [request["reason"] for request in coordinator.declared] == ["not_worth_it"] * 3
    with serving(HostileCoordinator()) as coordinator:
        ledger = play(coordinator, journal.with_name("another.sqlite"))
    assert all((entry.training_s or 0) > 0 for entry in ledger.entries if entry.release != "histogram")


def test_nothing_is_sent_to_a_round_that_closed_during_the_training(journal: Path) -> None:
    with serving(HostileCoordinator()) as coordinator:

        def end() -> None:
            coordinator.ended = True

        ledger = play(coordinator, journal, open_data=SyntheticData(Interrupted(meanwhile=end)))
    assert states(ledger) == [("round/1", SpendState.FREED)]
    assert coordinator.received == [] and ledger.spent_rho == pytest.approx(0.1)


def test_a_client_answers_a_freed_round_that_is_opened_again(journal: Path) -> None:
    with serving(HostileCoordinator()) as coordinator:
        coming: list[dict[str, Any]] = [{"deliver_in_s": 0.0}, {"attempt": 2}]

        def void() -> None:
            coordinator.lies = {1: coming[0]}

        def reopen(line: str) -> None:
            if "closed before the update was ready" in line:
                coming.pop(0)
                coordinator.lies = {1: coming[0]}

        ledger = play(coordinator, journal, open_data=SyntheticData(Interrupted(meanwhile=void)), report=reopen)
    assert states(ledger)[0] == ("round/1", SpendState.SPENT)
    assert coordinator.declared[0] == coordinator.declared[1] and len(coordinator.received) == 3


@pytest.mark.parametrize("status", [409, 422])
def test_a_refused_update_is_spent_and_unpaid(journal: Path, status: int) -> None:
    with serving(HostileCoordinator(update_statuses=[status])) as coordinator:
        ledger = play(coordinator, journal)
    unpaid, paid = SpendState.SPENT_UNPAID, SpendState.SPENT
    assert states(ledger) == [("round/1", unpaid), ("round/2", paid), ("round/3", paid)]
    assert ledger.spent_rho == pytest.approx(0.1 + 3 * 0.25) and ledger.earned_micro == 2000
    assert len(coordinator.received) == 3


def test_an_update_that_came_too_late_is_sent_once_more_and_then_unpaid(journal: Path) -> None:
    with serving(HostileCoordinator(update_statuses=[410, 410])) as coordinator:
        ledger = play(coordinator, journal)
    unpaid, paid = SpendState.SPENT_UNPAID, SpendState.SPENT
    assert states(ledger) == [("round/1", unpaid), ("round/2", paid), ("round/3", paid)]
    assert ledger.spent_rho == pytest.approx(0.1 + 3 * 0.25)
    assert len(coordinator.received) == 4 and len(set(coordinator.received)) == 3


def test_an_update_that_could_not_be_stored_is_sent_again_unchanged(journal: Path) -> None:
    with serving(HostileCoordinator(update_statuses=[500, 503, 503, 507, 502])) as coordinator:
        ledger = play(coordinator, journal)
    assert len(coordinator.received) == 8 and len(set(coordinator.received)) == 3
    assert [state for _, state in states(ledger)] == [SpendState.SPENT] * 3


def test_the_token_of_one_coordinator_is_not_shown_to_another(journal: Path) -> None:
    with serving(HostileCoordinator()) as first:
        play(first, journal)
    with serving(HostileCoordinator()) as thief, pytest.raises(Misconfigured, match="--moved"):
        play(thief, journal, moved=False)
    assert thief.polls == 0 and not thief.profiles
