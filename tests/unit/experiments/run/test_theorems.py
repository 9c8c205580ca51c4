"""Theorems 1 to 3 on rounds whose equilibrium is known, and what a client has spent under common noise."""

import math
from typing import Any, cast

import numpy as np
import pytest

from qidpfl_client.journal.journal import Entry
from qidpfl_client.journal.ledger import JournalLedger
from qidpfl_experiments.methods import QI_DPFL
from qidpfl_experiments.results.cells import Cell
from qidpfl_experiments.run.grid import GridBuilder
from qidpfl_experiments.run.honesty import liar, utility
from qidpfl_experiments.run.spent import spent_of
from qidpfl_experiments.run.theorems import theorem_checks
from qidpfl_experiments.settings import read_settings, setup
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import ClientResult, ClientSummary, RoundResult
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec

VALUES = (0.95, 0.98, 1.0, 1.03)
REWARD = 40.0
GRID = GridBuilder(
    setup=setup(read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["iid"]),
    reproducible=True,
)


def spec_of(**game: Any) -> TaskSpec:
    return preset("digits", {"game": {"policy": "fixed", "fixed_reward_micro": int(REWARD * 1e6), **game}})


def sold(ordinal: int, rho: float, *, payment_micro: int = 0) -> ClientResult:
    values = {"ordinal": ordinal, "rho": rho, "accepted": True, "delivered": True, "payment_micro": payment_micro}
    return ClientResult.model_construct(**cast(Any, values))


def played(factors: tuple[float, ...], spec: TaskSpec) -> tuple[list[ClientSummary], list[RoundResult]]:
    """One round in which the clients declare their equilibrium budgets times these factors."""
    found = equilibrium(reward=REWARD, privacy_values=VALUES, privacy_weight=spec.game.privacy_weight)
    budgets = np.array(found.budgets) * np.array(factors)
    clients = [
        ClientSummary.model_construct(**cast(Any, {"ordinal": place, "privacy_value": value, "size": 100}))
        for place, value in enumerate(VALUES)
    ]
    parts = tuple(sold(place, float(rho)) for place, rho in enumerate(budgets))
    values = {"round_number": 1, "reward_micro": int(REWARD * 1e6), "clients": parts}
    return clients, [RoundResult.model_construct(**cast(Any, values))]


def test_at_the_equilibrium_no_deviation_gains_and_other_starts_come_back() -> None:
    spec = spec_of()
    checks = theorem_checks(spec, *played((1.0,) * 4, spec))
    assert checks.client_regret == pytest.approx(0.0, abs=1e-6)
    assert checks.distance == pytest.approx(0.0, abs=0.01)
    assert checks.server_regret is None


def test_budgets_that_are_no_equilibrium_are_found_out() -> None:
    spec = spec_of()
    checks = theorem_checks(spec, *played((1.0, 1.5, 0.7, 1.0), spec))
    assert (checks.client_regret or 0) > 1 and (checks.distance or 0) > 10


def test_a_reward_that_is_not_optimal_is_found_out() -> None:
    spec = spec_of(policy="optimal", fixed_reward_micro=None)
    checks = theorem_checks(spec, *played((1.0,) * 4, spec))
    assert (checks.server_regret or 0) > 1


@pytest.mark.parametrize("game", [{"market": "auction"}, {"market": "menu"}])
def test_other_markets_have_no_such_theorems(game: dict[str, str]) -> None:
    spec = spec_of(**game)
    assert theorem_checks(spec, *played((1.0,) * 4, spec)).client_regret is None


def a_cell() -> Cell:
    return GRID.cell(QI_DPFL, partition="iid", seed=1, rewards=None, leader=None)


def entry(release: str, rho: float, *, state: SpendState = SpendState.SPENT) -> Entry:
    return Entry(
        task_id="t", release=release, mechanism="x, common noise", rho=rho, proven_rho=math.inf, state=state, digest="d"
    )


def test_under_common_noise_a_client_is_charged_what_fresh_noise_would_prove() -> None:
    cell = a_cell()
    entries = (entry("histogram", 0.1), entry("round/1", 0.2), entry("round/2", 9.0, state=SpendState.FREED))
    empty: dict[str, Any] = {"memberships": (), "limits": (), "reserved_rho": 0.0, "lifetime_rho": 1.0}
    ledger = JournalLedger(entries=entries, spent_rho=math.inf, remaining_rho=0.0, earned_micro=0, delta=1e-5, **empty)
    rho, epsilon = spent_of(cell, ledger, spec=cell.spec, size=100)
    assert rho == pytest.approx(0.3) and epsilon is not None and epsilon > 0
    exact = JournalLedger(
        entries=(entry("histogram", 0.0),), spent_rho=math.inf, remaining_rho=0.0, earned_micro=0, delta=1e-5, **empty
    )
    assert spent_of(cell, exact, spec=cell.spec, size=100) == (None, None)


def test_the_utility_is_that_at_the_true_privacy_value() -> None:
    cell = a_cell()
    part = sold(0, 0.1, payment_micro=5_000_000)
    costly, cheap = (utility(cell, 0, [part], privacy_weight=weight) for weight in (20.0, 10.0))
    assert 5.0 - 20.0 * 0.1 * 1.05 <= costly <= 5.0 - 20.0 * 0.1 * 0.95
    assert cheap - costly == pytest.approx(5.0 - cheap)
    assert liar(cell) in range(cell.clients)
