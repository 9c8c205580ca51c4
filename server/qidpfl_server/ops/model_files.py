"""Model files: named tensors in the safetensors format, or the flat float32 vector of the protocol."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import WireError, decode, flatten, unflatten

from ..errors import CoordinatorError


def safetensors_bytes(spec: TaskSpec, vector: bytes) -> bytes:
    """The flat vector of a model as named tensors in the safetensors format."""
    return save(dict(unflatten(vector=decode(vector, dimension=spec.dimension), layout=spec.layout)))


def read_model_file(path: Path, spec: TaskSpec) -> Parameters:
    """Read a model of this task from FILE.safetensors, or from FILE.f32 with the vector of the protocol."""
    data = path.read_bytes()
    try:
        if path.suffix == ".safetensors":
            return flatten(tensors=load(data), layout=spec.layout)
        if path.suffix == ".f32":
            return decode(data, dimension=spec.dimension)
    except WireError as error:
        raise CoordinatorError(f"{path} is not a model of this task: {error.detail}") from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CoordinatorError(f"{path} cannot be read: {error}") from error
    raise CoordinatorError(f"{path} must be a .safetensors or .f32 file")
