"""How many records a pass may hold at once."""

import torch
from torch import Tensor, nn

# What a pass holds should stay in the cache of a processor, and should fill a graphics card without filling its memory.
_WORKING_SET = {"cpu": 24 * 2**20}
_WORKING_SET_ELSEWHERE = 512 * 2**20
# A pass holds every activation, its gradient, and something of either in between.
_COPIES = 3
_LARGEST_CHUNK = 8192


def bytes_kept(network: nn.Module, inputs: Tensor, *, besides: Tensor) -> int:
    """How many bytes a forward pass keeps for the backward pass, besides the parameters."""
    storages = {besides.untyped_storage().data_ptr(): 0}

    def note(tensor: Tensor) -> Tensor:
        storages.setdefault(tensor.untyped_storage().data_ptr(), tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        answers = network(inputs)
    # The graph must live until now, or the memory of one layer would be counted as that of the next.
    return sum(storages.values(), start=int(answers.numel() * answers.element_size()))


def advised_chunk(*, activations: int, gradients: int, device: torch.device) -> int:
    """How many records to compute at once, if each keeps so many bytes of activations and of gradients."""
    room = _WORKING_SET.get(device.type, _WORKING_SET_ELSEWHERE)
    return max(1, min(_LARGEST_CHUNK, room // max(1, _COPIES * activations + gradients)))
