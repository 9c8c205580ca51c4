"""Releases in the ledger: their names, and what each proves."""

import math
import re

from qidpfl_shared.protocol.messages import Profile, SpendState
from qidpfl_shared.protocol.tasks import TaskSpec

from .journal import Entry

HISTOGRAM = "histogram"


def release_of(round_number: int) -> str:
    """The name of a round's release."""
    return f"round/{round_number}"


def round_of(release: str) -> int | None:
    """The round that a release belongs to; None where it is not the one of a round."""
    match = re.fullmatch(r"round/([1-9][0-9]{0,6})", release)
    return None if match is None else int(match[1])


def round_entry(*, task_id: str, spec: TaskSpec, round_number: int, rho: float, size: int) -> Entry:
    """The release of a round in the ledger, reserved, shown as what its mechanism guarantees."""
    mechanism = spec.privacy.mechanism.build()
    label, proven = str(mechanism.name), math.inf
    if not spec.privacy.noise:
        label += ", noise off, unprotected"
    else:
        proven = mechanism.proven_rho(rho=rho, size=size)
        label += ", heuristic: no privacy guarantee" if mechanism.heuristic else ""
    return Entry(
        task_id=task_id,
        release=release_of(round_number),
        mechanism=label,
        rho=rho,
        proven_rho=proven,
        state=SpendState.RESERVED,
    )


def histogram_entry(task_id: str, profile: Profile) -> Entry:
    """The histogram in the ledger, spent as soon as it is there."""
    exact = profile.histogram_rho is None
    return Entry(
        task_id=task_id,
        release=HISTOGRAM,
        mechanism="exact histogram, unprotected" if exact else "gaussian histogram",
        rho=profile.histogram_rho or 0.0,
        proven_rho=math.inf if profile.histogram_rho is None else profile.histogram_rho,
        state=SpendState.SPENT,
        acknowledged=True,
    )
