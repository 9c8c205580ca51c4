"""The range that rewards may lie in, and where it, not a method, says what is paid."""

from dataclasses import dataclass

from ..results.tables import Tables

# Limits are rounded to micro-units before a task gets them.
_SAME_REWARD = 1e-6


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The smallest and the largest reward that a method may pay in a round (None: no limit), and what makes them so."""

    lowest: float
    highest: float | None
    kind: str

    def at_lowest(self, reward: float) -> bool:
        """Whether it is the smallest."""
        return abs(reward - self.lowest) <= _SAME_REWARD

    def at_highest(self, reward: float) -> bool:
        """Whether it is the largest."""
        return self.highest is not None and abs(reward - self.highest) <= _SAME_REWARD


def limits_in(tables: Tables) -> Limits | None:
    """The limits in one condition: what its calibration admits, or where that admits nothing, what it swept."""
    for fit in tables.fits:
        if fit.reward_min is not None:
            return Limits(lowest=fit.reward_min, highest=fit.reward_max, kind="admissible")
    swept = [row.reward for row in tables.calibration if row.accuracy is not None]
    return Limits(lowest=min(swept), highest=max(swept), kind="swept") if swept else None


def rewards_by_seed(tables: Tables, method: str) -> dict[int, list[float]]:
    """What a method paid in the rounds of each seed."""
    by_seed: dict[int, list[float]] = {}
    for row in sorted(tables.rounds, key=lambda row: (row.seed, row.round_number)):
        if row.method == method:
            by_seed.setdefault(row.seed, []).append(row.reward)
    return by_seed
