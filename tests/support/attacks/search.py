"""The search for the worst attack: random starts of every family, and changes of the worst attack of each family.

For each family two attacks survive: the one with the largest ratio, and the one with the largest leftover. A search
that keeps only the largest ratio would stay with attacks that attain the bound honestly, and never see rounding errors.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, MechanismSpec, NoisyEpochs, UpdateClip
from support.attacks.attack import Attack, Outcome, Target, target_of
from support.attacks.data import changed_pair, random_chunk, random_pair
from support.attacks.known import parameters_of
from support.attacks.models import changed_model, of_length, random_model
from support.attacks.networks import ZOO
from support.training.networks import LABELS

# Models and mechanisms that are tried on each pair of trainers: trainers are what costs most.
_TRIES_PER_TARGET = 5
_FRESH = 0.35


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The worst attack of a search."""

    worst: Attack
    ratio: float
    tried: int
    refused: int

    def __str__(self) -> str:
        return f"worst ratio {self.ratio:.6g} of {self.tried} attacks ({self.refused} refused): {self.worst}"


def search(
    *, network: str, mechanism: str, budget: int, seed: int, largest: int = 200, start: Iterable[Attack] = ()
) -> Finding:
    """The worst of about `budget` attacks on a mechanism with a network."""
    found = _Search(network=network, mechanism=mechanism, seed=seed, largest=largest)
    for attack in start:
        found.note(attack, target_of(attack).measure(attack))
    while found.tried < budget:
        found.try_one_target()
    return found.finding()


class _Search:
    def __init__(self, *, network: str, mechanism: str, seed: int, largest: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._network = network
        self._make = MECHANISMS[mechanism]
        self._record = ZOO[network].record
        self._labels = 2 if network in ("one weight", "one feature", "three features") else LABELS
        self._largest = largest
        self._shapes = parameters_of(network)
        self._survivors: dict[tuple[str, str], tuple[float, Attack]] = {}
        self._ratio = -1.0
        self._worst: Attack | None = None
        self.tried = 0
        self._refused = 0

    def try_one_target(self) -> None:
        """Try one pair with several models, and the worst of those with its changes."""
        known = list(self._survivors.values())
        if not known or self._rng.random() < _FRESH:
            attack = self._fresh()
        else:
            _, attack = known[self._rng.integers(len(known))]
            if self._rng.random() < 0.7:
                attack = self._with_another_pair(attack)
        target = target_of(attack)
        self._try(target, attack)
        for _ in range(_TRIES_PER_TARGET - 1):
            self._try(target, self._with_another_model(attack))

    def note(self, attack: Attack, outcome: Outcome) -> None:
        self.tried += 1
        self._refused += bool(outcome.refusal)
        if outcome.ratio > self._ratio:
            self._ratio, self._worst = outcome.ratio, attack
        for merit, value in (("ratio", outcome.ratio), ("leftover", outcome.leftover)):
            best, _ = self._survivors.get((attack.origin, merit), (0.0, attack))
            if value > best:
                self._survivors[attack.origin, merit] = value, attack

    def finding(self) -> Finding:
        assert self._worst is not None
        return Finding(worst=self._worst, ratio=self._ratio, tried=self.tried, refused=self._refused)

    def _try(self, target: Target, attack: Attack) -> None:
        self.note(attack, target.measure(attack))

    def _fresh(self) -> Attack:
        rng = self._rng
        pair, data_origin = random_pair(rng, self._record, self._labels, largest=self._largest)
        model, model_origin = random_model(rng, self._shapes)
        mechanism = self._make(rng, pair.size)
        if isinstance(mechanism, BoltOn) and rng.random() < 0.9:
            model = of_length(model, 10 ** rng.uniform(-2, 4))
        return Attack(
            network=self._network,
            mechanism=mechanism,
            model=model,
            pair=pair,
            chunk=random_chunk(rng, pair.size),
            origin=f"{model_origin}; {data_origin}",
        )

    def _with_another_pair(self, attack: Attack) -> Attack:
        pair = changed_pair(self._rng, attack.pair, self._labels, largest=self._largest)
        mechanism = attack.mechanism if pair.size == attack.pair.size else self._make(self._rng, pair.size)
        chunk = random_chunk(self._rng, pair.size)
        return replace(attack, pair=pair, mechanism=mechanism, chunk=chunk)

    def _with_another_model(self, attack: Attack) -> Attack:
        """The attack with another model, mechanism or noise; its target stays the same."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.6:
            return replace(attack, model=changed_model(rng, attack.model, self._shapes))
        if kind < 0.9:
            changed = self._make(rng, attack.pair.size)
            if isinstance(changed, NoisyEpochs) and isinstance(attack.mechanism, NoisyEpochs):
                # Another batch would have another last record.
                changed = changed.model_copy(update={"batch_size": attack.mechanism.batch_size})
            return replace(attack, mechanism=changed)
        return replace(attack, rho=None if attack.rho else float(10 ** rng.uniform(-6, 3)))


Make = Callable[[np.random.Generator, int], MechanismSpec]


def _gradient_once(rng: np.random.Generator, size: int) -> MechanismSpec:
    return GradientOnce(clip_norm=_clip_norm(rng))


def _noisy_epochs(rng: np.random.Generator, size: int) -> MechanismSpec:
    batch_size = int(rng.choice([size, max(1, size // 2), max(1, size // 5)]))
    return NoisyEpochs(clip_norm=_clip_norm(rng), learning_rate=_rate(rng), epochs=1, batch_size=batch_size)


def _update_clip(rng: np.random.Generator, size: int) -> MechanismSpec:
    batch_size = int(rng.choice([size, max(1, size // 3)]))
    return UpdateClip(clip_norm=_clip_norm(rng), learning_rate=_rate(rng), epochs=_epochs(rng), batch_size=batch_size)


def _bolt_on(rng: np.random.Generator, size: int) -> MechanismSpec:
    while True:
        norm = 10 ** rng.uniform(-2, 5)
        rate = 4 / (norm**2 + 1) * (1.0 if rng.random() < 0.6 else 10 ** rng.uniform(-4, 0))
        batch_size = int(rng.choice([1, 1, size, max(1, size // 3)]))
        try:
            made = BoltOn(feature_norm=norm, learning_rate=rate, epochs=_epochs(rng), batch_size=batch_size)
            made.build()
        except (ValidationError, ImpossibleArgument):
            continue
        return made


MECHANISMS: dict[str, Make] = {
    "gradient_once": _gradient_once,
    "noisy_epochs": _noisy_epochs,
    "update_clip": _update_clip,
    "bolt_on": _bolt_on,
}


def _clip_norm(rng: np.random.Generator) -> float:
    """A clip norm that a spec allows, mostly of an ordinary size."""
    low, high = limits(GradientOnce, "clip_norm")
    if rng.random() < 0.6:
        low, high = max(low, 1e-2), min(high, 1e2)
    return float(np.clip(10 ** rng.uniform(np.log10(low), np.log10(high)), low, high))


def limits(spec: type[GradientOnce], field: str) -> tuple[float, float]:
    """The range that a spec allows for a number."""
    metadata = spec.model_fields[field].metadata
    lowest = [float(part.ge) for part in metadata if hasattr(part, "ge")]
    highest = [float(part.le) for part in metadata if hasattr(part, "le")]
    return max(lowest), min(highest)


def _rate(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-3, 1))


def _epochs(rng: np.random.Generator) -> int:
    return int(rng.choice([1, 1, 2, 5]))
