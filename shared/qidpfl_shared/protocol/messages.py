"""The requests and answers of the HTTP API. docs/protocol.md explains when each is used."""

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ..core.noise_audit import NoiseVerdict
from ..core.planning import Standing
from ..core.privacy.mechanisms import MechanismName
from .errors import ErrorCode
from .fields import (
    Attempt,
    Choice,
    Count,
    Digest,
    EnrolmentCode,
    FieldValue,
    LabelCounts,
    LabelDistance,
    Message,
    Micro,
    ModelVersion,
    Moment,
    Name,
    PositiveCount,
    PrivacyValue,
    Rho,
    RoundNumber,
    Secret,
    SpentRho,
    Text,
    Tuple,
    is_absent,
)
from .ledger import BudgetRequest as BudgetRequest
from .ledger import Declaration as Declaration
from .ledger import Decline as Decline
from .ledger import Join as Join
from .signatures import ChainPosition, PublicKeyText, SignedMessage
from .task_spec import Ordinal, TaskSpec


class TaskState(StrEnum):
    """The states of a task."""

    ENROLLING = "enrolling"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether the task is over."""
        return self in (TaskState.FINISHED, TaskState.FAILED, TaskState.STOPPED)


class RoundState(StrEnum):
    """The states of a round. A void round has ended unpaid, and its task with it, unless an admin resumes the task."""

    OPEN = "open"
    SETTLED = "settled"
    VOID = "void"


_REASON = "why it ended: a code, or a code, a colon and a text, like `too_few_clients: too few pass the selection`"

# --- tasks -----------------------------------------------------------------------------------------------------------


class TaskSummary(Message):
    """A task in a list."""

    task_id: Name
    name: Name
    preset: Name | None
    state: Choice[TaskState]
    reason: Text | None = Field(default=None, description=_REASON)
    settled_rounds: Count
    horizon: PositiveCount
    clients: Count
    paid_micro: Micro
    paused: bool | None = Field(
        default=None,
        exclude_if=is_absent,
        description="true while no new round opens; only admin and viewer see it",
    )


class TaskView(TaskSummary):
    """A task with everything that defines it."""

    spec: TaskSpec
    spec_digest: Digest = Field(description="SHA-256 of the canonical JSON (RFC 8785) of `spec` as it is served here")
    chain: ChainPosition | None = Field(default=None, description="the newest position of its chain")


# --- enrolment -------------------------------------------------------------------------------------------------------


class EnrolRequest(Message):
    """Join a task. Until the token is used for the first time, a repeat with the same key gives a new token."""

    enrolment_code: EnrolmentCode = Field(repr=False)
    enrolment_key: Secret = Field(
        repr=False, description="a random text of the client, which makes the request idempotent"
    )
    ordinal: Ordinal | None = Field(
        default=None,
        description="the place that the client wants, and the shard of that number if the task has a partition; null:"
        " the lowest free place",
    )


class EnrolAnswer(SignedMessage):
    """The identity of the new client. The token is shown only once; the signature does not cover it."""

    kind: ClassVar[str] = "enrolment"
    unsigned: ClassVar[frozenset[str]] = frozenset({"token"})

    client_id: Name
    token: Secret = Field(repr=False)
    ordinal: Ordinal
    spec_digest: Digest = Field(description="of the spec of the task; pin it and refuse what contradicts it")
    public_key: PublicKeyText | None = Field(default=None, description="pin it: it signs all receipts of the task")


class Profile(Message):
    """What a client reports of itself. It cannot change later. The server cannot verify it, only bound and log it."""

    label_counts: LabelCounts | None = Field(
        default=None,
        description="the label histogram; null: the client sends none, which only selection rule `all` allows",
    )
    size: PositiveCount = Field(description="number of records; public")
    privacy_value: PrivacyValue | None = Field(
        default=None,
        description="value of one unit of budget (ν), within `bounds` of the spec; null: only in market `menu`",
    )
    histogram_rho: Rho | None = Field(
        default=None, description="null: the histogram is exact, an unprotected release, or there is none"
    )
    rho_cap: Rho | None = Field(default=None, description="largest budget in one round")
    lifetime_rho: Rho | None = Field(
        default=None,
        description="largest budget of the histogram and all rounds of this task together; null: the client does not"
        " say it",
    )

    @model_validator(mode="after")
    def _check(self) -> "Profile":
        if self.label_counts is None:
            if self.histogram_rho is not None:
                reason = "histogram_rho must be null without label_counts"
                raise PydanticCustomError(ErrorCode.HISTOGRAM_MISMATCH.value, reason)
        elif sum(self.label_counts) != self.size:
            raise PydanticCustomError(ErrorCode.HISTOGRAM_MISMATCH.value, "label_counts must add up to size")
        return self


class SelectionVerdict(Message):
    """Whether the client was selected. All fields except the counts are null before the selection.

    A client that sent no histogram has no label distance.
    """

    selected: bool | None = Field(
        default=None,
        description="null before the selection, and if it failed: too few clients passed, so none is selected, and the"
        " task has failed with `too_few_clients`",
    )
    label_distance: LabelDistance | None = None
    distance_threshold: LabelDistance | None = Field(default=None, description="null if the rule has no threshold")
    filled_up: bool = Field(default=False, description="selected only to reach the minimum")
    profiles: Count
    selected_clients: Count | None = None
    begins_in_s: float | None = Field(default=None, exclude_if=is_absent, description="longest wait for more clients")


class ClientSummary(Message):
    """A client as admin and viewer see it: its profile and the result of the selection."""

    client_id: Name
    ordinal: Ordinal
    state: Literal["enrolled", "profiled", "selected", "refused", "left"]
    size: PositiveCount | None = Field(
        default=None, description="null until the profile is stored, like the other fields of the profile"
    )
    privacy_value: PrivacyValue | None = None
    label_counts: Tuple[Count] | None = Field(default=None, description="null also if the client sent no histogram")
    histogram_rho: Rho | None = None
    rho_cap: Rho | None = None
    lifetime_rho: Rho | None = None
    label_distance: LabelDistance | None = Field(
        default=None, description="null before the selection, and without a histogram"
    )
    filled_up: bool = False
    set_aside: bool = False
    excluded_until: RoundNumber | None = Field(
        default=None, exclude_if=is_absent, description="the first round that the client may play again"
    )
    alignment: float | None = Field(
        default=None, exclude_if=is_absent, description="its alignment score over the first rounds of the task"
    )
    flagged: bool | None = Field(
        default=None, exclude_if=is_absent, description="whether its alignment is below the floor of the task"
    )


# --- rounds ----------------------------------------------------------------------------------------------------------


class RoundOffer(SignedMessage):
    """An open round for one client: all it needs to compute its best response, and no data of other clients.

    The signature covers what is the same for all clients of an attempt: this message, the member `round` of the answer,
    without `signature`, `standing`, `rho_max`, `base_rho`, `declare_in_s` and `deliver_in_s`.
    """

    kind: ClassVar[str] = "announcement"
    unsigned: ClassVar[frozenset[str]] = frozenset({"standing", "rho_max", "base_rho", "declare_in_s", "deliver_in_s"})

    round_number: RoundNumber
    attempt: Attempt
    reward_micro: Micro
    total: float = Field(
        ge=0,
        description="S: the sum of all budgets at the equilibrium, best answer S − φ·ν·S²/R; in an auction R/(φ·θ) for"
        " the price θ; in a menu the sum of all bases without caps",
    )
    standing: Choice[Standing] = Field(description="`invited`, or the reason why not")
    model_version: ModelVersion
    model_digest: Digest
    mechanism: Choice[MechanismName]
    clip_norm: float | None = Field(default=None, gt=0, description="null if the mechanism does not clip")
    dimension: PositiveCount
    rho_max: Rho = Field(description="the largest budget that this client may declare in this round")
    base_rho: Rho | None = Field(
        default=None, exclude_if=is_absent, description="market menu: the base e of the payments of this client"
    )
    noise: bool
    declare_by: Moment
    deliver_by: Moment
    declare_in_s: float = Field(ge=0, description="seconds left by the server's clock")
    deliver_in_s: float = Field(ge=0)


class BudgetReceipt(SignedMessage):
    """The recorded answer of the client."""

    kind: ClassVar[str] = "budget"

    round_number: RoundNumber
    client_id: Name | None = Field(default=None, description="null from coordinators that sign nothing")
    state: Literal["declared", "declined", "joined"]
    rho: SpentRho | None = Field(default=None, description="the declared budget, also after it was withdrawn")
    payment_micro: Micro | None = Field(
        default=None,
        exclude_if=is_absent,
        description="markets auction and menu: what the update of this budget earns if it counts, with its escrow",
    )
    recorded_at: Moment


class UpdateReceipt(SignedMessage):
    """The update is stored durably. A repeat of the same bytes gets the same receipt."""

    kind: ClassVar[str] = "update"

    round_number: RoundNumber
    client_id: Name
    digest: Digest
    byte_length: PositiveCount
    received_at: Moment


class ClientResult(Message):
    """What one client did and got in a settled round."""

    client_id: Name
    ordinal: Ordinal
    standing: Choice[Standing]
    rho: SpentRho
    declined: bool
    delivered: bool
    verdict: Choice[NoiseVerdict] | None = Field(default=None, description="of the noise audit; null if it is off")
    accepted: bool = Field(
        description="whether an update counts and is paid. Not one that the operator has voided and, with"
        " `privacy.audit: reject`, not `too_little_noise` and `too_much_noise`; `undecidable` counts"
    )
    payment_micro: Micro
    escrow_micro: Micro | None = Field(
        default=None, exclude_if=is_absent, description="held back until the task ends; only in tasks with escrow"
    )
    voided: bool | None = Field(
        default=None, exclude_if=is_absent, description="true if the operator has voided the update"
    )
    alignment: float | None = Field(
        default=None,
        exclude_if=is_absent,
        description="how well the update agrees with the others, N(0, 1) for a random direction; a heuristic",
    )
    regret: float | None = Field(
        default=None, ge=0, description="an estimate of what the client could have gained by another budget"
    )


class RoundTiming(Message):
    """When a round opened and closed, and how long the server computed."""

    opened_at: Moment = Field(description="of its first attempt")
    settled_at: Moment | None = Field(default=None, description="null unless it is settled")
    settlement_s: float | None = Field(
        default=None, ge=0, description="seconds of audit, mean, model and the closing transaction up to its commit"
    )
    evaluation_s: float | None = Field(default=None, ge=0, description="null if the model is not evaluated (yet)")
    evaluated_at: Moment | None = Field(
        default=None, exclude_if=is_absent, description="only if the model was evaluated after the settlement"
    )


class RoundResult(SignedMessage):
    """A round and its result. A client sees the totals and its own result; admin and viewer see all clients."""

    kind: ClassVar[str] = "result"

    round_number: RoundNumber
    attempt: Attempt
    state: Choice[RoundState]
    reward_micro: Micro
    paid_micro: Micro
    escrow_micro: Micro | None = Field(
        default=None, exclude_if=is_absent, description="held back; paid, escrow and kept add up to the reward"
    )
    kept_micro: Micro
    total: float = Field(ge=0, description="sum of all budgets at the equilibrium")
    declared_total: float | None = Field(
        default=None, ge=0, description="sum of the declared budgets; null while the round is open"
    )
    updates: Count
    model_version: ModelVersion
    model_digest: Digest | None = None
    accuracy: float | None = Field(default=None, ge=0, le=1, description="null if the model is not evaluated (yet)")
    loss: float | None = None
    timing: RoundTiming | None = Field(default=None, description="null for old rounds without a measurement")
    own: ClientResult | None = Field(
        default=None,
        description="the part of the client that asks; null while the round is open, also for one that has answered,"
        " and if the round was planned without it",
    )
    clients: Tuple[ClientResult] | None = None


class Announcement(Message):
    """The answer to a long poll: the open round if there is one, and the state of the task."""

    task_state: Choice[TaskState]
    reason: Text | None = Field(default=None, description=_REASON)
    round: RoundOffer | None = None
    last_result: RoundResult | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the last closed round with this client's part; only if asked for with `last_result=true`",
    )


# --- models, events --------------------------------------------------------------------------------------------------


class ModelInfo(Message):
    """A version of the global model. Version 0 is the first."""

    version: ModelVersion
    digest: Digest
    dimension: PositiveCount
    byte_length: PositiveCount


class Event(Message):
    """One line of a task's live feed. `id` increases; a client resumes the feed with it."""

    id: Count
    at: Moment
    kind: Name = Field(examples=["round.settled"])
    round_number: RoundNumber | None = None
    detail: Text | None = None
    fields: dict[str, FieldValue] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the same values for programs; absent in events without values, and of earlier versions",
    )
