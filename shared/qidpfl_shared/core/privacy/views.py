"""The clients' guarantees together: for the whole system, and against an observer who sees only the average."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .. import arguments
from ..arguments import Numbers, Vector
from .account import PrivacyAccount
from .conversion import Reading, epsilon_from_rho


@dataclass(frozen=True, kw_only=True)
class SystemStatement:
    """The guarantee for every record in the system, and the number of weaker releases."""

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
    """Return the system's guarantee: the *maximum* over clients, because a record belongs to one client only.

    This is parallel composition. The paper's sum over clients is a proxy of accuracy. It would be the guarantee only if
    the same record could belong to every client. Raises `ImpossibleArgument` for a `delta` outside (0, 1).

    >>> from qidpfl_shared.core.privacy.account import Release
    >>> release = Release(name="task/1", mechanism="gradient_once", rho=0.1, proven_rho=0.1)
    >>> print(system_statement(accounts=[PrivacyAccount(), PrivacyAccount().charge(release)], delta=1e-5))
    every record: 0.1-zCDP, that is (1.914, 1e-05)-DP
    """
    known = tuple(accounts)
    rho = max((account.spent_rho for account in known), default=0.0)
    unproven = sum(release.unproven for account in known for release in account.releases)
    epsilon = epsilon_from_rho(rho=rho, delta=delta, reading=reading)
    return SystemStatement(rho=rho, epsilon=epsilon, delta=delta, unproven_releases=unproven)


def central_rho(*, budgets: Numbers, weights: Numbers, noise_stds: Numbers) -> Vector:
    """Return each client's zCDP against an observer of the weighted sum only, as under secure aggregation.

    The noise of the other clients protects too: ρ_i·p_i²σ_i²/Σ_j p_j²σ_j², which is at most ρ_i. Raises
    `ImpossibleArgument` for negative numbers and for sequences of different lengths.

    >>> central_rho(budgets=[0.1, 0.1], weights=[0.5, 0.5], noise_stds=[1.0, 1.0]).tolist()
    [0.05, 0.05]
    """
    bids = arguments.non_negative_vector("budgets", budgets)
    shares = arguments.non_negative_vector("weights", weights, length=bids.size)
    stds = arguments.non_negative_vector("noise_stds", noise_stds, length=bids.size)
    variances = (shares * stds) ** 2
    total = float(variances.sum())
    seen: Vector = bids * (variances / total) if total > 0 else bids
    return seen
