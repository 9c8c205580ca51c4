"""Noise for releases: an exact discrete Gaussian, and its addition to values on the same grid.

Values and noise lie on a grid of `GRID` standard deviations. Discrete Gaussian noise on a query with values on the grid
has exactly the zCDP of the Gaussian mechanism, Δ²/(2σ²) (Canonne, Kamath & Steinke 2020), and no weakness of
floating-point noise (Mironov 2012). Moving a value to the grid moves it by at most half a step, so the L2 sensitivity
of d values grows by at most √d steps.

The sampler is exact if its random bits are. It divides the half line into strips, draws a strip and a place in it from
one 64-bit word, and accepts the place with the right probability (a rejection sampler after Karney 2016). It computes
that probability in floating point with a safe margin. Where the margin cannot decide, it computes with as many decimal
digits and random bits as the decision needs.
"""

import itertools
import math
from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..arguments import ImpossibleArgument, Numbers, Vector

# The step of the grid, in standard deviations, as a power of two: -40 is 2^-40.
GRID_EXPONENT = -40
GRID = 2.0**GRID_EXPONENT

# Candidates per piece: besides its result, a draw of any size needs about 2 MB.
PIECE = 1 << 15

# `bits(name, length)` returns `length` random bytes. A source with a seed derives them from the name.
Bits = Callable[[str, int], bytes]

# The bits of a word: a slot of the table of strips, the sign, the place in the strip, the start of a uniform number.
_SLOT_BITS, _PLACE_BITS, _UNIFORM_BITS = 12, 37, 14
_STRIPS_PER_STD = 1 << (-GRID_EXPONENT - _PLACE_BITS)
# The table has strips up to 12 standard deviations. The last slot stands for all strips beyond.
_TABLE_STRIPS = 12 * _STRIPS_PER_STD
# The height of the density at 0, in slots: the largest one with which all strips fit into the table.
_HEIGHT = 381
# A bound on the relative error of a computed probability; the real error is below 2^-45.
_MARGIN = 2.0**-40


def discrete_gaussian(count: int, *, bits: Bits) -> Vector:
    """Return independent values of a discrete Gaussian with standard deviation 1 on the multiples of `GRID`.

    A smaller `count` gives the first values of a larger one, if `bits` is a function of its arguments and a shorter
    result is the beginning of a longer one.

    >>> import os
    >>> values = discrete_gaussian(3, bits=lambda name, length: os.urandom(length))
    >>> values.shape, bool((values / GRID == np.rint(values / GRID)).all())
    ((3,), True)
    """
    values = np.empty(arguments.whole("count", count))
    done, piece = 0, 0
    while done < count:
        found = _piece(piece, count - done, bits)[: count - done]
        values[done : done + found.size] = found
        done, piece = done + found.size, piece + 1
    return values


def add_noise(*, values: Numbers, std: float, standard_noise: Numbers) -> Vector:
    """Return the values, moved to the grid of this standard deviation, plus noise of it.

    `standard_noise` holds one fresh value of `discrete_gaussian` per value. The sum is exact before it is rounded to
    float64, so that the rounding is post-processing. Raises `ImpossibleArgument` for impossible numbers and lengths.

    >>> add_noise(values=[1.0, 2.0], std=0.5, standard_noise=[0.0, -1.0]).tolist()
    [1.0, 1.5]
    """
    exact = arguments.vector("values", values)
    draws = arguments.vector("standard_noise", standard_noise, length=exact.size)
    scale = arguments.magnitude("std", std)
    units = exact / (scale * GRID)
    np.rint(units, out=units)
    units *= GRID
    units += draws
    units *= scale
    return units


def grid_slack(*, dimension: int, rho: float) -> float:
    """Return by how much the grid raises the sensitivity of `dimension` values, relative to the sensitivity.

    With noise for a budget `rho` the sensitivity is sqrt(2·rho) standard deviations.

    >>> grid_slack(dimension=10_000, rho=0.5) == 100 * GRID
    True
    """
    dimension = arguments.whole("dimension", dimension, minimum=1)
    return math.sqrt(dimension) * GRID / math.sqrt(2 * arguments.positive("rho", rho))


