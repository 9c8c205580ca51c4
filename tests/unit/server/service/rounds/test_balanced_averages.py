"""Rounds with optimal weights and a low-pass: the model that is published, its audit, and the cost that is reported."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.fft import dctn
from scipy.optimize import minimize

from qidpfl_server.service.figures import round_costs
from qidpfl_server.service.rounds import weights
from qidpfl_server.service.rounds.aggregation import load_model
from qidpfl_server.service.rounds.weights import Upload, weighted_uploads
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.fakes import FakeClock
from support.fast_stores import fast_store
from support.use_cases import EVEN, RHO, ServedClient, ServedTask, UseCases

PLAIN_STEP = {"learning_rate": 1.0, "momentum": 0.0}
# With one label twice as often, and with a third of the records.
LABELS: list[tuple[int, ...]] = [EVEN, (22, 0, *(11,) * 8), (4,) * 10, (0, 0, 0, 19, 19, *(11,) * 5)]


def balanced(cases: UseCases, **overrides: Any) -> tuple[ServedTask, list[ServedClient]]:
    """A task with optimal weights, without a defence, whose clients have different labels."""
    changes = {"aggregation": PLAIN_STEP | {"weighting": "optimal"}, "defence": None, "game": {"horizon": 2}}
    task = cases.task(**changes | {"rounds": {"expected_clients": len(LABELS)}} | overrides)
    return task, [task.client(labels=labels) for labels in LABELS]


def model(task: ServedTask, version: int) -> Vector:
    found = task.cases.read(lambda tx: tx.tasks.model(task.task_id, version))
    assert found is not None
    return load_model(task.cases.store.blobs, found, task.now.spec.dimension).parameters.astype(np.float64)


def best_weights(client_labels: list[tuple[int, ...]], reference: Vector, dimension: int) -> Vector:
    """The weights by a general method of scipy, from the formula: σ² = 2/(ρ·D²) with clip norm 1, and κ = 5."""
    counts = np.array(client_labels, dtype=np.float64)
    sizes = counts.sum(axis=1)
    gaps = counts / sizes[:, None] - reference
    noise = dimension * 2 / (RHO * sizes**2)

    def objective(weights: Vector) -> float:
        return float(noise @ weights**2 + 5 * np.sum((weights @ gaps) ** 2))

    found = minimize(
        objective,
        np.full(len(sizes), 1 / len(sizes)),
        bounds=[(0, 1)] * len(sizes),
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return np.asarray(found.x)


@pytest.mark.parametrize("reference", ["uniform", "pooled"])
def test_the_model_is_a_step_along_the_average_with_optimal_weights(cases: UseCases, reference: str) -> None:
    selection = {"rule": "all", "reference": reference}
    task, clients = balanced(cases, selection=selection)
    task.play(clients)
    pooled = np.array(LABELS, dtype=np.float64)
    shares = pooled.sum(axis=0) / pooled.sum() if reference == "pooled" else np.full(10, 0.1)
    best = best_weights(LABELS, shares, task.now.spec.dimension)
    updates = np.array([np.frombuffer(client.update(), dtype="<f4").astype(np.float64) for client in clients])
    np.testing.assert_allclose(model(task, 1), -(best @ updates), atol=2e-5)
    assert np.ptp(best) > 0.1
    assert cases.violations() == []


def test_a_client_that_left_still_belongs_to_the_pooled_reference(cases: UseCases) -> None:
    task, clients = balanced(cases, selection={"rule": "all", "reference": "pooled"})
    clients[1].leave()
    task.play([clients[0], *clients[2:]])
    assert task.result().updates == 3
    assert cases.violations() == []


def test_with_a_defence_no_client_pulls_more_than_twice_the_median() -> None:
    spec = preset("digits", {"aggregation": {"weighting": "optimal"}})
    rng = np.random.default_rng(3)
    gaps = [np.r_[0.9, np.full(9, -0.1)] * sign for sign in (1, 1, 1, 1, 0)]
    uploads = [
        Upload(
            digest=str(place),
            size=110,
            declared_rho=RHO,
            planned_rho=RHO,
            squared_norm=float(np.sum(rng.standard_normal(650) ** 2)) * 2 / (RHO * 110**2),
            label_gap=gap,
        )
        for place, gap in enumerate(gaps)
    ]
    free = weighted_uploads(spec.model_copy(update={"defence": None}), uploads, participants=5)
    bounded = weighted_uploads(spec, uploads, participants=5)
    assert free[-1].weight > 3 * free[0].weight
    assert bounded[-1].weight == pytest.approx(2 * bounded[0].weight, rel=1e-3)


def test_an_update_with_the_weight_zero_does_not_loosen_the_bound_of_the_others() -> None:
    spec = preset("digits", {"aggregation": {"weighting": "optimal"}})
    far = np.r_[0.9, np.full(9, -0.1)]
    gaps = [far, far, far, 0.1 * far, 0.2 * far]
    uploads = [
        Upload(digest=str(place), size=110, declared_rho=rho, planned_rho=rho, squared_norm=1.0, label_gap=gap)
        for place, (gap, rho) in enumerate(zip(gaps, (1e-4, 1e-4, 1e-4, 0.3, 0.5), strict=True))
    ]
    found = [part.weight for part in weighted_uploads(spec, uploads, participants=5)]
    free = weighted_uploads(spec.model_copy(update={"defence": None}), uploads, participants=5)
    assert found[0] == free[0].weight == 0
    # Two updates pull: neither more than twice their median.
    assert found[3] == free[3].weight and found[4] == free[4].weight


def test_without_noise_the_sizes_are_the_weights() -> None:
    spec = preset(
        "digits",
        {"aggregation": {"weighting": "optimal"}, "privacy": {"noise": False}, "defence": None}
        | {"game": {"policy": "none"}},
    )
    uploads = [
        Upload(digest=str(size), size=size, declared_rho=0, planned_rho=0, squared_norm=1.0) for size in (100, 300)
    ]
    assert [part.weight for part in weighted_uploads(spec, uploads, participants=2)] == [0.25, 0.75]


def test_the_low_pass_leaves_only_low_frequencies_of_each_class_image(cases: UseCases) -> None:
    step = PLAIN_STEP | {"post_processing": "lowpass", "cutoff": 3.0}
    task, clients = balanced(cases, aggregation=step)
    task.play(clients)
    images = model(task, 1)[:640].reshape(10, 8, 8)
    down, across = np.mgrid[:8, :8]
    coefficients = dctn(images, axes=(1, 2), norm="ortho")
    high = np.hypot(down, across) >= 3.0
    assert np.abs(coefficients[:, high]).max() < 1e-6 < np.abs(coefficients[:, ~high]).min()
    assert np.abs(model(task, 1)[640:]).min() > 0
    assert cases.violations() == []


def test_the_audit_finds_a_model_that_was_made_without_the_low_pass(
    cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, clients = balanced(cases, aggregation=PLAIN_STEP | {"post_processing": "lowpass"})
    with monkeypatch.context() as patched:
        patched.setattr(TaskSpec, "post_processing", None)
        task.play(clients)
    assert any("recomputed" in line for line in cases.violations())


def test_the_audit_finds_a_model_that_was_made_with_other_weights(
    cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, clients = balanced(cases)
    with monkeypatch.context() as patched:
        patched.setattr(weights, "label_gaps", lambda spec, clients: {})
        task.play(clients)
    assert any("recomputed" in line for line in cases.violations())


@contextmanager
def opened(folder: Path) -> Iterator[UseCases]:
    with fast_store(folder / "coordinator.db", folder / "blobs") as store:
        yield UseCases(store, FakeClock())


def test_after_a_restart_between_upload_and_settlement_the_model_has_the_same_bits(
    cases: UseCases, tmp_path: Path
) -> None:
    step = {"weighting": "optimal", "post_processing": "lowpass"}
    task, clients = balanced(cases, aggregation=step)
    twin, twins = balanced(cases, aggregation=step)
    for client, other in zip(clients, twins, strict=True):
        client.play()
        other.declare()
        other.upload(client.update())
    assert task.settle()
    expected = model(task, 1)
    with opened(tmp_path) as again:
        restarted = ServedTask(again, twin.task_id, twin.codes)
        assert restarted.settle()
        assert model(restarted, 1).tobytes() == expected.tobytes()
        assert again.violations() == []


def test_the_reported_cost_counts_the_weights_and_the_labels(cases: UseCases) -> None:
    task, clients = balanced(cases)
    task.play(clients)
    task.play(clients, 2)
    assert task.now.state is TaskState.FINISHED
    spec = task.now.spec
    (cost, _) = cases.read(lambda tx: round_costs(tx, task.task_id, 0, 10))
    best = best_weights(LABELS, np.full(10, 0.1), spec.dimension)
    counts = np.array(LABELS, dtype=np.float64)
    noise = np.sum(best**2 * 2 / (RHO * counts.sum(axis=1) ** 2))
    gap = best @ (counts / counts.sum(axis=1)[:, None] - 0.1)
    constants = spec.cost_model()
    expected = constants.signal_cost + cost.reward_cost
    expected += constants.error_factor * (spec.dimension * noise + 5 * float(gap @ gap))
    assert cost.cost == pytest.approx(expected, rel=1e-6)


def test_the_reward_is_that_of_the_weights_really_used(cases: UseCases) -> None:
    """A reward below all bounds, which the audit plans again from the labels."""
    game = {"horizon": 20, "convexity": 1.0}
    task, _ = balanced(cases, game=game, selection={"rule": "all"})
    step = {"weighting": "inverse_variance"}
    other, _ = balanced(cases, game=game, aggregation=PLAIN_STEP | step, selection={"rule": "all"})
    balanced_reward, reward = task.round().reward_micro, other.round().reward_micro
    assert reward < balanced_reward < task.now.spec.bounds.reward_max_micro
    assert cases.violations() == []
