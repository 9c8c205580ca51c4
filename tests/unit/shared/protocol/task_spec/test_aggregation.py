"""Optimal weights and post-processing in a spec: what is refused, what older specs and clients see of it."""

import pytest

from qidpfl_shared.core.averaging.post_processing import ImageRows, LowPass
from qidpfl_shared.protocol.compatibility import refusal_of_spec
from qidpfl_shared.protocol.own_tasks import own_task
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json, codes_of
from support.protocol.task_texts import TASK, UPDATE_MECHANISMS, Reader, task

LOWPASS: Json = {"aggregation": {"post_processing": "lowpass"}}


def test_a_spec_without_post_processing_keeps_its_digest() -> None:
    plain = TaskSpec.model_validate(task({"aggregation.weighting": "size"}))
    named = TaskSpec.model_validate(task({"aggregation.weighting": "size", "aggregation.post_processing": "none"}))
    assert named.digest == plain.digest
    assert "post_processing" not in named.facts()["aggregation"] and "cutoff" not in plain.facts()["aggregation"]


def test_post_processing_changes_the_digest_and_survives_storage() -> None:
    spec = preset("mnist", {"aggregation": {"post_processing": "lowpass", "cutoff": 9.0}})
    again = TaskSpec.read(spec.model_dump_json())
    assert again == spec and again.digest == spec.digest != preset("mnist").digest


def test_clients_that_cannot_read_optimal_weights_refuse_the_task_by_name() -> None:
    spec = preset("digits", {"aggregation": {"weighting": "optimal"}})
    assert spec.requires is not None and "aggregation.optimal_weights" in spec.requires
    assert refusal_of_spec(spec.facts()) is None


def test_a_client_need_not_know_what_is_done_with_the_average() -> None:
    assert preset("digits", LOWPASS).requires == preset("digits").requires


@pytest.mark.parametrize("name", ["digits", "mnist", "mnist-paper"])
def test_a_linear_model_of_images_can_be_filtered(name: str) -> None:
    side = 8 if name == "digits" else 28
    rows = ImageRows(images=10, height=side, width=side)
    assert preset(name, LOWPASS).post_processing == LowPass(rows=rows, cutoff=12 * side / 28)
    assert preset(name).post_processing is None


def test_each_channel_of_a_label_is_an_image() -> None:
    linear = preset("digits").layout.model_dump(mode="json")
    linear["tensors"][0]["shape"] = [10, 3072]
    workload = {"dataset": "cifar10", "network": "linear", "convex": True}
    spec = preset("cifar10", LOWPASS | {"workload": workload, "layout": linear})
    assert spec.image_rows == ImageRows(images=30, height=32, width=32)


def test_own_images_can_be_filtered() -> None:
    data = {"image": {"width": 20, "height": 10}, "label": {"names": ["no", "yes"]}}
    spec = own_task({"workload": {"dataset": "scans", "network": "linear"}, "data": data, **LOWPASS})
    assert spec.image_rows == ImageRows(images=2, height=10, width=20)


@pytest.mark.parametrize("name", ["emnist", "cifar10"])
def test_networks_whose_rows_are_no_images_cannot_be_filtered(read: Reader, name: str) -> None:
    text = preset(name).model_dump(mode="json")
    text["aggregation"]["post_processing"] = "lowpass"
    assert codes_of(read, text) == ["image_rows_required"]


def test_a_workload_that_does_not_say_that_its_rows_are_images_cannot_be_filtered(read: Reader) -> None:
    assert codes_of(read, task({"aggregation.post_processing": "lowpass"})) == ["image_rows_required"]


def test_own_columns_cannot_be_filtered(read: Reader) -> None:
    columns = [{"name": "age", "low": 0, "high": 100}, {"name": "pulse", "low": 0, "high": 200}]
    data = {"columns": columns, "label": {"names": ["no", "yes"], "column": "outcome"}}
    text = own_task({"workload": {"dataset": "triage"}, "data": data}).model_dump(mode="json")
    text["aggregation"]["post_processing"] = "lowpass"
    assert codes_of(read, text) == ["image_rows_required"]


@pytest.mark.parametrize("step", [{}, {"post_processing": "none"}])
def test_a_cutoff_belongs_to_the_low_pass(read: Reader, step: Json) -> None:
    assert codes_of(read, task({"aggregation": {"cutoff": 3.0, **step}})) == ["inconsistent_spec"]


@pytest.mark.parametrize("cutoff", [0, -1, 1e9])
def test_an_impossible_cutoff_is_refused(read: Reader, cutoff: float) -> None:
    assert codes_of(read, task({"aggregation": {"cutoff": cutoff, "post_processing": "lowpass"}})) != []


def test_a_trimmed_mean_has_no_optimal_weights(read: Reader) -> None:
    changes = {"aggregation": {"weighting": "optimal", "rule": "trimmed_mean", "trim": 0.1}}
    assert codes_of(read, task(changes)) == ["inconsistent_spec"]


def test_optimal_weights_need_a_reference_that_late_joiners_do_not_change(read: Reader) -> None:
    changes: Json = {"aggregation.weighting": "optimal", "rounds.late_joiners": True}
    assert codes_of(read, task(changes | {"selection.reference": "pooled"})) == ["inconsistent_spec"]
    assert codes_of(read, task(changes)) == []


@pytest.mark.parametrize(("labels", "codes"), [(1000, []), (1001, ["inconsistent_spec"])])
def test_optimal_weights_balance_up_to_a_thousand_labels(read: Reader, labels: int, codes: list[str]) -> None:
    changes: Json = {"aggregation.weighting": "optimal", "workload.labels": labels, "workload.network": "theirs"}
    assert codes_of(read, task(changes)) == codes


@pytest.mark.parametrize("name", UPDATE_MECHANISMS)
def test_every_mechanism_accepts_optimal_weights(read: Reader, name: str) -> None:
    changes = {"aggregation.weighting": "optimal", "privacy.mechanism": {"name": name, **UPDATE_MECHANISMS[name]}}
    assert read(task(changes)).round_rules().weighting.value == "optimal"


def test_the_plain_task_is_valid(read: Reader) -> None:
    assert read(TASK).aggregation.post_processing is None
