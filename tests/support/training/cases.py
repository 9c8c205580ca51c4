"""Small trainers, and releases of them, for the tests of training."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from qidpfl_client.noise import NoiseSource, UnsafeSeededNoise
from qidpfl_client.training.trainer import Trainer
from qidpfl_shared.core.arguments import Vector
from qidpfl_shared.protocol.mechanism_specs import (
    BoltOn,
    GradientOnce,
    MechanismSpec,
    NoisyEpochs,
    PaperLiteral,
    UpdateClip,
)
from qidpfl_shared.protocol.task_spec import PrivacySpec
from qidpfl_shared.workloads.networks import layout_of
from qidpfl_shared.workloads.records import Records

# The matrices of these tests are tiny: on a busy machine threads would only wait for each other.
torch.set_num_threads(1)

CPU = torch.device("cpu")
# `make test-gpu` runs the tests of training on another device.
DEVICE = torch.device(os.environ.get("QIDPFL_TEST_DEVICE", "cpu"))
CLIP = 0.5
RATE = 0.1
EPOCHS = 2
BATCH = 8

MECHANISMS: dict[str, MechanismSpec] = {
    spec.name: spec
    for spec in (
        GradientOnce(clip_norm=CLIP),
        NoisyEpochs(clip_norm=CLIP, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH),
        UpdateClip(clip_norm=CLIP, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH),
        PaperLiteral(clip_norm=CLIP, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH),
        BoltOn(feature_norm=3.0, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH),
    )
}


def records_of(features: npt.ArrayLike, labels: npt.ArrayLike) -> Records:
    return Records(features=np.asarray(features, dtype=np.float32), labels=np.asarray(labels, dtype=np.int64))


def random_records(size: int, width: int, labels: int, *, seed: int = 0, scale: float = 1.0) -> Records:
    rng = np.random.default_rng(seed)
    return records_of(scale * rng.standard_normal((size, width)), rng.integers(0, labels, size))


def replaced(records: Records, index: int, features: npt.ArrayLike, label: int) -> Records:
    """The neighbouring data set: one record is another."""
    changed, labels = records.features.copy(), records.labels.copy()
    changed[index], labels[index] = features, label
    return records_of(changed, labels)


def trainer_of(network: nn.Module, records: Records, **options: Any) -> Trainer:
    return Trainer(network=network, records=records, layout=layout_of(network), device=DEVICE, **options)


def upload(
    trainer: Trainer,
    mechanism: MechanismSpec,
    model: npt.ArrayLike,
    *,
    rho: float | None = None,
    noise: NoiseSource | None = None,
    name: str = "round 1",
) -> Vector:
    """What is released; without a budget, the same without noise."""
    return trainer.release(
        privacy=PrivacySpec(mechanism=mechanism, noise=rho is not None),
        model=np.asarray(model, dtype=np.float32),
        rho=rho,
        noise=noise or UnsafeSeededNoise(0),
        name=name,
    )
