"""What a task may be, and what the core makes of it."""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.core.planning import RewardBound, RoundPlan, plan_round
from qidpfl_shared.core.privacy import mechanisms as core
from qidpfl_shared.core.reward import RewardPolicy, RewardRange, Weighting
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.core.selection import All, Custom, Random, Threshold, Union
from qidpfl_shared.protocol.fields import MAX_DIMENSION
from qidpfl_shared.protocol.presets import PRESETS
from qidpfl_shared.protocol.task_spec import PartitionKind, TaskSpec

Json = dict[str, Any]
Reader = Callable[[Json], TaskSpec]

TASK: Json = {
    "workload": {"dataset": "three-labels", "network": "linear", "labels": 3, "convex": True},
    "layout": {"tensors": [{"name": "weight", "shape": [3, 4]}, {"name": "bias", "shape": [3]}]},
    "game": {"horizon": 20, "discount": 0.93, "privacy_weight": 30.0, "convexity": 0.03},
    "privacy": {"mechanism": {"name": "gradient_once", "clip_norm": 1.0}},
    "bounds": {"rho_max": 0.5, "reward_max_micro": 300_000_000, "reward_total_micro": 6_000_000_000},
}
RANGE = {"minimum_micro": 1_000_000, "maximum_micro": 2_000_000}
TRAINING = {"learning_rate": 0.01, "epochs": 2, "batch_size": 64}
UPDATE_MECHANISMS: dict[str, Json] = {
    "noisy_epochs": TRAINING | {"clip_norm": 1.0},
    "update_clip": TRAINING | {"clip_norm": 1.0},
    "paper_literal": TRAINING | {"clip_norm": 1.0},
    "bolt_on": TRAINING | {"feature_norm": 10.0},
}
# One partition of each kind that contradicts nothing.
PARTITIONS: dict[str, Json] = {
    "iid": {"kind": "iid", "clients": 5},
    "shards": {"kind": "shards", "clients": 5},
    "dirichlet_class": {"kind": "dirichlet_class", "clients": 5, "concentration": 1.0},
    "dirichlet_client": {"kind": "dirichlet_client", "clients": 5, "concentration": 1.0},
    "quality_mix": {"kind": "quality_mix", "clients": 5, "concentration": 8.0, "two_class_ordinals": [0, 4]},
}
# Every paying policy with what it needs, so that only the noise is at fault.
PAYING: dict[str, Json] = {
    "optimal": {},
    "max": {"reward_range": RANGE},
    "random": {"reward_range": RANGE},
    "fixed": {"fixed_reward_micro": 5},
    "own": {"own_rules": "mine"},
}


def task(changes: Json) -> Json:
    """The task above with some values replaced, by their dotted paths."""
    changed = copy.deepcopy(TASK)
    for path, value in changes.items():
        *sections, last = path.split(".")
        place = changed
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return changed


def read_text(text: Json) -> TaskSpec:
    return TaskSpec.model_validate_json(json.dumps(text))


def codes_of(read: Callable[..., object], *arguments: object) -> list[str]:
    """The codes of a refusal; none at all if it is accepted."""
    try:
        read(*arguments)
    except ValidationError as refusal:
        return [error["type"] for error in refusal.errors()]
    return []


@pytest.fixture(params=[TaskSpec.model_validate, read_text], ids=["objects", "text"])
def read(request: pytest.FixtureRequest) -> Reader:
    reader: Reader = request.param
    return reader


# --- rules -----------------------------------------------------------------------------------------------------------


def test_a_task_without_contradictions_is_admissible(read: Reader) -> None:
    assert read(TASK).dimension == 15


@pytest.mark.parametrize("name", PRESETS)
def test_a_built_in_network_on_a_built_in_data_set_has_its_own_layout_only(read: Reader, name: str) -> None:
    spec = PRESETS[name]().model_dump(mode="json")
    assert codes_of(read, spec) == []
    for tensors in ([{"name": "w", "shape": []}], spec["layout"]["tensors"][::-1], spec["layout"]["tensors"][:-1]):
        assert codes_of(read, spec | {"layout": {"tensors": tensors}}) == ["inconsistent_spec"]


def test_a_built_in_data_set_has_its_own_labels_only(read: Reader) -> None:
    spec = PRESETS["digits"]().model_dump(mode="json")
    assert codes_of(read, spec | {"workload": spec["workload"] | {"labels": 9}}) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "own", [{"dataset": "none"}, {"dataset": "module:Class"}, {"network": "theirs"}, {"dataset": "none", "labels": 9}]
)
def test_data_sets_and_networks_of_ones_own_have_any_layout(read: Reader, own: Json) -> None:
    spec = PRESETS["digits"]().model_dump(mode="json")
    layout = {"tensors": [{"name": "w", "shape": []}]}
    assert codes_of(read, spec | {"workload": spec["workload"] | own, "layout": layout}) == []


@pytest.mark.parametrize("policy", ["max", "random"])
def test_policies_that_draw_from_a_range_need_one(read: Reader, policy: str) -> None:
    assert codes_of(read, task({"game.policy": policy})) == ["reward_range_required"]


@pytest.mark.parametrize("policy", ["max", "random"])
def test_an_infinite_reward_cannot_be_written(read: Reader, policy: str) -> None:
    reward_range = {"minimum_micro": 0, "maximum_micro": math.inf}
    assert codes_of(read, task({"game.policy": policy, "game.reward_range": reward_range})) == ["int_type"]


def test_policy_fixed_needs_its_reward(read: Reader) -> None:
    assert codes_of(read, task({"game.policy": "fixed"})) == ["reward_required"]


@pytest.mark.parametrize("policy", ["optimal", "max", "random"])
def test_no_other_policy_takes_a_fixed_reward(read: Reader, policy: str) -> None:
    changes = {"game.policy": policy, "game.reward_range": RANGE, "game.fixed_reward_micro": 5}
    assert codes_of(read, task(changes)) == ["reward_required"]


def test_policy_none_takes_no_fixed_reward(read: Reader) -> None:
    changes = {"game.policy": "none", "privacy.noise": False, "game.fixed_reward_micro": 0}
    assert codes_of(read, task(changes)) == ["reward_required"]


