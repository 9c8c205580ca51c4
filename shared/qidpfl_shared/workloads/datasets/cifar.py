"""CIFAR-10: 60,000 colour images of 32x32 pixels.

Its files are pickles. They are read only from the data folder that the owner of this machine names. The reader builds
numpy arrays and plain containers only, so a forged file cannot run code. The download checks the md5 of the official
archive; a folder that exists already may also hold re-packed batches.
"""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ...protocol.layouts import DATA_SETS
from ..workload import DataMissing
from .folder import DataFolder
from .images import Images

_FOLDER = "cifar-10-batches-py"
_TRAINING = tuple(f"{_FOLDER}/data_batch_{number}" for number in range(1, 6))
_HELD_OUT = (f"{_FOLDER}/test_batch",)
_LABELS, _SHAPE = DATA_SETS["cifar10"].labels, DATA_SETS["cifar10"].shape
# The functions that rebuild pickled arrays. numpy has moved them since the official files were written.
_KNOWN = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): np.empty(1).__reduce__()[0] for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): np.empty(1).__reduce_ex__(5)[0] for core in ("core", "_core")},
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that accepts numpy arrays and plain containers only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it needs {module}.{name}, which a batch of images does not need")
        return _KNOWN[module, name]


def read_cifar10(folder: DataFolder, *, training: bool) -> Images:
    """Read the training or the test part."""
    batches = [_read_batch(path) for path in folder.files("cifar10", _TRAINING if training else _HELD_OUT)]
    return Images(
        pixels=np.concatenate([batch.pixels for batch in batches]),
        labels=np.concatenate([batch.labels for batch in batches]),
    )


def _read_batch(path: Path) -> Images:
    content = _unpickled(path)
    if not isinstance(content, dict) or not {"data", "labels"} <= content.keys():
        raise DataMissing(f"{path} is not a batch of CIFAR-10: it has no data and labels")
    pixels = content["data"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (math.prod(_SHAPE),):
        raise DataMissing(f"{path} is not a batch of CIFAR-10: its data are not rows of {math.prod(_SHAPE)} bytes")
    labels = content["labels"]
    if not isinstance(labels, list) or len(labels) != len(pixels) or any(one not in range(_LABELS) for one in labels):
        raise DataMissing(f"{path} is not a batch of CIFAR-10: it does not have one label from 0 to 9 per image")
    return Images(pixels=pixels.reshape(-1, *_SHAPE), labels=np.array(labels, dtype=np.int64))


def _unpickled(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            # The official files were written by Python 2: its strings are bytes in latin1.
            return _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:
        # A damaged pickle can raise almost any exception.
        raise DataMissing(f"{path} cannot be read: {error}") from error
