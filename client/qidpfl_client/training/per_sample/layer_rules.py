"""Rules for common layers: from the input, and the gradient of the output, to the gradients of the parameters.

A rule returns None if it does not apply; the client then uses a general method for the whole network.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .gradients import Contribution, Lookups, Rows, sum_of_products

Contributions = dict[str, Contribution]
# Numbers in a block of windows: the copy should stay in the cache until it is multiplied.
_BLOCK = 1 << 20
# The layer is Any because each rule takes the one class that it is registered for.
Rule = Callable[[Any, Tensor, Tensor], Contributions | None]


def contributions_of(layer: nn.Module, entered: Tensor, gradient: Tensor) -> Contributions | None:
    """The contributions to the parameters of a layer, by name; None without a rule."""
    # The exact type: a subclass may compute something else.
    rule = RULES.get(type(layer))
    return None if rule is None else rule(layer, entered, gradient)


def _linear(layer: nn.Linear, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if entered.ndim < 2:
        return None
    left = gradient.reshape(len(gradient), -1, layer.out_features)
    right = entered.reshape(len(entered), -1, layer.in_features)
    return _with_bias(layer, sum_of_products(left, right), left.sum(1))


def _convolution(layer: nn.Conv1d | nn.Conv2d, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if entered.ndim != len(layer.kernel_size) + 2:
        return None
    windows, groups = _windows(layer, entered), layer.groups
    inner, places = windows.shape[1:-2].numel() // groups, windows.shape[-2:].numel()
    outer = layer.out_channels // groups
    left = gradient.reshape(len(entered), groups, outer, places)
    bias = left.sum(3).flatten(1)
    rows = gradient.new_empty(len(entered) * groups, outer, inner)
    block = max(1, _BLOCK // (groups * inner * places))
    for start in range(0, len(entered), block):
        stop = min(start + block, len(entered))
        right = windows[start:stop].reshape(-1, inner, places)
        torch.bmm(left[start:stop].flatten(0, 1), right.mT, out=rows[start * groups : stop * groups])
    return _with_bias(layer, Rows(rows.view(len(entered), -1)), bias)


def _windows(layer: nn.Conv1d | nn.Conv2d, entered: Tensor) -> Tensor:
    """The input of the kernel at each place, as a view (record, channel, kernel…, height, width)."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padding = _padding(layer)
    seen = functional.pad(entered, padding, mode=mode) if any(padding) else entered
    spatial = len(layer.kernel_size)
    for axis, (size, stride, dilation) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        seen = seen.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    kernel_first = seen.permute(0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
    return kernel_first if spatial == 2 else kernel_first.unsqueeze(-2)


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
    return _with_bias(layer, Rows(scaled), gradient.reshape(len(entered), -1, width).sum(1))


def _group_norm(layer: nn.GroupNorm, entered: Tensor, gradient: Tensor) -> Contributions | None:
    if not layer.affine:
        return None
    normal = functional.group_norm(entered, layer.num_groups, eps=layer.eps)
    shape = (len(entered), layer.num_channels, -1)
    return _with_bias(layer, Rows((gradient * normal).reshape(shape).sum(2)), gradient.reshape(shape).sum(2))


def _with_bias(layer: nn.Module, weight: Contribution, bias: Tensor) -> Contributions:
    return {"weight": weight} if layer.bias is None else {"weight": weight, "bias": Rows(bias)}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
