"""The privacy account: an append-only record of the releases of one data set, with a lifetime limit.

Budgets may depend on earlier outputs, so the limit is a privacy filter. For zCDP the plain sum stays valid
(Feldman & Zrnic 2021). The limit counts what each release *guarantees*, not what was declared.
"""

import math
from dataclasses import dataclass, field, replace

from .. import arguments
from ..arguments import ImpossibleArgument
from .conversion import Reading, epsilon_from_rho

# The relative amount by which a rounded sum may exceed the limit: three times 0.1 fits into 0.3.
_TOLERANCE = 1e-12


class ReleaseRefused(Exception):
    """The account refuses a release. Nothing is recorded.

    ReleaseRefused
      LifetimeExceeded    it would spend more than the lifetime budget
      UnprovenRelease     it proves less than it declares, and the owner has not accepted that
      DuplicateRelease    a release of this name is already recorded
    """


class LifetimeExceeded(ReleaseRefused):
    """The release would spend more than is left of the lifetime budget."""


class UnprovenRelease(ReleaseRefused):
    """The release guarantees less than it declares, and the owner has not accepted unproven releases."""


class DuplicateRelease(ReleaseRefused):
    """A release of this name is already in the account."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """One entry: what was released, what was declared for it, and what is proven.

    `name` is unique in an account, for example "task/round". `rho` is the declared budget; the game, the payment and
    the cap of a round use it. `proven_rho` is what the mechanism guarantees; infinite for an unprotected release.
    """

    name: str
    mechanism: str
    rho: float
    proven_rho: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ImpossibleArgument("name", self.name, "must be text and not empty")
        arguments.non_negative("rho", self.rho)
        arguments.limit("proven_rho", self.proven_rho)

    @property
    def unproven(self) -> bool:
        """Whether the guarantee is weaker than declared."""
        return self.proven_rho > self.rho * (1 + _TOLERANCE)

    @property
    def unprotected(self) -> bool:
        """Whether there is no guarantee."""
        return math.isinf(self.proven_rho)


@dataclass(frozen=True, kw_only=True)
class PrivacyAccount:
    """The releases of one data set so far, under a lifetime limit. Charging it returns a new account.

    >>> account = PrivacyAccount(lifetime_rho=0.3)
    >>> account = account.charge(Release(name="task/1", mechanism="gradient_once", rho=0.1, proven_rho=0.1))
    >>> round(account.remaining_rho, 3), round(account.epsilon(delta=1e-5), 3)
    (0.2, 1.914)
    """

    lifetime_rho: float = math.inf
    accept_unproven: bool = False
    releases: tuple[Release, ...] = field(default=())

    def __post_init__(self) -> None:
        arguments.limit("lifetime_rho", self.lifetime_rho)
        arguments.truth("accept_unproven", self.accept_unproven)

    @property
    def spent_rho(self) -> float:
        """The zCDP of all releases together; infinite after an unprotected release."""
        return math.fsum(release.proven_rho for release in self.releases)

    @property
    def limited(self) -> bool:
        """Whether the lifetime limit applies. An accepted unproven release switches it off."""
        return not any(release.unproven for release in self.releases)

    @property
    def remaining_rho(self) -> float:
        """What is left of the lifetime budget: the cap of the next round. Infinite if there is no limit."""
        if not self.limited or math.isinf(self.lifetime_rho):
            return math.inf
        left = self.lifetime_rho - self.spent_rho
        # A remainder from rounding is not a budget.
        return left if left > self.lifetime_rho * _TOLERANCE else 0.0

    def charge(self, release: Release) -> "PrivacyAccount":
        """Return the account with one more release.

        Raises `DuplicateRelease`, `UnprovenRelease` or `LifetimeExceeded`.
        """
        if any(release.name == recorded.name for recorded in self.releases):
            raise DuplicateRelease(f"{release.name!r} is already recorded; charging it again would hide a release")
        if release.unproven and not self.accept_unproven:
            raise UnprovenRelease(
                f"{release.name!r} by {release.mechanism} declares rho {release.rho:g} but guarantees only "
                f"{release.proven_rho:g}; the owner has not accepted unproven releases"
            )
        charged = replace(self, releases=(*self.releases, release))
        if charged.limited and charged.spent_rho > self.lifetime_rho * (1 + _TOLERANCE):
            raise LifetimeExceeded(
                f"{release.name!r} needs rho {release.proven_rho:g}, but only {self.remaining_rho:g} is left "
                f"of {self.lifetime_rho:g}"
            )
        return charged

    def epsilon(self, *, delta: float, reading: Reading = Reading.TIGHT) -> float:
        """Return the epsilon of all releases together at this delta."""
        return epsilon_from_rho(rho=self.spent_rho, delta=delta, reading=reading)
