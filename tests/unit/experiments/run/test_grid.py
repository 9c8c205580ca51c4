"""The grid: the tasks of the methods differ only in selection, noise and reward."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from qidpfl_experiments.methods import (
    BY_NAME,
    INCENTIVES,
    METHODS,
    QI_DPFL,
    Method,
    Reward,
    Role,
    UnknownMethod,
    methods_named,
)
from qidpfl_experiments.results.calibration import Calibration
from qidpfl_experiments.results.cells import Cell, CellResult
from qidpfl_experiments.results.tables import RoundRow
from qidpfl_experiments.run.execute import failed
from qidpfl_experiments.run.grid import SWEEP_SEED, GridBuilder, MissingPrerequisite
from qidpfl_experiments.run.honesty import factor_of, misreports
from qidpfl_experiments.run.runner import MethodComparison, Runner
from qidpfl_experiments.settings import read_settings, setup
from qidpfl_shared.core.reward import RewardRange
from qidpfl_shared.protocol.task_spec import TaskSpec

GRID = GridBuilder(
    setup=setup(read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["dirichlet"])
)
RANGE = RewardRange(minimum=5.0, maximum=50.0)


def a_round(number: int, reward: float) -> RoundRow:
    nothing: dict[str, Any] = {name: 0.0 for name in RoundRow.__dataclass_fields__}
    key = {"dataset": "digits", "partition": "dirichlet", "method": "qi-dpfl", "seed": 1}
    return RoundRow(**{**nothing, **key, "round_number": number, "reward": reward})


def leader() -> CellResult:
    cell = GRID.cell(QI_DPFL, partition="dirichlet", seed=1, rewards=RANGE, leader=None)
    result = failed(cell, "")
    rounds = tuple(a_round(number, reward) for number, reward in ((1, 8.123456), (2, 9.0), (3, 10.5)))
    return replace(result, cell=replace(result.cell, state="finished", selected=4), rounds=rounds)


def spec_of(method: Method) -> TaskSpec:
    return GRID.cell(method, partition="dirichlet", seed=1, rewards=RANGE, leader=leader()).spec


def test_every_method_makes_a_valid_task() -> None:
    assert len({spec_of(method).digest for method in METHODS}) == len(METHODS)


def test_methods_differ_in_selection_noise_and_reward_only() -> None:
    def rest(spec: TaskSpec) -> dict[str, Any]:
        values = spec.model_dump(mode="json", exclude={"selection"})
        for name in ("policy", "reward_range", "reward_schedule_micro", "seed"):
            values["game"].pop(name, None)
        values["privacy"].pop("noise")
        # It follows from the policy: a client of a task without a game answers `join`.
        values.pop("requires")
        return values

    first, *others = (rest(spec_of(method)) for method in METHODS if not method.changes)
    assert all(other == first for other in others)


def test_the_low_pass_control_differs_from_fedavg_dp_in_the_aggregation_only() -> None:
    def rest(name: str) -> dict[str, Any]:
        return spec_of(BY_NAME[name]).model_dump(mode="json", exclude={"aggregation"})

    assert rest("fedavg-dp-lowpass") == rest("fedavg-dp")
    assert spec_of(BY_NAME["fedavg-dp-lowpass"]).aggregation.post_processing == "lowpass"


def test_a_filter_of_images_is_left_out_where_the_network_has_none() -> None:
    emnist = GridBuilder(
        setup=setup(read_settings(), dataset="emnist", scale=None, variant="recommended", partitions=["dirichlet"])
    )
    assert [method.name for method in METHODS if not emnist.can_run(method)] == ["fedavg-dp-lowpass"]
    assert all(GRID.can_run(method) for method in METHODS)


def test_the_printed_methods_are_the_paper_with_its_noise_as_printed() -> None:
    for method in (method for method in METHODS if method.role is Role.PRINTED):
        spec = spec_of(method)
        assert spec.privacy.mechanism.name == "paper_literal" and spec.privacy.mechanism.build().heuristic
        assert (spec.privacy.mechanism.learning_rate, spec.aggregation.weighting) == (0.01, "uniform")
        assert (spec.game.min_share, spec.aggregation.momentum) == (0.0, 0.0)


def test_printed_methods_follow_the_printed_qi_dpfl() -> None:
    settings = GRID.setup
    comparison = MethodComparison(
        runner=cast(Runner, FinishingRunner()),
        grid=GridBuilder(setup=settings),
        methods=methods_named(["printed-fedavg-dp"]),
        seeds=[0],
        calibrations={},
    )
    assert [row.cell.method for row in comparison.run()] == ["printed-qi-dpfl", "printed-fedavg-dp"]


def test_methods_that_follow_take_rewards_and_number_of_clients_from_qi_dpfl() -> None:
    spec = spec_of(BY_NAME["blind-dp"])
    assert spec.game.reward_schedule_micro == (8_123_456, 9_000_000, 10_500_000)
    assert (spec.selection.rule, spec.selection.random_clients) == ("random", 4)
    assert spec_of(BY_NAME["fedavg-dp"]).game.reward_schedule_micro == spec.game.reward_schedule_micro


@pytest.mark.parametrize("method", [method for method in METHODS if method.follows], ids=lambda m: m.name)
def test_a_method_that_follows_a_failed_qi_dpfl_cannot_run(method: Method) -> None:
    broken = replace(leader(), cell=replace(leader().cell, state="failed"))
    with pytest.raises(MissingPrerequisite):
        GRID.cell(method, partition="dirichlet", seed=1, rewards=RANGE, leader=broken)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_method_has_noise_if_it_pays_a_reward(method: Method) -> None:
    spec = spec_of(method)
    assert spec.privacy.noise == method.noise == (method.reward is not Reward.NONE)


def test_the_same_seed_divides_the_data_alike_for_all_methods_and_another_does_not() -> None:
    divided = {spec_of(method).workload.partition for method in METHODS}
    assert len(divided) == 1
    other = GRID.cell(QI_DPFL, partition="dirichlet", seed=2, rewards=RANGE, leader=None)
    assert other.spec.workload.partition not in divided


def test_a_sweep_uses_validation_records_and_another_division_of_the_data() -> None:
    for cell in (
        GRID.calibration_cell(partition="dirichlet", reward=3.0),
        GRID.tuning_cell(partition="dirichlet", learning_rate=0.5),
    ):
        assert cell.spec.workload.validation_records == GRID.setup.validation_records
        assert cell.key.seed == SWEEP_SEED
    assert spec_of(QI_DPFL).workload.validation_records is None


def test_noise_comes_from_the_seed_only_with_reproducible() -> None:
    plain = GRID.cell(QI_DPFL, partition="dirichlet", seed=1, rewards=RANGE, leader=None)
    repeatable = replace(GRID, reproducible=True).cell(
        QI_DPFL, partition="dirichlet", seed=1, rewards=RANGE, leader=None
    )
    assert (plain.unsafe_seed, repeatable.unsafe_seed) == (None, 1)
    assert plain.fingerprint != repeatable.fingerprint


def test_another_draw_is_another_cell_with_the_same_seed() -> None:
    cells = [GRID.calibration_cell(partition="dirichlet", reward=3.0, draw=draw) for draw in range(3)]
    assert len({cell.name for cell in cells}) == len({cell.fingerprint for cell in cells}) == 3
    assert [(cell.key.seed, cell.draw) for cell in cells] == [(SWEEP_SEED, draw) for draw in range(3)]


def test_one_client_lies_in_a_run_about_incentives_and_nothing_else_differs() -> None:
    cells = {
        method.name: GRID.cell(method, partition="dirichlet", seed=1, rewards=RANGE, leader=leader())
        for method in INCENTIVES
    }
    assert {cell.misreport for cell in cells.values()} == {0.8, 1.0, 1.2}
    honest, low = cells["contest-honest"], cells["contest-low"]
    assert honest.overrides == low.overrides and honest.fingerprint != low.fingerprint
    assert (low.spec.game.horizon, len(low.spec.game.reward_schedule_micro or ())) == (3, 3)
    assert low.spec.bounds.privacy_value_min == 0.5
    assert misreports(honest) == [] and "0.8" in misreports(low)
    assert [factor_of(low, ordinal) for ordinal in range(low.clients)].count(0.8) == 1


def test_incentives_are_a_group_of_their_own() -> None:
    assert methods_named(["incentives"]) == INCENTIVES
    assert not {method.name for method in METHODS} & {method.name for method in INCENTIVES}


def test_other_rules_of_the_same_name_are_another_cell() -> None:
    fingerprints = {
        GRID.cell(
            replace(QI_DPFL, rules_digest=digest), partition="dirichlet", seed=1, rewards=RANGE, leader=None
        ).fingerprint
        for digest in ("", "a", "b")
    }
    assert len(fingerprints) == 3


def test_overrides_are_json() -> None:
    for method in METHODS:
        cell = GRID.cell(method, partition="dirichlet", seed=1, rewards=RANGE, leader=leader())
        assert json.loads(json.dumps(cell.overrides)) == cell.overrides


class FinishingRunner:
    """A runner in which every cell that is run finishes."""

    def results(self, phase: str, cells: Sequence[Cell]) -> list[CellResult]:
        return [replace(failed(cell, ""), cell=replace(failed(cell, "").cell, state="finished")) for cell in cells]

    def keep(self, cell: Cell, result: CellResult) -> CellResult:
        return result


def test_a_failed_calibration_of_one_partition_leaves_the_others_alone() -> None:
    settings = setup(
        read_settings(), dataset="digits", scale="smoke", variant="recommended", partitions=["iid", "dirichlet"]
    )
    comparison = MethodComparison(
        runner=cast(Runner, FinishingRunner()),
        grid=GridBuilder(setup=settings),
        methods=[QI_DPFL, BY_NAME["fedavg-dp"]],
        seeds=[0, 1],
        calibrations={"iid": Calibration(partition="iid", runs=(), fit=None)},
    )
    states = {(row.cell.method, row.cell.partition, row.cell.state) for row in comparison.run()}
    assert states == {
        *((method, "iid", "failed") for method in ("qi-dpfl", "fedavg-dp")),
        *((method, "dirichlet", "finished") for method in ("qi-dpfl", "fedavg-dp")),
    }


def test_methods_are_chosen_by_name_in_our_order() -> None:
    assert [method.name for method in methods_named(["qi-dpfl", "fedavg"])] == ["fedavg", "qi-dpfl"]
    assert methods_named(["all"]) == METHODS


def test_the_error_names_the_unknown_method() -> None:
    with pytest.raises(UnknownMethod, match="there is no method 'best'; there are all, incentives, fedavg"):
        methods_named(["fedavg", "best"])
