"""The sum of many releases, kept in memory so that a round costs the same however many came before.

The sum is exact. So an account from it has the same amounts, bit for bit, as one from all releases.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

from .account import PrivacyAccount, Release


class RunningAccount:
    """What a data set has released or reserved: each release is added once, and taken out if it is freed.

    >>> running = RunningAccount([Release(name="t/1", mechanism="gradient_once", rho=0.1, proven_rho=0.1)])
    >>> running.add(Release(name="t/2", mechanism="gradient_once", rho=0.2, proven_rho=0.2))
    >>> running.account(lifetime_rho=1.0).spent_rho == math.fsum([0.1, 0.2])
    True
    """

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._proven, self._unproven = _ExactSum(), _ExactSum()
        # The account of the present sums and these limits: a client needs it several times in a round.
        self._account: PrivacyAccount | None = None
        for release in releases:
            self.add(release)

    def add(self, release: Release) -> None:
        """Count a release."""
        self._account = None
        self._sum_of(release).add(release.proven_rho)

    def remove(self, release: Release) -> None:
        """Take out a release that was counted."""
        self._account = None
        self._sum_of(release).add(release.proven_rho, times=-1)

    def account(self, *, lifetime_rho: float = math.inf, accept_unproven: bool = False) -> PrivacyAccount:
        """The account of all releases so far. It holds a few sums, not the releases: it finds no duplicates."""
        known = self._account
        if known is not None and (known.lifetime_rho, known.accept_unproven) == (lifetime_rho, accept_unproven):
            return known
        sums = [_sum_release("proven", part, rho=part) for part in self._proven.parts()]
        # An unproven release declares less than it guarantees; this switches the lifetime limit off.
        sums += [_sum_release("unproven", part, rho=0.0) for part in self._unproven.parts()]
        self._account = PrivacyAccount(lifetime_rho=lifetime_rho, accept_unproven=accept_unproven, releases=tuple(sums))
        return self._account

    def _sum_of(self, release: Release) -> "_ExactSum":
        return self._unproven if release.unproven else self._proven


class _ExactSum:
    def __init__(self) -> None:
        self._finite = Fraction(0)
        self._infinite = 0

    def add(self, value: float, *, times: int = 1) -> None:
        if math.isinf(value):
            self._infinite += times
        else:
            self._finite += times * Fraction(value)

    def parts(self) -> list[float]:
        """Positive numbers that add up to the sum without rounding, largest first."""
        found, rest = [math.inf] if self._infinite else [], self._finite
        while rest > 0:
            part = float(rest)
            if part > rest:
                part = math.nextafter(part, 0.0)
            found.append(part)
            rest -= Fraction(part)
        return found


def _sum_release(kind: str, part: float, *, rho: float) -> Release:
    return Release(name=f"sum of {kind} releases", mechanism="all", rho=rho, proven_rho=part)
