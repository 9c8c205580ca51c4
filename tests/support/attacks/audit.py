"""An empirical audit: many draws of one release on two neighbouring data sets, and what they prove about epsilon.

Draws are projected on the difference of the two signals, the best statistic for noise that is the same in all
directions. One half of the draws chooses thresholds, the other half is counted. Clopper-Pearson bounds of the counts
give lower bounds that hold with probability `CONFIDENCE`, in two ways:

- *direct*: (ε, δ)-DP says P[S | D] ≤ e^ε·P[S | D'] + δ for every event S, so ε ≥ ln((P[S | D] - δ) / P[S | D']). It
  assumes nothing about the noise, and needs many draws of a rare event.
- *Gaussian*: all proven mechanisms claim μ-Gaussian DP with μ = sqrt(2ρ): Φ⁻¹(P[S | D]) - Φ⁻¹(P[S | D']) ≤ μ for every
  event S. A lower bound on μ follows from common events. As ε it is that of the Gaussian mechanism with this μ.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from qidpfl_client.noise import NoiseSource, Normals
from qidpfl_client.training import trainer as trainer_module
from qidpfl_client.training.mechanisms import ReleaseNoise
from qidpfl_shared.core.arguments import Mask, Vector
from qidpfl_shared.core.privacy.conversion import Reading, epsilon_from_rho
from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, MechanismSpec, NoisyEpochs, UpdateClip
from support.attacks.attack import RELEASE, Attack, Pair, last_visited
from support.attacks.networks import ZOO
from support.attacks.search import search
from support.training.cases import trainer_of, upload

# The statistics of draws on two neighbouring data sets.
Statistics = tuple[Vector, Vector]
CONFIDENCE = 0.999
# Thresholds to choose from, as shares of the draws.
_QUANTILES = np.concatenate([np.geomspace(1e-4, 0.5, 40), 1 - np.geomspace(1e-4, 0.5, 40)])
# Both probabilities of both directions of both bounds must hold at once.
_BOUNDS = 8


@dataclass(frozen=True, kw_only=True)
class LowerBounds:
    """What the draws prove about epsilon, with probability `CONFIDENCE`."""

    direct: float
    gaussian: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """Values to which a mechanism adds noise, and how it does so."""

    noise: ReleaseNoise
    values: Tensor
    std: Callable[[float], float]
    part: str

    def draws(self, count: int, source: NoiseSource) -> Vector:
        """Many independent sums of values and noise, a row for each, from one call of the product's own addition."""
        noise = ReleaseNoise(source=source, rho=self.noise.rho, release=self.noise.release)
        found = noise.add_to(self.values.repeat(count), std=self.std, part=self.part)
        return found.numpy().reshape(count, -1)


