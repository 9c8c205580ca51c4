"""Models: version 0, the step along the mean of the accepted updates, and how versions are stored."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_server.errors import DamagedState, StoreBusy
from qidpfl_server.service.rounds.aggregation import initial_parameters, load_model, require_stored, save_model
from qidpfl_server.store.store import Store
from qidpfl_shared.core.aggregation import ServerState
from qidpfl_shared.protocol.presets import preset
from support.use_cases import ServedTask, UseCases


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


# --- the next version ------------------------------------------------------------------------------------------------

SIZES = (110, 220, 330)


def play_two_rounds(cases: UseCases, **aggregation: Any) -> tuple[ServedTask, list[list[np.ndarray[Any, Any]]]]:
    """A finished task of two rounds, and the updates of each round."""
    task = cases.task(
        rounds={"expected_clients": len(SIZES)}, game={"horizon": 2}, aggregation=aggregation, defence=None
    )
    clients = [task.client(labels=(size // 10,) * 10) for size in SIZES]
    sent = []
    for number in (1, 2):
        task.play(clients, number)
        sent.append([np.frombuffer(client.update(number), dtype="<f4").astype(np.float64) for client in clients])
    assert task.now.reason == "horizon_reached"
    return task, sent


def versions(task: ServedTask) -> list[ServerState]:
    models = task.cases.read(lambda tx: tx.tasks.models(task.task_id))
    assert [model.version for model in models] == list(range(len(models)))
    return [load_model(task.cases.store.blobs, model, task.now.spec.dimension) for model in models]


@pytest.mark.parametrize(
    ("weighting", "weights"),
    # With equal budgets the variance of a client's noise falls with the square of its size.
    [("uniform", (1, 1, 1)), ("size", SIZES), ("inverse_variance", [size**2 for size in SIZES])],
)
def test_a_round_publishes_the_step_along_the_weighted_mean_with_momentum(
    cases: UseCases, weighting: str, weights: tuple[int, ...]
) -> None:
    task, sent = play_two_rounds(cases, weighting=weighting, learning_rate=2.0, momentum=0.5)
    start, first, second = versions(task)
    means = [np.average(updates, axis=0, weights=weights) for updates in sent]
    assert not start.parameters.any() and not start.momentum.any()
    np.testing.assert_allclose(first.parameters, -2.0 * means[0], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(second.momentum, 0.5 * means[0] + means[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(second.parameters, first.parameters - 2.0 * second.momentum, rtol=1e-5, atol=1e-6)


def test_a_task_without_momentum_carries_nothing_from_round_to_round(cases: UseCases) -> None:
    task, sent = play_two_rounds(cases, weighting="uniform", learning_rate=1.0, momentum=0.0)
    _, first, second = versions(task)
    np.testing.assert_allclose(first.parameters - second.parameters, np.mean(sent[1], axis=0), rtol=1e-4, atol=1e-6)


# --- stored versions -------------------------------------------------------------------------------------------------


def test_a_stored_model_is_read_as_it_was_saved(store: Store) -> None:
    state = ServerState(parameters=np.arange(3, dtype=np.float32), momentum=np.array([0.1, 0.2, 1e-300]))
    saved = save_model(store.blobs, 7, state)
    found = load_model(store.blobs, saved, 3)
    assert np.array_equal(found.parameters, state.parameters) and np.array_equal(found.momentum, state.momentum)
    without = save_model(store.blobs, 7, ServerState.start(state.parameters))
    assert without.momentum_digest is None and not load_model(store.blobs, without, 3).momentum.any()


def test_a_momentum_of_another_length_is_damage(store: Store) -> None:
    saved = save_model(store.blobs, 7, ServerState.start(np.zeros(3, dtype=np.float32)))
    wrong = replace(saved, momentum_digest=store.blobs.put(np.zeros(2).tobytes()))
    with pytest.raises(DamagedState, match="the momentum of model version 7 has length 2, not 3"):
        load_model(store.blobs, wrong, 3)


def test_a_model_that_was_swept_before_it_was_recorded_is_tried_again(store: Store, tmp_path: Path) -> None:
    saved = save_model(store.blobs, 0, ServerState.start(np.zeros(3, dtype=np.float32)))
    store.read(lambda tx: require_stored(tx, saved))
    (tmp_path / "blobs" / "objects" / saved.digest).unlink()
    with pytest.raises(StoreBusy, match="try again"):
        store.read(lambda tx: require_stored(tx, saved))
