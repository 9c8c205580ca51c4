"""Sources of noise: the entropy of the operating system, or a seed in tests. Needs numpy only.

The noise is an exact discrete Gaussian on a fixed grid, and `noised` adds it to values on the same grid. The module
`qidpfl_shared.core.privacy.discrete_gaussian` explains why that is as private as the proofs say. `SLACK` is the part of
a bound that a client leaves free for rounding: it clips to (1 - SLACK) times the clip norm.
"""

import hashlib
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.privacy.discrete_gaussian import add_noise, discrete_gaussian
from qidpfl_shared.core.privacy.rounding import SLACK

Normals = npt.NDArray[np.float64]

__all__ = ["SLACK", "CommonNoise", "NoiseSource", "Normals", "SystemNoise", "UnsafeSeededNoise", "noised"]


class NoiseSource(Protocol):
    """A source of noise for releases."""

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """`count` independent values of standard deviation 1, for the release of this name."""


class SystemNoise:
    """Noise from the entropy of the operating system: fresh in every call, and impossible to predict.

    >>> noise = SystemNoise().standard_normal(3, release="round/1")
    >>> noise.shape, noise.dtype
    ((3,), dtype('float64'))
    """

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """Fresh values of standard deviation 1.

        Args:
            count: how many.
            release: the name of the release; the values do not depend on it.
        """
        return discrete_gaussian(count, bits=lambda _, length: os.urandom(length))


class UnsafeSeededNoise:
    """UNSAFE, for tests only: anyone who knows the seed can compute the noise and subtract it.

    The values are a function of (seed, release), on every machine and with every version of the libraries. A smaller
    `count` gives the first values of a larger one.

    >>> noise = UnsafeSeededNoise(seed=7)
    >>> np.array_equal(noise.standard_normal(2, release="a"), noise.standard_normal(5, release="a")[:2])
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __repr__(self) -> str:
        return f"UnsafeSeededNoise(seed={self._seed})  # unsafe: protects nothing"

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """The first `count` values of this release."""

        def expanded(name: str, length: int) -> bytes:
            return hashlib.shake_256(f"{self._seed}/{name}/{release}".encode()).digest(length)

        return discrete_gaussian(count, bits=expanded)


class CommonNoise:
    """UNSAFE, for comparisons on public data: the same standard noise in every task.

    The values are a function of (seed, draw, ordinal, release), and releases of different tasks have the same names.
    Two methods then differ by what they do and not by their noise. For the same reason it protects nothing, even if the
    seed is secret: the difference of two uploads with the same noise and budget is the difference of what was
    protected. `draw` distinguishes repeats.

    >>> first, again = (CommonNoise(seed=7, draw=0, ordinal=3).standard_normal(2, release="round/1") for _ in range(2))
    >>> np.array_equal(first, again)
    True
    """

    def __init__(self, *, seed: int, draw: int, ordinal: int) -> None:
        self._key = f"common/{seed}/{draw}/{ordinal}"

    def __repr__(self) -> str:
        return f"CommonNoise({self._key})  # unsafe: protects nothing"

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """The first `count` values of this release."""

        def expanded(name: str, length: int) -> bytes:
            return hashlib.shake_256(f"{self._key}/{name}/{release}".encode()).digest(length)

        return discrete_gaussian(count, bits=expanded)


def noised(values: Normals, *, std: float, source: NoiseSource, release: str) -> Normals:
    """The values plus fresh noise of this standard deviation.

    Raises `ImpossibleArgument` if a value is not finite or the standard deviation is not positive.

    >>> noised(np.zeros(2), std=0.5, source=UnsafeSeededNoise(seed=7), release="a").shape
    (2,)
    """
    draws = source.standard_normal(values.size, release=release)
    return add_noise(values=values, std=std, standard_noise=draws)