def _piece(piece: int, wanted: int, bits: Bits) -> Vector:
    """The accepted candidates of one piece, in their order: at least `wanted` or all of the piece."""
    length = min(PIECE, wanted + wanted // 8 + 64)
    found = _accepted(str(piece), bits(str(piece), 8 * length), bits)
    if found.size < wanted and length < PIECE:
        # Few candidates were accepted. How many were accepted tells nothing about their values.
        found = _accepted(str(piece), bits(str(piece), 8 * PIECE), bits)
    return found


def _accepted(name: str, data: bytes, bits: Bits) -> Vector:
    words = np.frombuffer(data, dtype="<u8")
    slots = (words & np.uint64((1 << _SLOT_BITS) - 1)).astype(np.intp)
    places = (words >> np.uint64(_SLOT_BITS + 1)) & np.uint64((1 << _PLACE_BITS) - 1)
    places |= _STRIP_STARTS[slots]
    values = places.astype(np.float64)
    values *= GRID
    uniforms = (words >> np.uint64(64 - _UNIFORM_BITS)).astype(np.float64)
    limits = np.exp(-0.5 * values * values)
    limits *= _LIMIT_SCALES[slots]
    accepted = uniforms + 1 <= limits * (1 - _MARGIN)
    for index in np.flatnonzero((uniforms < limits * (1 + _MARGIN)) & ~accepted):
        place, accepted[index] = _decided(int(words[index]), f"{name}/{index}", bits)
        values[index] = place * GRID
    negative = (words & np.uint64(1 << _SLOT_BITS)).astype(np.bool_)
    # Zero has no sign: it counts once.
    accepted &= ~(negative & (places == 0))
    np.negative(values, out=values, where=negative)
    found: Vector = values[accepted]
    return found


def _decided(word: int, name: str, bits: Bits) -> tuple[int, bool]:
    """The place of a candidate, and whether it is accepted, without any rounding error."""
    further = (int.from_bytes(bits(f"{name}/{part}", 8), "big") for part in itertools.count())
    strip, weight = _STRIPS[word % (1 << _SLOT_BITS)]
    place = (word >> (_SLOT_BITS + 1)) % (1 << _PLACE_BITS)
    if strip == _TABLE_STRIPS:
        # Draw the strip beyond the table: each next one with half the probability.
        while not (drawn := next(further)):
            strip, weight = strip + 64, weight / 2**64
        zeros = 64 - drawn.bit_length()
        strip, weight = strip + zeros, weight / 2 ** (zeros + 1)
    place += strip << _PLACE_BITS
    uniform, digits, length = word >> (64 - _UNIFORM_BITS), 40, _UNIFORM_BITS
    while True:
        context = Context(prec=digits, Emin=-(10**9), Emax=10**9)
        exponent = context.divide(Decimal(-place * place), Decimal(2 ** (1 - 2 * GRID_EXPONENT)))
        limit = context.multiply(context.exp(exponent), context.divide(Decimal(_HEIGHT << length), Decimal(weight)))
        # Each step is rounded to the nearest, and the exponent is below 10^9: this bounds the relative error.
        error = context.scaleb(limit, 12 - digits)
        if uniform + 1 <= context.subtract(limit, error):
            return place, True
        if uniform >= context.add(limit, error):
            return place, False
        uniform = uniform << 64 | next(further)
        digits, length = digits + 20, length + 64


def _strips() -> list[tuple[int, float]]:
    """The strip of each slot, and its weight: the number of slots that it has.

    A strip gets at least as many slots as the density at its start is high, so that no probability exceeds 1.
    """
    weights = [math.ceil(_HEIGHT * math.exp(-0.5 * (k / _STRIPS_PER_STD) ** 2)) for k in range(_TABLE_STRIPS)]
    weights.append(1)
    weights[0] += (1 << _SLOT_BITS) - sum(weights)
    if weights[0] < _HEIGHT:
        raise ImpossibleArgument("height", _HEIGHT, "must leave room for all strips")
    return [(strip, weight) for strip, weight in enumerate(weights) for _ in range(weight)]


_STRIPS = _strips()
_STRIP_STARTS: npt.NDArray[np.uint64] = np.array([strip << _PLACE_BITS for strip, _ in _STRIPS], dtype=np.uint64)
_LIMIT_SCALES: Vector = np.array([_HEIGHT * 2.0**_UNIFORM_BITS / weight for _, weight in _STRIPS])
