"""The ready-made tasks have the values, rewards and budgets they are described with."""

import copy
import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qidpfl_shared.core.money import MAX_MICRO, MICRO
from qidpfl_shared.core.planning import PlanStatus, RewardBound, RoundPlan, plan_round
from qidpfl_shared.core.round_rules import Participant
from qidpfl_shared.protocol.presets import EMNIST_TRAINING_LABELS, PRESETS, UnknownPreset, preset
from qidpfl_shared.protocol.task_spec import TaskSpec

Json = dict[str, Any]

DIMENSIONS = {
    "digits": 650,
    "mnist": 7850,
    "mnist-bad-clients": 7850,
    "mnist-paper": 7850,
    "mnist-paper-heuristic": 7850,
    "emnist": 48846,
    "emnist-small": 48846,
    "cifar10": 62006,
    "cifar10-paper": 1068298,
}
COMMON: Json = {
    "game.policy": "optimal",
    "game.accuracy_weight": 0.5,
    "game.smoothness": 10.0,
    "game.gradient_bound": 1.0,
    "game.min_share": 0.3,
    "game.reward_range": None,
    "privacy.mechanism": {"name": "gradient_once", "clip_norm": 1.0},
    "privacy.noise": True,
    "privacy.delta": 1e-5,
    "privacy.audit": "flag",
    "aggregation.weighting": "size",
    "selection.rule": "threshold",
    "selection.distance_threshold": 0.75,
    "rounds.min_clients": 3,
    "rounds.min_updates": 3,
}
PART_E: dict[str, Json] = {
    "digits": {
        "workload.partition.kind": "quality_mix",
        "workload.partition.clients": 10,
        "workload.partition.concentration": 8.0,
        "workload.partition.two_class_ordinals": [2, 5, 8],
        "game.horizon": 20,
        "game.discount": 0.93,
        "game.privacy_weight": 30.0,
        "game.convexity": 0.03,
        "aggregation.learning_rate": 3.0,
        "aggregation.momentum": 0.7,
        "selection.reference": "uniform",
        "privacy.histogram_rho": 0.1,
        "privacy.lifetime_rho": 3.0,
    },
    "mnist": {
        "workload.partition.kind": "dirichlet_class",
        "workload.partition.clients": 20,
        "workload.partition.concentration": 1.0,
        "game.horizon": 30,
        "game.discount": 0.9429,
        "game.privacy_weight": 1000.0,
        "game.convexity": 0.012,
        "aggregation.learning_rate": 2.0,
        "aggregation.momentum": 0.8,
        "selection.reference": "uniform",
        "privacy.histogram_rho": 0.01,
        "privacy.lifetime_rho": 0.5,
    },
    "emnist": {
        "workload.labels": 62,
        "workload.partition.kind": "dirichlet_class",
        "workload.partition.clients": 20,
        "workload.partition.concentration": 1.0,
        "game.horizon": 30,
        "game.discount": 0.901,
        "game.privacy_weight": 300.0,
        "game.convexity": 0.012,
        "aggregation.learning_rate": 3.0,
        "aggregation.momentum": 0.9,
        "selection.reference": "given",
        "privacy.histogram_rho": 0.01,
        "privacy.lifetime_rho": 1.0,
    },
    "emnist-small": {
        "workload.labels": 62,
        "workload.partition.kind": "dirichlet_class",
        "workload.partition.clients": 10,
        "workload.partition.concentration": 1.0,
        "game.horizon": 30,
        "game.discount": 0.901,
        "game.privacy_weight": 30.0,
        "game.convexity": 0.012,
        "aggregation.learning_rate": 3.0,
        "aggregation.momentum": 0.9,
        "selection.reference": "given",
        "privacy.histogram_rho": 0.1,
        "privacy.lifetime_rho": 10.0,
    },
    "cifar10": {
        "workload.partition.kind": "dirichlet_class",
        "workload.partition.clients": 10,
        "workload.partition.concentration": 1.0,
        "game.horizon": 80,
        "game.discount": 0.9664,
        "game.privacy_weight": 100.0,
        "game.convexity": 0.004,
        "aggregation.learning_rate": 1.0,
        "aggregation.momentum": 0.9,
        "selection.reference": "uniform",
        "privacy.histogram_rho": 0.01,
        "privacy.lifetime_rho": 4.0,
    },
}
# How many are selected at the threshold (of Dirichlet clients about two in three), and how many records each holds.
COHORTS = {
    "digits": (7, 110),
    "mnist": (12, 3000),
    "mnist-bad-clients": (14, 3000),
    "mnist-paper": (12, 3000),
    "mnist-paper-heuristic": (12, 3000),
    "emnist": (12, 5226),
    "emnist-small": (7, 1000),
    "cifar10": (7, 5000),
    "cifar10-paper": (7, 5000),
}
REWARDS = {"digits": (15, 30), "mnist": (18, 43), "emnist": (15, 66), "emnist-small": (24, 110), "cifar10": (11, 43)}
TOTALS = {"digits": 2.3, "mnist": 0.11, "emnist": 0.39, "emnist-small": 8.5, "cifar10": 2.9, "cifar10-paper": 11.8}

