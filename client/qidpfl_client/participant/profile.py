"""The profile of a client, with a label histogram that has noise or is declared as exact."""

from qidpfl_shared.core.privacy.account import PrivacyAccount
from qidpfl_shared.core.privacy.histogram import distance_error, private_histogram
from qidpfl_shared.protocol.messages import Profile
from qidpfl_shared.protocol.releases import HISTOGRAM
from qidpfl_shared.protocol.task_spec import SelectionRule, TaskSpec

from ..errors import JournalError, OwnerLimit
from ..journal.entries import Membership
from ..noise import NoiseSource
from ..owner import Owner, lowered
from .data_source import Learner

# With this error of the label distance, noise decides the selection: thresholds are below 1.
_USELESS_ERROR = 0.5


def check_presentable(*, spec: TaskSpec, owner: Owner, account: PrivacyAccount) -> None:
    """Refuse a task that the owner's limits do not allow, before the client opens its records."""
    if owner.exact_histogram and not owner.accept_unproven:
        raise OwnerLimit("an exact histogram is an unprotected release (--accept-unproven allows it)")
    low, high = spec.bounds.privacy_value_min, spec.bounds.privacy_value_max
    # Where nothing is reported, a smaller value only means a larger gain.
    too_low = owner.privacy_value < low and spec.design.reports_values
    if too_low or owner.privacy_value > high:
        raise OwnerLimit(
            f"the privacy value {owner.privacy_value:g} is outside the range of the task, {low:g} to {high:g}"
        )
    if owner.no_histogram and spec.selection.rule is not SelectionRule.ALL:
        raise OwnerLimit(
            f"--no-histogram: the task selects clients by their label histograms (rule {spec.selection.rule})"
        )
    # Without a suggestion the budget depends on the number of records, which is not known yet.
    unbudgeted = owner.exact_histogram or owner.no_histogram or spec.privacy.histogram_rho is None
    rho = 0.0 if unbudgeted else lowered(owner.histogram_rho, spec.privacy.histogram_rho)
    if account.remaining_rho == 0 or rho > account.remaining_rho:
        raise OwnerLimit(
            f"of the lifetime budget rho {account.remaining_rho:g} is left, and the histogram needs {rho:g}"
        )


def check_records(*, spec: TaskSpec, learner: Learner) -> None:
    """Refuse records that do not fit the task."""
    if learner.size < 1:
        raise OwnerLimit("there are no records to take part with")
    if learner.size > spec.bounds.size_max:
        raise OwnerLimit(f"the data have {learner.size} records, the task takes at most {spec.bounds.size_max}")
    if len(learner.label_counts) != spec.workload.labels:
        raise OwnerLimit(f"the data have {len(learner.label_counts)} labels, the task {spec.workload.labels}")


def check_learner(membership: Membership, spec: TaskSpec, learner: Learner) -> None:
    """Refuse records that do not fit the task, or are not those of the profile that it already has."""
    check_records(spec=spec, learner=learner)
    if membership.profile is None or membership.fingerprint in (None, learner.fingerprint):
        return
    size = Profile.model_validate_json(membership.profile).size
    # Equal counts explain nothing: then the contents differ.
    counts = "" if size == learner.size else f": it has {size} records, and there are {learner.size}"
    raise JournalError(
        f"the records have changed since the profile of this task was made{counts}; take part with the records of the"
        " profile, or in another task"
    )


def make_profile(*, spec: TaskSpec, owner: Owner, learner: Learner, noise: NoiseSource) -> Profile:
    """The profile of these records under the owner's settings."""
    check_records(spec=spec, learner=learner)
    counts: tuple[int, ...] | None = tuple(int(count) for count in learner.label_counts)
    rho = None
    if owner.no_histogram:
        counts = None
    elif not owner.exact_histogram:
        rho = _histogram_rho(spec, owner, learner.size)
        # The name does not contain the task: with a seed, a client then has the same histogram in all compared tasks.
        draws = noise.standard_normal(spec.workload.labels, release=HISTOGRAM)
        counts = private_histogram(counts=learner.label_counts, rho=rho, standard_noise=draws)
    return Profile(
        label_counts=counts,
        size=learner.size,
        privacy_value=owner.privacy_value if spec.design.reports_values else None,
        histogram_rho=rho,
        rho_cap=lowered(owner.rho_cap, spec.bounds.rho_max),
        # What is left would tell what was spent in other tasks. The client declines when nothing is left.
        lifetime_rho=None,
    )


def histogram_in_words(profile: Profile, *, labels: int) -> str:
    """What the histogram of a profile costs, and how exact it is, in one line."""
    if profile.label_counts is None:
        return "label histogram: none is sent"
    if profile.histogram_rho is None:
        return "label histogram: exact, an unprotected release"
    error = distance_error(size=profile.size, labels=labels, rho=profile.histogram_rho)
    line = f"label histogram: costs rho {profile.histogram_rho:.3g}; with {profile.size} records it shows the label"
    if error > _USELESS_ERROR:
        return f"{line} distance (0 to 2) with an error of about {error:.1g}, which is too much to be selected by it"
    return f"{line} distance (0 to 2) with an error of about {error:.2g}"


def _histogram_rho(spec: TaskSpec, owner: Owner, size: int) -> float:
    """The task's suggestion, or a value with an error of about 0.05 in label distance; at most the owner's ceiling."""
    suggested = spec.privacy.histogram_rho
    return lowered(owner.histogram_rho, spec.workload.labels * (18 / size) ** 2 if suggested is None else suggested)
