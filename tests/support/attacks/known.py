"""Attacks that once broke the claims. They are always tried, and the search starts from them too."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from qidpfl_client.training.data_loader import epoch_batches
from qidpfl_shared.protocol.mechanism_specs import BoltOn, GradientOnce, NoisyEpochs
from support.attacks.attack import RELEASE, Attack, Pair
from support.attacks.networks import ZOO


def parameters_of(network: str) -> list[tuple[int, ...]]:
    """The shapes of the parameters of a network."""
    return [tuple(tensor.shape) for tensor in ZOO[network].build().parameters()]


def pair_of(features: npt.ArrayLike, labels: npt.ArrayLike, *, index: int, other: npt.ArrayLike) -> Pair:
    whole = np.asarray(labels, dtype=np.int64)
    return Pair(
        features=np.asarray(features, dtype=np.float32),
        labels=whole,
        index=index,
        other_features=np.asarray(other, dtype=np.float32),
        other_label=int(whole[index]),
    )


def cancelling_lookups(*, size: int = 200, weight: float = 1e10, clip_norm: float = 1.0) -> Attack:
    """One word at two positions with weights ±w: the parts of its gradient cancel, and wipe out those of others."""
    matrix = np.zeros((5, 6))
    matrix[0, :3], matrix[0, 3:] = weight, -weight
    model = np.concatenate([np.zeros(12), matrix.ravel(), np.zeros(5)])
    features = np.tile([1.0, 2.0], (size, 1))
    return Attack(
        network="phrase",
        mechanism=GradientOnce(clip_norm=clip_norm),
        model=model.astype(np.float32),
        pair=pair_of(features, np.zeros(size), index=size - 1, other=np.ones(2)),
        origin=f"cancelling look-ups, weights {weight:g}",
    )


def cancelling_positions(*, size: int = 200, feature: float = 1e9, clip_norm: float = 1.0) -> Attack:
    """A record with features ±v at two positions that share a layer. The model is the harmless zero."""
    rng = np.random.default_rng(0)
    features = np.tile(rng.standard_normal((2, 30)), (size, 1, 1))
    large = feature * rng.standard_normal(30)
    return Attack(
        network="shared over positions",
        mechanism=GradientOnce(clip_norm=clip_norm),
        model=np.zeros(310, dtype=np.float32),
        pair=pair_of(features, np.zeros(size), index=size - 1, other=np.stack([large, -large])),
        origin=f"cancelling positions, features {feature:g}",
    )


def unknown_word(network: str, *, index: int, size: int = 64, weight: float = 1e7) -> Attack:
    """A word that is not in the table. If the client then computes the other records in another order, they change.

    The scores of the other records are differences of large numbers, so that they depend on the order of summation.
    """
    rng = np.random.default_rng(11)
    table, matrix = rng.standard_normal((4, 16)), weight * rng.standard_normal((5, 64))
    phrase = np.tile(table[1], 4)
    matrix -= np.outer(matrix @ phrase, phrase) / (phrase @ phrase)
    return Attack(
        network=network,
        mechanism=GradientOnce(clip_norm=1.0),
        model=np.concatenate([table.ravel(), matrix.ravel(), np.zeros(5)]).astype(np.float32),
        pair=pair_of(np.ones((size, 4)), rng.integers(0, 5, size), index=index, other=np.array([1.0, 1.0, 1.0, 9.0])),
        origin="a word that is not in the table",
    )


def frozen_weights(*, size: int = 200, weight: float = 2.0**21, feature_norm: float = 1000.0) -> Attack:
    """Weights so large that steps vanish in their rounding: nothing pulls the two runs together again."""
    steepest = 4 / (feature_norm**2 + 1)
    mechanism = BoltOn(feature_norm=feature_norm, learning_rate=0.999 * steepest, epochs=1, batch_size=1)
    seen = 1 / np.sqrt(size)
    frozen = np.sqrt((1 - seen**2) / 2)
    features = np.tile(np.array([frozen, frozen, seen]) * feature_norm, (size, 1))
    first = int(next(epoch_batches(size=size, batch_size=1, release=RELEASE, epoch=0))[0])
    features[first] = [0, 0, feature_norm]
    return Attack(
        network="three features",
        mechanism=mechanism,
        model=np.array([weight, -weight, 0, weight, -weight, 0], dtype=np.float32),
        pair=pair_of(features, np.arange(size) % 2, index=first, other=-features[first]),
        origin=f"frozen weights of {weight:g}",
    )


def underflow_times_overflow(*, clip_norm: float = 1e-9, feature: float = 1.8e19) -> Attack:
    """A sure answer whose gradient has a square of 0, times a feature whose square is almost infinite."""
    return Attack(
        network="one feature",
        mechanism=GradientOnce(clip_norm=clip_norm),
        model=np.array([0, 0, 53, 0], dtype=np.float32),
        pair=pair_of(np.array([[feature]]), np.zeros(1), index=0, other=np.zeros(1)),
        origin=f"underflow times overflow, clip norm {clip_norm:g}",
    )


def mixed_records(network: str, *, size: int = 50, clip_norm: float = 0.1, seed: int = 0) -> Attack:
    """A network that mixes records: one record changes the gradients of all others."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, *ZOO[network].record))
    features[3] = 1e3
    shapes = parameters_of(network)
    return Attack(
        network=network,
        mechanism=GradientOnce(clip_norm=clip_norm),
        model=np.concatenate([rng.standard_normal(shape).ravel() for shape in shapes]).astype(np.float32),
        pair=pair_of(features, rng.integers(0, 5, size), index=3, other=-features[3]),
        origin="mixed records",
    )


