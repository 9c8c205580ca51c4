"""Messages of tokens and certificates: tokens of operators with their roles, new tokens of clients, enrolment."""

from enum import StrEnum

from pydantic import Field

from .fields import Choice, Message, Moment, Name, Seconds, Secret
from .task_spec import Ordinal


class OperatorRole(StrEnum):
    """What an operator may do: a viewer only reads."""

    ADMIN = "admin"
    VIEWER = "viewer"


class CreateOperatorToken(Message):
    """A new token of an operator, for one task or for all tasks."""

    name: Name = Field(description="whose token it is; for lists and logs", examples=["dashboard"])
    role: Choice[OperatorRole]
    task_id: Name | None = Field(default=None, description="the only task that the token is for; null: all tasks")
    valid_s: Seconds | None = Field(default=None, description="seconds until the token expires; null: never")


class RotateOperatorToken(Message):
    """Replace a token. The old one stays valid for the overlap, so that all programs that use it can change."""

    overlap_s: float = Field(default=3600.0, ge=0, le=2_592_000, description="seconds for which the old token is valid")
    valid_s: Seconds | None = Field(default=None, description="seconds until the new token expires; null: as before")


class OperatorTokenInfo(Message):
    """A token of an operator without the token itself."""

    token_id: Name
    name: Name
    role: Choice[OperatorRole]
    task_id: Name | None
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    rotated_at: Moment | None = Field(description="when the token was last replaced")
    old_valid_until: Moment | None = Field(default=None, description="until when the token before it is still valid")


class CreatedOperatorToken(Message):
    """A new token. It is shown only once."""

    token: Secret = Field(repr=False)
    info: OperatorTokenInfo


class NewClientToken(Message):
    """The next token of a client. The current one stays valid until this one is used for the first time."""

    token: Secret = Field(repr=False)


class CertificateEnrolment(Message):
    """Join a task with the TLS certificate of the connection instead of an enrolment code."""

    ordinal: Ordinal | None = Field(default=None, description="the data shard that a testbed client wants")
