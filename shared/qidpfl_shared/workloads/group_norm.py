"""Convert a network with batch normalisation, which mixes records, into one with group normalisation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

# The usual number of groups (Wu and He 2018). A group has at least two channels if it can.
_MOST_GROUPS = 32


def with_group_norm(network: "nn.Module") -> "nn.Module":
    """Replace every batch normalisation in a network by a group normalisation of the same channels, and return it.

    The network changes in place; if it is itself a batch normalisation, the result is another one. Scale and shift of
    the replaced layers are copied. Their running statistics are lost: they were computed from records.
    """
    from torch import nn

    if isinstance(network, nn.modules.batchnorm._BatchNorm):
        return _converted(network)
    for name, layer in network.named_children():
        setattr(network, name, with_group_norm(layer))
    return network


def _converted(layer: "nn.modules.batchnorm._BatchNorm") -> "nn.Module":
    import torch
    from torch import nn

    channels = layer.num_features
    group = nn.GroupNorm(groups_of(channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        with torch.no_grad():
            group.weight.copy_(layer.weight)
            group.bias.copy_(layer.bias)
    return group


def groups_of(channels: int) -> int:
    """The number of groups for so many channels: it divides them, and leaves at least two in a group.

    >>> groups_of(64), groups_of(48), groups_of(7), groups_of(1)
    (32, 24, 1, 1)
    """
    return max(
        number
        for number in range(1, _MOST_GROUPS + 1)
        if channels % number == 0 and (number == 1 or channels // number > 1)
    )
