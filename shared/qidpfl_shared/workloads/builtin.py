"""The built-in data sets by name, and the workloads that they form with a network."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..protocol import layouts
from ..protocol.layouts import MCMAHAN_SIDE, NETWORKS, ImageFacts
from .datasets import cifar, digits, mnist
from .datasets.folder import DataFolder
from .datasets.images import Images
from .records import Records
from .workload import UnknownWorkload

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """How images are read, and the public constants that turn pixels into inputs: pixel·scale + shift."""

    facts: ImageFacts
    read: Callable[[DataFolder, bool], Images]
    scale: float
    shift: float = 0.0


# No constant is computed from records. Those of CIFAR-10 and EMNIST are round numbers near the published means and
# deviations: networks with tanh units learn far more slowly from pixels/255.
DATA_SETS: dict[str, DataSet] = {
    "digits": DataSet(
        facts=layouts.DATA_SETS["digits"],
        read=lambda _, training: digits.read_digits(training=training),
        scale=1 / 16,
    ),
    "mnist": DataSet(
        facts=layouts.DATA_SETS["mnist"],
        read=lambda folder, training: mnist.read_mnist(folder, training=training),
        scale=1 / 255,
    ),
    "cifar10": DataSet(
        facts=layouts.DATA_SETS["cifar10"],
        read=lambda folder, training: cifar.read_cifar10(folder, training=training),
        scale=1 / (0.25 * 255),
        shift=-0.5 / 0.25,
    ),
    "emnist": DataSet(
        facts=layouts.DATA_SETS["emnist"],
        read=lambda folder, training: mnist.read_emnist(folder, training=training),
        scale=3 / 255,
        shift=-0.5,
    ),
    "emnist-small": DataSet(
        facts=layouts.DATA_SETS["emnist-small"],
        read=lambda folder, training: mnist.read_emnist_small(folder, training=training),
        scale=3 / 255,
        shift=-0.5,
    ),
}


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A built-in data set with a built-in network. Each part of the data is read once, when it is first used."""

    data_set: DataSet
    network_name: str
    folder: DataFolder

    @property
    def labels(self) -> int:
        return self.data_set.facts.labels

    @property
    def convex(self) -> bool:
        return self.network_name == "linear"

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record as the network accepts it."""
        shape = self.data_set.facts.shape
        match self.network_name:
            case "linear":
                return (math.prod(shape),)
            case "mcmahan":
                return (shape.channels, MCMAHAN_SIDE, MCMAHAN_SIDE)
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
            images = images.centre(MCMAHAN_SIDE)
        return Records(
            features=images.pixels, labels=images.labels, scale=self.data_set.scale, shift=self.data_set.shift
        )


def built_in(*, dataset: str, network: str, folder: DataFolder) -> BuiltIn:
    """Return the workload of a built-in data set and network.

    Raises `UnknownWorkload` for an unknown name, or if the network does not accept images of this shape.
    """
    if dataset not in DATA_SETS:
        raise UnknownWorkload(f"there is no data set {dataset!r}; use one of {', '.join(DATA_SETS)}")
    if network not in NETWORKS:
        raise UnknownWorkload(f"there is no network {network!r}; use one of {', '.join(NETWORKS)}")
    if (problem := layouts.misfit(dataset=dataset, network=network)) is not None:
        raise UnknownWorkload(problem)
    return BuiltIn(data_set=DATA_SETS[dataset], network_name=network, folder=folder)
