"""The wire format of a model or an update: its tensors in order, as little-endian float32.

The layout (names, shapes, order) is part of the task. A vector is exactly 4·d bytes on the wire, which every language
can write. Received bytes are data only: nothing here unpickles or decompresses.
"""

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .errors import ErrorCode
from .fields import MAX_DIMENSION, Message, Name, Tuple

Vector32 = npt.NDArray[np.float32]
_LITTLE_ENDIAN = np.dtype("<f4")
BYTES_PER_PARAMETER = 4


class WireError(ValueError):
    """The bytes are not a vector of this task. `code` is the error code of the API's answer."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class TensorSpec(Message):
    """One tensor of the model: its name and shape (an empty shape is a scalar)."""

    name: Name
    shape: Tuple[Annotated[int, Field(ge=1, le=MAX_DIMENSION)]] = Field(max_length=8)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


class TensorLayout(Message):
    """The tensors of a model in their order in the flat vector, each in row-major order."""

    tensors: Tuple[TensorSpec] = Field(min_length=1, max_length=10_000)

    @model_validator(mode="after")
    def _check(self) -> "TensorLayout":
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise PydanticCustomError(ErrorCode.INCONSISTENT_SPEC.value, "tensor names must differ")
        if self.dimension > MAX_DIMENSION:
            raise PydanticCustomError(
                ErrorCode.INCONSISTENT_SPEC.value,
                "the layout has {dimension} parameters, more than {limit}",
                {"dimension": self.dimension, "limit": MAX_DIMENSION},
            )
        return self

    @property
    def dimension(self) -> int:
        """The number of parameters d."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def digest(self) -> str:
        """The SHA-256 of names, shapes and order: two owners with the same model have the same digest."""
        facts = json.dumps([[tensor.name, list(tensor.shape)] for tensor in self.tensors], separators=(",", ":"))
        return hashlib.sha256(facts.encode()).hexdigest()

    @property
    def byte_length(self) -> int:
        """The length of a vector on the wire."""
        return BYTES_PER_PARAMETER * self.dimension


def flatten(*, tensors: Mapping[str, npt.ArrayLike], layout: TensorLayout) -> Vector32:
    """Return the named tensors as one float32 vector. Raises `WireError` unless names and shapes match the layout."""
    expected = {tensor.name for tensor in layout.tensors}
    if set(tensors) != expected:
        missing, unknown = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
        raise WireError(ErrorCode.WRONG_LENGTH, f"missing tensors {missing}, unknown tensors {unknown}")
    parts = []
    for tensor in layout.tensors:
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.asarray(tensors[tensor.name]).astype(np.float32)
        if array.shape != tensor.shape:
            detail = f"tensor {tensor.name!r} has shape {array.shape}, the layout says {tensor.shape}"
            raise WireError(ErrorCode.WRONG_LENGTH, detail)
        parts.append(array.ravel())
    vector = np.concatenate(parts)
    _require_finite(vector)
    return vector


def unflatten(*, vector: Vector32, layout: TensorLayout) -> dict[str, Vector32]:
    """Return the named tensors of a flat vector, as views. Raises `WireError` if its length is wrong."""
    if vector.shape != (layout.dimension,):
        raise WireError(ErrorCode.WRONG_LENGTH, f"the vector has shape {vector.shape}, not ({layout.dimension},)")
    tensors, start = {}, 0
    for tensor in layout.tensors:
        tensors[tensor.name] = vector[start : start + tensor.size].reshape(tensor.shape)
        start += tensor.size
    return tensors


def encode(vector: npt.NDArray[Any]) -> bytes:
    """Return the bytes of a flat vector. Raises `WireError` for values outside the range of float32."""
    array = np.asarray(vector)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise WireError(ErrorCode.WRONG_LENGTH, f"a flat vector of floats is needed, not {array.dtype} {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = array.astype(_LITTLE_ENDIAN)
    _require_finite(narrow)
    return narrow.tobytes()


def decode(data: bytes | bytearray | memoryview, *, dimension: int) -> Vector32:
    """Return the vector in bytes from the wire, as a read-only view where possible.

    Raises `WireError` unless there are exactly 4·d bytes and all numbers are finite.
    """
    length = memoryview(data).nbytes
    if length != BYTES_PER_PARAMETER * dimension:
        detail = f"{length} bytes, expected {BYTES_PER_PARAMETER * dimension} for {dimension} parameters"
        raise WireError(ErrorCode.WRONG_LENGTH, detail)
    vector = np.frombuffer(data, dtype=_LITTLE_ENDIAN).astype(np.float32, copy=False)
    vector.flags.writeable = False
    _require_finite(vector)
    return vector


def squared_norm(vector: Vector32) -> float:
    """Return |u|² in float64, because squares of large float32 values overflow in float32."""
    wide = vector.astype(np.float64)
    return float(wide @ wide)


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the SHA-256 of the bytes, in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def content_digest(data: bytes | bytearray | memoryview) -> str:
    """Return the value of the Content-Digest header for these bytes (RFC 9530)."""
    return content_digest_of(digest_of(data))


def content_digest_of(digest: str) -> str:
    """Return the value of the Content-Digest header for bytes with this SHA-256, in hexadecimal."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"


def parse_content_digest(header: str) -> str:
    """Return the hexadecimal SHA-256 in a Content-Digest header. The last of several equal keys counts.

    Raises `WireError` if the header has no valid sha-256 digest.
    """
    members = (member.strip().partition("=") for member in header.split(","))
    values = [value.partition(";")[0].strip() for name, _, value in members if name.strip() == "sha-256"]
    if not values:
        raise WireError(ErrorCode.DIGEST_REQUIRED, "no sha-256 digest in Content-Digest")
    value = values[-1]
    try:
        raw = base64.b64decode(value[1:-1], validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 32 or value[:1] != ":" or value[-1:] != ":":
        raise WireError(ErrorCode.DIGEST_REQUIRED, "the sha-256 digest must be 32 bytes in base64 between colons")
    return raw.hex()


def _require_finite(vector: Vector32) -> None:
    if not np.isfinite(vector).all():
        index = int(np.argmin(np.isfinite(vector)))
        raise WireError(ErrorCode.NOT_FINITE, f"element {index} is NaN or infinite")
