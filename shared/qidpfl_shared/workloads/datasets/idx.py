"""The IDX format of MNIST and EMNIST: a big-endian header, then one byte for every value."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..workload import DataMissing

Values = npt.NDArray[np.uint8]
_UNSIGNED_BYTES = 8


def read_idx(path: Path, *, dimensions: int) -> Values:
    """The array in an IDX file of bytes, packed by gzip or not."""
    data = _bytes_of(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4].tolist() != [0, 0, _UNSIGNED_BYTES, dimensions]:
        raise DataMissing(f"{path} is no IDX file of bytes in {dimensions} dimensions")
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