every_preset = pytest.mark.parametrize("name", DIMENSIONS)


def value_at(spec: TaskSpec, path: str) -> object:
    value: Any = spec.model_dump(mode="json")
    for key in path.split("."):
        value = value[key]
    return value


def nested(path: str, value: object) -> Json:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def refusals(name: str, overrides: Json) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        preset(name, overrides)
    return [error["type"] for error in caught.value.errors()]


# --- values ----------------------------------------------------------------------------------------------------------


def test_these_presets_exist() -> None:
    assert list(PRESETS) == list(DIMENSIONS)


@pytest.mark.parametrize(("name", "dimension"), DIMENSIONS.items())
def test_a_preset_has_the_number_of_parameters_of_its_network(name: str, dimension: int) -> None:
    assert preset(name).dimension == dimension


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [(name, path, value) for name, values in PART_E.items() for path, value in (COMMON | values).items()],
)
def test_a_preset_has_the_values_of_part_e(name: str, path: str, value: object) -> None:
    assert value_at(preset(name), path) == value


@every_preset
def test_a_preset_waits_for_every_shard_of_its_partition(name: str) -> None:
    assert value_at(preset(name), "rounds.expected_clients") == value_at(preset(name), "workload.partition.clients")


@every_preset
def test_a_preset_can_pay_its_highest_reward_in_every_round(name: str) -> None:
    spec = preset(name)
    assert spec.bounds.reward_total_micro == spec.game.horizon * spec.bounds.reward_max_micro


@every_preset
def test_a_preset_takes_no_budget_below_a_thousandth_of_its_largest(name: str) -> None:
    bounds = preset(name).bounds
    assert bounds.rho_min == bounds.rho_max / 1000


@every_preset
def test_only_softmax_regression_is_declared_convex(name: str) -> None:
    workload = preset(name).workload
    assert workload.convex == (workload.network == "linear")


@every_preset
def test_the_last_tensor_of_a_preset_has_one_element_per_label(name: str) -> None:
    spec = preset(name)
    assert spec.layout.tensors[-1].shape == (spec.workload.labels,)


def test_bad_clients_differ_from_mnist_in_the_partition_only() -> None:
    partition = {"kind": "quality_mix", "concentration": 8.0, "two_class_ordinals": [2, 5, 8, 11, 14, 17]}
    assert preset("mnist", {"workload": {"partition": partition}}) == preset("mnist-bad-clients")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (
            "privacy.mechanism",
            {"name": "bolt_on", "learning_rate": 0.01, "epochs": 1, "batch_size": 64, "feature_norm": 10.0},
        ),
        ("aggregation.weighting", "uniform"),
        ("aggregation.learning_rate", 1.0),
        ("aggregation.momentum", 0.0),
        ("game.min_share", 0.0),
        ("game.convexity", 0.085),
        ("bounds.rho_max", 0.2),
    ],
)
def test_mnist_paper_is_the_papers_setting_with_a_proof(path: str, value: object) -> None:
    assert value_at(preset("mnist-paper"), path) == value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (
            "privacy.mechanism",
            {"name": "paper_literal", "learning_rate": 0.01, "epochs": 1, "batch_size": 64, "clip_norm": 1.0},
        ),
        ("aggregation.weighting", "uniform"),
        ("aggregation.learning_rate", 1.0),
        ("aggregation.momentum", 0.0),
        ("game.min_share", 0.0),
        ("bounds.rho_max", 0.2),
    ],
)
def test_mnist_paper_heuristic_is_the_papers_setting_as_printed(path: str, value: object) -> None:
    assert value_at(preset("mnist-paper-heuristic"), path) == value


