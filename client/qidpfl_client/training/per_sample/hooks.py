"""Gradients of single records from one ordinary pass: what went into every layer, and the gradient of what came out.

The backward pass stops at the layers' outputs: the gradients of the parameters themselves are never computed by it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from .gradients import Contribution
from .layer_rules import RULES, contributions_of


@dataclass(frozen=True)
class _Call:
    """One call of a layer. The edge stays what it was even if the output is changed in place afterwards."""

    layer: nn.Module
    entered: Tensor
    version: int
    edge: GradientEdge


def captured(network: nn.Module, inputs: Tensor, labels: Tensor) -> list[Contribution | None] | None:
    """What each record contributes to each parameter (None: nothing); None at all where no rule can tell for certain.

    That is so if a layer has no rule, is called twice, shares a parameter, or sees records beyond its first dimension.
    """
    calls: list[_Call] = []
    with _watched(network, calls):
        answers = network(inputs)
    parameters = list(network.parameters())
    loss = functional.cross_entropy(answers, labels, reduction="sum")
    if not _each_used_by_one_call(loss, calls, parameters):
        return None
    gradients = torch.autograd.grad(loss, [call.edge for call in calls]) if calls else ()
    found: dict[nn.Parameter, Contribution] = {}
    with torch.no_grad():
        for call, gradient in zip(calls, gradients, strict=True):
            if not len(call.entered) == len(gradient) == len(inputs) or call.entered._version != call.version:
                return None
            parts = contributions_of(call.layer, call.entered, gradient)
            if parts is None:
                return None
            found.update({call.layer.get_parameter(name): part for name, part in parts.items()})
    return [found.get(parameter) for parameter in parameters]


@contextmanager
def _watched(network: nn.Module, calls: list[_Call]) -> Iterator[None]:
    def note(layer: nn.Module, entered: tuple[Any, ...], output: Tensor) -> None:
        if entered and output.requires_grad:
            calls.append(_Call(layer, entered[0].detach(), entered[0]._version, get_gradient_edge(output)))

    hooks = [layer.register_forward_hook(note) for layer in network.modules() if type(layer) in RULES]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _each_used_by_one_call(loss: Tensor, calls: list[_Call], parameters: list[nn.Parameter]) -> bool:
    """Whether everything that the loss knows of the parameters went through the calls, each of them once."""
    called = Counter(parameter for call in calls for parameter in call.layer.parameters(recurse=False))
    used = _uses(loss)
    return all(called[parameter] == used[parameter] <= 1 for parameter in parameters)


def _uses(loss: Tensor) -> Counter[Tensor]:
    """How often each parameter occurs in the graph of the loss."""
    uses: Counter[Tensor] = Counter()
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is None:
                continue
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                uses[leaf] += 1
            elif following not in seen:
                seen.add(following)
                waiting.append(following)
    return uses
