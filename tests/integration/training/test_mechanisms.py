"""What the mechanisms compute, against the same written in numpy; and what a trainer refuses."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from qidpfl_client.errors import ClientError
from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.training import data_loader
from qidpfl_client.training.data_loader import epoch_batches
from qidpfl_client.training.devices import choose_device, use_full_precision
from qidpfl_client.training.trainer import Trainer
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.core.privacy.mechanisms import batch_sizes
from qidpfl_shared.core.privacy.rounding import SLACK
from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, NoisyEpochs, PaperLiteral, UpdateClip
from qidpfl_shared.protocol.task_spec import PrivacySpec
from qidpfl_shared.workloads.networks import build_network, layout_of
from qidpfl_shared.workloads.records import Records
from qidpfl_shared.workloads.workload import LayoutMismatch, WorkloadError
from support.training.cases import CPU, MECHANISMS, random_records, records_of, trainer_of, upload

SIZE = 45
WIDTH = 7
LABELS = 4
RNG = np.random.default_rng(11)
MODEL = RNG.standard_normal((WIDTH + 1) * LABELS).astype(np.float32)
RECORDS = random_records(SIZE, WIDTH, LABELS, scale=2)


def assert_close(found: Vector, expected: Vector) -> None:
    """As close as float32 can be, which networks compute in."""
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def record_gradients(model: Vector, features: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> Vector:
    """Softmax regression in numpy: one row per record, the weight row by row and then the bias."""
    weight, bias = model[: WIDTH * LABELS].reshape(LABELS, WIDTH), model[WIDTH * LABELS :]
    scores = features @ weight.T + bias
    chances = np.exp(scores - scores.max(1, keepdims=True))
    errors = chances / chances.sum(1, keepdims=True) - np.eye(LABELS)[labels]
    return np.hstack([(errors[:, :, None] * features[:, None, :]).reshape(len(labels), -1), errors])


def clipped(rows: Vector, bound: float) -> Vector:
    """The rows, clipped to the bound less the slack for rounding."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    shortened: Vector = rows * np.minimum(1, bound * (1 - SLACK) / norms)
    return shortened


def steps(
    mechanism: NoisyEpochs | UpdateClip | PaperLiteral | BoltOn,
    features: npt.NDArray[np.float64],
    bound: float,
    *,
    shorter: float = 1.0,
) -> Vector:
    """w − w_L of local training in numpy, over the same batches."""
    model = MODEL.astype(np.float64)
    for epoch in range(mechanism.epochs):
        for batch in epoch_batches(size=SIZE, batch_size=mechanism.batch_size, release="round 1", epoch=epoch):
            rows = record_gradients(model, features[batch], RECORDS.labels[batch])
            model = model - shorter * mechanism.learning_rate * clipped(rows, bound).mean(0)
    return MODEL - model


@pytest.fixture
def trainer() -> Trainer:
    return trainer_of(nn.Linear(WIDTH, LABELS), RECORDS)


@pytest.mark.parametrize("bound", [0.5, 3.0, 100.0])
def test_gradient_once_is_the_mean_of_clipped_gradients(trainer: Trainer, bound: float) -> None:
    rows = record_gradients(MODEL.astype(np.float64), RECORDS.features.astype(np.float64), RECORDS.labels)
    expected = clipped(rows, bound).mean(0)
    assert_close(upload(trainer, GradientOnce(clip_norm=bound), MODEL), expected)


@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_noisy_epochs_without_noise_is_training_on_clipped_gradients(trainer: Trainer, bound: float) -> None:
    mechanism = NoisyEpochs(clip_norm=bound, learning_rate=0.2, epochs=3, batch_size=10)
    expected = steps(mechanism, RECORDS.features.astype(np.float64), bound)
    assert_close(upload(trainer, mechanism, MODEL), expected)


