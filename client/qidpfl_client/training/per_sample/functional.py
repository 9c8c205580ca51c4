"""Per-sample gradients for any network. Slower than the rules for single layers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from .gradients import Contribution, Rows

# What a network may raise for a record that it does not accept: anything, as it may be the owner's program.
NETWORK_FAILURES = (Exception,)


def gradients_by_vmap(
    network: nn.Module, inputs: Tensor, labels: Tensor, *, scale: float = 1.0, input_norms: Tensor | None = None
) -> list[Contribution | None]:
    """One row per record and parameter, with `torch.func.vmap`."""
    named = {name: tensor.detach() for name, tensor in network.named_parameters()}
    kept = dict(network.named_buffers())

    def loss(parameters: dict[str, Tensor], entered: Tensor, label: Tensor) -> Tensor:
        answer = functional_call(network, {**kept, **parameters}, (entered[None],))
        return functional.cross_entropy(answer, label[None]) * scale

    gradients: Callable[..., dict[str, Tensor]] = vmap(grad(loss), in_dims=(None, 0, 0))
    rows = gradients(named, inputs, labels)
    return [Rows(rows[name]) for name in named]


def gradients_one_by_one(
    network: nn.Module, inputs: Tensor, labels: Tensor, *, scale: float = 1.0, input_norms: Tensor | None = None
) -> list[Contribution | None]:
    """One row per record and parameter, with a backward pass per record. This is the definition.

    A record for which the network fails, for example because a value is not in its table, has the gradient zero.
    """
    tensors = list(network.parameters())
    rows: list[list[Tensor]] = [[] for _ in tensors]
    for entered, label in zip(inputs, labels, strict=True):
        try:
            loss = functional.cross_entropy(network(entered[None]), label[None]) * scale
            found = torch.autograd.grad(loss, tensors, allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except NETWORK_FAILURES:
            found = tuple(map(torch.zeros_like, tensors))
        for row, tensor, gradient in zip(rows, tensors, found, strict=True):
            row.append(torch.zeros_like(tensor) if gradient is None else gradient.to_dense())
    return [Rows(torch.stack(row)) for row in rows]
