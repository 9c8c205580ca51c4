"""How a participant behaves between its declaration and its delivery. The honest one delivers at once."""

from dataclasses import dataclass
from typing import Protocol


class Conduct(Protocol):
    """What testbeds vary: slowness and drop-out."""

    def delivers(self, round_number: int) -> bool:
        """Whether it delivers what it declared."""

    def delay_s(self, round_number: int) -> float:
        """How long it waits before it begins to train."""


@dataclass(frozen=True)
class Honest:
    """Delivers what it declared, as fast as it can."""

    def delivers(self, round_number: int) -> bool:
        return True

    def delay_s(self, round_number: int) -> float:
        return 0.0


HONEST = Honest()
