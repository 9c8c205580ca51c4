"""Pairs of neighbouring data sets: families to start from, and changes to try on the worst pair found so far."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from support.attacks.attack import Floats, Pair

Shape = tuple[int, ...]
Family = Callable[[np.random.Generator, Shape], Floats]
# Around the lengths of the blocks in which sums are formed, and small ones.
SIZES = (1, 1, 2, 3, 7, 20, 20, 63, 64, 65, 100, 129, 200)
CHUNKS: tuple[int | None, ...] = (None, None, None, 1, 2, 7, 63, 64, 65, 1000)
LARGEST = np.finfo(np.float32).max


def _normal(rng: np.random.Generator, shape: Shape) -> Floats:
    return (rng.standard_normal(shape) * 10 ** rng.uniform(-2, 3)).astype(np.float32)


def _any_scale(rng: np.random.Generator, shape: Shape) -> Floats:
    return _quiet(rng.standard_normal(shape) * 10 ** rng.uniform(-44, 38.5))


def _zeros(rng: np.random.Generator, shape: Shape) -> Floats:
    return np.zeros(shape, dtype=np.float32)


def _tokens(rng: np.random.Generator, shape: Shape) -> Floats:
    return rng.integers(0, 5, shape).astype(np.float32)


def _one_token(rng: np.random.Generator, shape: Shape) -> Floats:
    return np.full(shape, rng.integers(0, 5), dtype=np.float32)


def _cancelling(rng: np.random.Generator, shape: Shape) -> Floats:
    """Values at the first position, negated at the second one, and little elsewhere."""
    values = rng.standard_normal(shape) * 10 ** rng.uniform(-3, 1)
    if shape[0] > 1:
        large = rng.standard_normal(shape[1:]) * 10 ** rng.uniform(3, 30)
        values[0], values[1] = large, -large
    return _quiet(values)


def _one_entry(rng: np.random.Generator, shape: Shape) -> Floats:
    values = np.zeros(shape)
    values.flat[rng.integers(values.size)] = rng.choice([-1, 1]) * 10 ** rng.uniform(-3, 38)
    return _quiet(values)


def _not_finite(rng: np.random.Generator, shape: Shape) -> Floats:
    values = rng.standard_normal(shape).astype(np.float32)
    values.flat[rng.integers(values.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return values


def _denormals(rng: np.random.Generator, shape: Shape) -> Floats:
    return (rng.standard_normal(shape) * 1e-42).astype(np.float32)


def _largest(rng: np.random.Generator, shape: Shape) -> Floats:
    return rng.choice([-LARGEST, LARGEST], shape).astype(np.float32)


RECORDS: dict[str, Family] = {
    "normal": _normal,
    "any scale": _any_scale,
    "zeros": _zeros,
    "tokens": _tokens,
    "one token": _one_token,
    "cancelling": _cancelling,
    "one entry": _one_entry,
    "not finite": _not_finite,
    "denormals": _denormals,
    "largest": _largest,
}
_NAMES = list(RECORDS)


def random_chunk(rng: np.random.Generator, size: int) -> int | None:
    """A number of records per pass, or None for the default. At most eight passes, to save time."""
    chunk = CHUNKS[rng.integers(len(CHUNKS))]
    return None if chunk is None else max(chunk, size // 8)


def random_pair(rng: np.random.Generator, shape: Shape, labels: int, *, largest: int) -> tuple[Pair, str]:
    """A pair, and the names of its families: of the other records, and of the replacement."""
    size = int(rng.choice([size for size in SIZES if size <= largest]))
    base, other = (_NAMES[rng.integers(len(_NAMES))] for _ in range(2))
    if rng.random() < 0.5:
        base = "normal"
    copies = rng.random() < 0.5
    one = RECORDS[base](rng, shape)
    features = np.stack([one if copies else RECORDS[base](rng, shape) for _ in range(size)])
    index = (0, size - 1, int(rng.integers(size)))[rng.integers(3)]
    if rng.random() < 0.3:
        features[index] = RECORDS[_NAMES[rng.integers(len(_NAMES))]](rng, shape)
    replacement = RECORDS[other](rng, shape)
    if (turned := rng.random()) < 0.4:
        # The opposite record, or the same one with another label, can turn a gradient around.
        other, replacement = "itself", features[index] * (-1 if turned < 0.2 else 1)
    pair = Pair(
        features=features,
        labels=np.zeros(size, dtype=np.int64) if copies else rng.integers(0, labels, size),
        index=index,
        other_features=replacement,
        other_label=int(rng.integers(labels)),
    )
    return pair, f"{'copies of ' * copies}{base} against {other}"


def changed_pair(rng: np.random.Generator, pair: Pair, labels: int, *, largest: int) -> Pair:
    """The pair with one thing changed."""
    shape = pair.features.shape[1:]
    match rng.integers(8):
        case 0:
            return replace(pair, other_features=_scaled(rng, pair.other_features))
        case 1:
            return replace(pair, features=_scaled(rng, pair.features))
        case 2:
            return replace(pair, other_label=int(rng.integers(labels)))
        case 3:
            return replace(pair, other_features=_jittered(rng, pair.other_features))
        case 4:
            return _resized(rng, pair, largest=largest)
        case 5:
            return replace(pair, other_features=RECORDS[_NAMES[rng.integers(len(_NAMES))]](rng, shape))
        case 6:
            features = pair.features.copy()
            features[pair.index] = _scaled(rng, RECORDS[_NAMES[rng.integers(len(_NAMES))]](rng, shape))
            return replace(pair, features=features)
        case _:
            return replace(pair, other_features=pair.features[pair.index], other_label=int(rng.integers(labels)))


def _resized(rng: np.random.Generator, pair: Pair, *, largest: int) -> Pair:
    size = int(rng.choice([size for size in SIZES if size <= largest]))
    kept = np.arange(size) % pair.size
    index = pair.index if pair.index < size else size - 1
    kept[index] = pair.index
    return replace(pair, features=pair.features[kept], labels=pair.labels[kept], index=index)


def _scaled(rng: np.random.Generator, values: Floats) -> Floats:
    return _quiet(values.astype(np.float64) * rng.choice([-1, 1]) * 2.0 ** int(rng.integers(-16, 17)))


def _jittered(rng: np.random.Generator, values: Floats) -> Floats:
    return _quiet(values.astype(np.float64) * (1 + 10 ** rng.uniform(-8, 0) * rng.standard_normal(values.shape)))


def _quiet(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Floats:
    # A value beyond the largest float becomes infinite, which is one of the things to try.
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
