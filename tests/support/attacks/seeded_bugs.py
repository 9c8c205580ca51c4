"""Faults that are put into the product on purpose. This is the only place that patches the inside of the trainer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qidpfl_client.training import data_loader, mechanisms, objective
from qidpfl_client.training.per_sample import clipping, layer_rules
from qidpfl_client.training.per_sample.gradients import Rows
from qidpfl_client.training.per_sample.hooks import gradients_by_hooks
from qidpfl_shared.workloads.records import Features
from support.attacks.attack import Attack
from support.attacks.known import cancelling_positions, mixed_records


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A fault, and where a search must find it. Without attacks to start from it must find the fault by itself."""

    put_in: Callable[[pytest.MonkeyPatch], None]
    mechanism: str = "gradient_once"
    network: str = "linear"
    start: tuple[Callable[[], Attack], ...] = ()


def no_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record keeps the whole of its gradient."""
    monkeypatch.setattr(clipping, "clip_factors", lambda squared, **_: torch.ones_like(squared))


def norms_of_four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The squared norm is cut to four bits, so it is up to an eighth too small."""
    right = clipping.clip_factors

    def cut(squared: Tensor, **options: Any) -> Tensor:
        mantissa, exponent = torch.frexp(squared)
        return right(torch.ldexp((mantissa * 16).floor() / 16, exponent), **options)

    monkeypatch.setattr(clipping, "clip_factors", cut)


class FloatGram:
    """Sums of outer products whose norm comes from Gram matrices in float32, where large terms cancel."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self._left = left
        self._right = right
        self.width = left[0].numel() + right[0].numel()

    def squared_norms(self) -> Tensor:
        pairs = torch.bmm(self._left, self._left.mT) * torch.bmm(self._right, self._right.mT)
        return pairs.sum((1, 2)).clamp(min=0).double()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        left = self._left * factors[:, None, None]
        return (left.flatten(0, 1).T @ self._right.flatten(0, 1)).reshape(-1).double()


def norms_from_gram_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers have the norms that they had before cancellation was thought of."""

    def rule(layer: nn.Linear, entered: Tensor, gradient: Tensor) -> dict[str, Any]:
        left = gradient.reshape(len(gradient), -1, layer.out_features)
        right = entered.reshape(len(entered), -1, layer.in_features)
        return {"weight": FloatGram(left, right), "bias": Rows(left.sum(1))}

    monkeypatch.setitem(layer_rules.RULES, nn.Linear, rule)


def mixing_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network may mix records, and the fast rules are used without a comparison."""
    monkeypatch.setattr(objective, "check_records_stay_apart", lambda *_, **__: None)
    monkeypatch.setattr(clipping, "METHODS", (gradients_by_hooks,))
    monkeypatch.setattr(clipping, "_is_right", lambda *_, **__: True)


def features_not_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bolt_on` takes features of any norm."""

    def unchanged(features: Features, *, norm: float) -> Features:
        return features

    monkeypatch.setattr(data_loader, "bounded", unchanged)


def update_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """`update_clip` uploads the whole update."""
    monkeypatch.setattr(mechanisms, "clipped_update", lambda update, **_: update)


BUGS = {
    "no clipping": Bug(put_in=no_clipping),
    "no clipping in noisy epochs": Bug(put_in=no_clipping, mechanism="noisy_epochs"),
    "norms of four bits": Bug(put_in=norms_of_four_bits, network="one weight"),
    "norms from Gram matrices": Bug(
        put_in=norms_from_gram_matrices, network="shared over positions", start=(cancelling_positions,)
    ),
    "mixing accepted": Bug(put_in=mixing_accepted, network="mixes through zeros"),
    "mixing accepted, steps first": Bug(
        put_in=mixing_accepted, network="steps first", start=(lambda: mixed_records("steps first"),)
    ),
    "features not bounded": Bug(put_in=features_not_bounded, mechanism="bolt_on"),
    "update not clipped": Bug(put_in=update_not_clipped, mechanism="update_clip"),
}
