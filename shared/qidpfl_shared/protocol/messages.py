"""Requests and answers of the HTTP API. What each is for stands in the protocol's table of steps."""

from enum import StrEnum
from typing import Annotated, Any, Literal

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
    Message,
    Micro,
    ModelVersion,
    Moment,
    Name,
    PositiveCount,
    PrivacyValue,
    Rho,
    RoundNumber,
    SpentRho,
    Text,
    Tuple,
    Yes,
)
from .task_spec import Ordinal, TaskSpec

Secret = Annotated[str, Field(min_length=16, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
EnrolmentCode = Annotated[
    str,
    Field(max_length=400, pattern=r"^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$", description="{task_id}.{secret}"),
]
LabelDistance = Annotated[float, Field(ge=0, le=2, description="L1 distance of label frequencies to the reference")]


class TaskState(StrEnum):
    """The life of a task."""

    ENROLLING = "enrolling"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self in (TaskState.FINISHED, TaskState.FAILED, TaskState.STOPPED)


class RoundState(StrEnum):
    """The life of a round; a void round is opened again as its next attempt."""

    OPEN = "open"
    SETTLED = "settled"
    VOID = "void"


class SpendState(StrEnum):
    """What became of a budget: reserved at the declaration, spent when bytes left, freed when they never did."""

    RESERVED = "reserved"
    SPENT = "spent"
    SPENT_UNPAID = "spent_unpaid"
    FREED = "freed"


# --- tasks -----------------------------------------------------------------------------------------------------------


class TaskSummary(Message):
    """A task in a list."""

    task_id: Name
    name: Name
    preset: Name | None
    state: Choice[TaskState]
    reason: Text | None = Field(default=None, description="why it ended")
    settled_rounds: Count
    horizon: PositiveCount
    clients: Count
    paid_micro: Micro


class TaskView(TaskSummary):
    """A task with everything that defines it."""

    spec: TaskSpec
    spec_digest: Digest


class CreateTask(Message):
    """A new task: a preset, and what is different in it."""

    name: Name = Field(examples=["digits-1"])
    preset: Name = Field(examples=["digits"])
    overrides: dict[str, Any] = Field(default={}, examples=[{"game": {"horizon": 5}}])
    single_use_codes: int = Field(default=0, ge=0, le=10_000, description="0: one code for many clients")


class CreatedTask(Message):
    """The new task, and its enrolment codes: they are shown here and never again."""

    task: TaskView
    enrolment_codes: Tuple[str]


# --- enrolment -------------------------------------------------------------------------------------------------------


class EnrolRequest(Message):
    """Join a task. Repeating it with the same key before the profile is stored gives the same client a fresh token."""

    enrolment_code: EnrolmentCode = Field(repr=False)
    enrolment_key: Secret = Field(
        repr=False, description="the client's own random text, which makes the request repeatable"
    )
    ordinal: Ordinal | None = Field(default=None, description="wished place, i.e. data shard, of a testbed client")


class EnrolAnswer(Message):
    """Who the client is from now on. The token is shown once."""

    client_id: Name
    token: Secret = Field(repr=False)
    ordinal: Ordinal
    spec_digest: Digest = Field(description="pin it: an announcement that contradicts this spec must be refused")


class Profile(Message):
    """What a client says of itself; frozen once stored. Not verifiable, so bounded and logged."""

    label_counts: Tuple[Count] = Field(min_length=1, max_length=100_000)
    size: PositiveCount = Field(description="number of records; public")
    privacy_value: PrivacyValue
    histogram_rho: Rho | None = Field(default=None, description="null: the histogram is exact, an unprotected release")
    rho_cap: Rho | None = Field(default=None, description="largest budget in one round")
    lifetime_rho: Rho | None = Field(default=None, description="largest budget in all rounds together")

    @model_validator(mode="after")
    def _check(self) -> "Profile":
        if sum(self.label_counts) != self.size:
            raise PydanticCustomError(ErrorCode.HISTOGRAM_MISMATCH.value, "label_counts must add up to size")
        return self


class SelectionVerdict(Message):
    """Whether the client was selected; everything but the counts is null until selection has taken place."""

    selected: bool | None = None
    label_distance: LabelDistance | None = None
    distance_threshold: LabelDistance | None = Field(default=None, description="null where the rule has none")
    filled_up: bool = Field(default=False, description="selected only to reach the minimum")
    profiles: Count
    selected_clients: Count | None = None


class ClientSummary(Message):
    """A client as admin and viewer see it: everything it said of itself, and the verdict."""

    client_id: Name
    ordinal: Ordinal
    state: Literal["enrolled", "profiled", "selected", "refused", "left"]
    size: PositiveCount | None = Field(default=None, description="null until the profile is stored, like the rest")
    privacy_value: PrivacyValue | None = None
    label_counts: Tuple[Count] | None = None
    histogram_rho: Rho | None = None
    rho_cap: Rho | None = None
    lifetime_rho: Rho | None = None
    label_distance: LabelDistance | None = Field(default=None, description="null until selection has taken place")
    filled_up: bool = False
    set_aside: bool = False


# --- rounds ----------------------------------------------------------------------------------------------------------


class RoundOffer(Message):
    """An open round as one client sees it: enough to compute and check its best response, and nobody else's secret."""

    round_number: RoundNumber
    attempt: Attempt
    reward_micro: Micro
    total: float = Field(ge=0, description="sum S of all budgets at the equilibrium")
    standing: Choice[Standing] = Field(description="`invited`, or why not")
    model_version: ModelVersion
    model_digest: Digest
    mechanism: Choice[MechanismName]
    clip_norm: float | None = Field(default=None, gt=0, description="null where the mechanism does not clip")
    dimension: PositiveCount
    rho_max: Rho
    noise: bool
    declare_by: Moment
    deliver_by: Moment
    declare_in_s: float = Field(ge=0, description="seconds left, by the coordinator's clock")
    deliver_in_s: float = Field(ge=0)


class Announcement(Message):
    """The answer to a long poll: the open round, or the state of a task that has none."""

    task_state: Choice[TaskState]
    reason: Text | None = None
    round: RoundOffer | None = None


class Declaration(Message):
    """The privacy budget that the client sells in this round."""

    rho: Rho


class Decline(Message):
    """The client does not take part in this round. Also takes back a declaration, once, before the upload."""

    decline: Yes
    reason: Text = Field(examples=["lifetime budget exhausted"])


class Join(Message):
    """The client takes part in a round without a game (policy none)."""

    join: Yes


BudgetRequest = Declaration | Decline | Join


class BudgetReceipt(Message):
    """What the coordinator has recorded of the client's answer."""

    round_number: RoundNumber
    state: Literal["declared", "declined", "joined"]
    rho: SpentRho | None = Field(default=None, description="what was declared, also after it was taken back")
    recorded_at: Moment


class UpdateReceipt(Message):
    """The update is durable. A repeat of the same bytes gets this same receipt."""

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
    verdict: Choice[NoiseVerdict] | None = Field(default=None, description="of the noise audit; null where it is off")
    accepted: bool
    payment_micro: Micro
    regret: float | None = Field(
        default=None, ge=0, description="what the client could have gained by another budget, as far as is known"
    )


class RoundTiming(Message):
    """When a round was opened and closed, and how long the coordinator computed in between."""

    opened_at: Moment = Field(description="of its first attempt")
    settled_at: Moment | None = Field(default=None, description="null unless it is settled")
    settlement_s: float | None = Field(
        default=None, ge=0, description="seconds of audit, average, model and the closing transaction up to its commit"
    )
    evaluation_s: float | None = Field(default=None, ge=0, description="null where nothing was evaluated")


class RoundResult(Message):
    """A round and what came of it. A client sees the totals and itself; admin and viewer see everybody."""

    round_number: RoundNumber
    attempt: Attempt
    state: Choice[RoundState]
    reward_micro: Micro
    paid_micro: Micro
    kept_micro: Micro
    total: float = Field(ge=0, description="sum of all budgets at the equilibrium")
    declared_total: float | None = Field(default=None, ge=0, description="sum really declared; null while open")
    updates: Count
    model_version: ModelVersion
    model_digest: Digest | None = None
    accuracy: float | None = Field(default=None, ge=0, le=1)
    loss: float | None = None
    timing: RoundTiming | None = Field(default=None, description="null for rounds from before it was measured")
    own: ClientResult | None = None
    clients: Tuple[ClientResult] | None = None


# --- ledger, models, events ------------------------------------------------------------------------------------------


class LedgerEntry(Message):
    """One release of a client, with what was declared, what is proven, and what was paid for it."""

    release: Name = Field(description="`histogram`, or the round as `round/3`")
    mechanism: Text = Field(description="with the word `heuristic` or `unprotected` where it proves less than declared")
    state: Choice[SpendState]
    rho: SpentRho = Field(description="declared")
    proven_rho: SpentRho | None = Field(description="guaranteed; null: unprotected")
    digest: Digest | None = None
    payment_micro: Micro | None = None


class Ledger(Message):
    """A client's own account with one task."""

    client_id: Name
    entries: Tuple[LedgerEntry]
    spent_rho: SpentRho | None = Field(description="null: at least one release is unprotected")
    epsilon: float | None = Field(
        ge=0, description="of what is spent, at delta, by the tight reading; null: unprotected"
    )
    delta: float = Field(gt=0, lt=1)
    earned_micro: Micro


class ModelInfo(Message):
    """A version of the global model; version 0 is the start."""

    version: ModelVersion
    digest: Digest
    dimension: PositiveCount
    byte_length: PositiveCount


class Event(Message):
    """One line of a task's live feed; `id` grows and resumes the feed."""

    id: Count
    at: Moment
    kind: Name = Field(examples=["round.settled"])
    round_number: RoundNumber | None = None
    detail: Text | None = None