def test_policy_fixed_takes_a_schedule_instead_of_one_reward(read: Reader) -> None:
    schedule = {"game.policy": "fixed", "game.reward_schedule_micro": [7] * 20}
    assert read(task(schedule)).game.reward_schedule_micro == (7,) * 20
    assert codes_of(read, task(schedule | {"game.fixed_reward_micro": 5})) == ["reward_required"]
    assert codes_of(read, task(schedule | {"game.policy": "optimal"})) == ["reward_required"]
    unpaid = {"game.policy": "none", "privacy.noise": False}
    assert codes_of(read, task(schedule | unpaid)) == ["reward_required"]


@pytest.mark.parametrize("rounds", [0, 19, 21])
def test_a_schedule_has_one_reward_for_every_round(read: Reader, rounds: int) -> None:
    changes = {"game.policy": "fixed", "game.reward_schedule_micro": [7] * rounds}
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


@pytest.mark.parametrize("reward", [-1, 1.5, "1", None, True, MAX_MICRO + 1])
def test_every_reward_of_a_schedule_is_money(read: Reader, reward: object) -> None:
    changes = {"game.policy": "fixed", "game.reward_schedule_micro": [*[7] * 19, reward]}
    assert len(codes_of(read, task(changes))) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"game.policy": "own"},
        {"game.own_rules": "mine"},
        {"selection.rule": "own"},
        {"selection.own_rules": "mine"},
        {"selection.rule": "random", "selection.own_rules": "mine", "selection.random_clients": 3, "selection.seed": 1},
    ],
    ids=str,
)
def test_custom_rules_are_named_if_and_only_if_they_are_used(read: Reader, changes: Json) -> None:
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "changes",
    [
        {"selection.rule": "random"},
        {"selection.rule": "random", "selection.random_clients": 3},
        {"selection.rule": "random", "selection.seed": 3},
        {"selection.random_clients": 3},
        {"selection.seed": 0},
        {"selection.rule": "random", "selection.seed": 3, "selection.random_clients": 2},
    ],
    ids=str,
)
def test_a_blind_choice_needs_a_seed_and_at_least_the_smallest_number_of_clients(read: Reader, changes: Json) -> None:
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "selection", [{"rule": "random", "random_clients": 3, "seed": 0}, {"rule": "own", "own_rules": "mine"}], ids=str
)
def test_rules_that_look_at_all_clients_together_take_no_late_joiners(read: Reader, selection: Json) -> None:
    assert codes_of(read, task({"selection": selection})) == []
    assert codes_of(read, task({"selection": selection, "rounds.late_joiners": True})) == ["inconsistent_spec"]


def test_fields_that_tasks_did_not_have_once_leave_no_trace_where_they_are_not_used() -> None:
    sections = TaskSpec.model_validate(TASK).model_dump(mode="json")
    assert not {"random_clients", "seed", "own_rules"} & sections["selection"].keys()
    assert not {"reward_schedule_micro", "own_rules"} & sections["game"].keys()


@pytest.mark.parametrize(("policy", "needs"), PAYING.items())
def test_paying_without_noise_is_refused(read: Reader, policy: str, needs: Json) -> None:
    game = TASK["game"] | {"policy": policy} | needs
    assert codes_of(read, task({"game": game, "privacy.noise": False})) == ["paid_without_noise"]


@pytest.mark.parametrize(("policy", "needs"), PAYING.items())
def test_paying_with_noise_is_admissible(read: Reader, policy: str, needs: Json) -> None:
    assert read(task({"game": TASK["game"] | {"policy": policy} | needs})).game.policy == policy


def test_noise_without_a_game_is_refused(read: Reader) -> None:
    assert codes_of(read, task({"game.policy": "none"})) == ["noise_without_budget"]


def test_an_empty_reward_range_is_inconsistent(read: Reader) -> None:
    empty = {"minimum_micro": 2, "maximum_micro": 1}
    assert codes_of(read, task({"game.reward_range": empty})) == ["inconsistent_spec"]


def test_a_reward_range_of_one_reward_is_admissible(read: Reader) -> None:
    single = {"minimum_micro": 2, "maximum_micro": 2}
    assert read(task({"game.reward_range": single})).game.reward_range is not None


def test_a_discount_that_leaves_nothing_of_the_last_round_is_inconsistent(read: Reader) -> None:
    assert codes_of(read, task({"game.discount": 1e-5})) == ["inconsistent_spec"]


def test_a_learning_rate_beyond_the_proof_of_bolt_on_is_inconsistent(read: Reader) -> None:
    bolt_on = {"name": "bolt_on", **UPDATE_MECHANISMS["bolt_on"], "learning_rate": 0.0397}
    assert codes_of(read, task({"privacy.mechanism": bolt_on})) == ["inconsistent_spec"]


def test_the_largest_learning_rate_of_the_proof_is_admissible(read: Reader) -> None:
    bolt_on = {"name": "bolt_on", **UPDATE_MECHANISMS["bolt_on"], "learning_rate": 4 / 101}
    assert read(task({"privacy.mechanism": bolt_on})).privacy.mechanism.name == "bolt_on"


@pytest.mark.parametrize("step", [{"learning_rate": 2.0}, {"learning_rate": 0.5}, {"momentum": 0.8}])
@pytest.mark.parametrize(("name", "parameters"), UPDATE_MECHANISMS.items())
def test_finished_updates_take_no_server_step(read: Reader, name: str, parameters: Json, step: Json) -> None:
    changes = {"privacy.mechanism": {"name": name, **parameters}, "aggregation": step}
    assert codes_of(read, task(changes)) == ["server_step_fixed"]


def test_a_gradient_takes_any_server_step(read: Reader) -> None:
    assert read(task({"aggregation": {"learning_rate": 3.0, "momentum": 0.9}})).aggregation.momentum == 0.9


@pytest.mark.parametrize("convex", [{"convex": False}, {}], ids=["said", "unsaid"])
def test_bolt_on_needs_a_convex_network(read: Reader, convex: Json) -> None:
    workload = {"dataset": "three-labels", "network": "lenet", "labels": 3, **convex}
    changes = {"workload": workload, "privacy.mechanism": {"name": "bolt_on", **UPDATE_MECHANISMS["bolt_on"]}}
    assert codes_of(read, task(changes)) == ["convex_network_required"]


@pytest.mark.parametrize("name", ["noisy_epochs", "update_clip", "paper_literal"])
def test_other_mechanisms_take_any_network(read: Reader, name: str) -> None:
    changes = {"workload.convex": False, "privacy.mechanism": {"name": name, **UPDATE_MECHANISMS[name]}}
    assert read(task(changes)).privacy.mechanism.name == name


