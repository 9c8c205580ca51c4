"""The digest of a model in the safetensors format, as the chain records it: that of its vector on the wire.

The format is a length of 8 bytes, a JSON header with the place of each tensor, and the tensors. A float32 tensor has
the same bytes there as on the wire, so that this needs neither torch nor safetensors.
"""

import json
from pathlib import Path
from typing import Any

from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER, TensorLayout, TensorSpec, digest_of

_LENGTH_BYTES = 8


class NotAModel(ValueError):
    """The file is not a model with this layout."""


def model_file_digest(path: Path, layout: TensorLayout) -> str:
    """The digest of a model file. Raises `NotAModel`, and `OSError` if it cannot be read."""
    data = path.read_bytes()
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        header = json.loads(data[_LENGTH_BYTES:start])
        names = set(header) - {"__metadata__"}
    except (ValueError, RecursionError, TypeError):
        raise NotAModel("it is not in the safetensors format") from None
    if names != {tensor.name for tensor in layout.tensors} or len(data) != start + layout.byte_length:
        raise NotAModel("it has other tensors than the task")
    return digest_of(b"".join(_tensor(data, start, tensor, header[tensor.name]) for tensor in layout.tensors))


def _tensor(data: bytes, start: int, tensor: TensorSpec, place: Any) -> bytes:
    try:
        kind, shape, (begin, end) = place["dtype"], place["shape"], place["data_offsets"]
        found = data[start + begin : start + end]
    except (KeyError, TypeError, ValueError):
        raise NotAModel(f"the place of tensor {tensor.name!r} is damaged") from None
    if (kind, shape, len(found)) != ("F32", list(tensor.shape), tensor.size * BYTES_PER_PARAMETER) or begin < 0:
        raise NotAModel(f"tensor {tensor.name!r} has another shape or type than in the task")
    return found
