"""The number of records in one pass."""

import math

import torch
from torch import Tensor, nn

from qidpfl_shared.core.privacy.rounding import BLOCK

# Bytes that one pass may hold: on a CPU they should fit the cache, on a GPU a part of its memory.
_WORKING_SET = {"cpu": 40 * 2**20}
_WORKING_SET_ELSEWHERE = 512 * 2**20
# A pass holds each activation, its gradient, and intermediate results.
_COPIES = 3
_LARGEST_CHUNK = 8192
# A chunk is a multiple of this if it is larger: sums are computed in blocks of twice as many records.
_MULTIPLE = BLOCK // 2


def bytes_kept(network: nn.Module, inputs: Tensor, *, besides: Tensor) -> int:
    """The bytes that a forward pass keeps for the backward pass, without the inputs and the parameters."""
    # The inputs have no gradient and are there in any case.
    storages = {tensor.untyped_storage().data_ptr(): 0 for tensor in (inputs, besides)}

    def note(tensor: Tensor) -> Tensor:
        storages.setdefault(tensor.untyped_storage().data_ptr(), tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        answers = network(inputs)
    # `answers` keeps the graph alive until here. Otherwise a layer could reuse the address of an earlier one.
    return sum(storages.values(), start=int(answers.numel() * answers.element_size()))


def advised_chunk(*, activations: int, gradients: int, device: torch.device) -> int:
    """The number of records in one pass, for these bytes of activations and gradients per record."""
    room = _WORKING_SET.get(device.type, _WORKING_SET_ELSEWHERE)
    fitting = max(1, min(_LARGEST_CHUNK, room // max(1, _COPIES * activations + gradients)))
    return fitting if fitting < _MULTIPLE // 2 else math.ceil(fitting / _MULTIPLE) * _MULTIPLE
