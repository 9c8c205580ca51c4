"""The records of one data set, as numpy arrays; torch has no part in it."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64] | slice


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Features and labels, record by record.

    Features are kept as they were read (images as bytes, a quarter of the memory) and become float32 in `inputs`:
    values·scale + shift. Scale and shift are public constants; computed from the data they would be a release.
    """

    features: npt.NDArray[Any]
    labels: Labels
    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.features)} features, but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, indices: Indices = slice(None)) -> Features:
        """The features as a network takes them."""
        values: Features = self.features[indices].astype(np.float32)
        values *= np.float32(self.scale)
        values += np.float32(self.shift)
        return values

    def take(self, indices: Indices) -> "Records":
        """Some of the records."""
        return replace(self, features=self.features[indices], labels=self.labels[indices])

    def label_counts(self, labels: int) -> npt.NDArray[np.int64]:
        """How many records there are of each label."""
        counts: npt.NDArray[np.int64] = np.bincount(self.labels, minlength=labels).astype(np.int64)
        return counts

    def fingerprint(self) -> str:
        """A SHA-256 that tells this data set from others. It is made from the records: keep it where they are."""
        digest = hashlib.sha256(f"{self.features.shape} {self.features.dtype} {self.scale} {self.shift}".encode())
        digest.update(np.ascontiguousarray(self.features).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()


def bounded(features: Features, *, norm: float) -> Features:
    """Every record scaled down to at most this L2 norm, by itself alone: what `bolt_on` is proven for."""
    flat = features.reshape(len(features), -1).astype(np.float64)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    # A hair below the bound, so that rounding to float32 cannot lift a record above it.
    factors = np.minimum(1.0, norm * (1 - 1e-6) / np.maximum(lengths, np.finfo(np.float64).tiny))
    scaled: Features = (flat * factors).astype(np.float32).reshape(features.shape)
    return scaled
