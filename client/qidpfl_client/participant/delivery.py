"""Whether and when a participant delivers what it declared: at once, or as a testbed wants its slow clients."""

from dataclasses import dataclass
from typing import Protocol


class DeliveryPolicy(Protocol):
    """Whether and when a participant delivers what it declared. Testbeds use it for slow clients and drop-outs.

    A participant that is not `silent` withdraws its budget when it drops out, so that the round does not wait for it.
    """

    @property
    def silent(self) -> bool: ...

    def delivers(self, round_number: int) -> bool:
        """Whether the participant delivers in this round."""

    def delay_s(self, round_number: int) -> float:
        """How long the participant waits before it trains."""


@dataclass(frozen=True)
class ImmediateDelivery:
    """Delivers every declared update as soon as it is ready."""

    silent: bool = False

    def delivers(self, round_number: int) -> bool:
        return True

    def delay_s(self, round_number: int) -> float:
        return 0.0


IMMEDIATE_DELIVERY = ImmediateDelivery()
