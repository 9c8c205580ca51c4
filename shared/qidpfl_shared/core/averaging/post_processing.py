"""What the server does with the average of the updates before its step: nothing, or a low-pass of its images.

The average is made of released updates only, so a function of it is post-processing and costs no privacy.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from .. import arguments
from ..arguments import ImpossibleArgument, Vector

# Cosines are rounded to so many digits, so that another version of a library computes the same model.
_COSINE_DIGITS = 12
# The default cutoff is 12 for images of 28 x 28 pixels, and in proportion to the shorter side for others.
_CUTOFF, _SIDE = 12, 28


class PostProcessing(StrEnum):
    """What is done with the average of the updates before the server's step."""

    NONE = "none"
    LOWPASS = "lowpass"


@dataclass(frozen=True, kw_only=True)
class ImageRows:
    """The first parameters of a model are so many images of one size; the rest are not images."""

    images: int
    height: int
    width: int

    def __post_init__(self) -> None:
        for name in ("images", "height", "width"):
            arguments.whole(name, getattr(self, name), minimum=1)

    @property
    def pixels(self) -> int:
        """The pixels of one image."""
        return self.height * self.width

    @property
    def default_cutoff(self) -> float:
        """12 for 28 x 28, in proportion to the shorter side otherwise."""
        return _CUTOFF * min(self.height, self.width) / _SIDE


@dataclass(frozen=True, kw_only=True)
class LowPass:
    """Zeroes the two-dimensional cosine coefficients (u, v) of each image with √(u² + v²) ≥ cutoff.

    The transform is orthonormal (DCT-II). White noise loses the same part of its squared norm as of its coefficients,
    while the gradient of a smooth class image has little beyond the cutoff. Sums run in a fixed order, so the same
    average gives the same bits on every machine.
    """

    rows: ImageRows
    cutoff: float

    def __post_init__(self) -> None:
        arguments.positive("cutoff", self.cutoff)

    def __call__(self, blocks: Iterable[tuple[int, Vector]]) -> Iterator[tuple[int, Vector]]:
        """Yield an average with filtered images, as (start, coordinates), from its blocks in their order.

        The bits do not depend on where the blocks begin. In memory are one block and one image.
        """
        size, end = self.rows.pixels, self.rows.images * self.rows.pixels
        # The coordinates before `position` are done. The waiting ones after it are no complete image.
        position, waiting, held = 0, list[Vector](), 0
        for start, block in blocks:
            if start != position + held:
                raise ImpossibleArgument("start", start, f"must be {position + held}: blocks follow each other")
            waiting, held = [*waiting, block], held + block.size
            if held < size and position + held < end:
                continue
            whole = np.concatenate(waiting)
            images = max(0, min(held, end - position) // size)
            done = [self.filtered(image).ravel() for image in whole[: images * size].reshape(-1, *self._shape)]
            rest = whole[images * size :]
            if position + images * size >= end:
                done, rest = [*done, rest], rest[rest.size :]
            ready = np.concatenate(done)
            yield position, ready
            position, waiting, held = position + ready.size, [rest], rest.size
        if held:
            raise ImpossibleArgument("blocks", position + held, f"must hold {end} coordinates of images")

    def filtered(self, image: Vector) -> Vector:
        """Return one image without its high frequencies.

        >>> lowpass = LowPass(rows=ImageRows(images=1, height=2, width=2), cutoff=1.0)
        >>> lowpass.filtered(np.array([[1.0, 0.0], [0.0, 0.0]])).round(9).tolist()
        [[0.25, 0.25], [0.25, 0.25]]
        """
        down, across = self._bases
        low = _product(_product(down, image), across.T) * self._kept
        return _product(down.T, _product(low, across))

    @property
    def kept_part(self) -> float:
        """The part of the coefficients of an image that stays, and of the squared norm of white noise in it."""
        return float(self._kept.sum()) / self.rows.pixels

    @property
    def _shape(self) -> tuple[int, int]:
        return self.rows.height, self.rows.width

    @cached_property
    def _bases(self) -> tuple[Vector, Vector]:
        count = math.ceil(self.cutoff)
        return _cosines(self.rows.height, count), _cosines(self.rows.width, count)

    @cached_property
    def _kept(self) -> Vector:
        """1 for the coefficients that stay, 0 for the others."""
        down, across = (np.arange(len(basis), dtype=np.float64) for basis in self._bases)
        kept: Vector = (down[:, None] ** 2 + across**2 < self.cutoff**2).astype(np.float64)
        return kept


def _cosines(length: int, count: int) -> Vector:
    """The first cosine functions on so many points, one per row. They are orthonormal."""

    def value(u: int, x: int) -> float:
        scale = math.sqrt((2 if u else 1) / length)
        return round(scale * math.cos(math.pi * (2 * x + 1) * u / (2 * length)), _COSINE_DIGITS)

    return np.array([[value(u, x) for x in range(length)] for u in range(min(count, length))])


def _product(left: Vector, right: Vector) -> Vector:
    """The matrix product, with sums in a fixed order: BLAS chooses the order by the processor."""
    total: Vector = np.zeros((left.shape[0], right.shape[1]))
    for column, row in zip(left.T, right, strict=True):
        total += column[:, None] * row
    return total
