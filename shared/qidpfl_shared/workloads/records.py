"""`Records`: the records of one data set as numpy arrays. This module does not import torch."""

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

    Features stay as they were read (images as bytes, a quarter of the memory). `inputs` converts them to float32:
    values·scale + shift. Scale and shift must be public constants: computed from the data they would be a release.

    Raises `ValueError` if there are not as many features as labels.

    >>> records = Records(features=np.array([[0, 255], [255, 0]]), labels=np.array([0, 1]), scale=1 / 255)
    >>> len(records), records.inputs().tolist()
    (2, [[0.0, 1.0], [1.0, 0.0]])
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
        """Return the features as the network accepts them, always finite.

        A value that is not a number becomes 0, and one beyond float32 the largest float32.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            values: Features = self.features[indices].astype(np.float32)
            values *= np.float32(self.scale)
            values += np.float32(self.shift)
        return values if self._is_finite else np.nan_to_num(values, copy=False)

    @property
    def _is_finite(self) -> bool:
        """Whether the type of the features alone, such as bytes, keeps all inputs finite."""
        if self.features.dtype.kind not in ("b", "u", "i") or self.features.dtype.itemsize > 2:
            return False
        return abs(self.scale) * 2.0**16 + abs(self.shift) < float(np.finfo(np.float32).max)

    def take(self, indices: Indices) -> "Records":
        """Return some of the records."""
        return replace(self, features=self.features[indices], labels=self.labels[indices])

    def label_counts(self, labels: int) -> npt.NDArray[np.int64]:
        """Return the number of records of each label."""
        counts: npt.NDArray[np.int64] = np.bincount(self.labels, minlength=labels).astype(np.int64)
        return counts

    def fingerprint(self) -> str:
        """Return a SHA-256 that identifies this data set. It depends on the records: do not publish it."""
        digest = hashlib.sha256(f"{self.features.shape} {self.features.dtype} {self.scale} {self.shift}".encode())
        digest.update(np.ascontiguousarray(self.features).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()


def bounded(features: Features, *, norm: float) -> Features:
    """Scale each record down to at most this L2 norm, independent of the others. The proof of `bolt_on` needs it."""
    flat = features.reshape(len(features), -1).astype(np.float64)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    # Slightly below the bound, so that rounding to float32 cannot exceed it.
    with np.errstate(over="ignore"):
        factors = np.minimum(1.0, norm * (1 - 1e-6) / np.maximum(lengths, np.finfo(np.float64).tiny))
    scaled: Features = (flat * factors).astype(np.float32).reshape(features.shape)
    return scaled
