"""The digest of a task, and what the core makes of the task."""

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.privacy import mechanisms as core
from qidpfl_shared.core.reward import RewardPolicy, RewardRange, Weighting
from qidpfl_shared.core.selection import All, Custom, Random, Threshold, Union
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json
from support.protocol.task_texts import PARTITIONS, RANGE, TASK, TRAINING, UPDATE_MECHANISMS, read_text, task

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


def test_a_task_without_portions_keeps_the_digest_of_earlier_versions() -> None:
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


def test_the_function_of_a_custom_rule_is_an_argument_and_not_in_the_spec() -> None:
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
