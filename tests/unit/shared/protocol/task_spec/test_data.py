"""The features that a task states: what is valid, what a client must know, and that older specs do not change."""

from typing import Any

import pytest
from pydantic import ValidationError

from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION, refusal_of_spec
from qidpfl_shared.protocol.own_tasks import own_task
from qidpfl_shared.protocol.presets import merged, preset
from qidpfl_shared.protocol.task_spec import DataSpec, TaskSpec

STATED: dict[str, Any] = {
    "workload": {"dataset": "triage"},
    "data": {
        "columns": [{"name": "age", "low": 0, "high": 100}, {"name": "sex", "categories": ["f", "m"]}],
        "label": {"column": "outcome", "names": ["home", "ward"]},
    },
}
IMAGES: dict[str, Any] = {
    "workload": {"dataset": "scans", "network": "lenet"},
    "data": {"image": {"width": 28, "height": 28}, "label": {"names": ["no", "yes"]}},
}


def test_labels_layout_and_convexity_follow_from_what_is_stated() -> None:
    spec = own_task(STATED)
    assert (spec.workload.labels, spec.workload.convex, spec.workload.partition) == (2, True, None)
    assert spec.layout == layouts.linear(inputs=3, labels=2)


def test_a_named_network_has_its_parameters_in_the_task() -> None:
    spec = own_task(merged(STATED, {"workload": {"network": "mlp", "hidden": [8, 4]}}))
    assert [tensor.shape for tensor in spec.layout.tensors] == [(8, 3), (8,), (4, 8), (4,), (2, 4), (2,)]
    assert not spec.workload.convex
    assert own_task(IMAGES).layout == layouts.lenet(channels=1, side=28, labels=2)


def test_the_default_budgets_of_a_client_last_for_all_rounds() -> None:
    for horizon in (1, 20, 500):
        spec = own_task(merged(STATED, {"game": {"horizon": horizon}}))
        assert spec.privacy.histogram_rho is not None
        assert spec.bounds.rho_max * horizon + spec.privacy.histogram_rho < 0.2


@pytest.mark.parametrize(("stated", "name"), [(STATED, "data.columns"), (IMAGES, "data.image")])
def test_a_client_must_know_how_to_prepare_the_data(stated: dict[str, Any], name: str) -> None:
    spec = own_task(stated)
    assert spec.requires is not None and name in spec.requires
    served = spec.facts()
    assert refusal_of_spec(served) is None
    # As a client reads it that knows less than this task requires.
    served["requires"] = [*spec.requires, "data.sound"]
    assert refusal_of_spec(served) == (
        f"the task requires data.sound of protocol {PROTOCOL_VERSION}, and this client speaks protocol"
        f" {PROTOCOL_VERSION}: use a newer client"
    )


def test_specs_without_data_keep_their_json() -> None:
    served = preset("digits").facts()
    assert "data" not in served and "hidden" not in served["workload"]
    assert TaskSpec.model_validate(served).digest == preset("digits").digest


def test_a_spec_with_data_is_the_same_after_a_round_trip() -> None:
    for stated in (STATED, IMAGES):
        spec = own_task(stated)
        assert TaskSpec.read(spec.model_dump_json()).digest == spec.digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workload": {"dataset": "digits"}}, "is a built-in data set"),
        ({"workload": {"labels": 3}}, "data.label names 2"),
        ({"workload": {"network": "mlp"}}, "network mlp needs hidden"),
        ({"workload": {"hidden": [3]}}, "other networks do not accept it"),
        ({"workload": {"network": "lenet"}}, "does not accept records of shape"),
        ({"workload": {"network": "transformer"}}, "there is no network transformer"),
        ({"workload": {"partition": {"kind": "iid", "clients": 3}}}, "own data have no partition"),
        ({"layout": {"tensors": [{"name": "weight", "shape": [2, 9]}]}}, "on these data has the layout"),
        ({"requires": ["mechanism.gradient_once", "answer.rho"], "protocol_version": "1.2"}, "lacks data.columns"),
    ],
)
def test_parts_that_contradict_the_data_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TaskSpec.model_validate(merged(own_task(merged(STATED, changes)).facts(), changes))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"label": {"names": ["a", "b"]}}, "either columns or an image"),
        ({"columns": [{"name": "a", "low": 1, "high": 1}], "label": {"names": ["a"]}}, "low < high"),
        ({"columns": [{"name": "a"}], "label": {"names": ["a"]}}, "needs categories, or low and high"),
        ({"columns": [{"name": "a", "categories": ["x", "x"]}], "label": {"names": ["a"]}}, "category twice"),
        (
            {"columns": [{"name": "a", "categories": ["x"], "missing": "y"}], "label": {"names": ["a"]}},
            "one of its categories",
        ),
        ({"columns": [{"name": "label", "low": 0, "high": 1}], "label": {"names": ["a"]}}, "the same name"),
        ({"image": {"width": 2, "height": 2, "channels": 2}, "label": {"names": ["a"]}}, "1 or 3 channels"),
        ({"image": {"width": 2, "height": 2}, "label": {"kind": "bins", "names": ["a"]}}, "kind bins needs edges"),
        ({"image": {"width": 2, "height": 2}, "label": {"kind": "bins", "edges": [2, 1]}}, "must ascend"),
        ({"image": {"width": 2, "height": 2}, "label": {"kind": "sets", "names": ["a;b", "b;a"]}}, "same name"),
        ({"image": {"width": 2, "height": 2}, "label": {"names": ["a", ""]}}, "needs a name"),
    ],
)
def test_data_that_contradict_themselves_are_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DataSpec.model_validate(data)