def test_a_given_reference_needs_its_weights(read: Reader) -> None:
    assert codes_of(read, task({"selection.reference": "given"})) == ["inconsistent_spec"]


@pytest.mark.parametrize("reference", ["uniform", "pooled"])
def test_no_other_reference_takes_weights(read: Reader, reference: str) -> None:
    selection = {"reference": reference, "reference_weights": [1.0, 1.0, 1.0]}
    assert codes_of(read, task({"selection": selection})) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([], id="none"),
        pytest.param([1.0, 1.0], id="too few"),
        pytest.param([1.0, 1.0, 1.0, 1.0], id="too many"),
        pytest.param([0.0, 0.0, 0.0], id="all zero"),
    ],
)
def test_reference_weights_that_are_no_distribution_of_the_labels_are_inconsistent(
    read: Reader, weights: list[float]
) -> None:
    selection = {"reference": "given", "reference_weights": weights}
    assert codes_of(read, task({"selection": selection})) == ["inconsistent_spec"]


def test_a_label_may_be_missing_from_the_reference(read: Reader) -> None:
    selection = {"reference": "given", "reference_weights": [0.0, 0.0, 1e-300]}
    assert read(task({"selection": selection})).label_reference([]).tolist() == [0.0, 0.0, 1.0]


def test_the_largest_reference_weights_are_a_distribution(read: Reader) -> None:
    selection = {"reference": "given", "reference_weights": [1e15, 1e15, 2e-9]}
    assert read(task({"selection": selection})).label_reference([]).tolist() == pytest.approx([0.5, 0.5, 1e-24])


@pytest.mark.parametrize("weight", [math.nextafter(1e15, math.inf), 1e300, 10**30], ids=repr)
def test_a_reference_weight_has_an_upper_bound(read: Reader, weight: float) -> None:
    selection = {"reference": "given", "reference_weights": [1.0, 1.0, weight]}
    assert codes_of(read, task({"selection": selection})) == ["less_than_equal"]


@pytest.mark.parametrize(
    "contradiction",
    [
        pytest.param({"bounds.rho_min": 0.3, "bounds.rho_max": 0.2}, id="budgets"),
        pytest.param({"bounds.rho_max": 1e-7}, id="the default of the least budget"),
        pytest.param(
            {"game.policy": "fixed", "game.fixed_reward_micro": 6, "bounds.reward_max_micro": 5}, id="fixed reward"
        ),
        pytest.param(
            {
                "game.policy": "fixed",
                "game.reward_schedule_micro": [*[5] * 19, 6],
                "bounds.reward_max_micro": 5,
            },
            id="scheduled reward",
        ),
        pytest.param({"bounds.privacy_value_min": 2.0, "bounds.privacy_value_max": 1.0}, id="privacy values"),
        pytest.param({"bounds.reward_max_micro": 2, "bounds.reward_total_micro": 1}, id="rewards"),
        pytest.param({"rounds.min_clients": 3, "rounds.min_updates": 4}, id="minima"),
        pytest.param({"rounds.min_clients": 6, "bounds.clients_max": 5}, id="least clients"),
        pytest.param({"rounds.expected_clients": 6, "bounds.clients_max": 5}, id="expected clients"),
    ],
)
def test_bounds_that_exclude_each_other_are_inconsistent(read: Reader, contradiction: Json) -> None:
    assert codes_of(read, task(contradiction)) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"bounds.rho_min": 0.2, "bounds.rho_max": 0.2}, id="budgets"),
        pytest.param({"bounds.rho_max": 1e-6}, id="the default of the least budget"),
        pytest.param(
            {"game.policy": "fixed", "game.fixed_reward_micro": 5, "bounds.reward_max_micro": 5}, id="fixed reward"
        ),
        pytest.param(
            {"game.policy": "fixed", "game.reward_schedule_micro": [5] * 20, "bounds.reward_max_micro": 5},
            id="scheduled reward",
        ),
        pytest.param({"bounds.privacy_value_min": 1.0, "bounds.privacy_value_max": 1.0}, id="privacy values"),
        pytest.param({"bounds.reward_max_micro": 1, "bounds.reward_total_micro": 1}, id="rewards"),
        pytest.param({"rounds.min_clients": 4, "rounds.min_updates": 4}, id="minima"),
        pytest.param({"rounds.min_clients": 5, "bounds.clients_max": 5}, id="least clients"),
        pytest.param({"rounds.expected_clients": 5, "bounds.clients_max": 5}, id="expected clients"),
    ],
)
def test_bounds_that_just_meet_are_admissible(read: Reader, limit: Json) -> None:
    assert read(task(limit)).dimension == 15


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"selection.rule": "all", "privacy.noise": False, "game.policy": "none"}, id="FedAvg"),
        pytest.param({"privacy.noise": False, "game.policy": "none"}, id="FedAvg-select"),
        pytest.param({"selection.rule": "all"}, id="FedAvg-DP"),
        pytest.param({}, id="QI-DPFL"),
        pytest.param({"selection.rule": "all", "game.policy": "max", "game.reward_range": RANGE}, id="Max"),
        pytest.param({"game.policy": "max", "game.reward_range": RANGE}, id="Max-select"),
        pytest.param({"selection.rule": "all", "game.policy": "random", "game.reward_range": RANGE}, id="Random"),
        pytest.param({"game.policy": "random", "game.reward_range": RANGE}, id="Random-select"),
    ],
)
def test_every_method_of_the_paper_is_a_combination_of_switches(read: Reader, method: Json) -> None:
    assert read(task(method)).dimension == 15


# --- partitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_of_each_kind_is_admissible(read: Reader, partition: Json) -> None:
    spec = read(task({"workload.partition": partition, "rounds.expected_clients": 5}))
    assert spec.workload.partition is not None and spec.workload.partition.kind == partition["kind"]


def test_every_kind_of_partition_is_tested() -> None:
    assert set(PARTITIONS) == {kind.value for kind in PartitionKind}


@pytest.mark.parametrize("change", [{"concentration": None}, {}], ids=["said", "unsaid"])
@pytest.mark.parametrize("kind", ["dirichlet_class", "dirichlet_client", "quality_mix"])
def test_a_partition_that_draws_needs_a_concentration(read: Reader, kind: str, change: Json) -> None:
    partition = {"kind": kind, "clients": 5, **change}
    assert codes_of(read, task({"workload.partition": partition})) == ["inconsistent_spec"]


