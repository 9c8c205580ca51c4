"""The digests of presets, and overrides of their values."""

import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qidpfl_shared.core.money import MAX_MICRO
from qidpfl_shared.protocol.presets import PRESETS, UnknownPreset, preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json
from support.protocol.task_texts import every_preset


def nested(path: str, value: object) -> Json:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def refusals(name: str, overrides: Json) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        preset(name, overrides)
    return [error["type"] for error in caught.value.errors()]


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
def test_another_layout_of_a_custom_network_changes_the_digest(tensors: list[Json]) -> None:
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
