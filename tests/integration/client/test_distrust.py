"""A coordinator that lies: the client stops with one line, and releases and charges nothing for it."""

from pathlib import Path
from typing import Any

import pytest

from qidpfl_client.api import connect
from qidpfl_client.errors import ClientError, UntrustedCoordinator
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from qidpfl_client.owner import Owner
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.presets import preset
from support.peers.hostile_coordinator import CODE, TASK, HostileCoordinator, serving
from support.synthetic_clients import TESTBED_OWNER, enrolment

pytestmark = pytest.mark.live

HISTOGRAM_RHO = 0.1
OTHER_SPEC = preset("digits", {"game": {"horizon": 3}, "bounds": {"rho_max": 50.0}})


def take_part_in(hostile: HostileCoordinator, journal: Path, owner: Owner | None = None) -> JournalLedger:
    """What the ledger says when the task has ended."""
    with connect(hostile.url) as http, Journal(journal) as opened:
        end = run_until_finished(
            enrolment(http, CODE, opened, owner=owner or TESTBED_OWNER), patience_s=1, first_contact_s=1
        )
        assert end.task_state is TaskState.FINISHED
        return read_ledger(opened)


def refusal_of(hostile: HostileCoordinator, journal: Path) -> tuple[str, JournalLedger]:
    with connect(hostile.url) as http, Journal(journal) as opened:
        with pytest.raises(UntrustedCoordinator) as caught:
            run_until_finished(enrolment(http, CODE, opened), patience_s=1, first_contact_s=1)
        assert "\n" not in str(caught.value)
        return str(caught.value), read_ledger(opened)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_a_task_of_an_honest_coordinator_is_finished(journal: Path) -> None:
    with serving(HostileCoordinator()) as honest:
        ledger = take_part_in(honest, journal)
    assert [entry.release for entry in ledger.entries] == ["histogram", "round/1", "round/2", "round/3"]
    assert ledger.earned_micro == 3000 and len(set(honest.received)) == 3


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"mechanism": "paper_literal"}, "mechanism"),
        ({"clip_norm": 100.0}, "clip norm"),
        ({"dimension": 651}, "dimension"),
        ({"rho_max": 50.0}, "largest budget"),
        ({"noise": False}, "noise"),
        ({"model_version": 0}, "model version"),
        ({"round_number": 1, "model_version": 0}, "another model"),
        ({"round_number": 4, "model_version": 3}, "beyond the task's 3 rounds"),
    ],
)
def test_an_announcement_that_contradicts_the_task_is_refused(lie: dict[str, Any], said: str, journal: Path) -> None:
    with serving(HostileCoordinator(lies={2: lie})) as hostile:
        message, ledger = refusal_of(hostile, journal)
    assert said in message
    nothing_but_the_first_round(hostile, ledger)


def nothing_but_the_first_round(hostile: HostileCoordinator, ledger: JournalLedger) -> None:
    assert len(hostile.declared) == len(hostile.received) == 1
    assert [entry.release for entry in ledger.entries] == ["histogram", "round/1"]
    assert ledger.spent_rho == pytest.approx(HISTOGRAM_RHO + hostile.declared[0]["rho"])


@pytest.mark.parametrize(
    "lie", [{"model_digest": "f" * 64}, {"reward_micro": 60_000_000}, {"total": 0.4}, {"attempt": 2, "total": 0.1}]
)
def test_a_changed_announcement_of_a_known_round_is_refused_also_after_a_restart(
    lie: dict[str, Any], journal: Path
) -> None:
    with serving(HostileCoordinator(model_lie=b"not yet")) as hostile:
        refusal_of(hostile, journal)
        hostile.model_lie, hostile.lies = None, {1: lie}
        message, ledger = refusal_of(hostile, journal)
    assert "round 1 is announced again with another model or reward" in message
    assert hostile.received == [] and ledger.spent_rho == HISTOGRAM_RHO


def test_a_round_of_the_past_is_refused_after_a_restart(journal: Path) -> None:
    with serving(HostileCoordinator(lies={3: {"noise": False}})) as hostile:
        refusal_of(hostile, journal)
        hostile.number, hostile.lies = 1, {}
        message, ledger = refusal_of(hostile, journal)
    assert "round 1 is announced again after round 2" in message
    assert len(hostile.received) == 2 and len(ledger.entries) == 3