@pytest.mark.parametrize("kind", [UpdateClip, PaperLiteral])
@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_an_update_is_clipped_as_a_whole(trainer: Trainer, kind: type[UpdateClip | PaperLiteral], bound: float) -> None:
    mechanism = kind(clip_norm=bound, learning_rate=0.2, epochs=3, batch_size=10)
    update = steps(mechanism, RECORDS.features.astype(np.float64), math.inf)
    expected = update * min(1.0, bound * (1 - SLACK) / float(np.linalg.norm(update)))
    assert_close(upload(trainer, mechanism, MODEL), expected)


def test_bolt_on_trains_on_bounded_features_and_clips_nothing(trainer: Trainer) -> None:
    mechanism = BoltOn(feature_norm=2.0, learning_rate=0.2, epochs=3, batch_size=10)
    features = RECORDS.features.astype(np.float64)
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    assert (norms > 2).any()
    expected = steps(mechanism, features * np.minimum(1, 2 / norms), math.inf, shorter=1 - SLACK)
    assert_close(upload(trainer, mechanism, MODEL), expected)


def test_a_trainer_serves_one_round_after_the_other(trainer: Trainer) -> None:
    first = {name: upload(trainer, mechanism, MODEL) for name, mechanism in MECHANISMS.items()}
    upload(trainer, MECHANISMS["noisy_epochs"], 2 * MODEL)
    again = {name: upload(trainer, mechanism, MODEL) for name, mechanism in reversed(MECHANISMS.items())}
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_server_gets_closer_by_subtracting(name: str) -> None:
    records = records_of(np.eye(LABELS, WIDTH).repeat(10, axis=0), np.arange(LABELS).repeat(10))
    start = np.zeros((WIDTH + 1) * LABELS)
    moved = start - upload(trainer_of(nn.Linear(WIDTH, LABELS), records), MECHANISMS[name], start)
    assert np.trace(moved[: WIDTH * LABELS].reshape(LABELS, WIDTH)) > 0


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_size_of_the_chunks_changes_nothing(trainer: Trainer, name: str, chunk: int) -> None:
    chunked = trainer_of(nn.Linear(WIDTH, LABELS), RECORDS, chunk=chunk)
    expected = upload(trainer, MECHANISMS[name], MODEL)
    np.testing.assert_allclose(upload(chunked, MECHANISMS[name], MODEL), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", MECHANISMS)
def test_records_too_large_to_keep_are_converted_as_they_are_needed(
    trainer: Trainer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_loader, "KEPT_BYTES", 0)
    streaming = trainer_of(nn.Linear(WIDTH, LABELS), RECORDS)
    expected = upload(trainer, MECHANISMS[name], MODEL)
    np.testing.assert_allclose(upload(streaming, MECHANISMS[name], MODEL), expected, rtol=1e-5, atol=1e-7)


def test_images_kept_as_bytes_enter_as_the_records_say() -> None:
    bytes_ = RNG.integers(0, 256, (SIZE, WIDTH), dtype=np.uint8)
    small = Records(features=bytes_, labels=RECORDS.labels, scale=1 / 255, shift=-0.5)
    plain = records_of(bytes_ / 255 - 0.5, RECORDS.labels)
    first, second = (
        upload(trainer_of(nn.Linear(WIDTH, LABELS), records), MECHANISMS["gradient_once"], MODEL)
        for records in (small, plain)
    )
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("size", "batch_size"), [(45, 10), (3, 10), (1, 1), (64, 64)])
def test_batches_are_disjoint_complete_and_public(size: int, batch_size: int) -> None:
    def epoch(number: int, release: str = "round 1") -> list[list[int]]:
        batches = epoch_batches(size=size, batch_size=batch_size, release=release, epoch=number)
        return [batch.tolist() for batch in batches]

    first = epoch(0)
    assert tuple(len(batch) for batch in first) == batch_sizes(size=size, batch_size=batch_size)
    assert sorted(index for batch in first for index in batch) == list(range(size))
    assert first == epoch(0)
    if size > 10:
        assert first != epoch(1)
        assert first != epoch(0, "round 2")


