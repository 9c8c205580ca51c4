"""The values of the presets."""

from typing import Any

import numpy as np
import pytest

from qidpfl_shared.protocol.presets import EMNIST_TRAINING_LABELS, PRESETS, preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.refusals import Json
from support.protocol.task_texts import DIMENSIONS, every_preset

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
    "privacy.audit": "reject",
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


def value_at(spec: TaskSpec, path: str) -> object:
    value: Any = spec.model_dump(mode="json")
    for key in path.split("."):
        value = value[key]
    return value


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
