"""Money in integer micro-units, and its exact split."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from . import arguments
from .arguments import ImpossibleArgument

MICRO = 1_000_000
# A billion units. Up to here a double distinguishes every micro-unit from the next one, in every language.
MAX_MICRO = 10**15


@dataclass(frozen=True)
class Split:
    """What each client is paid and what the server keeps. Together they are exactly the reward."""

    payments: tuple[int, ...]
    kept: int


def to_micro(amount: float) -> int:
    """Convert an amount of money to micro-units. Round to the nearest one, halves to even.

    Raises `ImpossibleArgument` for a negative amount, or one of more than a billion units.

    >>> to_micro(12.5)
    12500000
    """
    exact = Decimal(arguments.non_negative("amount", amount)) * MICRO
    micro = int(exact.to_integral_value(rounding=ROUND_HALF_EVEN))
    if micro > MAX_MICRO:
        raise ImpossibleArgument("amount", amount, f"must not exceed {MAX_MICRO / MICRO}")
    return micro


def from_micro(micro: int) -> float:
    """Convert micro-units to the nearest float in units.

    Raises `ImpossibleArgument` if `micro` is not a whole number of at least 0.

    >>> from_micro(12_500_000)
    12.5
    """
    return arguments.whole("micro", micro) / MICRO


def split_reward(*, reward_micro: int, declared: Sequence[float], delivered: Sequence[bool]) -> Split:
    """Pay ρ_i/Σ_declared ρ_j of the reward to each client that delivered. The server keeps the rest.

    The reward is first divided among all clients that *declared* a budget, by largest remainder (ties: the earlier
    client) and with exact fractions. Then the parts of clients that did not deliver are removed. A client therefore
    gains nothing when it keeps another client from delivering.

    Raises `ImpossibleArgument` if a budget is negative or not finite, or if the two sequences differ in length.

    >>> split_reward(reward_micro=100, declared=[1.0, 1.0, 1.0], delivered=[True, True, False])
    Split(payments=(34, 33, 0), kept=33)
    """
    reward_micro = arguments.whole("reward_micro", reward_micro)
    budgets = arguments.non_negative_vector("declared", declared).tolist()
    arrived = arguments.mask("delivered", delivered, length=len(budgets)).tolist()

    parts = _largest_remainder(reward_micro, budgets)
    payments = tuple(part if there else 0 for part, there in zip(parts, arrived, strict=True))
    return Split(payments=payments, kept=reward_micro - sum(payments))


def _largest_remainder(amount: int, weights: Sequence[float]) -> list[int]:
    """Divide `amount` into whole parts in proportion to the weights; all parts are 0 if no weight is positive."""
    scaled = _as_integers(weights)
    total = sum(scaled)
    if total == 0:
        return [0] * len(scaled)
    quotients, remainders = [], []
    for weight in scaled:
        quotient, remainder = divmod(amount * weight, total)
        quotients.append(quotient)
        remainders.append(remainder)
    left = amount - sum(quotients)
    for index in sorted(range(len(scaled)), key=lambda i: -remainders[i])[:left]:
        quotients[index] += 1
    return quotients


def _as_integers(weights: Sequence[float]) -> list[int]:
    """Multiply the weights by one power of two that makes all of them whole. Every float is such a fraction."""
    ratios = [weight.as_integer_ratio() for weight in weights]
    denominator = max((d for _, d in ratios), default=1)
    return [numerator * (denominator // own) for numerator, own in ratios]