def smallest_clip(clip_norm: float) -> float:
    """The smallest clip norm that a spec allows, not below the given one."""
    limits = [getattr(part, "ge", None) for part in GradientOnce.model_fields["clip_norm"].metadata]
    return max(clip_norm, *(float(limit) for limit in limits if limit is not None))


def as_noisy_epochs(attack: Attack) -> Attack:
    """The same attack on one step of `noisy_epochs` over all records."""
    assert isinstance(attack.mechanism, GradientOnce)
    mechanism = NoisyEpochs(
        clip_norm=attack.mechanism.clip_norm, learning_rate=0.1, epochs=1, batch_size=attack.pair.size
    )
    return replace(attack, mechanism=mechanism)


KNOWN: dict[str, Callable[[], Attack]] = {
    "cancelling look-ups": cancelling_lookups,
    "cancelling positions": cancelling_positions,
    "unknown word": lambda: unknown_word("table", index=20),
    "unknown word, negatives refused": lambda: unknown_word("table without negatives", index=20),
    "unknown first word, negatives refused": lambda: unknown_word("table without negatives", index=0),
    "frozen weights": frozen_weights,
    "frozen weights, long features": lambda: frozen_weights(weight=2.0**35, feature_norm=60_000.0),
    "mixes through zeros": lambda: mixed_records("mixes through zeros"),
    "steps first": lambda: mixed_records("steps first"),
    "underflow times overflow": lambda: underflow_times_overflow(clip_norm=smallest_clip(1e-9)),
}

# Weights below and above each limit that a proof might set: frozen weights depend on the ratio of weight and step.
FROZEN: dict[str, Callable[[], Attack]] = {
    f"frozen weights 2^{power}, features {norm:g}": partial(
        frozen_weights, size=64, weight=2.0**power, feature_norm=norm
    )
    for power in (8, 12, 16, 20, 24, 30, 40)
    for norm in (1.0, 100.0, 60_000.0)
}


def known_attacks(mechanism: str, network: str) -> list[Attack]:
    """The known attacks on a mechanism with a network. A spec may refuse the parameters of some."""
    makers = {"gradient_once": KNOWN, "noisy_epochs": KNOWN, "bolt_on": {**KNOWN, **FROZEN}}.get(mechanism, {})
    attacks = [attack for make in makers.values() if (attack := made(make)) and attack.network == network]
    if mechanism == "noisy_epochs":
        return [as_noisy_epochs(attack) for attack in attacks if isinstance(attack.mechanism, GradientOnce)]
    return [attack for attack in attacks if attack.mechanism.name == mechanism]


def made(make: Callable[[], Attack]) -> Attack | None:
    """The attack, or None if a spec refuses its parameters: then no coordinator can try it."""
    try:
        return make()
    except ValidationError:
        return None
