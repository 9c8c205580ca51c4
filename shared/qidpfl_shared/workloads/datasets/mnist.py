"""MNIST and EMNIST: grey images of 28x28 pixels in IDX files.

An IDX file has a big-endian header, then one byte per value.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...protocol.layouts import DATA_SETS
from ..workload import DataMissing
from .folder import DataFolder
from .images import Images

Values = npt.NDArray[np.uint8]
_UNSIGNED_BYTES = 8
_SMALL_TRAINING, _SMALL_HELD_OUT = 10_000, 2_000
_SMALL_SEED = 62
_CHUNK = 50_000


def read_mnist(folder: DataFolder, *, training: bool) -> Images:
    """Read the training or the test part of MNIST: 70,000 handwritten digits."""
    part = "train" if training else "t10k"
    return _read_images(folder, dataset="mnist", prefix=f"MNIST/raw/{part}")


def read_emnist(folder: DataFolder, *, training: bool) -> Images:
    """Read the training or the test part of EMNIST ByClass: digits, capitals and small letters.

    The files hold every image transposed. The result is upright.
    """
    part = "train" if training else "test"
    images = _read_images(folder, dataset="emnist", prefix=f"EMNIST/raw/emnist-byclass-{part}")
    # In chunks, so that no second copy of all images is in memory.
    for start in range(0, len(images.pixels), _CHUNK):
        chunk = images.pixels[start : start + _CHUNK]
        chunk[...] = chunk.swapaxes(2, 3)
    return images


def read_emnist_small(folder: DataFolder, *, training: bool) -> Images:
    """Read 10,000 training or 2,000 test records of EMNIST. Machines with the same files choose the same records."""
    images = read_emnist(folder, training=training)
    size = min(_SMALL_TRAINING if training else _SMALL_HELD_OUT, len(images.labels))
    # numpy guarantees that the stream of this old generator never changes.
    chosen = np.random.RandomState(_SMALL_SEED).permutation(len(images.labels))[:size]
    return images.take(np.sort(chosen).astype(np.int64))


def _read_images(folder: DataFolder, *, dataset: str, prefix: str) -> Images:
    """Read images and their labels from a pair of IDX files."""
    facts = DATA_SETS[dataset]
    image_file, label_file = folder.files(dataset, (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"))
    pixels, targets = _read_idx(image_file, dimensions=3), _read_idx(label_file, dimensions=1)
    _, height, width = facts.shape
    if pixels.shape != (len(targets), height, width):
        raise DataMissing(
            f"{image_file} holds an array {pixels.shape}, not {len(targets)} images of {height}x{width};"
            " download it again"
        )
    if len(targets) == 0 or targets.max() >= facts.labels:
        raise DataMissing(f"{label_file} does not hold labels from 0 to {facts.labels - 1}; download it again")
    return Images(pixels=pixels[:, None], labels=targets.astype(np.int64))


def _read_idx(path: Path, *, dimensions: int) -> Values:
    """Read the array in an IDX file of bytes, compressed by gzip or not."""
    data = _bytes_of(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4].tolist() != [0, 0, _UNSIGNED_BYTES, dimensions]:
        raise DataMissing(f"{path} is not an IDX file of bytes in {dimensions} dimensions")
    shape = tuple(data[4:start].view(">u4").tolist())
    if data.size - start != np.prod(shape, dtype=object):
        raise DataMissing(f"{path} is damaged: {data.size - start} values, but its header says {shape}")
    return data[start:].reshape(shape)


def _bytes_of(path: Path) -> Values:
    if path.suffix != ".gz":
        return np.fromfile(path, dtype=np.uint8)
    try:
        return np.frombuffer(bytearray(gzip.decompress(path.read_bytes())), dtype=np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise DataMissing(f"{path} is damaged: {error}") from error