class HalvedNoise:
    """A fault: half of the noise that is asked for."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source

    def standard_normal(self, count: int, *, release: str) -> Normals:
        # Half a draw is not on the grid any more, which the addition does not check.
        return self._source.standard_normal(count, release=release) / 2


@contextmanager
def noted_steps(steps: list[Step]) -> Iterator[None]:
    """Note all additions of noise of the trainer."""

    class Noted(ReleaseNoise):
        def add_to(self, values: Tensor, *, std: Callable[[float], float], part: str = "") -> Tensor:
            steps.append(Step(noise=self, values=values, std=std, part=part))
            return super().add_to(values, std=std, part=part)

    with patch.object(trainer_module, "ReleaseNoise", Noted):
        yield


class ReleaseDraws:
    """Draws of the release of an attack, on either of its two data sets.

    The mechanism runs once; then its own addition of noise is repeated. This is the release itself if the values do not
    depend on the noise: there is one step, or the learning rate of `noisy_epochs` is so small that noise moves nothing.
    """

    def __init__(self, attack: Attack, *, other: bool, source: NoiseSource) -> None:
        mechanism, pair = attack.mechanism, attack.pair
        index = last_visited(mechanism, pair.size) if isinstance(mechanism, NoisyEpochs) else pair.index
        torch.manual_seed(0)
        self._attack, self._name = attack, f"{RELEASE}/{other}"
        self._trainer = trainer_of(ZOO[attack.network].build(), pair.data_sets(index)[other])
        self._steps: list[Step] = []
        with noted_steps(self._steps):
            self.released = self.play(source)
        self._scale = mechanism.learning_rate if isinstance(mechanism, NoisyEpochs) else 1.0

    def play(self, source: NoiseSource) -> Vector:
        """One release."""
        attack = self._attack
        return upload(self._trainer, attack.mechanism, attack.model, rho=attack.rho, noise=source, name=self._name)

    @property
    def signal(self) -> Vector:
        """The release without its noise."""
        signal: Vector = self._scale * np.sum([step.values.double().numpy() for step in self._steps], axis=0)
        return signal

    def draws(self, count: int, source: NoiseSource) -> Vector:
        """Independent releases, a row for each."""
        drawn: Vector = self._scale * np.sum([step.draws(count, source) for step in self._steps], axis=0)
        return drawn


def release_statistics(attack: Attack, *, count: int, source: NoiseSource, halved: bool = False) -> Statistics:
    """`count` draws of the statistic on each data set of an attack; with a fault, of half the noise."""
    sides = [ReleaseDraws(attack, other=other, source=source) for other in (True, False)]
    direction = sides[0].signal - sides[1].signal
    direction /= np.linalg.norm(direction)
    first, second = (side.draws(count, HalvedNoise(source) if halved else source) @ direction for side in sides)
    return first, second


def worst_release(mechanism: str, *, rho: float) -> Attack:
    """A release with noise, on the pair of neighbours that a short search finds to be the worst."""
    attack = _START[mechanism]()
    kind = "gradient_once" if mechanism == "noisy_epochs" else mechanism
    found = search(network=attack.network, mechanism=kind, budget=60, seed=2, largest=1, start=[attack])
    worst = replace(found.worst, rho=rho)
    if mechanism == "noisy_epochs":
        # Two epochs, with steps so small that the noise of the first moves no gradient of the second.
        assert isinstance(worst.mechanism, GradientOnce)
        return replace(
            worst,
            mechanism=NoisyEpochs(
                clip_norm=worst.mechanism.clip_norm, learning_rate=1e-9, epochs=2, batch_size=worst.pair.size
            ),
        )
    return worst


def _turned_label(mechanism: MechanismSpec) -> Attack:
    """One record at the zero model of two labels: another label turns its gradient around."""
    pair = Pair(
        features=np.full((1, 1), 1000, dtype=np.float32),
        labels=np.zeros(1, dtype=np.int64),
        index=0,
        other_features=np.full(1, 1000, dtype=np.float32),
        other_label=1,
    )
    model = np.zeros(2, dtype=np.float32)
    return Attack(network="one weight", mechanism=mechanism, model=model, pair=pair, origin="turned label")


def _sure_of_another_label() -> Attack:
    """A model that is sure of a wrong label for all features, and a record whose features are negated."""
    own = np.array([[10, 0, 0, 0, 0, 0]], dtype=np.float32)
    pair = Pair(features=own, labels=np.zeros(1, dtype=np.int64), index=0, other_features=-own[0], other_label=0)
    model = np.zeros(35, dtype=np.float32)
    model[-1] = 50
    mechanism = BoltOn(feature_norm=10.0, learning_rate=0.01, epochs=1, batch_size=1)
    return Attack(network="linear", mechanism=mechanism, model=model, pair=pair, origin="sure of another label")


_START: dict[str, Callable[[], Attack]] = {
    "gradient_once": lambda: _turned_label(GradientOnce(clip_norm=1.0)),
    "noisy_epochs": lambda: _turned_label(GradientOnce(clip_norm=1.0)),
    "update_clip": lambda: _turned_label(UpdateClip(clip_norm=1.0, learning_rate=1.0, epochs=1, batch_size=1)),
    "bolt_on": _sure_of_another_label,
}
PROVEN = (*_START, "histogram")


def played_statistics(attack: Attack, *, count: int, source: NoiseSource) -> Statistics:
    """Like `release_statistics`, but every draw is a whole release by the trainer."""
    sides = [ReleaseDraws(attack, other=other, source=source) for other in (True, False)]
    direction = sides[0].signal - sides[1].signal
    direction /= np.linalg.norm(direction)
    first, second = (np.array([side.play(source) @ direction for _ in range(count)]) for side in sides)
    return first, second


def histogram_statistics(*, rho: float, count: int, source: NoiseSource, halved: bool = False) -> Statistics:
    """Draws of the difference of two cells of a histogram, on two data sets that differ in one label."""
    source = HalvedNoise(source) if halved else source
    both = []
    for counts in ([501, 500], [500, 501]):
        noise = source.standard_normal(2 * count, release=f"histogram {counts}").reshape(count, 2)
        drawn = [private_histogram(counts=counts, rho=rho, standard_noise=row) for row in noise]
        both.append(np.array([first - second for first, second in drawn], dtype=np.float64))
    return both[0], both[1]


def lower_bounds(first: Vector, second: Vector, *, delta: float) -> LowerBounds:
    """The lower bounds from draws on two data sets. The draws of the first are the larger ones."""
    half = len(first) // 2
    found = {"direct": 0.0, "gaussian": 0.0}
    # Large draws tell the first data set, small ones the second: two directions of the same inequality.
    for likely, unlikely in ((first, second), (-second, -first)):
        for name, bound in (("direct", _direct), ("gaussian", _gaussian)):
            thresholds = np.quantile(unlikely[:half], 1 - _QUANTILES)
            chosen = max(thresholds, key=lambda limit: bound(likely[:half], unlikely[:half], limit, delta))
            found[name] = max(found[name], bound(likely[half:], unlikely[half:], chosen, delta))
    return LowerBounds(**found)


def _direct(likely: Vector, unlikely: Vector, threshold: float, delta: float) -> float:
    low, high = _at_least(likely > threshold), _at_most(unlikely > threshold)
    return math.log((low - delta) / high) if low > delta else 0.0


def _gaussian(likely: Vector, unlikely: Vector, threshold: float, delta: float) -> float:
    low, high = _at_least(likely > threshold), _at_most(unlikely > threshold)
    mu = float(stats.norm.ppf(low) - stats.norm.ppf(high)) if low > 0 and high < 1 else 0.0
    return epsilon_from_rho(rho=mu**2 / 2, delta=delta, reading=Reading.GAUSSIAN) if mu > 0 else 0.0


def _at_least(events: Mask) -> float:
    """The lower Clopper-Pearson bound of a probability."""
    hits = int(events.sum())
    return float(stats.beta.ppf((1 - CONFIDENCE) / _BOUNDS, hits, len(events) - hits + 1)) if hits else 0.0


def _at_most(events: Mask) -> float:
    """The upper Clopper-Pearson bound of a probability."""
    misses = len(events) - int(events.sum())
    return float(stats.beta.isf((1 - CONFIDENCE) / _BOUNDS, len(events) - misses + 1, misses)) if misses else 1.0
