"""Hostile models: families to start from, and changes to try on the worst one found so far."""

from collections.abc import Callable, Sequence

import numpy as np

from support.attacks.attack import Floats

Shape = tuple[int, ...]
Family = Callable[[np.random.Generator, Shape], Floats]
LARGEST = float(np.finfo(np.float32).max)
DENORMAL = 1e-42


def _normal(rng: np.random.Generator, shape: Shape) -> Floats:
    return _float32(rng.standard_normal(shape) * moderate(rng))


def _any_scale(rng: np.random.Generator, shape: Shape) -> Floats:
    return _float32(rng.standard_normal(shape) * 10 ** rng.uniform(-30, 38))


def _zeros(rng: np.random.Generator, shape: Shape) -> Floats:
    return np.zeros(shape, dtype=np.float32)


def _powers_of_two(rng: np.random.Generator, shape: Shape) -> Floats:
    return _float32(rng.choice([-1.0, 1.0], shape) * 2.0 ** int(rng.integers(-20, 60)))


def _opposite_halves(rng: np.random.Generator, shape: Shape) -> Floats:
    """The second half of the inputs has the weights of the first half, negated."""
    values = rng.standard_normal(shape) * 10 ** rng.uniform(0, 30)
    half = shape[-1] // 2
    if half:
        values[..., half : 2 * half] = -values[..., :half]
    return _float32(values)


def _single_entry(rng: np.random.Generator, shape: Shape) -> Floats:
    values = rng.standard_normal(shape) * moderate(rng)
    values.flat[rng.integers(values.size)] = 10 ** rng.uniform(3, 38)
    return _float32(values)


def _rank_one(rng: np.random.Generator, shape: Shape) -> Floats:
    rows, columns = rng.standard_normal(shape[0]), rng.standard_normal(int(np.prod(shape[1:])))
    return _float32(np.outer(rows, columns).reshape(shape) * 10 ** rng.uniform(-3, 12))


def _equal_rows(rng: np.random.Generator, shape: Shape) -> Floats:
    values = rng.choice([-1.0, 1.0], shape) * 2.0 ** int(rng.integers(0, 60))
    values[:] = values[0]
    return _float32(values)


def _denormals(rng: np.random.Generator, shape: Shape) -> Floats:
    return _float32(rng.standard_normal(shape) * DENORMAL)


def _sure(rng: np.random.Generator, shape: Shape) -> Floats:
    """As a bias: so large for one label that the others have a probability near the smallest float."""
    values = np.zeros(shape)
    values.flat[rng.integers(values.size)] = rng.uniform(20, 100)
    return _float32(values)


FAMILIES: dict[str, Family] = {
    "normal": _normal,
    "any scale": _any_scale,
    "zeros": _zeros,
    "powers of two": _powers_of_two,
    "opposite halves": _opposite_halves,
    "single entry": _single_entry,
    "rank one": _rank_one,
    "equal rows": _equal_rows,
    "denormals": _denormals,
    "sure": _sure,
}
_NAMES = list(FAMILIES)


def random_model(rng: np.random.Generator, shapes: Sequence[Shape]) -> tuple[Floats, str]:
    """A model, and the names of its families: one for all tensors, or one for each."""
    if rng.random() < 0.4:
        chosen = [_NAMES[rng.integers(len(_NAMES))]] * len(shapes)
    else:
        # Mostly harmless tensors around few hostile ones, so that gradients still reach every layer.
        chosen = ["normal" if rng.random() < 0.6 else _NAMES[rng.integers(len(_NAMES))] for _ in shapes]
    parts = [FAMILIES[name](rng, shape).ravel() for name, shape in zip(chosen, shapes, strict=True)]
    return np.concatenate(parts), "/".join(sorted(set(chosen)))


def changed_model(rng: np.random.Generator, model: Floats, shapes: Sequence[Shape]) -> Floats:
    """The model with one of its tensors changed."""
    lengths = [int(np.prod(shape)) for shape in shapes]
    which = int(rng.integers(len(shapes)))
    start = sum(lengths[:which])
    changed = model.copy()
    part = changed[start : start + lengths[which]].reshape(shapes[which])
    match rng.integers(6):
        case 0:
            part[...] = FAMILIES[_NAMES[rng.integers(len(_NAMES))]](rng, shapes[which])
        case 1:
            part[...] = _float32(part.astype(np.float64) * 2.0 ** int(rng.integers(-12, 13)))
        case 2:
            part[...] = _float32(part * (1 + 10 ** rng.uniform(-7, 0) * rng.standard_normal(part.shape)))
        case 3:
            part.flat[rng.integers(part.size)] = _float32(np.array(rng.choice([-1, 1]) * 10 ** rng.uniform(-40, 38)))
        case 4:
            part.flat[rng.integers(part.size)] *= -1
        case 5:
            half = part.shape[-1] // 2
            part[..., half : 2 * half] = -part[..., :half]
    return changed


def of_length(model: Floats, length: float) -> Floats:
    """The model, shortened to this norm if it is longer: `bolt_on` refuses long ones."""
    norm = float(np.linalg.norm(model.astype(np.float64)))
    return model if norm <= length else _float32(model.astype(np.float64) * (length / norm))


def moderate(rng: np.random.Generator) -> float:
    return float(10 ** rng.uniform(-2, 2))


def _float32(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Floats:
    # Larger values are refused on the wire, so a coordinator cannot send them.
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)
