"""Members of a testbed that are slow, drop out or cheat. A real client uses none of this."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core import arguments
from qidpfl_shared.protocol.task_spec import PrivacySpec, TaskSpec
from qidpfl_shared.protocol.wire import Vector32

from ..errors import Misconfigured
from ..noise import NoiseSource
from ..owner import Owner
from ..participant.data_source import DataSource, Learner, OpenData

# The factor of a misreporter on its privacy value, and of an over-noiser on its standard deviation.
UNDERSTATED = 0.8
WIDENED = 3.0


class Behaviour(StrEnum):
    """Whether and how a member breaks the rules."""

    HONEST = "honest"
    FREE_RIDER = "free_rider"
    OVER_NOISER = "over_noiser"
    MISREPORTER = "misreporter"
    REPLAYER = "replayer"


@dataclass(frozen=True, kw_only=True)
class UnreliableDelivery:
    """A `DeliveryPolicy`: misses rounds with some probability, and waits up to `delay_up_to_s` before it trains.

    Both are functions of (seed, ordinal, round), so a restarted member decides the same.
    """

    dropout: float = 0.0
    silent: bool = False
    delay_up_to_s: float = 0.0
    seed: int = 0
    ordinal: int = 0

    def __post_init__(self) -> None:
        arguments.fraction("dropout", self.dropout)
        arguments.non_negative("delay", self.delay_up_to_s)

    def delivers(self, round_number: int) -> bool:
        return self._uniform("dropout", round_number) >= self.dropout

    def delay_s(self, round_number: int) -> float:
        return self._uniform("delay", round_number) * self.delay_up_to_s

    def _uniform(self, what: str, round_number: int) -> float:
        name = f"{self.seed}/{self.ordinal}/{what}/{round_number}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) / 2**48


def assign(*, clients: int, shares: Mapping[Behaviour, float], seed: int) -> list[Behaviour]:
    """A behaviour for each member, in random order: the given shares, rounded; the rest is honest.

    Raises `Misconfigured` if the shares add up to more than 1.
    """
    counts = {
        behaviour: round(arguments.fraction(f"share of {behaviour}", share) * clients)
        for behaviour, share in shares.items()
    }
    if sum(counts.values()) > clients:
        raise Misconfigured("the shares of behaviours must add up to at most 1")
    roles = [behaviour for behaviour, count in counts.items() for _ in range(count)]
    roles += [Behaviour.HONEST] * (clients - len(roles))
    order = np.random.default_rng(seed).permutation(clients)
    return [roles[place] for place in order]


def behaving_owner(owner: Owner, behaviour: Behaviour, *, misreport: float = UNDERSTATED) -> Owner:
    """The owner under a behaviour. A misreporter commits to another privacy value: by default a lower one, so that the
    others bid less."""
    if behaviour is Behaviour.MISREPORTER:
        return replace(owner, privacy_value=owner.privacy_value * arguments.positive("misreport factor", misreport))
    return owner


def behaving_data(open_data: OpenData, behaviour: Behaviour) -> OpenData:
    """The data under a behaviour: their learners release what the behaviour wants."""
    if behaviour in (Behaviour.HONEST, Behaviour.MISREPORTER):
        return open_data
    return lambda spec: _BehavingSource(open_data(spec), behaviour, spec)


@dataclass(frozen=True)
class _BehavingSource:
    source: DataSource
    behaviour: Behaviour
    spec: TaskSpec

    @property
    def device_type(self) -> str:
        return self.source.device_type

    @property
    def claimed(self) -> bool:
        return self.source.claimed

    def learner(self, ordinal: int) -> Learner:
        honest = self.source.learner(ordinal)
        match self.behaviour:
            case Behaviour.FREE_RIDER:
                return FreeRider(honest)
            case Behaviour.OVER_NOISER:
                return OverNoiser(honest)
            case _:
                return Replayer(honest)


class _Behaving:
    """A learner with the profile of an honest one."""

    def __init__(self, honest: Learner) -> None:
        self._honest = honest

    @property
    def size(self) -> int:
        return self._honest.size

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        return self._honest.label_counts

    @property
    def fingerprint(self) -> str:
        return self._honest.fingerprint

    @property
    def device_type(self) -> str:
        return self._honest.device_type

    @property
    def claimed(self) -> bool:
        return self._honest.claimed


class FreeRider(_Behaving):
    """Uploads only noise of the right size: paid without training."""

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        std = 0.0 if rho is None else privacy.mechanism.build().noise_std(rho=rho, size=self.size)
        vector: npt.NDArray[np.float64] = std * noise.standard_normal(model.size, release=name)
        return vector


class OverNoiser(_Behaving):
    """Adds more noise than it declares: paid for a larger budget than it spends."""

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        narrower = None if rho is None else rho / WIDENED**2
        return self._honest.release(privacy=privacy, model=model, rho=narrower, noise=noise, name=name)


class Replayer(_Behaving):
    """Trains once, and uploads the same bytes in every round."""

    def __init__(self, honest: Learner) -> None:
        super().__init__(honest)
        self._first: npt.NDArray[np.float64] | None = None

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        if self._first is None:
            self._first = self._honest.release(privacy=privacy, model=model, rho=rho, noise=noise, name=name)
        return self._first
