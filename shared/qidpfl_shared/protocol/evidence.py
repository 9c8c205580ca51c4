"""Messages that only prove something: the receipt of a profile, and what is left of a deleted task."""

from typing import ClassVar

from .chain import digest_of_facts
from .fields import Choice, Count, Digest, Micro, Moment, Name, Text
from .messages import Profile, TaskState
from .signatures import SignedMessage


class ProfileReceipt(SignedMessage):
    """The profile is stored durably.

    `profile_digest` is the SHA-256 of the canonical JSON (RFC 8785) of all fields of `Profile`; one that was not sent
    is null.
    """

    kind: ClassVar[str] = "profile"

    client_id: Name
    profile_digest: Digest


class Tombstone(SignedMessage):
    """What is left of a deleted task. `chain` is the last position of its chain."""

    kind: ClassVar[str] = "tombstone"

    task_id: Name
    name: Name
    spec_digest: Digest
    state: Choice[TaskState]
    reason: Text | None = None
    clients: Count
    settled_rounds: Count
    paid_micro: Micro
    deleted_by: Name
    deleted_at: Moment


def profile_digest(profile: Profile) -> str:
    """The digest of a profile: of all its fields, with null for those that it does not have."""
    return digest_of_facts(profile.model_dump(mode="json"))
