"""The mechanisms: what each uploads, how much noise it adds, and what it guarantees.

Gaussian noise of standard deviation σ on a query of L2 sensitivity Δ is Δ²/(2σ²)-zCDP, and so is discrete Gaussian
noise. `rho` is always the *declared* budget, which the game, the payment and the noise formula use. `proven_rho` is
what the mechanism guarantees. The two are equal for every mechanism except `PaperLiteralMechanism`, a heuristic.

Preconditions of every proof: clipping over all parameters together; no batch normalisation; public preprocessing
constants; batches that do not depend on the data; fresh noise from the operating system's entropy for every upload.
`discrete_gaussian` and `rounding` make the guarantees hold for computed numbers.

All classes and methods raise `ImpossibleArgument` for a number outside its range.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, runtime_checkable

from .. import arguments
from ..arguments import ImpossibleArgument


class MechanismName(StrEnum):
    """The names of the mechanisms on the wire."""

    GRADIENT_ONCE = "gradient_once"
    NOISY_EPOCHS = "noisy_epochs"
    PAPER_LITERAL = "paper_literal"
    UPDATE_CLIP = "update_clip"
    BOLT_ON = "bolt_on"


class UploadKind(StrEnum):
    """A gradient, to which the server applies its learning rate, or a complete update w - w_L with rate 1."""

    GRADIENT = "gradient"
    UPDATE = "update"


@runtime_checkable
class Mechanism(Protocol):
    """What every mechanism defines; `size` is the client's number of records.

    `heuristic`: it guarantees less than it declares. `feedback`: the upload before noise may depend on the noise.
    """

    name: ClassVar[MechanismName]
    kind: ClassVar[UploadKind]
    heuristic: ClassVar[bool]
    feedback: ClassVar[bool]

    def sensitivity(self, *, size: int) -> float:
        """The largest L2 distance between what noise is added to on two neighbouring data sets."""

    def noise_std(self, *, rho: float, size: int) -> float:
        """The standard deviation of the noise in each coordinate of the upload."""

    def noise_scale(self, *, size: int) -> float:
        """v = noise_std²·rho, which does not depend on rho. It is the client's part of the server's cost."""

    def proven_rho(self, *, rho: float, size: int) -> float:
        """The zCDP that one upload guarantees if `rho` is declared."""

    def signal_bound(self, *, size: int) -> float:
        """The largest L2 norm of an upload before noise."""


class _OneRelease(ABC):
    """A mechanism that adds noise once. Its noise and guarantee follow from v (`noise_scale`) and Δ."""

    heuristic: ClassVar[bool] = False
    feedback: ClassVar[bool] = False

    @abstractmethod
    def sensitivity(self, *, size: int) -> float:
        """The largest L2 distance between what noise is added to on two neighbouring data sets."""

    def noise_scale(self, *, size: int) -> float:
        """v = Δ²/2, which makes the release exactly rho-zCDP."""
        return self.sensitivity(size=size) ** 2 / 2

    def noise_std(self, *, rho: float, size: int) -> float:
        """The standard deviation of the noise in each coordinate of the upload."""
        return math.sqrt(self.noise_scale(size=size) / arguments.positive("rho", rho))

    def proven_rho(self, *, rho: float, size: int) -> float:
        """Δ²/(2σ²) of the added noise."""
        return arguments.positive("rho", rho) * (self.sensitivity(size=size) ** 2 / 2 / self.noise_scale(size=size))


@dataclass(frozen=True, kw_only=True)
class GradientOnceMechanism(_OneRelease):
    """The mean of the per-record gradients, each clipped to `clip_norm`, over all records, once per round.

    Replacing a record replaces one term of the mean: Δ = 2C/D. Only for this mechanism the paper's noise (eq. 10), cost
    and Theorem 2 hold as printed.

    >>> mechanism = GradientOnceMechanism(clip_norm=1.0)
    >>> mechanism.sensitivity(size=100), round(mechanism.noise_std(rho=0.1, size=100), 4)
    (0.02, 0.0447)
    """

    name: ClassVar[MechanismName] = MechanismName.GRADIENT_ONCE
    kind: ClassVar[UploadKind] = UploadKind.GRADIENT

    clip_norm: float

    def __post_init__(self) -> None:
        arguments.magnitude("clip_norm", self.clip_norm)

    def sensitivity(self, *, size: int) -> float:
        """2C/D."""
        return 2 * self.clip_norm / arguments.whole("size", size, minimum=1)

    def signal_bound(self, *, size: int) -> float:
        """C: a mean of vectors of norm at most C."""
        arguments.whole("size", size, minimum=1)
        return self.clip_norm


@dataclass(frozen=True, kw_only=True)
class UpdateClipMechanism(_OneRelease):
    """The update of any local training, clipped as a whole to `clip_norm`: Δ = 2C for any number of records.

    It protects the whole data set of a client with the same rho (client-level zCDP). Its noise is large, so it is
    useful only with thousands of clients.
    """

    name: ClassVar[MechanismName] = MechanismName.UPDATE_CLIP
    kind: ClassVar[UploadKind] = UploadKind.UPDATE

    clip_norm: float

    def __post_init__(self) -> None:
        arguments.magnitude("clip_norm", self.clip_norm)

    def sensitivity(self, *, size: int) -> float:
        """2C: two vectors in a ball of radius C."""
        arguments.whole("size", size, minimum=1)
        return 2 * self.clip_norm

    def signal_bound(self, *, size: int) -> float:
        """C."""
        arguments.whole("size", size, minimum=1)
        return self.clip_norm


@dataclass(frozen=True, kw_only=True)
class PaperLiteralMechanism(UpdateClipMechanism):
    """Heuristic noise, no privacy guarantee: a clipped update with the noise of a mean of clipped gradients.

    The paper's noise (eq. 10) assumes Δ = 2C/D, but for a clipped update only Δ = 2C is known. It guarantees
    rho·D²-zCDP, which is useless for any real data set.
    """

    name: ClassVar[MechanismName] = MechanismName.PAPER_LITERAL
    heuristic: ClassVar[bool] = True

    def noise_scale(self, *, size: int) -> float:
        """2C²/D², as printed."""
        return 2 * (self.clip_norm / arguments.whole("size", size, minimum=1)) ** 2


@dataclass(frozen=True, kw_only=True)
class BoltOnMechanism(_OneRelease):
    """The update of L epochs of SGD on a convex model, without clipping of gradients (after Wu et al. 2017).

    If every record's loss is convex and `smoothness`-smooth with gradients of norm at most `gradient_bound`, and the
    learning rate is at most 2/smoothness, each step is non-expansive. Only the L steps that use the replaced record
    move the two runs apart, by 2ηG/b each: Δ = 2ηGL/b. It does not hold for networks with hidden layers.
    """

    name: ClassVar[MechanismName] = MechanismName.BOLT_ON
    kind: ClassVar[UploadKind] = UploadKind.UPDATE

    learning_rate: float
    epochs: int
    batch_size: int
    gradient_bound: float
    smoothness: float

    def __post_init__(self) -> None:
        arguments.magnitude("learning_rate", self.learning_rate)
        arguments.whole("epochs", self.epochs, minimum=1)
        arguments.whole("batch_size", self.batch_size, minimum=1)
        arguments.magnitude("gradient_bound", self.gradient_bound)
        arguments.magnitude("smoothness", self.smoothness)
        if self.learning_rate > 2 / self.smoothness * (1 + 1e-12):
            requirement = f"must not exceed 2/smoothness = {2 / self.smoothness:.6g}, or the proof fails"
            raise ImpossibleArgument("learning_rate", self.learning_rate, requirement)

    @classmethod
    def softmax_regression(
        cls, *, feature_norm: float, learning_rate: float, epochs: int, batch_size: int
    ) -> "BoltOnMechanism":
        """Return the mechanism for softmax regression with bias: G = √2·X, β = X²/2.

        X² = feature_norm² + 1: features have at most this norm, and the bias is one more feature that is always 1.
        Raises `ImpossibleArgument` also if the learning rate exceeds 2/β.
        """
        squared = arguments.magnitude("feature_norm", feature_norm) ** 2 + 1
        return cls(
            learning_rate=learning_rate,
            epochs=epochs,
            batch_size=batch_size,
            gradient_bound=math.sqrt(2 * squared),
            smoothness=squared / 2,
        )

    def sensitivity(self, *, size: int) -> float:
        """2ηGL/b, where b is the size of the smallest possible batch."""
        smallest = min(self.batch_size, arguments.whole("size", size, minimum=1))
        return 2 * self.learning_rate * self.gradient_bound * self.epochs / smallest

    def signal_bound(self, *, size: int) -> float:
        """ηGmL: as many steps of length at most ηG as there are batches in all epochs."""
        steps = _Batches(size, self.batch_size).count * self.epochs
        return self.learning_rate * self.gradient_bound * steps


@dataclass(frozen=True, kw_only=True)
class NoisyEpochsMechanism:
    """L epochs over disjoint batches, with noise on the mean of the clipped gradients of every batch.

    A replaced record is in one batch per epoch. An epoch costs rho/L and all epochs rho, even if every step is public.
    Early noise changes later gradients, so the upload is not exactly a shifted Gaussian.
    """

    name: ClassVar[MechanismName] = MechanismName.NOISY_EPOCHS
    kind: ClassVar[UploadKind] = UploadKind.UPDATE
    heuristic: ClassVar[bool] = False
    feedback: ClassVar[bool] = True

    clip_norm: float
    learning_rate: float
    epochs: int
    batch_size: int

    def __post_init__(self) -> None:
        arguments.magnitude("clip_norm", self.clip_norm)
        arguments.magnitude("learning_rate", self.learning_rate)
        arguments.whole("epochs", self.epochs, minimum=1)
        arguments.whole("batch_size", self.batch_size, minimum=1)

    def sensitivity(self, *, size: int) -> float:
        """2C/b of one step, where b is the size of the smallest batch."""
        return 2 * self.clip_norm / _Batches(size, self.batch_size).small

    def step_noise_std(self, *, rho: float, batch: int) -> float:
        """The standard deviation of the noise on the mean of a batch of b records: sqrt(2L/rho)·C/b."""
        rho = arguments.positive("rho", rho)
        return math.sqrt(2 * self.epochs / rho) * self.clip_norm / arguments.whole("batch", batch, minimum=1)

    def noise_scale(self, *, size: int) -> float:
        """2η²L²C²·Σ 1/b² over the batches of an epoch: the upload contains the noise of all steps."""
        batches = _Batches(size, self.batch_size)
        squares = (batches.count - batches.larger) / batches.small**2 + batches.larger / (batches.small + 1) ** 2
        return 2 * (self.learning_rate * self.epochs * self.clip_norm) ** 2 * squares

    def noise_std(self, *, rho: float, size: int) -> float:
        """The standard deviation of the noise in each coordinate of the upload, without its feedback: η·sqrt(Σσ_s²)."""
        return math.sqrt(self.noise_scale(size=size) / arguments.positive("rho", rho))

    def proven_rho(self, *, rho: float, size: int) -> float:
        """rho: L epochs of rho/L each."""
        arguments.whole("size", size, minimum=1)
        return arguments.positive("rho", rho)

    def signal_bound(self, *, size: int) -> float:
        """ηCmL: as many steps of length at most ηC as there are batches in all epochs."""
        steps = _Batches(size, self.batch_size).count * self.epochs
        return self.learning_rate * self.clip_norm * steps


def batch_sizes(*, size: int, batch_size: int) -> tuple[int, ...]:
    """Return the sizes of the disjoint batches of one epoch: each at least `batch_size`, as equal as possible.

    A short last batch would raise the sensitivity, so its records go to the other batches. Fewer records than
    `batch_size` form one batch.

    >>> batch_sizes(size=10, batch_size=3)
    (4, 3, 3)
    """
    batches = _Batches(size, batch_size)
    return (batches.small + 1,) * batches.larger + (batches.small,) * (batches.count - batches.larger)


class _Batches:
    """The batches of an epoch: `count` in all; `larger` of them have one record more than `small`."""

    def __init__(self, size: int, batch_size: int) -> None:
        size = arguments.whole("size", size, minimum=1)
        self.count = max(1, size // arguments.whole("batch_size", batch_size, minimum=1))
        self.small, self.larger = divmod(size, self.count)