@pytest.mark.parametrize("model", [b"", bytes(650 * 4), bytes(649 * 4), bytes(2000 * 4)])
def test_a_model_with_another_digest_is_not_used(model: bytes, journal: Path) -> None:
    with serving(HostileCoordinator(model_lie=model, number=2)) as hostile:
        message, ledger = refusal_of(hostile, journal)
    assert "/models/1 is not valid" in message
    assert hostile.received == [] and ledger.spent_rho == HISTOGRAM_RHO
    assert [entry.state for entry in ledger.entries] == [SpendState.SPENT, SpendState.FREED]


@pytest.mark.parametrize("lie", [{"digest": "f" * 64}, {"round_number": 2}])
def test_a_receipt_with_another_digest_is_refused(lie: dict[str, Any], journal: Path) -> None:
    with serving(HostileCoordinator(receipt_lie=lie)) as hostile:
        message, ledger = refusal_of(hostile, journal)
        assert "a receipt for another update" in message
        # The bytes were sent: they are charged and kept, and the client sends the same bytes again.
        assert ledger.entries[1].state is SpendState.SPENT and not ledger.entries[1].acknowledged
        refusal_of(hostile, journal)
    assert len(hostile.received) == 2 and len(set(hostile.received)) == 1


@pytest.mark.parametrize("lie", [{"rho": 0.4}, {"round_number": 2}, {"state": "joined"}])
def test_a_receipt_for_another_budget_is_refused(lie: dict[str, Any], journal: Path) -> None:
    with serving(HostileCoordinator(budget_lie=lie)) as hostile:
        message, ledger = refusal_of(hostile, journal)
    assert "a receipt for another answer" in message
    assert hostile.received == [] and ledger.spent_rho == HISTOGRAM_RHO


@pytest.mark.parametrize(
    "lies", [{"shown_spec": OTHER_SPEC}, {"enrolment_digest": OTHER_SPEC.digest}], ids=["shown", "enrolled in"]
)
def test_another_task_than_the_one_shown_is_refused_before_anything_is_released(
    lies: dict[str, Any], journal: Path
) -> None:
    with serving(HostileCoordinator(**lies)) as hostile:
        _, ledger = refusal_of(hostile, journal)
    assert ledger.entries == () and hostile.declared == []


def test_no_reward_makes_a_client_exceed_the_limits_of_its_owner(journal: Path) -> None:
    rich = {number: {"reward_micro": 300_000_000, "total": 5.0} for number in (1, 2, 3)}
    with serving(HostileCoordinator(lies=rich)) as hostile:
        ledger = take_part_in(hostile, journal, Owner(rho_cap=0.2, lifetime_rho=0.4, histogram_rho=0.1))
    assert [request.get("rho") for request in hostile.declared] == pytest.approx([0.2, 0.1, None])
    assert hostile.declared[2]["reason"] == "owner_limit"
    assert ledger.spent_rho == pytest.approx(0.4) and ledger.remaining_rho == 0


def test_a_payment_above_the_announced_reward_is_not_recorded(journal: Path) -> None:
    with serving(HostileCoordinator(payment_micro=30_000_001)) as hostile:
        message, ledger = refusal_of(hostile, journal)
    assert message == "round 1 is paid 30.000001, more than its reward 30.000000" and ledger.earned_micro == 0
    assert ledger.entries[1].payment_micro is None


ENTRY = {"release": "round/1", "mechanism": "gradient_once", "state": "spent", "rho": 1e-6, "proven_rho": 0.0}


INVENTED = {
    "a round never announced": {"release": "round/3", "rho": 0.25},
    "other bytes": {"release": "round/1", "rho": 0.25},
    "a small budget": {"release": "round/1", "rho": 1e-6},
    "a budget above every limit": {"release": "round/1", "rho": 1e6},
    "a freed round": {"release": "round/2", "rho": 0.25},
    "no round": {"release": "round/x"},
    "no release": {"release": "round/1/2"},
    "no bytes": {"digest": None},
}