@pytest.mark.parametrize("kind", ["iid", "shards", "dirichlet_class", "dirichlet_client"])
def test_no_other_partition_takes_clients_of_two_labels(read: Reader, kind: str) -> None:
    partition = PARTITIONS[kind] | {"two_class_ordinals": [1]}
    assert codes_of(read, task({"workload.partition": partition})) == ["inconsistent_spec"]


@pytest.mark.parametrize("ordinals", [[5], [0, 1_000_000], [1, 1], [0, 4, 0]], ids=repr)
def test_clients_of_two_labels_are_different_clients_of_the_partition(read: Reader, ordinals: list[int]) -> None:
    partition = PARTITIONS["quality_mix"] | {"two_class_ordinals": ordinals}
    assert codes_of(read, task({"workload.partition": partition})) == ["inconsistent_spec"]


@pytest.mark.parametrize("ordinals", [[], [4], [4, 3, 2, 1, 0]], ids=repr)
def test_any_clients_of_the_partition_may_hold_two_labels(read: Reader, ordinals: list[int]) -> None:
    partition = PARTITIONS["quality_mix"] | {"two_class_ordinals": ordinals}
    spec = read(task({"workload.partition": partition}))
    assert spec.workload.partition is not None and spec.workload.partition.two_class_ordinals == tuple(ordinals)


@pytest.mark.parametrize("field", ["training_records", "validation_records"])
def test_portions_of_the_records_belong_to_a_testbed(read: Reader, field: str) -> None:
    portion = {f"workload.{field}": 50}
    assert codes_of(read, task(portion)) == ["inconsistent_spec"]
    assert codes_of(read, task(portion | {"workload.partition": PARTITIONS["iid"]})) == []
    for count in (0, -1, 1.0, True):
        refused = {f"workload.{field}": count, "workload.partition": PARTITIONS["iid"]}
        assert len(codes_of(read, task(refused))) == 1


@pytest.mark.parametrize(("records", "codes"), [(4, ["inconsistent_spec"]), (5, [])])
def test_every_client_has_a_record_to_train_on(read: Reader, records: int, codes: list[str]) -> None:
    spec = task({"workload.partition": PARTITIONS["iid"], "workload.training_records": records})
    assert codes_of(read, spec) == codes


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param({"expected_clients": 6}, id="expected clients"),
        pytest.param({"expected_clients": None, "min_clients": 6}, id="least clients"),
    ],
)
@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_a_partition_has_a_shard_for_every_expected_client(read: Reader, partition: Json, rounds: Json) -> None:
    assert codes_of(read, task({"workload.partition": partition, "rounds": rounds})) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param({"expected_clients": 5}, id="expected clients"),
        pytest.param({"expected_clients": None, "min_clients": 5}, id="least clients"),
        pytest.param({"expected_clients": 4}, id="fewer clients"),
    ],
)
def test_a_partition_needs_no_more_shards_than_are_expected(read: Reader, rounds: Json) -> None:
    assert read(task({"workload.partition": PARTITIONS["iid"], "rounds": rounds})).dimension == 15


def test_without_a_partition_any_number_of_clients_may_be_expected(read: Reader) -> None:
    assert read(task({"workload.partition": None, "rounds.expected_clients": 1000})).workload.partition is None


# --- bounds of numbers -----------------------------------------------------------------------------------------------

BOUNDED: dict[str, tuple[float, float]] = {
    "game.discount": (1e-6, 1.0),
    "game.privacy_weight": (1e-9, 1e9),
    "game.smoothness": (1e-9, 1e9),
    "game.convexity": (1e-9, 1e9),
    "privacy.histogram_rho": (1e-12, 1e9),
    "privacy.lifetime_rho": (1e-12, 1e9),
    "aggregation.learning_rate": (1e-9, 1e6),
    "bounds.rho_max": (1e-12, 1e9),
    "bounds.rho_min": (1e-12, 1e9),
    "bounds.privacy_value_min": (1e-9, 1e9),
    "bounds.privacy_value_max": (1e-9, 1e9),
}
# What lets each of these numbers take either bound without contradicting another.
WIDEST = {
    "game.horizon": 1,
    "bounds.rho_min": 1e-12,
    "bounds.rho_max": 1e9,
    "bounds.privacy_value_min": 1e-9,
    "bounds.privacy_value_max": 1e9,
}
MECHANISMS: dict[str, Json] = {"gradient_once": {"clip_norm": 1.0}, **UPDATE_MECHANISMS}
PARAMETERS = [
    (name, parameter)
    for name, parameters in MECHANISMS.items()
    for parameter in parameters
    if parameter in ("clip_norm", "learning_rate", "feature_norm")
]
MONEY = [
    "game.reward_range.minimum_micro",
    "game.reward_range.maximum_micro",
    "game.fixed_reward_micro",
    "bounds.reward_max_micro",
    "bounds.reward_total_micro",
]

every_bounded_number = pytest.mark.parametrize(("field", "bounds"), BOUNDED.items(), ids=BOUNDED)


def with_parameter(name: str, parameter: str, value: float) -> Json:
    return task({"privacy.mechanism": {"name": name, **MECHANISMS[name], parameter: value}})


@every_bounded_number
def test_a_number_reaches_to_its_bounds(read: Reader, field: str, bounds: tuple[float, float]) -> None:
    assert [codes_of(read, task(WIDEST | {field: bound})) for bound in bounds] == [[], []]


@every_bounded_number
def test_a_number_just_below_its_bound_is_refused(read: Reader, field: str, bounds: tuple[float, float]) -> None:
    below = math.nextafter(bounds[0], 0)
    assert codes_of(read, task(WIDEST | {field: below})) == ["greater_than_equal"]


@every_bounded_number
def test_a_number_just_above_its_bound_is_refused(read: Reader, field: str, bounds: tuple[float, float]) -> None:
    above = math.nextafter(bounds[1], math.inf)
    assert codes_of(read, task(WIDEST | {field: above})) == ["less_than_equal"]


@pytest.mark.parametrize("value", [0, 5e-324, 1e-300, 1e-60], ids=repr)
def test_no_number_is_so_small_that_its_square_is_lost(read: Reader, value: float) -> None:
    assert codes_by_field(read, list(BOUNDED), value) == {key: ["greater_than_equal"] for key in BOUNDED}


