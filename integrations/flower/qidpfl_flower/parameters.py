"""The parameters of a Flower app and the layout of a task: the same tensors under the same names, all of them floats.

A record of arrays in Flower may have anything. A task has trained parameters only: a private mean of counters or of the
statistics of batch normalisation means nothing, and such layers mix records.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec
from qidpfl_shared.workloads.workload import LayoutMismatch

Array = npt.NDArray[Any]
Flat = npt.NDArray[np.float64]

REMEDY = (
    "use GroupNorm or LayerNorm instead of batch normalisation (qidpfl_shared.workloads.group_norm.with_group_norm"
    " converts a torch model), or leave out what is not trained"
)
# The last part of the names of buffers that torch keeps for batch normalisation.
BATCH_NORM_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def check_trained_only(layout: TensorLayout) -> None:
    """Raise `LayoutMismatch` if a task has statistics of batch normalisation among its parameters."""
    for tensor in layout.tensors:
        _refuse_buffer(tensor.name)


def layout_of_arrays(arrays: Mapping[str, Array]) -> TensorLayout:
    """The layout of the arrays of an initial model.

    Raises `LayoutMismatch` for arrays that are not trained parameters.

    >>> layout_of_arrays({"weight": np.zeros((3, 2)), "bias": np.zeros(3)}).dimension
    9
    """
    for name, array in arrays.items():
        _check_kind(name, array)
    return TensorLayout(tensors=tuple(TensorSpec(name=name, shape=array.shape) for name, array in arrays.items()))


def flat_parameters(returned: Mapping[str, Array] | Sequence[Array], layout: TensorLayout) -> Flat:
    """The arrays that an app returned as one vector in the order of the layout.

    Arrays without names (of a `NumPyClient`) are in that order. Raises `LayoutMismatch` unless they are the task's.

    >>> layout = layout_of_arrays({"weight": np.zeros((1, 2)), "bias": np.zeros(1)})
    >>> flat_parameters({"bias": np.ones(1), "weight": np.zeros((1, 2))}, layout).tolist()
    [0.0, 0.0, 1.0]
    """
    named = returned if isinstance(returned, Mapping) else _named(returned, layout)
    for name, array in named.items():
        _check_kind(name, array)
    expected = {tensor.name for tensor in layout.tensors}
    if set(named) != expected:
        missing, unknown = sorted(expected - set(named)), sorted(set(named) - expected)
        raise LayoutMismatch(
            f"the app does not return the parameters of the task: missing {_shown(missing)}, unknown {_shown(unknown)}"
        )
    for tensor in layout.tensors:
        if named[tensor.name].shape != tensor.shape:
            raise LayoutMismatch(
                f"the app returns {tensor.name} with shape {named[tensor.name].shape}, the task has {tensor.shape}"
            )
    return np.concatenate([named[tensor.name].astype(np.float64).ravel() for tensor in layout.tensors])


def _named(arrays: Sequence[Array], layout: TensorLayout) -> dict[str, Array]:
    if len(arrays) != len(layout.tensors):
        raise LayoutMismatch(
            f"the app returns {len(arrays)} arrays, the task has {len(layout.tensors)} tensors"
            f" ({_shown([tensor.name for tensor in layout.tensors])}); buffers are not parameters: {REMEDY}"
        )
    return {tensor.name: array for tensor, array in zip(layout.tensors, arrays, strict=True)}


def _check_kind(name: str, array: Array) -> None:
    _refuse_buffer(name)
    if array.dtype.kind != "f":
        raise LayoutMismatch(
            f"{name} is {array.dtype}: only floating-point parameters can be averaged with noise; {REMEDY}"
        )


def _refuse_buffer(name: str) -> None:
    if name.rpartition(".")[2] in BATCH_NORM_BUFFERS:
        raise LayoutMismatch(f"{name} is a statistic of batch normalisation, which mixes records: {REMEDY}")


def _shown(names: Sequence[str]) -> str:
    """Some names in one line.

    >>> _shown(["a", "b", "c", "d", "e"]), _shown([])
    ('a, b, c and 2 more', 'none')
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more if names else "none"
