"""The releases in the ledgers of server and client: their names and their guarantees."""

import math
import re

from ..core.privacy.account import Release
from .task_spec import PrivacySpec

HISTOGRAM = "histogram"


def release_of(round_number: int) -> str:
    """Return the name of the release of a round."""
    return f"round/{round_number}"


def round_of(release: str) -> int | None:
    """Return the round of a release; None if it is not the release of a round."""
    match = re.fullmatch(r"round/([1-9][0-9]{0,6})", release)
    return None if match is None else int(match[1])


def round_release(*, privacy: PrivacySpec, round_number: int, rho: float, size: int) -> Release:
    """Return the release of a round's update by a client with `size` records."""
    mechanism = privacy.mechanism.build()
    label, proven = str(mechanism.name), math.inf
    if not privacy.noise:
        label += ", noise off, unprotected"
    else:
        proven = mechanism.proven_rho(rho=rho, size=size)
        label += ", heuristic: no privacy guarantee" if mechanism.heuristic else ""
    return Release(name=release_of(round_number), mechanism=label, rho=rho, proven_rho=proven)


def histogram_release(rho: float | None) -> Release:
    """Return the release of a label histogram with this budget; None: without noise."""
    if rho is None:
        return Release(name=HISTOGRAM, mechanism="exact histogram, unprotected", rho=0.0, proven_rho=math.inf)
    return Release(name=HISTOGRAM, mechanism="gaussian histogram", rho=rho, proven_rho=rho)
