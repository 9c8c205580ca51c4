"""What the clients' guarantees add up to: for the whole system, and for somebody who sees only the average."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .. import arguments
from ..arguments import Numbers, Vector
from .account import PrivacyAccount
from .conversion import Reading, epsilon_from_rho


@dataclass(frozen=True, kw_only=True)
class SystemStatement:
    """The guarantee for every record in the system, and what it does not cover."""

    rho: float
    epsilon: float
    delta: float
    unproven_releases: int

    def __str__(self) -> str:
        if np.isinf(self.rho):
            return "no privacy guarantee: at least one release is unprotected"
        caveat = f"; {self.unproven_releases} releases guarantee less than declared" if self.unproven_releases else ""
        return f"every record: {self.rho:.4g}-zCDP, that is ({self.epsilon:.4g}, {self.delta:g})-DP{caveat}"


def system_statement(
    *, accounts: Iterable[PrivacyAccount], delta: float, reading: Reading = Reading.TIGHT
) -> SystemStatement:
    """The system's guarantee: the *maximum* over clients, because a record sits at one client only.

    (Parallel composition.) The paper's sum over clients is a proxy of accuracy; it would be the guarantee only if the
    same record might sit at every client.
    """
    known = tuple(accounts)
    rho = max((account.spent_rho for account in known), default=0.0)
    unproven = sum(release.unproven for account in known for release in account.releases)
    epsilon = epsilon_from_rho(rho=rho, delta=delta, reading=reading)
    return SystemStatement(rho=rho, epsilon=epsilon, delta=delta, unproven_releases=unproven)


def central_rho(*, budgets: Numbers, weights: Numbers, noise_stds: Numbers) -> Vector:
    """Each client's zCDP against somebody who sees only the weighted sum, as under trusted or secure aggregation.

    There the noise of the others protects too: ρ_i·p_i²σ_i²/Σ_j p_j²σ_j², never more than ρ_i.
    """
    bids = arguments.non_negative_vector("budgets", budgets)
    shares = arguments.non_negative_vector("weights", weights, length=bids.size)
    stds = arguments.non_negative_vector("noise_stds", noise_stds, length=bids.size)
    variances = (shares * stds) ** 2
    total = float(variances.sum())
    seen: Vector = bids * (variances / total) if total > 0 else bids
    return seen
