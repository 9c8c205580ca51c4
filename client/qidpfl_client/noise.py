"""Sources of Gaussian noise: the entropy of the operating system, or a seed in tests. Needs numpy and scipy only.

A normal value is the quantile of a 53-bit uniform number, with a separate sign bit. Floating-point values are not
exactly Gaussian (Mironov 2012), so a release is not exactly as private as its proof says.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Normals = npt.NDArray[np.float64]

# Values per piece: besides its result, a draw of any size needs less than 2 MB.
PIECE = 1 << 15
_BYTES_PER_WORD = 8


class NoiseSource(Protocol):
    """A source of noise for releases."""

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """`count` independent standard normal values, for the release of this name."""


class SystemNoise:
    """Noise from the entropy of the operating system: fresh in every call, and impossible to predict.

    >>> noise = SystemNoise().standard_normal(3, release="round/1")
    >>> noise.shape, noise.dtype
    ((3,), dtype('float64'))
    """

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """Fresh standard normal values.

        Args:
            count: how many.
            release: the name of the release; the values do not depend on it.
        """
        return _in_pieces(count, lambda _, length: os.urandom(length))


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

        def expanded(piece: int, length: int) -> bytes:
            return hashlib.shake_256(f"{self._seed}/{piece}/{release}".encode()).digest(length)

        return _in_pieces(count, expanded)


def _in_pieces(count: int, bits: Callable[[int, int], bytes]) -> Normals:
    values = np.empty(count, dtype=np.float64)
    for piece, start in enumerate(range(0, count, PIECE)):
        part = values[start : start + PIECE]
        part[:] = _normals(bits(piece, _BYTES_PER_WORD * part.size))
    return values


def _normals(bits: bytes) -> Normals:
    """One standard normal value per eight bytes: the upper 53 bits give the quantile, the lowest bit the sign."""
    words = np.frombuffer(bits, dtype="<u8")
    # Quantiles in (0, 1/2], the lower half of the distribution: a double is most precise there, in the tail, and
    # rounding never gives 0 or 1. A 53-bit uniform plus half a step can round to 1.
    lower = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54
    magnitudes: Normals = ndtri(lower)
    return np.where(words & np.uint64(1), magnitudes, -magnitudes)
