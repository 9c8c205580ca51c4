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

from qidpfl_shared.core.privacy import mechanisms as core
from qidpfl_shared.core.reward import RewardPolicy, RewardRange, Weighting
from qidpfl_shared.core.selection import All, Threshold, Union
from qidpfl_shared.protocol.tasks import TaskSpec

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
# Every paying policy with what it needs, so that only the noise is at fault.
PAYING: dict[str, Json] = {
    "optimal": {},
    "max": {"reward_range": RANGE},
    "random": {"reward_range": RANGE},
    "fixed": {"fixed_reward_micro": 5},
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


@pytest.mark.parametrize(
    "contradiction",
    [
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


def test_the_digest_depends_on_the_order_of_tensors() -> None:
    swapped = task({"layout.tensors": TASK["layout"]["tensors"][::-1]})
    assert TaskSpec.model_validate(swapped).digest != TaskSpec.model_validate(TASK).digest


@settings(max_examples=50, deadline=None)
@given(discount=st.floats(0.5, 1), convexity=st.floats(1e-9, 1e12), delta=st.floats(1e-300, 0.5))
def test_the_digest_survives_json_whatever_the_numbers(discount: float, convexity: float, delta: float) -> None:
    changes = {"game.discount": discount, "game.convexity": convexity, "privacy.delta": delta}
    spec = TaskSpec.model_validate(task(changes))
    assert TaskSpec.model_validate_json(spec.model_dump_json()).digest == spec.digest


@settings(max_examples=50, deadline=None)
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


def test_money_reaches_the_core_in_whole_units() -> None:
    rules = TaskSpec.model_validate(task({"game.policy": "max", "game.reward_range": RANGE})).round_rules()
    assert rules.reward_range == RewardRange(minimum=1.0, maximum=2.0)


def test_a_fixed_reward_reaches_the_core_in_whole_units() -> None:
    changes = {"game.policy": "fixed", "game.fixed_reward_micro": 2_500_000}
    assert TaskSpec.model_validate(task(changes)).round_rules().fixed_reward == 2.5


def test_without_a_range_every_reward_is_admissible() -> None:
    assert TaskSpec.model_validate(TASK).round_rules().reward_range == RewardRange()


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        ({"name": "gradient_once", "clip_norm": 2.0}, core.GradientOnce(clip_norm=2.0)),
        (
            {"name": "noisy_epochs", "clip_norm": 2.0, **TRAINING},
            core.NoisyEpochs(clip_norm=2.0, learning_rate=0.01, epochs=2, batch_size=64),
        ),
        ({"name": "update_clip", "clip_norm": 2.0, **TRAINING}, core.UpdateClip(clip_norm=2.0)),
        ({"name": "paper_literal", "clip_norm": 2.0, **TRAINING}, core.PaperLiteral(clip_norm=2.0)),
        (
            {"name": "bolt_on", "feature_norm": 10.0, **TRAINING},
            core.BoltOn(
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
