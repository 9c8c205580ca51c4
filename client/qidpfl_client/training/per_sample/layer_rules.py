"""Rules for common layers: from the input, and the gradient of the output, to the gradients of the parameters.

A rule returns None if it does not apply; the client then uses a general method for the whole network.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .gradients import Contribution, Kernels, Lookups, Products, Rows, finite, measured_in_place

Contributions = dict[str, Contribution]
# Numbers in a block of windows: the copy, and its products, should stay in the cache until they are measured.
_BLOCK = 1 << 20
# The layer is Any because each rule takes the one class that it is registered for.
Rule = Callable[[Any, Tensor, Tensor], Contributions | None]


def contributions_of(
    layer: nn.Module, entered: Tensor, gradient: Tensor, *, finite_input: bool, input_norms: Tensor | None = None
) -> Contributions | None:
    """The contributions to the parameters of a layer, by name; None without a rule.

    `input_norms` are the squared norms of what entered, if they are known.
    """
    if type(layer) in _KEEP_FACTORS:
        entered, gradient = entered if finite_input else finite(entered), finite(gradient)
    # The exact type: a subclass may compute something else.
    rule = RULES.get(type(layer))
    found = None if rule is None else rule(layer, entered, gradient)
    weight = None if found is None else found["weight"]
    if input_norms is not None and isinstance(weight, Products):
        weight.know_inputs(input_norms)
    return found


def _linear(layer: nn.Linear, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if entered.ndim < 2:
        return None
    if entered.ndim == 2:
        products = Products(gradient, entered)
        return _with_bias(layer, products, products.bias())
    left = gradient.reshape(len(gradient), -1, layer.out_features)
    right = entered.reshape(len(entered), -1, layer.in_features)
    if left.shape[1] == 1:
        products = Products(left[:, 0], right[:, 0])
        return _with_bias(layer, products, products.bias())
    return _with_bias(layer, Rows(torch.bmm(left.mT, right)), Rows(left.sum(1)))


def _convolution(layer: nn.Conv1d | nn.Conv2d, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if entered.ndim != len(layer.kernel_size) + 2:
        return None
    records, groups = len(entered), layer.groups
    outer, inner = layer.out_channels // groups, layer.in_channels // groups
    left = torch.unflatten(gradient.movedim(1, -1).flatten(1, -2), -1, (groups, outer)).permute(0, 2, 3, 1)
    windows, lines = _windows(layer, entered)
    width = math.prod(windows.shape[2 + len(layer.kernel_size) :])
    rows = gradient.new_empty(len(lines), records, layer.out_channels * width)
    block = max(1, min(records, _BLOCK // max(1, (windows[0].numel() + left[0].numel() + rows[:, 0].numel()))))
    copied, squared = gradient.new_empty(block, *windows.shape[1:]), []
    for start in range(0, records, block):
        found = rows[:, start : start + block]
        copy = copied[: found.shape[1]].copy_(windows[start : start + block])
        right = copy.view(found.shape[1] * groups, -1, width)
        errors = left[start : start + block].flatten(0, 1)
        for line, part in zip(lines, found, strict=True):
            torch.bmm(errors, right[:, line : line + errors.shape[2]], out=part.view(len(right), outer, width))
        squared.append(measured_in_place(found))
    kernels = Kernels(rows, torch.cat(squared), outputs=layer.out_channels, channels=inner)
    return _with_bias(layer, kernels, Rows(left.sum(3).flatten(1)))


def _windows(layer: nn.Conv1d | nn.Conv2d, entered: Tensor) -> tuple[Tensor, Sequence[int]]:
    """The input of the kernel at each place, as a view (record, group, place…, kernel…, channel).

    Of the first axis, the view has the places only: the lines of the kernel see the same input, further on. The second
    result is the first place of each line, if places are counted along all axes. With a stride a line would see other
    places; the view then has all of the kernel, as one line.
    """
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padding = _padding(layer)
    seen = functional.pad(entered, padding, mode=mode) if any(padding) else entered
    # Copies are fast if the numbers that stay next to each other are many: those of all channels.
    seen = seen.movedim(1, -1).contiguous().movedim(-1, 1)
    spatial = len(layer.kernel_size)
    by_line = layer.stride[0] == 1
    for axis, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        if axis > 2 or not by_line:
            seen = seen.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    grouped = torch.unflatten(seen, 1, (layer.groups, -1))
    places, kernel = range(3, 3 + spatial), range(3 + spatial, grouped.ndim)
    view = grouped.permute(0, 1, *places, *kernel, 2)
    step = layer.dilation[0] * math.prod(view.shape[3 : 2 + spatial])
    return view, range(0, step * layer.kernel_size[0], step) if by_line else (0,)


def _padding(layer: nn.Conv1d | nn.Conv2d) -> list[int]:
    """The padding before and after each axis, last axis first, as `torch.nn.functional.pad` takes it."""
    if layer.padding == "valid":
        return [0] * 2 * len(layer.kernel_size)
    if isinstance(layer.padding, str):  # "same"
        totals = [dilation * (size - 1) for size, dilation in zip(layer.kernel_size, layer.dilation, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return [size for size in reversed(layer.padding) for _ in range(2)]


def _embedding(layer: nn.Embedding, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse or entered.ndim < 1:
        return None
    records = len(entered)
    indices, gradients = entered.reshape(records, -1), gradient.reshape(records, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        gradients = gradients * (indices != layer.padding_idx)[:, :, None]
    return {"weight": Lookups(indices, gradients, rows=layer.num_embeddings)}


def _layer_norm(layer: nn.LayerNorm, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if not layer.elementwise_affine or entered.ndim <= len(layer.normalized_shape):
        return None
    normal = functional.layer_norm(entered, layer.normalized_shape, eps=layer.eps)
    width = math.prod(layer.normalized_shape)
    scaled = (gradient * normal).reshape(len(entered), -1, width).sum(1)
    return _with_bias(layer, Rows(scaled), Rows(gradient.reshape(len(entered), -1, width).sum(1)))


def _group_norm(layer: nn.GroupNorm, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if not layer.affine:
        return None
    normal = functional.group_norm(entered, layer.num_groups, eps=layer.eps)
    shape = (len(entered), layer.num_channels, -1)
    scaled = (gradient * normal).reshape(shape).sum(2)
    return _with_bias(layer, Rows(scaled), Rows(gradient.reshape(shape).sum(2)))


def _with_bias(layer: nn.Module, weight: Contribution, bias: Contribution) -> Contributions:
    return {"weight": weight} if layer.bias is None else {"weight": weight, "bias": bias}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
# Layers whose contributions may stay in two factors. All others make rows, which become finite by themselves.
_KEEP_FACTORS = {nn.Linear}
