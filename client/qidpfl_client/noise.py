"""Where noise comes from: the operating system's entropy, or a seed in tests. Numpy and scipy only.

Every normal value is the quantile of a uniform of 53 bits and a sign bit of its own. Values in floating point are not
exactly Gaussian (Mironov 2012), so that no release made with them is exactly as private as its proof says.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Normals = npt.NDArray[np.float64]

# Values per piece: what a draw needs besides its result stays below 2 MB, whatever the count.
PIECE = 1 << 15
_BYTES_PER_WORD = 8


class NoiseSource(Protocol):
    """Where the noise of a release comes from."""

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """So many independent standard normal values; `release` names what they are for."""


class SystemNoise:
    """Noise from the operating system's entropy: fresh in every call, known to nobody."""

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """So many fresh values; the name of the release plays no part."""
        return _in_pieces(count, lambda _, length: os.urandom(length))


class UnsafeSeededNoise:
    """UNSAFE, for tests only: noise that everybody who knows the seed can compute and subtract.

    A function of (seed, release): a second call for the same release gives the same values, fewer if fewer are asked
    for, on every machine and with every version of the libraries.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __repr__(self) -> str:
        return f"UnsafeSeededNoise(seed={self._seed})  # unsafe: protects nothing"

    def standard_normal(self, count: int, *, release: str) -> Normals:
        """The first so many values of this release."""

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
    """A standard normal value from every eight bytes: the upper 53 bits are its quantile, the lowest is its sign."""
    words = np.frombuffer(bits, dtype="<u8")
    # In (0, 1/2], the lower half of the distribution: there a double is finest where the tail needs it, and no
    # rounding reaches 0, or 1 (which a 53-bit uniform plus half a step does).
    lower = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54
    magnitudes: Normals = ndtri(lower)
    return np.where(words & np.uint64(1), magnitudes, -magnitudes)
