"""The profile: what a client says of itself, with a label histogram that is noised or, openly, not."""

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
    """Refuse what can be known to be impossible before the records are there."""
    if owner.exact_histogram and not owner.accept_unproven:
        raise OwnerLimit("an exact histogram is an unprotected release (--accept-unproven makes it)")
    low, high = spec.bounds.privacy_value_min, spec.bounds.privacy_value_max
    if not low <= owner.privacy_value <= high:
        raise OwnerLimit(
            f"the privacy value {owner.privacy_value:g} is not one from {low:g} to {high:g}, as the task asks"
        )
    rho = 0.0 if owner.exact_histogram else owner.histogram_rho or spec.privacy.histogram_rho or 0.0
    if account.remaining_rho == 0 or rho > account.remaining_rho:
        raise OwnerLimit(
            f"of the lifetime budget rho {account.remaining_rho:g} is left, and the histogram takes {rho:g}"
        )


def make_profile(
    *, spec: TaskSpec, owner: Owner, learner: Learner, noise: NoiseSource, account: PrivacyAccount
) -> Profile:
    """The profile of these records, as the owner wants to be seen. `account` is the one before this release."""
    rho = None if owner.exact_histogram else _histogram_rho(spec, owner, learner.size)
    counts = tuple(int(count) for count in learner.label_counts)
    if len(counts) != spec.workload.labels:
        raise OwnerLimit(f"the data have {len(counts)} labels, the task {spec.workload.labels}")
    if learner.size > spec.bounds.size_max:
        raise OwnerLimit(f"the data have {learner.size} records, the task takes at most {spec.bounds.size_max}")
    if rho is not None:
        # Not named after the task: with a seed, experiments compare tasks in which clients show the same histogram.
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
    """The owner's choice, the task's suggestion, or what gives the label distance an error of about 0.05."""
    if owner.histogram_rho is not None:
        return owner.histogram_rho
    if spec.privacy.histogram_rho is not None:
        return spec.privacy.histogram_rho
    return spec.workload.labels * (18 / size) ** 2


def _finite(rho: float) -> float | None:
    return None if math.isinf(rho) else rho
