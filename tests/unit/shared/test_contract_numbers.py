"""docs/contract.md, which the coordinator serves: every number of its worked example is computed here by the core."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_server.api.document import examples
from qidpfl_server.service.rounds.submissions import largest_norm
from qidpfl_shared.core.aggregation import ServerState, server_step
from qidpfl_shared.core.equilibrium import best_response, equilibrium
from qidpfl_shared.core.money import from_micro, split_reward
from qidpfl_shared.core.privacy.conversion import epsilon_from_rho
from qidpfl_shared.core.privacy.discrete_gaussian import GRID_EXPONENT
from qidpfl_shared.core.privacy.histogram import clean_histogram, histogram_noise_std
from qidpfl_shared.core.privacy.mechanisms import (
    BoltOnMechanism,
    GradientOnceMechanism,
    Mechanism,
    NoisyEpochsMechanism,
    PaperLiteralMechanism,
    UpdateClipMechanism,
    batch_sizes,
)
from qidpfl_shared.core.selection import label_distances, uniform_reference
from qidpfl_shared.protocol.mechanism_specs import GradientOnce
from qidpfl_shared.protocol.releases import histogram_release
from qidpfl_shared.protocol.task_spec import DefenceSpec
from qidpfl_shared.workloads.builtin import DATA_SETS

TEXT = (Path(__file__).parents[3] / "docs" / "contract.md").read_text()
SIZE, RHO, DELTA, REWARD, WEIGHT = 110, 1 / 9, 1e-5, 15.0, 30.0
VALUES = (0.9, 1.0, 1.1)
MARKET = equilibrium(reward=REWARD, privacy_values=VALUES, privacy_weight=WEIGHT)
MECHANISMS: list[Mechanism] = [
    GradientOnceMechanism(clip_norm=1.0),
    NoisyEpochsMechanism(clip_norm=1.0, learning_rate=0.1, epochs=2, batch_size=55),
    UpdateClipMechanism(clip_norm=1.0),
    BoltOnMechanism.softmax_regression(feature_norm=1.0, learning_rate=0.1, epochs=2, batch_size=55),
    PaperLiteralMechanism(clip_norm=1.0),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_noise_and_sensitivity_of_every_mechanism(mechanism: Mechanism) -> None:
    std = mechanism.noise_std(rho=RHO, size=SIZE)
    if isinstance(mechanism, NoisyEpochsMechanism):
        std = mechanism.step_noise_std(rho=RHO, batch=55)
        assert std == pytest.approx(math.sqrt(2 * 2 / RHO) / 55)
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{mechanism.name}` | ")]
    sensitivity = mechanism.sensitivity(size=SIZE)
    assert row.endswith(f"| {round(sensitivity, 6):g} | {std:.6f} |")
    if not mechanism.heuristic:
        assert sensitivity**2 / (2 * std**2) == pytest.approx(RHO / (2 if mechanism.name == "noisy_epochs" else 1))


def test_the_constants_of_bolt_on_and_the_batches() -> None:
    bolt_on = MECHANISMS[3]
    assert isinstance(bolt_on, BoltOnMechanism)
    assert bolt_on.gradient_bound == pytest.approx(math.sqrt(2 * (1 + 1)))
    assert 2 / bolt_on.smoothness == pytest.approx(4 / (1 + 1))
    assert batch_sizes(size=10, batch_size=3) == (4, 3, 3)
    assert "batches of 4, 3 and 3" in TEXT
    assert f"{MECHANISMS[4].proven_rho(rho=RHO, size=SIZE):.1f} instead of {RHO:.4f}" in TEXT


def test_the_sign_of_an_update_and_clipping() -> None:
    state = ServerState.start(np.array([1.0, 2.0], dtype=np.float32))
    after = server_step(state=state, mean_update=np.array([0.5, -0.5]), learning_rate=2.0).parameters
    assert after.tolist() == [0.0, 3.0]
    assert "w = (1, 2), ū = (0.5, −0.5), η = 2, μ = 0 give w = (0, 3)" in TEXT
    clipped = np.array([3.0, 4.0]) * min(1, 1 / np.hypot(3, 4))
    assert f"becomes ({clipped[0]:g}, {clipped[1]:g})" in TEXT


def test_the_largest_accepted_norm() -> None:
    largest = largest_norm(GradientOnce(clip_norm=1.0).build(), size=SIZE, rho=RHO, dimension=650)
    assert f"1 + 10·0.038569·√650 = {largest:.3f}" in TEXT


@pytest.mark.parametrize(("place", "name"), [(0, "first"), (1, "second"), (2, "third")])
def test_the_best_answers_and_payments(place: int, name: str) -> None:
    value, rho = VALUES[place], float(MARKET.budgets[place])
    assert rho == pytest.approx(MARKET.total - WEIGHT * value * MARKET.total**2 / REWARD)
    answer = best_response(reward=REWARD, total=MARKET.total, privacy_value=value, privacy_weight=WEIGHT)
    assert answer == pytest.approx(rho)
    split = split_reward(reward_micro=15_000_000, declared=list(MARKET.budgets), delivered=[True] * 3)
    paid, cost = from_micro(split.payments[place]), WEIGHT * value * rho
    row = f"| {name} | {value} | {rho:.6f} | {rho / MARKET.total:.4f} | {paid:.6f} | {cost:.6f} | {paid - cost:.6f} |"
    assert row in TEXT
    assert MARKET.utilities[place] == pytest.approx(paid - cost)


def test_the_total_and_what_is_kept() -> None:
    assert f"S = 2·15/(30·3) = {2 * 15 / (30 * 3):.6f}" in TEXT
    assert pytest.approx(2 * 15 / (30 * 3)) == MARKET.total
    split = split_reward(reward_micro=15_000_000, declared=list(MARKET.budgets), delivered=[True, True, False])
    first, second, _ = map(from_micro, split.payments)
    said = f"still get {first:.6f} and {second:.6f}, and {from_micro(split.kept):.6f} are kept"
    assert said in " ".join(TEXT.split())
    bound = DefenceSpec().max_bid * float(MARKET.budgets[1])
    assert f"`rho_max` = {bound:.6f} in the example" in TEXT
    assert examples.OFFER["rho_max"] == pytest.approx(bound)


def test_what_a_client_can_check_of_its_payment() -> None:
    declared = [float(rho) for rho in MARKET.budgets]
    counted, late = list(declared), DefenceSpec().max_bid * declared[2]
    split = split_reward(reward_micro=15_000_000, declared=counted, delivered=[True, True, False])
    declared[2] = late
    flat = " ".join(TEXT.split())
    total = sum(declared)
    assert f"declares {late:.6f}, 1.25 times its plan" in flat
    assert f"`declared_total` is {total:.6f}, but the second client gets {from_micro(split.payments[1]):.6f}" in flat
    assert f"15·{declared[1]:.6f}/{total:.6f} = {15 * declared[1] / total:.6f}" in flat
    assert f"0.1 + 20·{RHO:.6f} = {0.1 + 20 * RHO:.6f}" in flat


def test_the_histogram() -> None:
    noisy = [14.2, -3.1, 9.6, 12.7, 10.9, 13.3, 8.4, 11.8, 15.5, 10.2]
    counts = clean_histogram(noisy=noisy, size=SIZE)
    flat = " ".join(TEXT.split())
    said = ", ".join(f"{value}" for value in noisy).replace("-", "−")
    assert f"ρ = 0.1: σ = {histogram_noise_std(rho=0.1):.6f}. The noisy counts {said} with D = 110" in flat
    assert f"become {', '.join(map(str, counts))}." in flat
    (distance,) = label_distances(histograms=[counts], reference=uniform_reference(labels=10))
    assert f"the distance {distance:.6f} to the uniform reference" in flat


def test_the_privacy_account() -> None:
    spent = 0.1 + RHO
    epsilon = epsilon_from_rho(rho=spent, delta=DELTA)
    assert f"has spent {spent:.6f}. At δ = 10⁻⁵ this is ε = {epsilon:.4f}" in TEXT
    # The formula of the text, on a fine grid.
    orders = 1 + np.geomspace(1e-3, 1e4, 200_000)
    bounds = spent * orders + np.log(1 / (orders * DELTA)) / (orders - 1) + np.log(1 - 1 / orders)
    assert bounds.min() == pytest.approx(epsilon, rel=1e-6)


def test_the_sampler_of_the_text_draws_a_discrete_gaussian() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    draw, count, std = found["discrete_gaussian"], 20_000, 3
    drawn = Counter(draw(std) for _ in range(count))
    weights = {value: math.exp(-(value**2) / (2 * std**2)) for value in range(-30, 31)}
    total = sum(weights.values())
    expected = {value: count * weights[value] / total for value in range(-8, 9)}
    # 17 cells and the rest: chi-square with about 17 degrees of freedom, which exceeds 70 once in 10^8 runs.
    assert sum((drawn[value] - wanted) ** 2 / wanted for value, wanted in expected.items()) < 70
    fine = [draw(2**40) / 2**40 for _ in range(1000)]
    assert 0.8 < np.std(fine) < 1.2
    assert GRID_EXPONENT == -40


def test_the_ledger_of_the_document_names_the_mechanisms_of_the_code() -> None:
    entries: Any = examples.LEDGER["entries"]
    histogram, update = entries
    assert histogram["mechanism"] == histogram_release(0.1).mechanism
    assert update["mechanism"] == MECHANISMS[0].name


@pytest.mark.parametrize("name", list(DATA_SETS))
def test_the_features_of_every_built_in_data_set(name: str) -> None:
    data = DATA_SETS[name]
    formulas = {
        "p/16": (1 / 16, 0.0),
        "p/255": (1 / 255, 0.0),
        "3·p/255 − 0.5": (3 / 255, -0.5),
        "(p/255 − 0.5)/0.25": (1 / 255 / 0.25, -0.5 / 0.25),
    }
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` | ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert formulas[cells[2]] == pytest.approx((data.scale, data.shift))
    assert cells[3] == str(data.facts.labels)


def test_the_examples_of_the_document_are_of_the_same_round() -> None:
    assert examples.OFFER["reward_micro"] == examples.ROUND["reward_micro"] == 15_000_000
    assert examples.OFFER["total"] == pytest.approx(MARKET.total)
    assert examples.BUDGET_RECEIPT["rho"] == pytest.approx(MARKET.budgets[1])
    assert examples.LEDGER["earned_micro"] == 5_000_000
    assert examples.LEDGER["spent_rho"] == pytest.approx(0.1 + RHO)
    assert examples.LEDGER["epsilon"] == pytest.approx(epsilon_from_rho(rho=0.1 + RHO, delta=DELTA))
