"""Labelled images as they were read, and the forms of them that networks accept."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..records import Labels

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Pixels of shape (records, channels, height, width), and the labels."""

    pixels: Pixels
    labels: Labels

    def flat(self) -> "Images":
        """Return every image as one row of pixels."""
        return replace(self, pixels=self.pixels.reshape(len(self.pixels), -1))

    def centre(self, side: int) -> "Images":
        """Return the square in the middle of every image."""
        top, left = ((length - side) // 2 for length in self.pixels.shape[2:])
        cut = self.pixels[:, :, top : top + side, left : left + side]
        return replace(self, pixels=np.ascontiguousarray(cut))

    def take(self, indices: npt.NDArray[np.int64]) -> "Images":
        """Return some of the images."""
        return replace(self, pixels=self.pixels[indices], labels=self.labels[indices])
