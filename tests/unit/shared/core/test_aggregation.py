"""The streaming mean and the server's step."""

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qidpfl_shared.core.aggregation import ModelDiverged, ServerState, server_step, weighted_mean
from qidpfl_shared.core.arguments import ImpossibleArgument

updates = arrays(np.float32, (5, 7), elements=st.floats(-1e3, 1e3, width=32))
weights = st.lists(st.floats(0.01, 100), min_size=5, max_size=5)


@given(updates, weights)
def test_the_streaming_mean_is_the_weighted_mean(vectors: np.ndarray, factors: list[float]) -> None:
    streamed = weighted_mean(updates=zip(factors, vectors, strict=True), dimension=7)
    expected = np.average(vectors.astype(np.float64), axis=0, weights=factors)
    np.testing.assert_allclose(streamed, expected, rtol=1e-12, atol=1e-9)


@given(updates, weights)
def test_the_same_updates_in_the_same_order_give_the_same_bits(vectors: np.ndarray, factors: list[float]) -> None:
    first = weighted_mean(updates=zip(factors, vectors, strict=True), dimension=7)
    again = weighted_mean(updates=((w, v.copy()) for w, v in zip(factors, vectors, strict=True)), dimension=7)
    assert first.tobytes() == again.tobytes()


def test_sums_of_float32_keep_what_float32_would_lose() -> None:
    large, small = np.float32(2**24), np.float32(1)
    mean = weighted_mean(
        updates=[(1.0, np.array([large])), (1.0, np.array([small])), (1.0, np.array([-large]))], dimension=1
    )
    assert mean[0] == pytest.approx(1 / 3)


def test_memory_does_not_grow_with_the_number_of_updates() -> None:
    dimension = 200_000

    def stream(count: int) -> Iterator[tuple[float, np.ndarray]]:
        for index in range(count):
            yield 1.0, np.full(dimension, index, dtype=np.float32)

    def peak(count: int) -> int:
        tracemalloc.start()
        weighted_mean(updates=stream(count), dimension=dimension)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    assert peak(40) < 1.1 * peak(4)


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(0.0, np.zeros(3, np.float32))],
        [(-1.0, np.zeros(3, np.float32))],
        [(float("nan"), np.zeros(3, np.float32))],
        [(1.0, np.zeros(4, np.float32))],
        [(1.0, np.array([0, np.nan, 0], np.float32))],
        [(1.0, np.array([0, np.inf, 0], np.float32))],
    ],
)
def test_impossible_updates_are_refused(pairs: list[tuple[float, np.ndarray]]) -> None:
    with pytest.raises(ImpossibleArgument):
        weighted_mean(updates=pairs, dimension=3)


def test_a_plain_step_subtracts_the_mean() -> None:
    state = ServerState.start(np.array([1, 2], np.float32))
    after = server_step(state=state, mean_update=np.array([0.5, -1]))
    assert after.parameters.tolist() == [0.5, 3.0]
    assert after.parameters.dtype == np.float32


def test_momentum_remembers_earlier_steps() -> None:
    state = ServerState.start(np.zeros(1, np.float32))
    for _ in range(3):
        state = server_step(state=state, mean_update=np.array([1.0]), learning_rate=2, momentum=0.5)
    # Velocities 1, 1.5, 1.75, each times the rate 2.
    assert state.parameters.tolist() == [-8.5]
    assert state.momentum.tolist() == [1.75]


def test_a_step_does_not_change_the_state_it_starts_from() -> None:
    state = ServerState.start(np.ones(2, np.float32))
    server_step(state=state, mean_update=np.ones(2), momentum=0.9)
    assert state.parameters.tolist() == [1, 1]
    assert state.momentum.tolist() == [0, 0]


def test_a_diverging_step_is_an_error_and_not_a_model_of_infinities() -> None:
    state = ServerState.start(np.zeros(2, np.float32))
    with pytest.raises(ModelDiverged):
        server_step(state=state, mean_update=np.array([1e300, 0]))


@pytest.mark.parametrize(
    ("mean", "rate", "momentum"),
    [([1.0], 1, 0), ([1.0, float("nan")], 1, 0), ([1.0, 1.0], 0, 0), ([1.0, 1.0], -1, 0), ([1.0, 1.0], 1, 1)],
)
def test_impossible_steps_are_refused(mean: list[float], rate: float, momentum: float) -> None:
    state = ServerState.start(np.zeros(2, np.float32))
    with pytest.raises(ImpossibleArgument):
        server_step(state=state, mean_update=np.array(mean), learning_rate=rate, momentum=momentum)