def test_the_gradients_may_be_bounded_by_zero(read: Reader) -> None:
    assert read(task({"game.gradient_bound": 0.0})).cost_model().signal_cost == 0


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_parameter_of_a_mechanism_is_never_too_small(read: Reader, name: str, parameter: str) -> None:
    tiny = [0, 5e-324, math.nextafter(1e-9, 0)]
    assert [codes_of(read, with_parameter(name, parameter, value)) for value in tiny] == [["greater_than_equal"]] * 3


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_parameter_of_a_mechanism_is_never_too_large(read: Reader, name: str, parameter: str) -> None:
    huge = [math.nextafter(1e9, math.inf), 1e300]
    assert [codes_of(read, with_parameter(name, parameter, value)) for value in huge] == [["less_than_equal"]] * 2


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_a_parameter_of_a_mechanism_may_be_as_small_as_its_bound(read: Reader, name: str, parameter: str) -> None:
    assert read(with_parameter(name, parameter, 1e-9)).round_rules().mechanism.noise_scale(size=10**7) > 0


@pytest.mark.parametrize(("name", "parameter"), [pair for pair in PARAMETERS if pair[0] != "bolt_on"])
def test_a_parameter_of_a_mechanism_may_be_as_large_as_its_bound(read: Reader, name: str, parameter: str) -> None:
    assert read(with_parameter(name, parameter, 1e9)).round_rules().mechanism.noise_scale(size=1) < math.inf


@pytest.mark.parametrize("field", MONEY)
def test_money_ends_at_a_billion_units(read: Reader, field: str) -> None:
    changes = {"game.policy": "fixed", "game.fixed_reward_micro": 5, "game.reward_range": dict(RANGE)}
    assert codes_of(read, task(changes | {field: MAX_MICRO + 1})) == ["less_than_equal"]


@pytest.mark.parametrize("field", ["bounds.reward_max_micro", "bounds.reward_total_micro"])
def test_a_task_may_pay_a_billion_units(read: Reader, field: str) -> None:
    spec = read(task({"bounds.reward_total_micro": MAX_MICRO, field: MAX_MICRO}))
    assert spec.bounds.reward_total_micro == MAX_MICRO


@pytest.mark.parametrize(
    "game",
    [
        {"policy": "fixed", "fixed_reward_micro": MAX_MICRO},
        {"policy": "max", "reward_range": {"minimum_micro": 0, "maximum_micro": MAX_MICRO}},
        {"policy": "random", "reward_range": {"minimum_micro": MAX_MICRO, "maximum_micro": MAX_MICRO}},
    ],
    ids=lambda game: str(game["policy"]),
)
def test_the_largest_reward_is_planned_to_its_last_unit(read: Reader, game: Json) -> None:
    money = {"bounds.reward_max_micro": MAX_MICRO, "bounds.reward_total_micro": MAX_MICRO}
    plan = plan_of(read(task({"game": TASK["game"] | game, **money})), round_number=1)
    assert (plan.reward_micro, plan.bound) == (MAX_MICRO, RewardBound.NONE)


# --- corners of all bounds together ----------------------------------------------------------------------------------

# A discount of 1e-6 leaves something of the fifteenth round only; of a million rounds this one does.
SCHEDULES = [(1, 1e-6), (1, 1.0), (15, 1e-6), (1_000_000, 0.99980002), (1_000_000, 1.0)]
ENDS = st.sampled_from([1e-9, 1e9])
RHO_ENDS = st.sampled_from([1e-12, 1e9])
MOST_RECORDS = 2**53 - 1


def corner_mechanisms() -> st.SearchStrategy[Json]:
    trained = ("update_clip", "paper_literal", "noisy_epochs")
    clipped = {"clip_norm": ENDS, "learning_rate": ENDS, "epochs": st.sampled_from([1, 10_000])}
    batch = {"batch_size": st.sampled_from([1, 10_000_000])}
    # The proof of bolt_on allows learning rates up to 4/(feature_norm² + 1).
    steps = st.sampled_from([(1e-9, 1e-9), (1e-9, 4.0), (1e4, 1e-9), (6e4, 1e-9)])
    return st.one_of(
        st.fixed_dictionaries({"name": st.just("gradient_once"), "clip_norm": ENDS}),
        st.fixed_dictionaries({"name": st.sampled_from(trained), **clipped, **batch}),
        st.builds(
            lambda step, rest: {"name": "bolt_on", "feature_norm": step[0], "learning_rate": step[1], **rest},
            steps,
            st.fixed_dictionaries({"epochs": clipped["epochs"], **batch}),
        ),
    )


@st.composite
def corner_tasks(draw: st.DrawFn) -> Json:
    horizon, discount = draw(st.sampled_from(SCHEDULES))
    reward_micro = draw(st.sampled_from([1, MAX_MICRO]))
    game = {
        "horizon": horizon,
        "discount": discount,
        "privacy_weight": draw(ENDS),
        "accuracy_weight": draw(st.sampled_from([0.0, 0.5, math.nextafter(1.0, 0)])),
        "smoothness": draw(ENDS),
        "convexity": draw(ENDS),
        "gradient_bound": draw(st.sampled_from([0.0, 1e9])),
        "min_share": draw(st.sampled_from([0.0, 1.0])),
    }
    bounds = {
        "rho_max": draw(RHO_ENDS),
        "rho_min": 1e-12,
        "privacy_value_min": 1e-9,
        "privacy_value_max": 1e9,
        "size_max": MOST_RECORDS,
        "reward_max_micro": reward_micro,
        "reward_total_micro": reward_micro,
    }
    return task(
        {
            "layout.tensors": [{"name": "weight", "shape": [draw(st.sampled_from([1, MAX_DIMENSION]))]}],
            "game": game,
            "privacy.mechanism": draw(corner_mechanisms()),
            "aggregation.weighting": draw(st.sampled_from([weighting.value for weighting in Weighting])),
            "bounds": bounds,
        }
    )


def corner_participants(most_records: int) -> st.SearchStrategy[list[Participant]]:
    participant = st.builds(
        Participant,
        privacy_value=ENDS,
        size=st.sampled_from([1, most_records]),
        rho_cap=RHO_ENDS | st.just(math.inf),
        remaining_rho=RHO_ENDS | st.sampled_from([0.0, math.inf]),
    )
    return st.lists(participant, min_size=2, max_size=5)