def test_only_the_heuristic_preset_proves_less_than_it_declares() -> None:
    heuristic = [name for name in PRESETS if preset(name).round_rules().mechanism.heuristic]
    assert heuristic == ["mnist-paper-heuristic"]


def test_the_emnist_reference_counts_every_training_record() -> None:
    assert (len(EMNIST_TRAINING_LABELS), sum(EMNIST_TRAINING_LABELS)) == (62, 104_525)


def test_a_uniform_reference_would_refuse_a_typical_emnist_client() -> None:
    spec = preset("emnist")
    frequencies = spec.label_reference([])
    assert np.abs(frequencies - 1 / 62).sum() > spec.selection.distance_threshold


# --- what they cost --------------------------------------------------------------------------------------------------


def plan(name: str, round_number: int, privacy_values: np.ndarray[Any, np.dtype[np.float64]]) -> RoundPlan:
    spec, size = preset(name), COHORTS[name][1]
    return plan_round(
        rules=spec.round_rules(),
        round_number=round_number,
        participants=[Participant(privacy_value=value, size=size) for value in privacy_values.tolist()],
        reward_left_micro=spec.bounds.reward_total_micro,
    )


def mean_reward(name: str, round_number: int) -> float:
    """Over twenty draws of privacy values, as in the description."""
    draws = (np.random.default_rng(seed).uniform(0.95, 1.05, COHORTS[name][0]) for seed in range(20))
    return math.fsum(plan(name, round_number, values).reward_micro / MICRO for values in draws) / 20


@cache
def plans(name: str) -> tuple[RoundPlan, ...]:
    values = np.linspace(0.95, 1.05, COHORTS[name][0])
    return tuple(plan(name, round_number, values) for round_number in range(1, preset(name).game.horizon + 1))


def total_rho(name: str) -> float:
    """Of the client that sells most, with its histogram."""
    histogram_rho = preset(name).privacy.histogram_rho
    assert histogram_rho is not None
    return histogram_rho + float(np.sum([round_plan.budgets for round_plan in plans(name)], axis=0).max())


@pytest.mark.parametrize(("name", "rewards"), REWARDS.items())
def test_the_first_reward_is_that_of_part_e(name: str, rewards: tuple[int, int]) -> None:
    assert mean_reward(name, 1) == pytest.approx(rewards[0], rel=0.15)


@pytest.mark.parametrize(("name", "rewards"), REWARDS.items())
def test_the_last_reward_is_that_of_part_e(name: str, rewards: tuple[int, int]) -> None:
    assert mean_reward(name, preset(name).game.horizon) == pytest.approx(rewards[1], rel=0.15)


@every_preset
def test_every_round_of_a_preset_can_be_held(name: str) -> None:
    assert {round_plan.status for round_plan in plans(name)} == {PlanStatus.PLANNED}


@every_preset
def test_no_bound_changes_the_reward_of_a_preset(name: str) -> None:
    assert {round_plan.bound for round_plan in plans(name)} == {RewardBound.NONE}


@every_preset
def test_no_budget_of_a_preset_reaches_its_cap(name: str) -> None:
    assert max(max(round_plan.budgets) for round_plan in plans(name)) < preset(name).bounds.rho_max


@every_preset
def test_no_budget_of_a_preset_is_too_small_to_be_declared(name: str) -> None:
    assert min(min(round_plan.budgets) for round_plan in plans(name)) > preset(name).bounds.rho_min


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_the_privacy_sold_in_a_whole_task_is_that_of_part_e(name: str, total: float) -> None:
    assert total_rho(name) == pytest.approx(total, rel=0.15)


