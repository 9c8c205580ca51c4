"""The profile of a client, with a label histogram that has noise or is declared as exact."""

import math

from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.protocol.messages import Profile
from qidpfl_shared.protocol.releases import HISTOGRAM
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import OwnerLimit
from ..noise import NoiseSource
from ..owner import Owner
from .data_source import Learner


def check_presentable(*, spec: TaskSpec, owner: Owner, account: PrivacyAccount) -> None:
    """Refuse a task that the owner's limits do not allow, before the client opens its records."""
    if owner.exact_histogram and not owner.accept_unproven:
        raise OwnerLimit("an exact histogram is an unprotected release (--accept-unproven allows it)")
    low, high = spec.bounds.privacy_value_min, spec.bounds.privacy_value_max
    if not low <= owner.privacy_value <= high:
        raise OwnerLimit(
            f"the privacy value {owner.privacy_value:g} is outside the range of the task, {low:g} to {high:g}"
        )
    rho = 0.0 if owner.exact_histogram else owner.histogram_rho or spec.privacy.histogram_rho or 0.0
    if account.remaining_rho == 0 or rho > account.remaining_rho:
        raise OwnerLimit(
            f"of the lifetime budget rho {account.remaining_rho:g} is left, and the histogram needs {rho:g}"
        )


def make_profile(
    *, spec: TaskSpec, owner: Owner, learner: Learner, noise: NoiseSource, account: PrivacyAccount
) -> Profile:
    """The profile of these records under the owner's settings. `account` is the one before this release."""
    rho = None if owner.exact_histogram else _histogram_rho(spec, owner, learner.size)
    counts = tuple(int(count) for count in learner.label_counts)
    if len(counts) != spec.workload.labels:
        raise OwnerLimit(f"the data have {len(counts)} labels, the task {spec.workload.labels}")
    if learner.size > spec.bounds.size_max:
        raise OwnerLimit(f"the data have {learner.size} records, the task takes at most {spec.bounds.size_max}")
    if rho is not None:
        # The name does not contain the task: with a seed, a client then has the same histogram in all compared tasks.
        draws = noise.standard_normal(len(counts), release=HISTOGRAM)
        counts = private_histogram(counts=counts, rho=rho, standard_noise=draws)
    return Profile(
        label_counts=counts,
        size=learner.size,
        privacy_value=owner.privacy_value,
        histogram_rho=rho,
        rho_cap=owner.rho_cap,
        lifetime_rho=_finite(account.remaining_rho),
    )


def _histogram_rho(spec: TaskSpec, owner: Owner, size: int) -> float:
    """The owner's choice, else the task's suggestion, else a value with an error of about 0.05 in label distance."""
    if owner.histogram_rho is not None:
        return owner.histogram_rho
    if spec.privacy.histogram_rho is not None:
        return spec.privacy.histogram_rho
    return spec.workload.labels * (18 / size) ** 2


def _finite(rho: float) -> float | None:
    return None if math.isinf(rho) else rho
