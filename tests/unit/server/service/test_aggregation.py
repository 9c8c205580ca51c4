"""Version 0 of a model: where it comes from."""

from typing import Any

import numpy as np

from qidpfl_server.service.aggregation import initial_parameters
from qidpfl_shared.protocol.presets import preset


def start(overrides: dict[str, Any] | None = None) -> np.ndarray[Any, Any]:
    return initial_parameters(preset("emnist-small", overrides))


def test_tasks_that_differ_in_game_selection_or_privacy_start_from_the_same_model() -> None:
    unpaid = {"game": {"policy": "none"}, "privacy": {"noise": False}, "selection": {"rule": "all"}}
    assert np.array_equal(start(), start(unpaid))


def test_another_division_of_the_data_starts_from_another_model() -> None:
    assert not np.array_equal(start(), start({"workload": {"partition": {"seed": 1}}}))


def test_every_layer_is_within_the_bound_of_its_fan_in() -> None:
    spec = preset("emnist-small")
    parameters, offset, bound = initial_parameters(spec), 0, 1.0
    for tensor in spec.layout.tensors:
        if len(tensor.shape) > 1:
            bound = (tensor.size / tensor.shape[0]) ** -0.5
        part = parameters[offset : offset + tensor.size]
        assert np.abs(part).max() <= bound and np.ptp(part) > 0
        offset += tensor.size


def test_a_convex_task_starts_from_zero() -> None:
    assert not initial_parameters(preset("digits")).any()