@every_preset
def test_a_whole_task_fits_into_the_suggested_lifetime_budget(name: str) -> None:
    assert total_rho(name) < (preset(name).privacy.lifetime_rho or 0.0)


# --- digests ---------------------------------------------------------------------------------------------------------


@every_preset
def test_a_preset_survives_json_text(name: str) -> None:
    spec = preset(name)
    assert TaskSpec.model_validate_json(spec.model_dump_json()) == spec


@every_preset
def test_a_preset_survives_json_objects(name: str) -> None:
    spec = preset(name)
    assert TaskSpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


@every_preset
def test_the_digest_of_a_preset_survives_json(name: str) -> None:
    spec = preset(name)
    assert TaskSpec.model_validate_json(spec.model_dump_json()).digest == spec.digest


def test_no_two_presets_have_the_same_digest() -> None:
    assert len({preset(name).digest for name in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("workload.dataset", "other"),
        ("workload.network", "other"),
        ("workload.convex", False),
        ("workload.partition", None),
        ("workload.partition.seed", 1),
        ("workload.partition.two_class_ordinals", [2, 5]),
        ("selection.rule", "all"),
        ("selection.distance_threshold", 0.7500000000000001),
        ("selection.reference", "pooled"),
        ("selection.shortfall", "nearest"),
        ("game.horizon", 21),
        ("game.discount", 0.9300000000000002),
        ("game.seed", 1),
        ("game.reward_range", {"minimum_micro": 0, "maximum_micro": 1}),
        ("privacy.mechanism.clip_norm", 2.0),
        ("privacy.delta", 2e-5),
        ("privacy.histogram_rho", None),
        ("privacy.audit", "off"),
        ("aggregation.weighting", "uniform"),
        ("aggregation.momentum", 0.0),
        ("rounds.deliver_s", 121.0),
        ("rounds.expected_clients", None),
        ("rounds.late_joiners", True),
        ("bounds.rho_max", 1.0),
        ("bounds.rho_min", 0.001),
        ("bounds.reward_total_micro", 6_000_000_001),
        ("retention.last_rounds", 5),
        ("target_accuracy", 0.9),
    ],
)
def test_any_override_changes_the_digest(path: str, value: object) -> None:
    assert preset("digits", nested(path, value)).digest != preset("digits").digest


@pytest.mark.parametrize(
    "tensors",
    [
        [{"name": "weight", "shape": [64, 10]}, {"name": "bias", "shape": [10]}],
        [{"name": "bias", "shape": [10]}, {"name": "weight", "shape": [10, 64]}],
        [{"name": "w", "shape": [10, 64]}, {"name": "bias", "shape": [10]}],
    ],
)
def test_another_layout_of_a_network_of_ones_own_changes_the_digest(tensors: list[Json]) -> None:
    own = nested("workload.network", "own")
    assert preset("digits", own | nested("layout.tensors", tensors)).digest != preset("digits", own).digest


@every_preset
def test_an_override_by_the_same_values_changes_nothing(name: str) -> None:
    spec = preset(name)
    assert preset(name, spec.model_dump(mode="json")).digest == spec.digest


# --- overrides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [None, {}, {"game": {}}, {"privacy": {"mechanism": {}}}])
def test_nothing_overridden_leaves_the_preset(overrides: Json | None) -> None:
    assert preset("digits", overrides) == preset("digits")


def test_an_override_replaces_its_value() -> None:
    assert preset("digits", {"game": {"horizon": 5}}).game.horizon == 5


def test_an_override_keeps_everything_beside_it() -> None:
    changed = preset("digits", {"workload": {"partition": {"seed": 7}}})
    expected = preset("digits").model_dump(mode="json")
    expected["workload"]["partition"]["seed"] = 7
    assert changed.model_dump(mode="json") == expected


def test_a_list_is_replaced_as_a_whole() -> None:
    changed = preset("digits", {"workload": {"partition": {"two_class_ordinals": [1]}}})
    assert changed.workload.partition is not None and changed.workload.partition.two_class_ordinals == (1,)


def test_null_replaces_an_object() -> None:
    assert preset("digits", {"workload": {"partition": None}}).workload.partition is None