def plan_of(spec: TaskSpec, round_number: int, participants: list[Participant] | None = None) -> RoundPlan:
    return plan_round(
        rules=spec.round_rules(),
        round_number=round_number,
        participants=[Participant(privacy_value=1.0, size=100)] * 3 if participants is None else participants,
        reward_left_micro=spec.bounds.reward_total_micro,
    )


# Twice the examples of the profile: there are many corners.
@settings(max_examples=2 * settings().max_examples)
@given(body=corner_tasks(), data=st.data())
def test_a_round_can_be_planned_in_every_corner_of_the_bounds(body: Json, data: st.DataObject) -> None:
    spec = TaskSpec.model_validate(body)
    # noisy_epochs lists its batches: with batches of one record, as many as there are records.
    most_records = 1000 if spec.privacy.mechanism.name == "noisy_epochs" else MOST_RECORDS
    participants = data.draw(corner_participants(most_records))
    round_number = data.draw(st.sampled_from([1, spec.game.horizon]))
    plan = plan_of(spec, round_number, participants)
    assert 0 <= plan.reward_micro <= spec.bounds.reward_max_micro
    assert all(0 <= budget <= spec.bounds.rho_max for budget in plan.budgets) and math.isfinite(plan.total)


@given(body=corner_tasks())
def test_the_cost_model_has_finite_constants_in_every_corner_of_the_bounds(body: Json) -> None:
    model = TaskSpec.model_validate(body).cost_model()
    assert 0 <= model.noise_factor < math.inf and 0 <= model.signal_cost < math.inf
    assert 0 < model.price(model.horizon) <= 1


@given(body=corner_tasks())
def test_a_task_in_a_corner_of_the_bounds_survives_json(body: Json) -> None:
    spec = TaskSpec.model_validate(body)
    assert TaskSpec.model_validate_json(spec.model_dump_json()).digest == spec.digest


# --- hostile values --------------------------------------------------------------------------------------------------

FLOATS = [
    "selection.distance_threshold",
    "game.discount",
    "game.privacy_weight",
    "game.accuracy_weight",
    "game.smoothness",
    "game.convexity",
    "game.gradient_bound",
    "game.min_share",
    "privacy.mechanism.clip_norm",
    "privacy.delta",
    "privacy.histogram_rho",
    "privacy.lifetime_rho",
    "privacy.audit_alpha",
    "aggregation.learning_rate",
    "aggregation.momentum",
    "rounds.deliver_s",
    "bounds.rho_max",
    "bounds.rho_min",
    "bounds.privacy_value_min",
    "target_accuracy",
]
INTEGERS = [
    "workload.labels",
    "game.horizon",
    "game.seed",
    "game.fixed_reward_micro",
    "rounds.min_clients",
    "rounds.max_attempts",
    "bounds.size_max",
    "bounds.reward_max_micro",
    "retention.last_rounds",
]
SWITCHES = ["workload.convex", "privacy.noise", "rounds.late_joiners"]


def codes_by_field(read: Reader, fields: list[str], value: object) -> dict[str, list[str]]:
    return {field: codes_of(read, task({field: value})) for field in fields}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_must_be_finite(read: Reader, value: float) -> None:
    assert codes_by_field(read, FLOATS, value) == {key: ["finite_number"] for key in FLOATS}


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "1" + "0" * 400], ids=["1e999", "-1e999", "10**400"])
def test_a_number_too_large_for_a_float_is_refused_in_text(digits: str) -> None:
    texts = {field: json.dumps(task({field: "HERE"})).replace('"HERE"', digits) for field in FLOATS}
    codes = {field: codes_of(TaskSpec.model_validate_json, text) for field, text in texts.items()}
    assert codes == {key: ["finite_number"] for key in FLOATS}


def test_a_whole_number_too_large_for_a_float_is_refused_among_objects() -> None:
    assert codes_by_field(TaskSpec.model_validate, FLOATS, 10**400) == {key: ["float_type"] for key in FLOATS}


@pytest.mark.parametrize("value", [True, "0.5", [0.5], {}], ids=repr)
def test_a_number_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_field(read, FLOATS, value) == {key: ["float_type"] for key in FLOATS}


@pytest.mark.parametrize("field", FLOATS)
def test_no_number_of_a_task_may_be_negative(read: Reader, field: str) -> None:
    assert codes_of(read, task({field: -1e-9}))[0] in {"greater_than", "greater_than_equal"}


@pytest.mark.parametrize("field", FLOATS)
def test_a_number_has_an_upper_bound(read: Reader, field: str) -> None:
    assert codes_of(read, task({field: 10**30}))[0] in {"less_than", "less_than_equal"}


@pytest.mark.parametrize("value", [True, 3.0, 3.5, "3", math.nan, math.inf], ids=repr)
def test_a_whole_number_is_nothing_else(read: Reader, value: object) -> None:
    assert codes_by_field(read, INTEGERS, value) == {key: ["int_type"] for key in INTEGERS}


@pytest.mark.parametrize("value", [2**53, 10**30], ids=["2**53", "10**30"])
def test_a_whole_number_fits_into_every_json_reader(read: Reader, value: int) -> None:
    assert codes_by_field(read, INTEGERS, value) == {key: ["less_than_equal"] for key in INTEGERS}


def test_no_whole_number_of_a_task_may_be_negative(read: Reader) -> None:
    assert codes_by_field(read, INTEGERS, -1) == {key: ["greater_than_equal"] for key in INTEGERS}


@pytest.mark.parametrize("value", [0, 1, 1.0, "true", None], ids=repr)
def test_a_switch_is_true_or_false(read: Reader, value: object) -> None:
    assert codes_by_field(read, SWITCHES, value) == {key: ["bool_type"] for key in SWITCHES}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("selection.rule", "Threshold"),
        ("selection.reference", "median"),
        ("selection.shortfall", 0),
        ("game.policy", "OPTIMAL"),
        ("game.policy", None),
        ("privacy.audit", True),
        ("privacy.mechanism", {"name": "laplace", "clip_norm": 1.0}),
        ("privacy.mechanism", {"clip_norm": 1.0}),
        ("aggregation.weighting", "median"),
        ("workload.partition", {"kind": "random", "clients": 3}),
    ],
)
def test_an_unknown_choice_is_refused(read: Reader, field: str, value: object) -> None:
    (code,) = codes_of(read, task({field: value}))
    assert code in {"enum", "literal_error", "union_tag_invalid", "union_tag_not_found"}


