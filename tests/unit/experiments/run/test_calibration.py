"""Calibration: the curve of a sweep, the admissible rewards, and the overrides file."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from qidpfl_experiments.results.calibration import Calibration, write_overrides
from qidpfl_experiments.results.cells import CellResult
from qidpfl_experiments.results.tables import ClientRow, RoundRow
from qidpfl_experiments.run.calibration import fit_calibration
from qidpfl_experiments.run.execute import failed
from qidpfl_experiments.run.grid import GridBuilder
from qidpfl_experiments.settings import read_settings, setup
from qidpfl_shared.core.equilibrium import equilibrium
from qidpfl_shared.protocol.presets import preset

SETUP = setup(read_settings(), dataset="digits", scale="full", variant="recommended", partitions=["iid"])
VALUES = (0.96, 0.98, 1.0, 1.02, 1.04)
WEIGHT = 30.0
CEILING, DROP, RATE = 0.9, 0.5, 2.0


def curve(total: float) -> float:
    return CEILING - DROP * math.exp(-RATE * total)


def a_run(reward: float, accuracy: float | None = None, *, state: str = "finished") -> CellResult:
    """A run in which every client declares its equilibrium budget, with the accuracy of a known curve."""
    cell = GridBuilder(setup=SETUP).calibration_cell(partition="iid", reward=reward)
    total = float(equilibrium(reward=reward, privacy_values=VALUES, privacy_weight=WEIGHT).total)
    nothing: dict[str, Any] = dict.fromkeys(RoundRow.__dataclass_fields__, 0.0)
    values = {"reward": reward, "total": total, "declared_total": total, "accuracy": accuracy or curve(total)}
    row = RoundRow(**(nothing | asdict(cell.key) | values))
    empty: dict[str, Any] = dict.fromkeys(ClientRow.__dataclass_fields__, 0)
    clients = tuple(
        ClientRow(**(empty | asdict(cell.key) | {"ordinal": place, "privacy_value": value, "updates": 3}))
        for place, value in enumerate(VALUES)
    )
    result = failed(cell, "")
    summary = replace(result.cell, state=state, accuracy=row.accuracy)
    return replace(result, cell=summary, rounds=(row, replace(row, round_number=2)), clients=clients)


def of_rewards(*rewards: float) -> Calibration:
    return of_runs(*(a_run(reward) for reward in rewards))


def of_runs(*runs: CellResult) -> Calibration:
    swept = SETUP.model_copy(update={"rewards": tuple(run.rounds[0].reward for run in runs), "draws": 1})
    return fit_calibration(swept, partition="iid", results=runs, privacy_weight=WEIGHT)


def test_a_known_curve_is_found_again() -> None:
    fit = of_rewards(4, 8, 16, 32, 64).fit
    assert fit is not None
    assert fit.ceiling == pytest.approx(CEILING, abs=1e-6)
    assert fit.drop == pytest.approx(DROP, abs=1e-6)
    assert fit.rate == pytest.approx(RATE, rel=1e-6)


def test_the_admissible_rewards_buy_the_targets() -> None:
    calibration = of_rewards(4, 8, 16, 32, 64, 128)
    assert calibration.admissible is not None
    for reward, gap in (
        (calibration.admissible.minimum, SETUP.target_gap),
        (calibration.admissible.maximum, SETUP.target_max_gap),
    ):
        total = float(equilibrium(reward=reward, privacy_values=VALUES, privacy_weight=WEIGHT).total)
        assert curve(total) == pytest.approx(CEILING - gap, abs=1e-6)
    assert calibration.compared == calibration.admissible


@pytest.mark.parametrize(
    ("rewards", "smallest", "largest"),
    [((4, 8, 16, 32, 64), None, 64), ((50, 60, 80, 128), 50, None), ((50, 55, 60, 70), 50, 70)],
)
def test_a_target_beyond_the_sweep_is_moved_to_its_edge(
    rewards: tuple[float, ...], smallest: float | None, largest: float | None
) -> None:
    calibration = of_rewards(*rewards)
    assert calibration.admissible is not None
    if smallest is not None:
        assert calibration.admissible.minimum == pytest.approx(smallest, rel=1e-6)
    if largest is not None:
        assert calibration.admissible.maximum == pytest.approx(largest, rel=1e-6)


def test_a_sweep_that_does_not_reach_the_lower_target_admits_nothing() -> None:
    calibration = of_rewards(4, 5, 5.5, 6)
    assert calibration.admissible is None
    assert calibration.statement.endswith("no admissible rewards: outside_calibration")


def test_without_a_curve_methods_are_compared_in_the_swept_range() -> None:
    calibration = of_runs(*(a_run(reward, 0.5) for reward in (4, 8, 12, 16)))
    assert calibration.admissible is None and calibration.compared is not None
    assert (calibration.compared.minimum, calibration.compared.maximum) == (4, 16)
    assert "no curve" in calibration.statement


def test_failed_runs_are_listed_and_left_out_of_the_curve() -> None:
    good = [a_run(reward) for reward in (4, 8, 16, 64)]
    calibration = of_runs(*good[:2], a_run(32, 0.1, state="failed"), *good[2:])
    assert calibration.fit is not None and calibration.fit.ceiling == pytest.approx(CEILING, abs=1e-6)
    (failure,) = calibration.failures
    assert (failure.reward, failure.total, failure.accuracy, failure.failure) == (32, None, None, "failed")


def test_too_few_runs_give_neither_a_curve_nor_a_range() -> None:
    runs = [a_run(reward, state="failed" if reward > 8 else "finished") for reward in (4, 6, 8, 16)]
    calibration = of_runs(*runs)
    assert (calibration.fit, calibration.admissible, calibration.compared) == (None, None, None)
    assert calibration.statement == "only 3 of 4 rewards have a finished and evaluated run; a curve needs 4"


def test_the_curve_is_fitted_to_all_draws_of_every_reward() -> None:
    rewards = (4.0, 8.0, 16.0, 32.0, 64.0)
    runs = [
        a_run(reward, (a_run(reward).cell.accuracy or 0.0) + shift)
        for reward in rewards
        for shift in (-0.02, 0.0, 0.02)
    ]
    swept = SETUP.model_copy(update={"rewards": rewards, "draws": 3})
    calibration = fit_calibration(swept, partition="iid", results=runs, privacy_weight=WEIGHT)
    assert [run.draw for run in calibration.runs] == [0, 1, 2] * 5
    assert calibration.fit is not None
    assert calibration.fit.ceiling == pytest.approx(CEILING, abs=1e-6)
    assert (calibration.fit.target_gap, calibration.fit.target_max_gap) == (SETUP.target_gap, SETUP.target_max_gap)


def test_repeats_of_three_rewards_determine_no_curve() -> None:
    runs = [a_run(reward) for reward in (4.0, 8.0, 16.0) for _ in range(3)]
    swept = SETUP.model_copy(update={"rewards": (4.0, 8.0, 16.0), "draws": 3})
    assert fit_calibration(swept, partition="iid", results=runs, privacy_weight=WEIGHT).fit is None


def test_the_file_makes_a_task_with_this_range(tmp_path: Path) -> None:
    calibration = of_rewards(4, 8, 16, 32, 64)
    write_overrides(tmp_path / "calibrated.json", calibration)
    spec = preset("digits", json.loads((tmp_path / "calibrated.json").read_text()))
    assert calibration.admissible is not None and spec.game.reward_range is not None
    assert spec.game.reward_range.minimum_micro == round(calibration.admissible.minimum * 1e6)
