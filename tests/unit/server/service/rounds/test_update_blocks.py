"""The updates of a round in blocks: the same bits as whole vectors, and a checked digest for each of them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_server.domain import Model
from qidpfl_server.errors import StoreBusy, UnreadableBlob
from qidpfl_server.service.rounds import aggregation, update_blocks
from qidpfl_server.service.rounds.aggregation import (
    load_model,
    next_state,
    publish_model,
    save_model,
    staged_next_model,
)
from qidpfl_server.service.rounds.update_blocks import UpdateMoments, mean_blocks
from qidpfl_server.service.rounds.weights import WeightedUpload
from qidpfl_server.store.store import Store
from qidpfl_shared.core.aggregation import ServerState, server_step, trimmed_mean, weighted_mean
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec

DIMENSION = preset("digits").dimension
RULES = ["mean", "trimmed_mean"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that do not divide the vector."""
    for module in (update_blocks, aggregation):
        monkeypatch.setattr(module, "LARGEST_BLOCK", 96)
    monkeypatch.setattr(update_blocks, "_SMALLEST_BLOCK", 16)


def task_with(rule: str) -> TaskSpec:
    trim = {"trim": 0.2} if rule == "trimmed_mean" else {}
    return preset("digits", {"aggregation": {"rule": rule, **trim}})


def stored(store: Store, count: int = 7) -> tuple[list[np.ndarray[Any, Any]], list[WeightedUpload]]:
    """Updates of very different sizes, of which some are clipped."""
    rng = np.random.default_rng(5)
    vectors = [(10.0**k * rng.standard_normal(DIMENSION)).astype("<f4") for k in range(count)]
    parts = [
        WeightedUpload(
            digest=store.blobs.put(vector.tobytes()), weight=0.1 + k / 3, scale=1 / (1 + k % 3), noise_std=1.0
        )
        for k, vector in enumerate(vectors)
    ]
    return vectors, parts


def clipped(vectors: Sequence[np.ndarray[Any, Any]], parts: Sequence[WeightedUpload]) -> list[np.ndarray[Any, Any]]:
    return [vector.astype(np.float64) * part.scale for vector, part in zip(vectors, parts, strict=True)]


def whole_mean(
    rule: str, vectors: Sequence[np.ndarray[Any, Any]], parts: Sequence[WeightedUpload]
) -> np.ndarray[Any, Any]:
    rows, weights = clipped(vectors, parts), [part.weight for part in parts]
    if rule == "mean":
        return weighted_mean(updates=zip(weights, rows, strict=True), dimension=DIMENSION)
    return trimmed_mean(read=lambda k, piece: rows[k][piece], weights=weights, dimension=DIMENSION, trim=0.2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("compare", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
def test_blocks_have_the_bits_of_whole_vectors(store: Store, rule: str, compare: bool, threads: int) -> None:
    vectors, parts = stored(store)
    moments = UpdateMoments(len(parts)) if compare else None
    with ThreadPoolExecutor(2) as pool:
        blocks = list(
            mean_blocks(store.blobs, task_with(rule), parts, threads=pool if threads else None, moments=moments)
        )
    assert len(blocks) == -(-DIMENSION // 96) and DIMENSION % 96
    assert [block.start for block in blocks] == list(range(0, DIMENSION, 96))
    found = np.concatenate([block.mean for block in blocks])
    assert found.tobytes() == whole_mean(rule, vectors, parts).tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_the_same_pass_compares_the_updates(store: Store, rule: str) -> None:
    vectors, parts = stored(store)
    moments = UpdateMoments(len(parts))
    list(mean_blocks(store.blobs, task_with(rule), parts, moments=moments))
    rows = np.array([row * part.weight for row, part in zip(clipped(vectors, parts), parts, strict=True)])
    found = moments.result()
    np.testing.assert_allclose(found.squared_norms, (rows**2).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.sum_products, rows @ rows.sum(axis=0), rtol=1e-9)
    assert found.sum_squared_norm == pytest.approx(float((rows.sum(axis=0) ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-4], lambda data: data + b"\0" * 4, lambda data: b"\1" + data[1:]]
)
def test_a_damaged_update_is_found_before_the_last_block_counts(store: Store, damage: Any) -> None:
    vectors, parts = stored(store)
    (Path(store.blobs.place) / "objects" / parts[3].digest).write_bytes(damage(vectors[3].tobytes()))
    with pytest.raises(UnreadableBlob, match=parts[3].digest):
        list(mean_blocks(store.blobs, task_with("mean"), parts))


def test_a_staged_model_has_the_bits_of_a_step_on_whole_vectors(store: Store) -> None:
    vectors, parts = stored(store)
    spec = preset("digits", {"aggregation": {"momentum": 0.7, "learning_rate": 3.0}})
    rng = np.random.default_rng(1)
    state = ServerState(
        parameters=rng.standard_normal(DIMENSION).astype("<f4"), momentum=rng.standard_normal(DIMENSION)
    )
    base = save_model(store.blobs, 4, state)
    expected = server_step(state=state, mean_update=whole_mean("mean", vectors, parts), learning_rate=3.0, momentum=0.7)
    with staged_next_model(
        store.blobs, spec, base, parts, version=5, compare=False, keep_parameters=True
    ) as next_model:
        store.write(lambda tx: publish_model(tx, next_model))
    found = load_model(store.blobs, next_model.model, DIMENSION)
    again = next_state(store.blobs, spec, base, parts)
    assert next_model.parameters is not None
    assert found.parameters.tobytes() == next_model.parameters.tobytes() == expected.parameters.tobytes()
    assert found.momentum.tobytes() == again.momentum.tobytes() == expected.momentum.tobytes()
    assert again.parameters.tobytes() == expected.parameters.tobytes()


def test_the_files_of_a_model_that_is_not_published_are_removed(store: Store) -> None:
    _, parts = stored(store)
    base = save_model(store.blobs, 0, ServerState.start(np.zeros(DIMENSION, dtype=np.float32)))
    staging = Path(store.blobs.place) / "staging"
    with staged_next_model(
        store.blobs, task_with("mean"), base, parts, version=1, compare=True, keep_parameters=False
    ) as next_model:
        assert isinstance(next_model.model, Model) and len(next_model.alignments) == len(parts)
        assert len(list(staging.iterdir())) == 2
    assert not list(staging.iterdir())


def test_a_staged_model_that_was_swept_is_tried_again(store: Store) -> None:
    _, parts = stored(store)
    base = save_model(store.blobs, 0, ServerState.start(np.zeros(DIMENSION, dtype=np.float32)))
    with staged_next_model(
        store.blobs, task_with("mean"), base, parts, version=1, compare=False, keep_parameters=False
    ) as next_model:
        for path in (Path(store.blobs.place) / "staging").iterdir():
            path.unlink()
        with pytest.raises(StoreBusy, match="try again"):
            store.write(lambda tx: publish_model(tx, next_model))
