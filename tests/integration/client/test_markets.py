"""Tasks with an auction and a menu, played to the end by real clients on a live coordinator."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qidpfl_client.api import connect
from qidpfl_client.errors import UntrustedCoordinator
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_shared.core.money import MICRO
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.coordinators import NO_TIMEOUTS, Coordinator
from support.peers.hostile_coordinator import CODE, HostileCoordinator, serving
from support.synthetic_clients import TESTBED_OWNER, enrolment

pytestmark = pytest.mark.live

VALUES = (0.96, 1.04, 1.0, 1.02)
BOUNDS = {"privacy_value_min": 0.9, "privacy_value_max": 1.2}
ROUNDS, WEIGHT = 3, 30.0


def play(
    coordinator: Coordinator,
    tmp_path: Path,
    game: dict[str, Any],
    *,
    values: tuple[float, ...] = VALUES,
    bounds: dict[str, float] = BOUNDS,
) -> tuple[str, list[JournalLedger]]:
    """The id of the task and the ledgers of its clients, in the order of the values by which they answer."""
    rounds = NO_TIMEOUTS | {"expected_clients": len(values)}
    task_id, code = coordinator.create_task(
        f"task-{tmp_path.name}", game={"horizon": ROUNDS} | game, bounds=bounds, rounds=rounds
    )
    ledgers: dict[int, JournalLedger] = {}

    def run(place: int, value: float) -> None:
        owner = replace(TESTBED_OWNER, privacy_value=value)
        with connect(coordinator.url) as http, Journal(tmp_path / f"journal-{place}.sqlite") as journal:
            run_until_finished(enrolment(http, code, journal, owner=owner), patience_s=60, first_contact_s=10)
            ledgers[place] = read_ledger(journal)

    threads = [threading.Thread(target=run, args=place) for place in enumerate(values)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return task_id, [ledgers[place] for place in range(len(values))]


def results(coordinator: Coordinator, task_id: str) -> list[dict[str, Any]]:
    with coordinator.admin as http:
        return [http.get(f"/v1/tasks/{task_id}/rounds/{number}").json() for number in range(1, ROUNDS + 1)]


def utility(ledger: JournalLedger, value: float) -> float:
    sold = sum(entry.rho for entry in ledger.entries if entry.release != "histogram")
    return ledger.earned_micro / MICRO - WEIGHT * value * sold


def test_an_auction_is_played_to_the_end_and_pays_every_micro_unit(tmp_path: Path) -> None:
    with Coordinator(tmp_path / "state").start() as coordinator:
        task_id, ledgers = play(coordinator, tmp_path, {"market": "auction"})
        assert "0 violated" in coordinator.audit()
        for result in results(coordinator, task_id):
            assert result["kept_micro"] == 0 and result["paid_micro"] == result["reward_micro"]
            paid = Counter(client["payment_micro"] for client in result["clients"])
            assert paid == {result["reward_micro"] // 3: 3, 0: 1}
    assert [len(ledger.entries) - 1 for ledger in ledgers] == [ROUNDS, 0, ROUNDS, ROUNDS]
    gains = [utility(ledger, value) for ledger, value in zip(ledgers, VALUES, strict=True)]
    # The cheaper the client, the larger its gain; the loser sells nothing.
    assert gains[0] > gains[2] > gains[3] > gains[1] == 0


def test_a_menu_is_played_to_the_end_without_any_report(tmp_path: Path) -> None:
    with Coordinator(tmp_path / "state").start() as coordinator:
        task_id, ledgers = play(
            coordinator, tmp_path, {"market": "menu", "policy": "fixed", "fixed_reward_micro": 3_000_000}
        )
        assert "0 violated" in coordinator.audit()
        with coordinator.admin as http:
            known = http.get(f"/v1/tasks/{task_id}/clients").json()
        assert {client["privacy_value"] for client in known} == {None}
        for result in results(coordinator, task_id):
            paid = sum(client["payment_micro"] for client in result["clients"])
            assert paid + result["kept_micro"] == result["reward_micro"]
            sold = [client["rho"] for client in result["clients"]]
            assert len(set(sold)) == 4
    gains = [utility(ledger, value) for ledger, value in zip(ledgers, VALUES, strict=True)]
    assert gains[0] > gains[2] > gains[3] > gains[1] > 0


@pytest.mark.parametrize(
    ("market", "liar", "factor", "gains"),
    [
        ("contest", 0, 0.8, True),
        ("auction", 0, 0.8, False),
        ("auction", 1, 0.8, False),
        ("auction", 2, 1.2, False),
        ("menu", 2, 0.8, False),
        ("menu", 2, 1.2, False),
    ],
)
def test_a_client_that_misreports_gains_in_the_contest_alone(
    market: str, liar: int, factor: float, gains: bool, tmp_path: Path
) -> None:
    """Budgets and payments do not depend on the noise, so the comparison is exact."""
    reports = tuple(value * (factor if place == liar else 1) for place, value in enumerate(VALUES))
    game = {"market": market, "policy": "fixed", "fixed_reward_micro": 3_000_000}
    utilities = []
    with Coordinator(tmp_path / "state").start() as coordinator:
        for name, values in (("true", VALUES), ("false", reports)):
            folder = tmp_path / name
            folder.mkdir()
            bounds = {"privacy_value_min": 0.5, "privacy_value_max": 1.5}
            _, ledgers = play(coordinator, folder, game, values=values, bounds=bounds)
            utilities.append(utility(ledgers[liar], VALUES[liar]))
        assert "0 violated" in coordinator.audit()
    assert utilities[0] >= 0
    assert (utilities[1] > 1.1 * utilities[0]) if gains else (utilities[1] <= utilities[0] + 1e-5)


# --- a coordinator that breaks the rules of its market ----------------------------------------------------------------


def hostile_spec(market: str) -> TaskSpec:
    return preset("digits", {"game": {"horizon": 3, "market": market}, "bounds": BOUNDS}).current


def refusal_of(hostile: HostileCoordinator, path: Path) -> tuple[str, JournalLedger]:
    with connect(hostile.url) as http, Journal(path) as opened:
        with pytest.raises(UntrustedCoordinator) as caught:
            run_until_finished(enrolment(http, CODE, opened), patience_s=1, first_contact_s=1)
        assert "\n" not in str(caught.value)
        return str(caught.value), read_ledger(opened)


@pytest.mark.parametrize(
    ("market", "terms", "said"),
    [
        # Reward 30 and weight 30: the price is 1/S.
        ("auction", {"total": 1.05, "rho_max": 0.3}, "below 1, the value that this winner has reported"),
        ("auction", {"total": 0.5, "rho_max": 0.3}, "above 1.2, the largest value of the task"),
        ("menu", {"total": 0.9, "rho_max": 0.3}, "no base of its menu"),
        ("menu", {"total": 0.7, "rho_max": 0.5, "base_rho": 0.1}, "does not fit the base"),
        ("menu", {"total": 0.95, "rho_max": 0.1, "base_rho": 0.1}, "does not cover its menu"),
    ],
)
def test_terms_against_the_rules_of_the_market_are_refused(
    market: str, terms: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with serving(HostileCoordinator(spec=hostile_spec(market), lies={1: terms})) as hostile:
        message, ledger = refusal_of(hostile, tmp_path / "journal.sqlite")
    assert message.startswith("round 1 announces") and said in message
    assert hostile.declared == [] and len(ledger.entries) == 1


@pytest.mark.parametrize(
    ("market", "terms", "due"),
    [
        ("auction", {"total": 0.95, "rho_max": 0.19}, 6_000_000),
        ("menu", {"total": 0.6, "rho_max": 0.11, "base_rho": 0.1}, 3_913_664),
    ],
)
def test_a_payment_that_is_not_that_of_the_market_is_refused(
    market: str, terms: dict[str, Any], due: int, tmp_path: Path
) -> None:
    lies = {number: terms for number in (1, 2, 3)}
    honest = HostileCoordinator(spec=hostile_spec(market), lies=lies, payment_micro=due)
    with serving(honest), connect(honest.url) as http, Journal(tmp_path / "honest.sqlite") as opened:
        run_until_finished(enrolment(http, CODE, opened), patience_s=1, first_contact_s=1)
        assert read_ledger(opened).earned_micro == 3 * due
    for wrong in (due - 1, due + 1):
        with serving(HostileCoordinator(spec=hostile_spec(market), lies=lies, payment_micro=wrong)) as hostile:
            message, ledger = refusal_of(hostile, tmp_path / f"promised-{wrong}.sqlite")
        assert f"promises a payment of {wrong / MICRO:.6f}, but market {market} pays {due / MICRO:.6f}" in message
        assert hostile.received == []
        # The reservation stays until its round is over: the coordinator may have recorded the budget.
        assert [entry.state for entry in ledger.entries[1:]] in ([], [SpendState.RESERVED])
        kept = {"payment_micro": due}
        with serving(
            HostileCoordinator(spec=hostile_spec(market), lies=lies, payment_micro=wrong, budget_lie=kept)
        ) as hostile:
            message, _ = refusal_of(hostile, tmp_path / f"{wrong}.sqlite")
        assert f"round 1 is paid {wrong / MICRO:.6f}, but market {market} pays {due / MICRO:.6f}" in message
