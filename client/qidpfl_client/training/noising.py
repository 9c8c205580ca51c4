"""Noise on its way into a release."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..noise import NoiseSource


@dataclass(frozen=True, kw_only=True)
class Noising:
    """The noise of one release: of a declared budget from a source, or none at all if `rho` is None."""

    source: NoiseSource
    rho: float | None
    release: str

    def added_to(self, values: Tensor, *, std: Callable[[float], float], part: str = "") -> Tensor:
        """The values plus fresh noise of the standard deviation for the budget, in float64 on the CPU."""
        if self.rho is None:
            return values
        draws = self.source.standard_normal(values.numel(), release=f"{self.release}{part}")
        draws *= std(self.rho)
        return values.to("cpu", torch.float64) + torch.from_numpy(draws)
