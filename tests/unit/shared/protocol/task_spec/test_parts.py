"""Hostile values in the parts of a task: types, ranges, names and unknown fields."""

import json
import math

import pytest

from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import codes_of
from support.protocol.task_texts import PARTITIONS, TASK, Reader, codes_by_field, read_text, task

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
