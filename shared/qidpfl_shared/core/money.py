"""Money in integer micro-units, and its exact split."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from . import arguments
from .arguments import ImpossibleArgument

MICRO = 1_000_000
# A billion units: up to here a float tells every micro-unit from the next, in every language.
MAX_MICRO = 10**15


@dataclass(frozen=True)
class Split:
    """What each client is paid and what the coordinator keeps; together exactly the reward."""

    payments: tuple[int, ...]
    kept: int


def to_micro(amount: float) -> int:
    """An amount of money in micro-units, rounded to the nearest, halves to even."""
    exact = Decimal(arguments.non_negative("amount", amount)) * MICRO
    micro = int(exact.to_integral_value(rounding=ROUND_HALF_EVEN))
    if micro > MAX_MICRO:
        raise ImpossibleArgument("amount", amount, f"must not exceed {MAX_MICRO / MICRO}")
    return micro


def from_micro(micro: int) -> float:
    """An amount in micro-units as the nearest float in whole units."""
    return arguments.whole("micro", micro) / MICRO


def split_reward(*, reward_micro: int, declared: Sequence[float], delivered: Sequence[bool]) -> Split:
    """Pay ρ_i/Σ_declared ρ_j of the reward to every client that delivered; the coordinator keeps the rest.

    The reward is divided among all who *declared* by largest remainder (ties: the earlier one), with exact fractions,
    and only then are those who did not deliver struck out: nobody gains a single micro-unit by knocking others out.
    """
    reward_micro = arguments.whole("reward_micro", reward_micro)
    budgets = arguments.non_negative_vector("declared", declared).tolist()
    arrived = arguments.mask("delivered", delivered, length=len(budgets)).tolist()

    parts = _largest_remainder(reward_micro, budgets)
    payments = tuple(part if there else 0 for part, there in zip(parts, arrived, strict=True))
    return Split(payments=payments, kept=reward_micro - sum(payments))


def _largest_remainder(amount: int, weights: Sequence[float]) -> list[int]:
    """Whole parts of `amount` in proportion to the weights that add up to it; all 0 when no weight is positive."""
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
    """The weights times one power of two that makes all of them whole: floats are fractions of that kind."""
    ratios = [weight.as_integer_ratio() for weight in weights]
    denominator = max((d for _, d in ratios), default=1)
    return [numerator * (denominator // own) for numerator, own in ratios]