@pytest.mark.parametrize(
    "weights",
    [[1.0, 1.0, math.nan], [1.0, 1.0, math.inf], [1.0, 1.0, -1.0], [1.0, 1.0, True], [1.0, 1.0, "1"]],
    ids=["nan", "infinity", "negative", "true", "text"],
)
def test_a_list_is_as_strict_as_its_elements(read: Reader, weights: list[object]) -> None:
    selection = {"reference": "given", "reference_weights": weights}
    (code,) = codes_of(read, task({"selection": selection}))
    assert code in {"finite_number", "greater_than_equal", "float_type"}


@pytest.mark.parametrize("field", ["selection.reference_weights", "workload.partition.two_class_ordinals"])
@pytest.mark.parametrize("value", [{}, {"0": 1}, "012", 3, True], ids=repr)
def test_a_list_is_nothing_else(read: Reader, field: str, value: object) -> None:
    changes = {"selection.reference": "given", "workload.partition": dict(PARTITIONS["quality_mix"])}
    assert codes_of(read, task(changes | {field: value})) == ["wrong_type"]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({1, 2, 3}, id="set"),
        pytest.param(frozenset({1, 2, 3}), id="frozen set"),
        pytest.param({1: 1, 2: 2, 3: 3}, id="dict"),
        pytest.param({1: 1, 2: 2, 3: 3}.values(), id="values"),
        pytest.param(range(1, 4), id="range"),
        pytest.param(iter([1, 2, 3]), id="iterator"),
    ],
)
@pytest.mark.parametrize("field", ["selection.reference_weights", "workload.partition.two_class_ordinals"])
def test_nothing_else_that_can_be_iterated_is_a_list(field: str, value: object) -> None:
    changes = {"selection.reference": "given", "workload.partition": dict(PARTITIONS["quality_mix"])}
    assert codes_of(TaskSpec.model_validate, task(changes | {field: value})) == ["wrong_type"]


def test_the_tensors_of_a_layout_are_a_list(read: Reader) -> None:
    assert codes_of(read, task({"layout.tensors": {"name": "weight", "shape": [3]}})) == ["wrong_type"]


@pytest.mark.parametrize("name", ["", "a b", "-rf", "\n", "digits\n", "x" * 201, "name\u00e9"])
def test_an_odd_name_is_refused(read: Reader, name: str) -> None:
    (code,) = codes_of(read, task({"workload.dataset": name}))
    assert code in {"string_pattern_mismatch", "string_too_short", "string_too_long"}


def test_a_workload_may_be_a_class_of_a_module() -> None:
    spec = TaskSpec.model_validate(task({"workload.dataset": "my_package.data:Hospital"}))
    assert spec.workload.dataset == "my_package.data:Hospital"


def test_a_lone_surrogate_is_refused_among_objects() -> None:
    assert codes_of(TaskSpec.model_validate, task({"workload.dataset": "\ud800"})) == ["string_unicode"]


def test_a_lone_surrogate_is_refused_in_text() -> None:
    assert codes_of(read_text, task({"workload.dataset": "\ud800"})) == ["json_invalid"]


@pytest.mark.parametrize(
    "field",
    [
        "extra",
        "workload.extra",
        "selection.extra",
        "game.extra",
        "privacy.extra",
        "privacy.mechanism.extra",
        "privacy.mechanism.batch_size",
        "aggregation.extra",
        "rounds.extra",
        "bounds.extra",
        "retention.extra",
    ],
)
def test_an_unknown_field_is_refused_at_every_depth(read: Reader, field: str) -> None:
    assert codes_of(read, task({field: 1})) == ["extra_forbidden"]


@pytest.mark.parametrize("section", TASK)
def test_a_task_needs_all_of_its_parts(read: Reader, section: str) -> None:
    rest = {name: part for name, part in TASK.items() if name != section}
    assert codes_of(read, rest) == ["missing"]


# --- digest ----------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_canonical_json_of_what_is_sent() -> None:
    spec = TaskSpec.model_validate(TASK)
    canonical = json.dumps(json.loads(spec.model_dump_json()), sort_keys=True, separators=(",", ":"))
    assert spec.digest == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_digest_does_not_depend_on_the_order_of_fields() -> None:
    backwards = dict(reversed(TASK.items())) | {"game": dict(reversed(TASK["game"].items()))}
    assert TaskSpec.model_validate(backwards).digest == TaskSpec.model_validate(TASK).digest


def test_the_digest_does_not_depend_on_whether_defaults_are_spelt_out() -> None:
    spelt_out = task({"game.accuracy_weight": 0.5, "rounds.min_clients": 3, "target_accuracy": None})
    assert TaskSpec.model_validate(spelt_out).digest == TaskSpec.model_validate(TASK).digest


def test_the_digest_does_not_depend_on_the_decimal_point() -> None:
    assert TaskSpec.model_validate(task({"game.privacy_weight": 30})).digest == TaskSpec.model_validate(TASK).digest


def test_a_task_without_portions_has_the_digest_that_it_had_before_there_were_any() -> None:
    """Stores and journals hold digests of such specs."""
    workload = TaskSpec.model_validate(TASK).model_dump(mode="json")["workload"]
    assert workload == TASK["workload"] | {"partition": None}


@pytest.mark.parametrize("field", ["training_records", "validation_records"])
def test_the_digest_depends_on_the_portions_of_the_records(field: str) -> None:
    testbed = {"workload.partition": PARTITIONS["iid"]}
    digests = {TaskSpec.model_validate(task(testbed | {f"workload.{field}": n})).digest for n in (None, 50, 51)}
    assert len(digests) == 3


def test_the_digest_depends_on_the_order_of_tensors() -> None:
    swapped = task({"layout.tensors": TASK["layout"]["tensors"][::-1]})
    assert TaskSpec.model_validate(swapped).digest != TaskSpec.model_validate(TASK).digest


@given(discount=st.floats(0.5, 1), convexity=st.floats(1e-9, 1e9), delta=st.floats(1e-300, 0.5))
def test_the_digest_survives_json_for_all_numbers(discount: float, convexity: float, delta: float) -> None:
    changes = {"game.discount": discount, "game.convexity": convexity, "privacy.delta": delta}
    spec = TaskSpec.model_validate(task(changes))
    assert TaskSpec.model_validate_json(spec.model_dump_json()).digest == spec.digest


