"""The values that a journal stores, and how they become rows."""

import math
import sqlite3
from dataclasses import dataclass, replace

from qidpfl_shared.core.privacy.account import Release
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import Profile, RoundOffer
from qidpfl_shared.protocol.releases import histogram_release, round_release
from qidpfl_shared.protocol.task_spec import TaskSpec

from .group_log import SqlValue
from .limits import finite, or_infinite

# The error analysis of docs/privacy.md covers the arithmetic of these devices.
PROVEN_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A task that this data set has joined, or is about to join. The tokens are secrets and are never shown.

    `fingerprint` is that of the records with which the profile was made. `next_token` is a new token that the client
    has not used yet: until then both are kept.
    """

    task_id: str
    server: str
    enrolment_key: str
    spec: str
    spec_digest: str
    client_id: str | None = None
    token: str | None = None
    ordinal: int | None = None
    profile: str | None = None
    lifetime_rho: float | None = None
    fingerprint: str | None = None
    next_token: str | None = None

    def __repr__(self) -> str:
        return f"Membership(task_id={self.task_id!r}, server={self.server!r}, client_id={self.client_id!r})"


@dataclass(frozen=True, kw_only=True)
class RecordsVersion:
    """The records at one time. Size and time are unknown in journals of earlier versions."""

    fingerprint: str
    size: int | None = None
    recorded_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class SeenOffer:
    """The terms of a round. They must be the same in every attempt and after every restart."""

    round_number: int
    model_version: int
    model_digest: str
    reward_micro: int
    total: float
    base_rho: float | None = None

    @classmethod
    def of(cls, offer: RoundOffer) -> "SeenOffer":
        return cls(
            round_number=offer.round_number,
            model_version=offer.model_version,
            model_digest=offer.model_digest,
            reward_micro=offer.reward_micro,
            total=offer.total,
            base_rho=offer.base_rho,
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One release, from its reservation on. `training_s` is how long the client trained for it."""

    task_id: str
    release: str
    mechanism: str
    rho: float
    proven_rho: float
    state: SpendState
    digest: str | None = None
    acknowledged: bool = False
    payment_micro: int | None = None
    training_s: float | None = None

    @classmethod
    def of(cls, task_id: str, release: Release, state: SpendState, *, acknowledged: bool = False) -> "Entry":
        return cls(
            task_id=task_id,
            release=release.name,
            mechanism=release.mechanism,
            rho=release.rho,
            proven_rho=release.proven_rho,
            state=state,
            acknowledged=acknowledged,
        )


# Not the payload, which may be large.
COLUMNS = ", ".join(("position", *Entry.__dataclass_fields__))


def round_entry(
    *,
    task_id: str,
    spec: TaskSpec,
    round_number: int,
    rho: float,
    size: int,
    device_type: str = "cpu",
    claimed: bool = False,
    common_noise: bool = False,
) -> Entry:
    """The reserved release of a round, charged at what its mechanism guarantees on this type of device.

    A `claimed` release has the noise of the owner's program: it is charged as if it had none. So is one with noise that
    other tasks have too.
    """
    release = round_release(privacy=spec.privacy, round_number=round_number, rho=rho, size=size)
    if common_noise and spec.privacy.noise:
        release = _unprotected(release)
    elif claimed:
        label = f"{release.mechanism}, claimed by the owner's program: no privacy guarantee"
        release = replace(release, mechanism=label, proven_rho=math.inf)
    elif device_type not in PROVEN_DEVICES:
        label = f"{release.mechanism}, computed on {device_type}, heuristic: no privacy guarantee"
        release = replace(release, mechanism=label, proven_rho=math.inf)
    return Entry.of(task_id, release, SpendState.RESERVED)


def histogram_entry(task_id: str, profile: Profile, *, common_noise: bool = False) -> Entry | None:
    """The release of the label histogram, if the profile has one. It counts as spent from the start."""
    if profile.label_counts is None:
        return None
    release = histogram_release(profile.histogram_rho)
    if common_noise and profile.histogram_rho is not None:
        release = _unprotected(release)
    return Entry.of(task_id, release, SpendState.SPENT, acknowledged=True)


def _unprotected(release: Release) -> Release:
    return replace(release, mechanism=f"{release.mechanism}, common noise, unprotected", proven_rho=math.inf)


def seen_offer(row: sqlite3.Row) -> SeenOffer:
    """The terms of a round in a row."""
    # An older journal that is opened read-only does not have all columns.
    return SeenOffer(**{name: row[name] for name in SeenOffer.__dataclass_fields__ if name in row.keys()})  # noqa: SIM118


def columns_of(entry: Entry) -> dict[str, SqlValue]:
    """An entry as a row, without its payload."""
    return vars(entry) | {
        "proven_rho": finite(entry.proven_rho),
        "state": entry.state.value,
        "acknowledged": int(entry.acknowledged),
    }


def release_of_entry(entry: Entry) -> Release:
    """What an entry charges to the account."""
    return Release(
        name=f"{entry.task_id}/{entry.release}",
        mechanism=entry.mechanism,
        rho=entry.rho,
        proven_rho=entry.proven_rho,
    )


def entry_of(row: sqlite3.Row) -> Entry:
    """The entry of a row. Raises `TypeError` or `ValueError` if it is damaged."""
    # An older journal that is opened read-only does not have all columns.
    values = {name: row[name] for name in Entry.__dataclass_fields__ if name in row.keys()}  # noqa: SIM118
    values["proven_rho"] = or_infinite(row["proven_rho"])
    values["state"] = SpendState(row["state"])
    values["acknowledged"] = bool(row["acknowledged"])
    for name in ("rho", "proven_rho", "payment_micro"):
        if not isinstance(values[name], int | float | None):
            raise TypeError(f"{name} is not a number")
    return Entry(**values)
