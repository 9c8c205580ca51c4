"""The built-in data sets, by name, and the workloads that they make together with a network."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .datasets import cifar, digits, emnist, mnist
from .datasets.folder import DataFolder
from .datasets.images import Images, ImageShape
from .records import Records
from .workload import UnknownWorkload

if TYPE_CHECKING:
    from torch import nn

_CROP_SIDE = 24


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Images of one shape: how they are read, and the public constants that make inputs of their pixels."""

    labels: int
    shape: ImageShape
    read: Callable[[DataFolder, bool], Images]
    scale: float
    shift: float = 0.0


# No constant is computed from records. Those of CIFAR-10 and EMNIST are round numbers near the published means and
# deviations: tanh units that get pixels/255 learn far more slowly.
DATA_SETS: dict[str, DataSet] = {
    "digits": DataSet(
        labels=10,
        shape=ImageShape(1, 8, 8),
        read=lambda _, training: digits.read_digits(training=training),
        scale=1 / 16,
    ),
    "mnist": DataSet(
        labels=10,
        shape=ImageShape(1, 28, 28),
        read=lambda folder, training: mnist.read_mnist(folder, training=training),
        scale=1 / 255,
    ),
    "cifar10": DataSet(
        labels=10,
        shape=ImageShape(3, 32, 32),
        read=lambda folder, training: cifar.read_cifar10(folder, training=training),
        scale=1 / (0.25 * 255),
        shift=-0.5 / 0.25,
    ),
    "emnist": DataSet(
        labels=62,
        shape=ImageShape(1, 28, 28),
        read=lambda folder, training: emnist.read_emnist(folder, training=training),
        scale=3 / 255,
        shift=-0.5,
    ),
    "emnist-small": DataSet(
        labels=62,
        shape=ImageShape(1, 28, 28),
        read=lambda folder, training: emnist.read_emnist_small(folder, training=training),
        scale=3 / 255,
        shift=-0.5,
    ),
}
NETWORKS = ("linear", "lenet", "mcmahan")


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A built-in data set with a built-in network. Each part of the data is read once, when it is first asked for."""

    data_set: DataSet
    network_name: str
    folder: DataFolder

    @property
    def labels(self) -> int:
        return self.data_set.labels

    @property
    def convex(self) -> bool:
        return self.network_name == "linear"

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record as the network takes it."""
        shape = self.data_set.shape
        match self.network_name:
            case "linear":
                return (math.prod(shape),)
            case "mcmahan":
                return (shape.channels, _CROP_SIDE, _CROP_SIDE)
            case _:
                return tuple(shape)

    def training(self) -> Records:
        return self._training

    def held_out(self) -> Records | None:
        return self._held_out

    def network(self) -> "nn.Module":
        from .networks import build_network

        return build_network(self.network_name, labels=self.labels, record_shape=self.record_shape)

    @cached_property
    def _training(self) -> Records:
        return self._records(training=True)

    @cached_property
    def _held_out(self) -> Records:
        return self._records(training=False)

    def _records(self, *, training: bool) -> Records:
        images = self.data_set.read(self.folder, training)
        if self.network_name == "linear":
            images = images.flat()
        elif self.network_name == "mcmahan":
            images = images.centre(_CROP_SIDE)
        return Records(
            features=images.pixels, labels=images.labels, scale=self.data_set.scale, shift=self.data_set.shift
        )


def built_in(*, dataset: str, network: str, folder: DataFolder) -> BuiltIn:
    """The workload of a built-in data set and network."""
    if dataset not in DATA_SETS:
        raise UnknownWorkload(f"there is no data set {dataset!r}; there are {', '.join(DATA_SETS)}")
    if network not in NETWORKS:
        raise UnknownWorkload(f"there is no network {network!r}; there are {', '.join(NETWORKS)}")
    data_set = DATA_SETS[dataset]
    channels, height, width = data_set.shape
    if network == "mcmahan" and (channels != 3 or min(height, width) < _CROP_SIDE):
        raise UnknownWorkload(f"network 'mcmahan' takes coloured images of at least 24x24, but {dataset!r} has none")
    if network == "lenet" and min(height, width) < 16:
        raise UnknownWorkload(f"network 'lenet' takes images of at least 16x16, but {dataset!r} has {height}x{width}")
    return BuiltIn(data_set=data_set, network_name=network, folder=folder)