def test_an_object_replaces_null() -> None:
    changed = preset("digits", {"game": {"reward_range": {"minimum_micro": 1, "maximum_micro": 2}}})
    assert changed.game.reward_range is not None and changed.game.reward_range.maximum_micro == 2


@pytest.mark.parametrize("named", [{}, {"name": "bolt_on"}], ids=["unnamed", "named"])
def test_a_parameter_of_the_same_mechanism_is_merged(named: Json) -> None:
    mechanism = preset("mnist-paper", {"privacy": {"mechanism": {"epochs": 3, **named}}}).privacy.mechanism
    assert mechanism.model_dump() == preset("mnist-paper").privacy.mechanism.model_dump() | {"epochs": 3}


def test_another_mechanism_replaces_the_old_one_as_a_whole() -> None:
    other = {"name": "gradient_once", "clip_norm": 3.0}
    changed = preset("mnist-paper", {"privacy": {"mechanism": other}})
    assert changed.privacy.mechanism.model_dump() == other


def test_another_mechanism_inherits_no_parameters() -> None:
    assert refusals("mnist-paper", {"privacy": {"mechanism": {"name": "gradient_once"}}}) == ["missing"]


@every_preset
def test_fedavg_is_two_overrides_of_any_preset(name: str) -> None:
    changed = preset(name, {"game": {"policy": "none"}, "privacy": {"noise": False}})
    assert (changed.game.policy, changed.privacy.noise) == ("none", False)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"gmae": {"horizon": 5}}, "extra_forbidden"),
        ({"game": {"horizonn": 5}}, "extra_forbidden"),
        ({"game": {"horizon": "5"}}, "int_type"),
        ({"game": {"discount": math.nan}}, "finite_number"),
        ({"game": 5}, "model_type"),
        ({"game": []}, "model_type"),
        ({"game": None}, "model_type"),
        ({"game": {"policy": "max"}}, "reward_range_required"),
        ({"privacy": {"noise": False}}, "paid_without_noise"),
        ({"privacy": {"mechanism": {"name": "laplace"}}}, "union_tag_invalid"),
        ({"workload": {"labels": 11}, "selection": {"reference": "given"}}, "inconsistent_spec"),
        ({"workload": {"partition": {"clients": 9}}}, "inconsistent_spec"),
        ({"workload": {"partition": {"kind": "dirichlet_class"}}}, "inconsistent_spec"),
        ({"workload": {"partition": {"concentration": None}}}, "inconsistent_spec"),
        ({"workload": {"partition": {"two_class_ordinals": [10]}}}, "inconsistent_spec"),
        ({"bounds": {"rho_max": 0.0001}}, "inconsistent_spec"),
        ({"game": {"convexity": 1e-10}}, "greater_than_equal"),
        ({"bounds": {"reward_total_micro": MAX_MICRO + 1}}, "less_than_equal"),
    ],
)
def test_an_override_is_checked_like_any_task(overrides: Json, code: str) -> None:
    assert refusals("digits", overrides) == [code]


def test_overrides_are_left_as_they_are() -> None:
    overrides: Json = {"game": {"horizon": 5}, "workload": {"partition": {"seed": 1}}}
    before = copy.deepcopy(overrides)
    preset("digits", overrides)
    assert overrides == before


def test_an_override_does_not_change_the_preset_itself() -> None:
    before = preset("digits").digest
    preset("digits", {"game": {"horizon": 5}})
    assert preset("digits").digest == before


@given(
    overrides=st.dictionaries(
        st.sampled_from(list(TaskSpec.model_fields)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=5,
        ),
        min_size=1,
        max_size=2,
    )
)
def test_arbitrary_overrides_give_a_task_or_a_validation_error(overrides: Json) -> None:
    try:
        spec = preset("digits", overrides)
    except ValidationError:
        return
    assert spec.dimension == 650


@pytest.mark.parametrize("name", ["", "Digits", "digits ", "mnist_paper", "__init__"])
def test_an_unknown_preset_is_refused(name: str) -> None:
    with pytest.raises(UnknownPreset):
        preset(name)


@every_preset
def test_the_refusal_of_an_unknown_preset_names_those_that_exist(name: str) -> None:
    with pytest.raises(UnknownPreset, match=name):
        preset("unheard-of")