def test_the_built_in_networks_are_trained_by_their_layouts() -> None:
    network = build_network("lenet", labels=62, record_shape=(1, 28, 28))
    layout = layouts.lenet(channels=1, side=28, labels=62)
    records = Records(features=RNG.integers(0, 256, (9, 1, 28, 28), dtype=np.uint8), labels=np.arange(9), scale=1 / 255)
    model = np.concatenate([tensor.detach().numpy().ravel() for tensor in network.parameters()])
    released = upload(
        Trainer(network=network, records=records, layout=layout, device=CPU), GradientOnce(clip_norm=1e6), model
    )
    network.zero_grad()
    loss = nn.functional.cross_entropy(network(torch.from_numpy(records.inputs())), torch.from_numpy(records.labels))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    expected = np.concatenate([gradient.numpy().ravel() for gradient in gradients])
    np.testing.assert_allclose(released, expected, rtol=1e-3, atol=1e-6)


class Doubled(nn.Module):
    """Not softmax regression, although its parameters look like it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(2 * inputs)
        return answers


@pytest.mark.parametrize(
    "network", [Doubled(), nn.Sequential(nn.Linear(WIDTH, 5), nn.Linear(5, LABELS))], ids=["scaled", "two layers"]
)
def test_bolt_on_refuses_what_is_not_softmax_regression(network: nn.Module) -> None:
    model = np.zeros(layout_of(network).dimension)
    with pytest.raises(ClientError, match="softmax regression only"):
        upload(trainer_of(network, RECORDS), MECHANISMS["bolt_on"], model)


def test_bolt_on_takes_softmax_regression_in_any_wrapping() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, LABELS, bias=False))
    records = records_of(RECORDS.features[:, None, :], RECORDS.labels)
    assert upload(trainer_of(network, records), MECHANISMS["bolt_on"], np.zeros(WIDTH * LABELS)).any()


def test_bolt_on_refuses_a_model_so_large_that_its_proof_fails(trainer: Trainer) -> None:
    with pytest.raises(ClientError, match="exceeds what its proof allows"):
        upload(trainer, MECHANISMS["bolt_on"], np.full(MODEL.size, 1e30))


def test_networks_that_mix_records_are_refused() -> None:
    with pytest.raises(WorkloadError, match="BatchNorm1d"):
        trainer_of(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, LABELS)), RECORDS)


class Centred(nn.Module):
    """Takes the mean of the batch away from every record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.layer(inputs - inputs.mean(0))
        return answers


def test_networks_that_mix_records_in_their_own_way_are_refused_too() -> None:
    with pytest.raises(WorkloadError, match="depends on the other records"):
        trainer_of(Centred(), RECORDS)


class Counts(nn.Module):
    """Counts the records that it has seen, in a buffer that its answers depend on."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, LABELS)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += len(inputs)
        answers: Tensor = self.layer(inputs) / self.seen
        return answers


class Shortens(nn.Module):
    """A look-up shortens rows of the table, for all later records too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, LABELS, max_norm=1e3)

    def forward(self, inputs: Tensor) -> Tensor:
        answers: Tensor = self.table(inputs.abs().long() % 4).sum(1)
        return answers


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Counts(), "changes its parameters or buffers"),
        (Shortens(), "Embedding"),
    ],
    ids=["buffer", "table"],
)
def test_networks_that_change_themselves_are_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        trainer_of(network, RECORDS)


