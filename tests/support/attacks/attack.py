"""One attack: a hostile model and two neighbouring data sets, and how far they move a release.

The *ratio* is the distance of the two releases without noise, over the sensitivity that the noise is made for. A ratio
above 1 breaks the claim: the real rho grows with its square.
"""

import copy
import math
import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from qidpfl_client.errors import ClientError
from qidpfl_client.training.data_loader import epoch_batches
from qidpfl_client.training.trainer import Trainer
from qidpfl_shared.core.arguments import ImpossibleArgument, Vector
from qidpfl_shared.protocol.mechanism_specs import GradientOnce, MechanismSpec, NoisyEpochs
from qidpfl_shared.workloads.records import Records
from qidpfl_shared.workloads.workload import WorkloadError
from support.attacks.networks import ZOO
from support.training.cases import records_of, replaced, trainer_of, upload

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
RELEASE = "round 1"

# Errors that refuse a task, a network or a model. They are fine if they do not depend on the records.
REFUSALS = (ClientError, WorkloadError, ImpossibleArgument)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two neighbouring data sets: the record at `index` is replaced by another one."""

    features: Floats
    labels: Integers
    index: int
    other_features: Floats
    other_label: int

    @property
    def size(self) -> int:
        return len(self.labels)

    def data_sets(self, index: int) -> tuple[Records, Records]:
        first = records_of(self.features, self.labels)
        return first, replaced(first, index, self.other_features, self.other_label)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What a hostile coordinator sends, and a pair of neighbours. `origin` says how it was made.

    With `rho`, both releases have the same noise of that budget, so that the rounding of noise and sum counts too.
    """

    network: str
    mechanism: MechanismSpec
    model: Floats
    pair: Pair
    chunk: int | None = None
    rho: float | None = None
    origin: str = ""

    def __str__(self) -> str:
        largest = float(np.abs(self.model).max())
        return (
            f"{self.network} by {self.mechanism!r}: {self.origin}; {self.pair.size} records, chunk {self.chunk},"
            f" rho {self.rho}, largest parameter {largest:.3g}"
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an attack did.

    `refusal`: both data sets met the same refusal, which releases nothing. `leftover` is what the other records, which
    are the same in both data sets, contribute to the distance, over the sensitivity. It is 0 but for rounding.
    """

    ratio: float
    refusal: str = ""
    leftover: float = 0.0


class Target:
    """The trainers of two neighbouring data sets, which many models and mechanisms can attack."""

    def __init__(self, *, network: str, pair: Pair, index: int, chunk: int | None) -> None:
        self._case = ZOO[network]
        self._pair = pair
        self._index = index
        self._chunk = chunk

    def measure(self, attack: Attack) -> Outcome:
        """The outcome of an attack on these two data sets."""
        try:
            with warnings.catch_warnings():
                # A warning is no release, and it does not stop one.
                warnings.simplefilter("ignore")
                releases = [self._release(trainer, attack) for trainer in self._trainers]
        except Exception as crash:
            # A crash is not a refusal: other records would not have caused it, so that it tells data sets apart.
            return Outcome(ratio=math.inf, refusal=f"{type(crash).__name__}: {crash}")
        match releases:
            case [str(first), str(second)]:
                return Outcome(ratio=0.0 if first == second else math.inf, refusal=first)
            case [np.ndarray() as first, np.ndarray() as second]:
                if np.isfinite(first).all() and np.isfinite(second).all():
                    return self._compared(attack, first - second)
        # A refusal of one of two neighbours tells them apart, and so does an upload that is not finite.
        return Outcome(ratio=math.inf)

    def _compared(self, attack: Attack, difference: Vector) -> Outcome:
        claimed = claimed_distance(attack.mechanism, self._pair.size)
        ratio = float(np.linalg.norm(difference)) / claimed
        if not math.isfinite(ratio):
            return Outcome(ratio=math.inf)
        if not isinstance(attack.mechanism, GradientOnce) or self._pair.size == 1 or attack.rho is not None:
            return Outcome(ratio=ratio)
        first, second = (self._release(trainer, attack) for trainer in self._alone)
        if isinstance(first, str) or isinstance(second, str):
            return Outcome(ratio=ratio)
        expected = (first - second) / self._pair.size
        return Outcome(ratio=ratio, leftover=float(np.linalg.norm(difference - expected)) / claimed)

    @cached_property
    def _trainers(self) -> list[Trainer | str]:
        return [self._trainer(records) for records in self._pair.data_sets(self._index)]

    @cached_property
    def _alone(self) -> list[Trainer | str]:
        """Trainers of the replaced record and of its replacement, each without all other records."""
        only = np.array([self._index])
        return [self._trainer(records.take(only)) for records in self._pair.data_sets(self._index)]

    def _trainer(self, records: Records) -> Trainer | str:
        # Each trainer has a network of its own, because it makes the parameters views of its vector.
        torch.manual_seed(0)
        network = copy.deepcopy(self._case.build())
        try:
            return trainer_of(network, records, chunk=self._chunk)
        except REFUSALS as refusal:
            return str(refusal)

    def _release(self, trainer: Trainer | str, attack: Attack) -> Vector | str:
        if isinstance(trainer, str):
            return trainer
        try:
            return upload(trainer, attack.mechanism, attack.model, rho=attack.rho, name=RELEASE)
        except REFUSALS as refusal:
            return str(refusal)


def target_of(attack: Attack) -> Target:
    """The target of an attack. In `noisy_epochs` a record of the last batch is replaced: it moves one step only."""
    mechanism, pair = attack.mechanism, attack.pair
    index = last_visited(mechanism, pair.size) if isinstance(mechanism, NoisyEpochs) else pair.index
    return Target(network=attack.network, pair=pair, index=index, chunk=attack.chunk)


def measure(attack: Attack) -> Outcome:
    """The outcome of one attack."""
    return target_of(attack).measure(attack)


def claimed_distance(mechanism: MechanismSpec, size: int) -> float:
    """The largest distance that the core claims; of `noisy_epochs`, that of the update after one step."""
    scale = mechanism.learning_rate if isinstance(mechanism, NoisyEpochs) else 1.0
    return scale * mechanism.build().sensitivity(size=size)


def last_visited(mechanism: NoisyEpochs, size: int) -> int:
    """A record of the smallest batch, which is the last one of the last epoch."""
    batches = epoch_batches(size=size, batch_size=mechanism.batch_size, release=RELEASE, epoch=mechanism.epochs - 1)
    *_, last = batches
    return int(last[0])