@pytest.mark.parametrize("lie", INVENTED.values(), ids=INVENTED)
def test_an_invented_ledger_is_refused_and_charges_nothing(lie: dict[str, Any], journal: Path) -> None:
    with serving(HostileCoordinator(lies={2: {"noise": False}})) as hostile:
        refusal_of(hostile, journal)
        hostile.lies, hostile.model_lie = {}, b"no model"
        _, before = refusal_of(hostile, journal)
        assert [entry.state for entry in before.entries] == [SpendState.SPENT, SpendState.SPENT, SpendState.FREED]
        hostile.ledger = [ENTRY | {"digest": "f" * 64} | lie]
        message, after = refusal_of(hostile, journal)
        assert "nothing was charged" in message and "older copy" in message and "invents releases" in message
        assert after.entries == before.entries
        # The journal is unharmed: with an honest coordinator the client continues.
        hostile.ledger, hostile.model_lie = [], None
        assert take_part_in(hostile, journal).entries[:2] == before.entries[:2]


def test_a_coordinator_that_refuses_the_client_is_reported_in_one_line(journal: Path) -> None:
    with serving(HostileCoordinator()) as hostile, connect(hostile.url) as http, Journal(journal) as opened:
        stranger = enrolment(http, CODE.replace(TASK, "another-task"), opened)
        with pytest.raises(ClientError) as caught:
            run_until_finished(stranger, patience_s=1, first_contact_s=1)
    assert "\n" not in str(caught.value) and hostile.enrolled == 0
    assert not journal.exists()


def other_answer(state: str) -> HostileCoordinator:
    """A coordinator that has another answer of this client to round 1 than the client sends."""
    problem: dict[str, Any] = {
        "type": "urn:qidpfl:problem:budget_declared",
        "title": "Another answer is already stored",
    }
    problem |= {"status": 409, "code": "budget_declared"}
    entry = {"release": "round/1", "mechanism": "gradient_once", "state": state, "rho": 0.06, "proven_rho": 0.06}
    return HostileCoordinator(instead={("PUT", "budget"): (409, problem)}, ledger=[entry], polls=290)


def test_a_budget_that_another_copy_of_the_journal_has_declared_stops_the_client(journal: Path) -> None:
    with serving(other_answer("reserved")) as hostile:
        message, ledger = refusal_of(hostile, journal)
    assert "another budget of this client for round 1" in message and hostile.received == []
    assert [entry.state for entry in ledger.entries] == [SpendState.SPENT, SpendState.RESERVED]


def test_a_budget_after_a_withdrawn_one_is_free_again(journal: Path) -> None:
    with serving(other_answer("freed")) as hostile:
        ledger = take_part_in(hostile, journal)
    assert hostile.received == [] and [entry.state for entry in ledger.entries] == [SpendState.SPENT, SpendState.FREED]


@pytest.mark.parametrize("delivered", [True, False])
def test_bytes_without_receipt_leave_again_after_the_round_only_if_the_coordinator_has_them(
    delivered: bool, journal: Path
) -> None:
    with serving(HostileCoordinator(receipt_lie={"digest": "f" * 64})) as hostile:
        refusal_of(hostile, journal)
        # The client starts again two rounds later.
        hostile.receipt_lie, hostile.number, (first,) = {}, 3, hostile.received
        own = {"client_id": "me", "ordinal": 0, "standing": "invited", "rho": 0.1, "declined": False}
        own |= {"delivered": delivered, "accepted": delivered, "payment_micro": 1000 * delivered}
        closed = {"round_number": 1, "attempt": 1, "state": "settled", "reward_micro": 30_000_000, "kept_micro": 0}
        closed |= {"paid_micro": 30_000_000, "total": 0.5, "updates": 1, "model_version": 1, "own": own}
        hostile.instead["GET", "1"] = 200, closed
        ledger = take_part_in(hostile, journal)
    assert hostile.received == [first, *([first] if delivered else []), hostile.received[-1]]
    states = {entry.release: entry.state for entry in ledger.entries}
    assert states["round/1"] is (SpendState.SPENT if delivered else SpendState.SPENT_UNPAID)
    assert ledger.spent_rho is not None and ledger.spent_rho > HISTOGRAM_RHO + hostile.declared[0]["rho"]
