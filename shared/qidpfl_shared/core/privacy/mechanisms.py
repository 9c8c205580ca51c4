"""The mechanisms: what each uploads, how much noise it adds, and what that proves.

Gaussian noise of standard deviation σ on a query of L2 sensitivity Δ is Δ²/(2σ²)-zCDP. `rho` is always the *declared*
budget: the one the game, the pay and the noise formula use. `proven_rho` is what the mechanism really guarantees for
it. The two agree for every mechanism but `PaperLiteralMechanism`, which is a heuristic and says so.

Preconditions of every proof: clipping over all parameters together; no batch normalisation; public preprocessing
constants; batches chosen without looking at the data; fresh noise from the operating system's entropy for every
upload. Noise drawn in floating point is not exactly Gaussian, so that no implementation of these is exactly private.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, runtime_checkable

from .. import arguments
from ..arguments import ImpossibleArgument


class MechanismName(StrEnum):
    """The mechanisms by the names they have on the wire."""

    GRADIENT_ONCE = "gradient_once"
    NOISY_EPOCHS = "noisy_epochs"
    PAPER_LITERAL = "paper_literal"
    UPDATE_CLIP = "update_clip"
    BOLT_ON = "bolt_on"


class UploadKind(StrEnum):
    """A gradient, to which the server applies its learning rate, or a finished update w - w_L with rate 1."""

    GRADIENT = "gradient"
    UPDATE = "update"


@runtime_checkable
class Mechanism(Protocol):
    """What every mechanism defines for the rest of the system; `size` is the client's number of records.

    `heuristic`: it proves less than it declares. `feedback`: what it uploads before noise may depend on the noise.
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
        """v = noise_std²·rho, which does not depend on rho: the client's part in the server's cost."""

    def proven_rho(self, *, rho: float, size: int) -> float:
        """The zCDP that one upload really guarantees when `rho` is declared."""

    def signal_bound(self, *, size: int) -> float:
        """The largest L2 norm of an upload before noise."""


class _OneRelease(ABC):
    """A mechanism that adds noise once, with `noise_scale` = v: its noise and guarantee follow from v and Δ."""

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
        """Δ²/(2σ²) of the noise really added."""
        return arguments.positive("rho", rho) * (self.sensitivity(size=size) ** 2 / 2 / self.noise_scale(size=size))


@dataclass(frozen=True, kw_only=True)
class GradientOnceMechanism(_OneRelease):
    """The mean of the per-record gradients, each clipped to `clip_norm`, over all records, once per round.

    Replacing a record replaces one term of the mean: Δ = 2C/D. This is the one mechanism for which the paper's noise
    (eq. 10), cost and Theorem 2 hold as printed.
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
    """The update of any local training, clipped as a whole to `clip_norm`: Δ = 2C, however many records there are.

    It protects the whole data set of a client for the same rho (client-level zCDP), with noise to match: useful only
    among thousands of clients.
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

    The paper's noise (eq. 10) assumes Δ = 2C/D; of a clipped update only Δ = 2C is known. What it proves is
    rho·D²-zCDP, which for any real data set is nothing.
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
    learning rate is at most 2/smoothness, each step is non-expansive; only the L steps that touch the replaced record
    move the two runs apart, by 2ηG/b each: Δ = 2ηGL/b. Not for networks with hidden layers.
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
        """For softmax regression with bias on features of norm at most `feature_norm`: G = √2·X, β = X²/2.

        X² = feature_norm² + 1, because the bias is one more feature that is always 1.
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
        """2ηGL/b, with b the size of the smallest batch that can occur."""
        smallest = min(self.batch_size, arguments.whole("size", size, minimum=1))
        return 2 * self.learning_rate * self.gradient_bound * self.epochs / smallest

    def signal_bound(self, *, size: int) -> float:
        """ηGmL: as many steps of length at most ηG as there are batches in all epochs."""
        steps = _Batches(size, self.batch_size).count * self.epochs
        return self.learning_rate * self.gradient_bound * steps


@dataclass(frozen=True, kw_only=True)
class NoisyEpochsMechanism:
    """L epochs over disjoint batches, with noise on the mean of the clipped gradients of every batch.

    A replaced record sits in one batch per epoch: an epoch costs rho/L, all epochs rho, even if every step is seen.
    Noise that enters early changes later gradients, so that the upload is not exactly a shifted Gaussian.
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
        """2C/b of one step, with b the size of the smallest batch."""
        return 2 * self.clip_norm / _Batches(size, self.batch_size).small

    def step_noise_std(self, *, rho: float, batch: int) -> float:
        """The standard deviation of the noise on the mean of one batch of that many records: sqrt(2L/rho)·C/b."""
        rho = arguments.positive("rho", rho)
        return math.sqrt(2 * self.epochs / rho) * self.clip_norm / arguments.whole("batch", batch, minimum=1)

    def noise_scale(self, *, size: int) -> float:
        """2η²L²C²·Σ 1/b² over the batches of an epoch: the noise of all steps, added up in the upload."""
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
    """The sizes of the disjoint batches of one epoch: each at least `batch_size`, as equal as they can be.

    A short last batch would raise the sensitivity, so its records are spread over the others. Fewer records than
    `batch_size` make one batch.
    """
    batches = _Batches(size, batch_size)
    return (batches.small + 1,) * batches.larger + (batches.small,) * (batches.count - batches.larger)


class _Batches:
    """The batches of an epoch by their numbers: `count` in all, `larger` of them with one record more than `small`."""

    def __init__(self, size: int, batch_size: int) -> None:
        size = arguments.whole("size", size, minimum=1)
        self.count = max(1, size // arguments.whole("batch_size", batch_size, minimum=1))
        self.small, self.larger = divmod(size, self.count)
