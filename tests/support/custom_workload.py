"""Custom workloads, as tests name them: `support.custom_workload:Plane`."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from qidpfl_shared.workloads.records import Records


class Plane:
    """Points on either side of a line, told apart by a small network with a layer of ones in it."""

    labels = 2
    convex = False

    def __init__(self, *, data_dir: Path | None) -> None:
        self.data_dir = data_dir

    def training(self) -> Records:
        return _points(0, 400)

    def held_out(self) -> Records | None:
        return _points(1, 200)

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


class Alternating(Plane):
    """Softmax regression on points whose labels take turns."""

    convex = True

    def held_out(self) -> Records | None:
        points = _points(1, 200)
        return Records(features=points.features, labels=np.arange(200) % 2)

    def network(self) -> nn.Module:
        return nn.Linear(2, 2)


class Secretive(Plane):
    """Nothing is held out."""

    def held_out(self) -> Records | None:
        return None


class Moody(Plane):
    """Its network always fails."""

    def network(self) -> nn.Module:
        return _Moody()


class _Moody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.full = nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not today")


def _points(seed: int, count: int) -> Records:
    points = np.random.default_rng(seed).standard_normal((count, 2)).astype(np.float32)
    return Records(features=points, labels=(points[:, 0] > points[:, 1]).astype(np.int64))
