"""Per-sample gradients from one ordinary pass: hooks record the input of each layer, and the gradient of its output.

The backward pass stops at the outputs of the layers: it never computes the gradients of the parameters.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from .gradients import Contribution, Products, finite
from .layer_rules import RULES, contributions_of


@dataclass(frozen=True)
class _Call:
    """One call of a layer. The edge stays valid if the output is later changed in place."""

    layer: nn.Module
    entered: Tensor
    version: int
    edge: GradientEdge


def gradients_by_place(
    network: nn.Module, inputs: Tensor, labels: Tensor, *, scale: float = 1.0, input_norms: Tensor | None = None
) -> list[Contribution | None] | None:
    """The same for images of several channels, stored by place: torch and the rules of convolutions are faster so.

    Returns None for other records. A network that takes its activations apart by `view` does not accept such images.
    """
    if inputs.ndim != 4 or inputs.shape[1] < 2:
        return None
    by_place = inputs.contiguous(memory_format=torch.channels_last)
    return gradients_by_hooks(network, by_place, labels, scale=scale, input_norms=input_norms)


def gradients_by_hooks(
    network: nn.Module, inputs: Tensor, labels: Tensor, *, scale: float = 1.0, input_norms: Tensor | None = None
) -> list[Contribution | None] | None:
    """The contribution of each record to each parameter, None for a parameter without one.

    `input_norms` are the squared norms of the records, if they are known.
    Returns None if the rules do not cover the network: a layer has no rule, is called twice, shares a parameter, or
    has records outside its first dimension.
    """
    if _is_one_matrix(network) and inputs.ndim == 2:
        return _of_one_matrix(network, inputs, labels, scale=scale, input_norms=input_norms)
    calls: list[_Call] = []
    version = inputs._version
    with _watched(network, calls):
        answers = network(inputs)
    parameters = list(network.parameters())
    if not _each_used_by_one_call(answers, calls, parameters):
        return None
    gradients: tuple[Tensor, ...] = ()
    if calls:
        errors = _loss_gradient(answers, labels)
        errors = errors if scale == 1 else errors.mul_(scale)
        gradients = torch.autograd.grad(answers, [call.edge for call in calls], errors)
    found: dict[nn.Parameter, Contribution] = {}
    with torch.no_grad():
        for call, gradient in zip(calls, gradients, strict=True):
            if not len(call.entered) == len(gradient) == len(inputs) or call.entered._version != call.version:
                return None
            # The records themselves are finite, and the first layer is the one where a copy would cost most.
            untouched = call.entered.data_ptr() == inputs.data_ptr() and inputs._version == version
            parts = contributions_of(
                call.layer,
                call.entered,
                gradient,
                finite_input=untouched,
                input_norms=input_norms if untouched and call.entered.shape == inputs.shape else None,
            )
            if parts is None:
                return None
            found.update({getattr(call.layer, name): part for name, part in parts.items()})
    return [found.get(parameter) for parameter in parameters]


def _is_one_matrix(network: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether the network is one linear layer, as torch has it."""
    hooks = network._forward_hooks or network._forward_pre_hooks or network._backward_hooks
    return type(network) is nn.Linear and not hooks and "forward" not in vars(network)


@torch.no_grad()
def _of_one_matrix(
    network: nn.Linear, inputs: Tensor, labels: Tensor, *, scale: float, input_norms: Tensor | None
) -> list[Contribution | None]:
    """The same computation without hooks and graph, which cost as much as the gradients of a small matrix."""
    products = Products(finite(_loss_gradient(network(inputs), labels).mul_(scale)), inputs)
    if input_norms is not None:
        products.know_inputs(input_norms)
    return [products] if network.bias is None else [products, products.bias()]


def _loss_gradient(answers: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the summed cross-entropy by the answers: the softmax, less 1 at the label."""
    with torch.no_grad():
        if answers.ndim == 2 and labels.ndim == 1:
            # By columns: torch computes the softmax of many short rows several times slower.
            errors = answers.T.contiguous().softmax(0)
            return errors.scatter_add_(0, labels[None], errors.new_full((1, len(labels)), -1.0)).T
    leaf = answers.detach().requires_grad_()
    return torch.autograd.grad(functional.cross_entropy(leaf, labels, reduction="sum"), leaf)[0]


@contextmanager
def _watched(network: nn.Module, calls: list[_Call]) -> Iterator[None]:
    def note(layer: nn.Module, entered: tuple[Tensor, ...], output: Tensor) -> None:
        if entered and output.requires_grad:
            calls.append(_Call(layer, entered[0].detach(), entered[0]._version, get_gradient_edge(output)))

    hooks = [layer.register_forward_hook(note) for layer in network.modules() if type(layer) in RULES]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _each_used_by_one_call(answers: Tensor, calls: list[_Call], parameters: list[nn.Parameter]) -> bool:
    """Whether each parameter reaches the answers through at most one recorded call, and in no other way."""
    called = Counter(parameter for call in calls for parameter in call.layer.parameters(recurse=False))
    used = _uses(answers)
    return all(called[parameter] == used[parameter] <= 1 for parameter in parameters)


def _uses(answers: Tensor) -> Counter[Tensor]:
    """How often each parameter occurs in the graph of the answers."""
    uses: Counter[Tensor] = Counter()
    waiting, seen = [answers.grad_fn], {answers.grad_fn}
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is None:
                continue
            # Only the nodes of parameters have this attribute; torch has no public type for them.
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                uses[leaf] += 1
            elif following not in seen:
                seen.add(following)
                waiting.append(following)
    return uses