class Strict(nn.Module):
    """Fails for large features, with an error that is not one of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, LABELS)

    def forward(self, inputs: Tensor) -> Tensor:
        assert float(inputs.abs().max()) < 100, "out of range"
        answers: Tensor = self.layer(inputs)
        return answers


@pytest.mark.parametrize("name", ["gradient_once", "noisy_epochs", "update_clip"])
def test_a_record_for_which_the_network_fails_ends_no_round(name: str) -> None:
    features = RECORDS.features.copy()
    features[3] = 1000
    released = upload(trainer_of(Strict(), records_of(features, RECORDS.labels)), MECHANISMS[name], MODEL)
    assert np.isfinite(released).all() and released.any()


def test_sparse_gradients_are_trained_like_dense_ones() -> None:
    class Words(nn.Module):
        def __init__(self, *, sparse: bool) -> None:
            super().__init__()
            self.table = nn.Embedding(5, LABELS, sparse=sparse)

        def forward(self, inputs: Tensor) -> Tensor:
            answers: Tensor = self.table(inputs.abs().long() % 5).sum(1)
            return answers

    model = RNG.standard_normal(5 * LABELS)
    for name in ("gradient_once", "update_clip"):
        sparse, dense = (
            upload(trainer_of(Words(sparse=sparse), RECORDS), MECHANISMS[name], model) for sparse in (True, False)
        )
        np.testing.assert_allclose(sparse, dense, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (records_of(np.zeros((0, WIDTH)), []), "no records"),
        (records_of(np.zeros((2, WIDTH)), [0, LABELS]), "labels 0 to 4 do not fit"),
        (records_of(np.zeros((2, WIDTH)), [-1, 0]), "labels -1 to 0 do not fit"),
        (records_of(np.zeros((2, WIDTH + 1)), [0, 1]), "does not accept records of shape"),
        (records_of(np.zeros((2, 3, WIDTH)), [0, 1]), "do not fit"),
    ],
)
def test_records_that_do_not_fit_are_refused_in_one_line(records: Records, message: str) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        trainer_of(nn.Linear(WIDTH, LABELS), records)
    assert "\n" not in str(caught.value)


def test_a_network_or_model_of_another_shape_is_refused(trainer: Trainer) -> None:
    with pytest.raises(LayoutMismatch):
        Trainer(
            network=nn.Linear(WIDTH, LABELS), records=RECORDS, layout=layouts.linear(inputs=9, labels=4), device=CPU
        )
    with pytest.raises(LayoutMismatch):
        upload(trainer, MECHANISMS["gradient_once"], MODEL[:-1])


@pytest.mark.parametrize(("noise", "rho"), [(True, None), (False, 0.1)])
def test_a_budget_belongs_to_noise(trainer: Trainer, noise: bool, rho: float | None) -> None:
    privacy = PrivacySpec(mechanism=GradientOnce(clip_norm=1), noise=noise)
    with pytest.raises(ClientError, match="budget"):
        trainer.release(privacy=privacy, model=MODEL, rho=rho, noise=UnsafeSeededNoise(0), name="round 1")


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_budget_is_refused(trainer: Trainer, rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        upload(trainer, MECHANISMS["gradient_once"], MODEL, rho=rho)


def test_dropout_is_off() -> None:
    network = nn.Sequential(nn.Linear(WIDTH, 50), nn.Dropout(0.5), nn.Linear(50, LABELS)).train()
    model = RNG.standard_normal(layout_of(network).dimension)
    trainer = trainer_of(network, RECORDS)
    first, second = (upload(trainer, MECHANISMS["gradient_once"], model) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def without_gpus() -> Iterator[str]:
    if not torch.cuda.is_available():
        yield from ("cuda", "cuda:0")
    if not torch.backends.mps.is_available():
        yield "mps"


def test_auto_finds_a_device_and_cpu_is_always_there() -> None:
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    "name", [*without_gpus(), "cuda:99", "cuda:", "cuda:x", "cuda:-1", "gpu", "", "cpu:0", "auto:1"]
)
def test_a_device_that_is_not_there_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ClientError, match="device") as caught:
        choose_device(name)
    assert "\n" not in str(caught.value)
    assert "cpu" in str(caught.value) or "counted from 0" in str(caught.value)


def test_a_trainer_switches_off_reduced_precision() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    try:
        trainer_of(nn.Linear(WIDTH, LABELS), RECORDS)
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    finally:
        use_full_precision()