@given(discount=st.floats(0.5, 1, exclude_max=True))
def test_the_digest_depends_on_the_last_bit_of_a_number(discount: float) -> None:
    one = TaskSpec.model_validate(task({"game.discount": discount}))
    other = TaskSpec.model_validate(task({"game.discount": math.nextafter(discount, 1)}))
    assert one.digest != other.digest


@pytest.mark.parametrize("section", TaskSpec.model_fields)
def test_a_task_is_frozen(section: str) -> None:
    spec = TaskSpec.model_validate(TASK)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(spec, section, getattr(spec, section))


@pytest.mark.parametrize("field", TASK["game"])
def test_the_parts_of_a_task_are_frozen(field: str) -> None:
    game = TaskSpec.model_validate(TASK).game
    with pytest.raises(ValidationError, match="frozen"):
        setattr(game, field, getattr(game, field))


def test_equal_tasks_hash_alike() -> None:
    assert len({TaskSpec.model_validate(TASK), read_text(TASK)}) == 1


# --- what the core gets ----------------------------------------------------------------------------------------------


def test_the_cost_model_has_the_constants_of_the_task() -> None:
    model = TaskSpec.model_validate(task({"game.gradient_bound": 2.0, "game.smoothness": 7.0})).cost_model()
    assert (model.dimension, model.horizon, model.discount) == (15, 20, 0.93)
    assert (model.accuracy_weight, model.smoothness, model.convexity, model.gradient_bound) == (0.5, 7.0, 0.03, 2.0)


def test_the_round_rules_have_the_rules_of_the_task() -> None:
    changes = {"game.min_share": 0.1, "rounds.min_clients": 5, "rounds.min_updates": 4, "game.seed": 9}
    rules = TaskSpec.model_validate(task({**changes, "aggregation.weighting": "uniform"})).round_rules()
    assert (rules.min_share, rules.min_clients, rules.min_updates, rules.seed) == (0.1, 5, 4, 9)
    assert (rules.policy, rules.weighting) == (RewardPolicy.OPTIMAL, Weighting.UNIFORM)
    assert (rules.privacy_weight, rules.rho_max, rules.reward_max_micro) == (30.0, 0.5, 300_000_000)


def test_the_least_budget_of_the_task_reaches_the_core() -> None:
    assert TaskSpec.model_validate(task({"bounds.rho_min": 0.01})).round_rules().rho_min == 0.01


def test_money_reaches_the_core_in_whole_units() -> None:
    rules = TaskSpec.model_validate(task({"game.policy": "max", "game.reward_range": RANGE})).round_rules()
    assert rules.reward_range == RewardRange(minimum=1.0, maximum=2.0)


def test_a_fixed_reward_reaches_the_core_in_whole_units() -> None:
    changes = {"game.policy": "fixed", "game.fixed_reward_micro": 2_500_000}
    assert TaskSpec.model_validate(task(changes)).round_rules().fixed_reward == 2.5


def test_a_schedule_reaches_the_core_in_whole_units() -> None:
    changes = {"game.policy": "fixed", "game.horizon": 2, "game.reward_schedule_micro": [2_500_000, 0]}
    rules = TaskSpec.model_validate(task(changes)).round_rules()
    assert (rules.fixed_reward, rules.reward_schedule) == (None, (2.5, 0.0))


def test_a_blind_choice_reaches_the_core() -> None:
    spec = TaskSpec.model_validate(task({"selection": {"rule": "random", "random_clients": 4, "seed": 9}}))
    assert spec.selection_rule() == Random(clients=4, seed=9)


def test_a_rule_of_ones_own_is_not_in_the_spec_but_given() -> None:
    def no_client(question: object) -> list[bool]:
        return []

    spec = TaskSpec.model_validate(task({"selection": {"rule": "own", "own_rules": "mine"}}))
    assert spec.selection_rule(no_client) == Custom(no_client)
    with pytest.raises(ImpossibleArgument, match="custom_select"):
        spec.selection_rule()


def test_without_a_range_every_reward_is_admissible() -> None:
    assert TaskSpec.model_validate(TASK).round_rules().reward_range == RewardRange()


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        ({"name": "gradient_once", "clip_norm": 2.0}, core.GradientOnceMechanism(clip_norm=2.0)),
        (
            {"name": "noisy_epochs", "clip_norm": 2.0, **TRAINING},
            core.NoisyEpochsMechanism(clip_norm=2.0, learning_rate=0.01, epochs=2, batch_size=64),
        ),
        ({"name": "update_clip", "clip_norm": 2.0, **TRAINING}, core.UpdateClipMechanism(clip_norm=2.0)),
        ({"name": "paper_literal", "clip_norm": 2.0, **TRAINING}, core.PaperLiteralMechanism(clip_norm=2.0)),
        (
            {"name": "bolt_on", "feature_norm": 10.0, **TRAINING},
            core.BoltOnMechanism(
                learning_rate=0.01, epochs=2, batch_size=64, gradient_bound=math.sqrt(202.0), smoothness=101 / 2
            ),
        ),
    ],
)
def test_a_mechanism_is_the_cores_mechanism_of_the_same_name_and_parameters(
    mechanism: Json, expected: core.Mechanism
) -> None:
    assert TaskSpec.model_validate(task({"privacy.mechanism": mechanism})).round_rules().mechanism == expected


def test_every_mechanism_of_the_core_can_be_written() -> None:
    assert {"gradient_once", *UPDATE_MECHANISMS} == {name.value for name in core.MechanismName}


@pytest.mark.parametrize(
    ("rule", "expected"), [("threshold", Threshold(0.4)), ("all", All()), ("union", Union(min_clients=3))]
)
def test_a_selection_rule_is_the_cores_rule(rule: str, expected: object) -> None:
    changes = {"selection.rule": rule, "selection.distance_threshold": 0.4}
    assert TaskSpec.model_validate(task(changes)).selection_rule() == expected


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"reference": "uniform"}, [1 / 3, 1 / 3, 1 / 3]),
        ({"reference": "pooled"}, [0.5, 0.25, 0.25]),
        ({"reference": "given", "reference_weights": [2.0, 0.0, 6.0]}, [0.25, 0.0, 0.75]),
    ],
)
def test_the_reference_of_labels_is_the_chosen_one(selection: Json, expected: list[float]) -> None:
    spec = TaskSpec.model_validate(task({"selection": selection}))
    assert spec.label_reference([[4, 0, 0], [0, 2, 2]]).tolist() == expected
