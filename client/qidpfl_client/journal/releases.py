"""Releases as they enter the journal."""

from qidpfl_shared.core.privacy.account import Release
from qidpfl_shared.protocol.messages import Profile, SpendState
from qidpfl_shared.protocol.releases import histogram_release, round_release
from qidpfl_shared.protocol.task_spec import TaskSpec

from .journal import Entry


def round_entry(*, task_id: str, spec: TaskSpec, round_number: int, rho: float, size: int) -> Entry:
    """The release of a round in the ledger, reserved, shown as what its mechanism guarantees."""
    release = round_release(privacy=spec.privacy, round_number=round_number, rho=rho, size=size)
    return _entry(task_id, release, SpendState.RESERVED)


def histogram_entry(task_id: str, profile: Profile) -> Entry:
    """The histogram in the ledger, spent as soon as it is there."""
    return _entry(task_id, histogram_release(profile.histogram_rho), SpendState.SPENT, acknowledged=True)


def _entry(task_id: str, release: Release, state: SpendState, *, acknowledged: bool = False) -> Entry:
    return Entry(
        task_id=task_id,
        release=release.name,
        mechanism=release.mechanism,
        rho=release.rho,
        proven_rho=release.proven_rho,
        state=state,
        acknowledged=acknowledged,
    )
