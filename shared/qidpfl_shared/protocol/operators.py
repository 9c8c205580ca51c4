"""The messages for operators: rounds in lists, answers to the open round, accounts of all clients, codes, controls."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from ..core.noise_audit import NoiseVerdict
from ..core.planning import Standing
from .credentials import OperatorRole
from .fields import (
    Attempt,
    Choice,
    Count,
    Digest,
    Message,
    Micro,
    Moment,
    Name,
    Rho,
    RoundNumber,
    Seconds,
    SpentRho,
    Text,
    Tuple,
    is_absent,
)
from .messages import RoundState, TaskState, TaskView
from .task_spec import Ordinal, TaskSpec

# One letter for what a client did in a closed round.
OUTCOMES = {
    "d": "delivered, and the update counts",
    "r": "delivered, and the noise audit rejected the update",
    "v": "delivered, and the operator voided the update",
    "u": "delivered in a round that was not settled",
    "b": "declared or joined, but did not deliver",
    "n": "declined",
    "m": "invited, but did not answer",
    "o": "not invited",
}
Outcome = Annotated[
    str,
    Field(pattern=r"^[drvubnmo]$", description="; ".join(f"`{key}` {text}" for key, text in OUTCOMES.items())),
]


class CreateTask(Message):
    """A new task: a preset and overrides."""

    name: Name = Field(examples=["digits-1"])
    preset: Name = Field(examples=["digits"])
    overrides: dict[str, Any] = Field(default={}, examples=[{"game": {"horizon": 5}}])
    single_use_codes: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="how many enrolment codes for one client each; null: one for each expected client; 0: one code for"
        " many clients, for testbeds",
    )


class CreatedTask(Message):
    """The new task and its enrolment codes. They are shown only once."""

    task: TaskView
    enrolment_codes: Tuple[str]


class Identity(Message):
    """What the token of an operator allows."""

    role: Choice[OperatorRole]
    task_id: Name | None = Field(default=None, description="the only task that the token is for; null: all tasks")


class PresetInfo(Message):
    """A ready-made task."""

    name: Name = Field(examples=["digits"])
    description: Text = Field(description="what the preset is for, in one sentence")
    spec: TaskSpec = Field(description="the whole task; `overrides` of a new task replace parts of it")


class RoundSummary(Message):
    """A round in a list: its totals without the parts of the clients."""

    round_number: RoundNumber
    attempt: Attempt
    state: Choice[RoundState]
    reward_micro: Micro
    paid_micro: Micro
    escrow_micro: Micro = Field(description="held back until the task ends; paid, escrow and kept add up to the reward")
    kept_micro: Micro
    total: float = Field(ge=0, description="sum of all budgets at the equilibrium")
    declared_total: float | None = Field(
        default=None, ge=0, description="sum of the declared budgets; null unless the round is settled"
    )
    invited: Count
    updates: Count
    accuracy: float | None = Field(default=None, ge=0, le=1)
    loss: float | None = None
    opened_at: Moment | None = Field(default=None, description="of its first attempt; null in old rounds")
    settled_at: Moment | None = None
    settlement_s: float | None = Field(default=None, ge=0)
    evaluation_s: float | None = Field(default=None, ge=0)


class AnswerState(StrEnum):
    """How far a client is in the open round."""

    AWAITED = "awaited"
    DECLARED = "declared"
    JOINED = "joined"
    DECLINED = "declined"
    DELIVERED = "delivered"
    MISSED = "missed"
    LEFT = "left"
    NOT_INVITED = "not_invited"


class ClientAnswer(Message):
    """A client in the open round. Its budget is not shown before the round is closed."""

    client_id: Name
    ordinal: Ordinal
    standing: Choice[Standing]
    answer: Choice[AnswerState]


class OpenRound(Message):
    """The open round: its offer, its deadlines and the answers so far, without any budget."""

    round_number: RoundNumber
    attempt: Attempt
    reward_micro: Micro
    total: float = Field(ge=0, description="sum of all budgets at the equilibrium")
    min_updates: Count = Field(description="so many accepted updates settle the round")
    opened_at: Moment | None = None
    declare_by: Moment
    deliver_by: Moment
    declare_in_s: float = Field(ge=0, description="seconds left by the server's clock")
    deliver_in_s: float = Field(ge=0)
    clients: Tuple[ClientAnswer]


class RoundProgress(Message):
    """What a task waits for now."""

    task_state: Choice[TaskState]
    paused: bool = Field(description="true: no new round opens until the task is resumed")
    last_event: Count = Field(description="the id of the newest event, to follow the feed from here")
    round: OpenRound | None = Field(default=None, description="null if no round is open")


class RoundOutcomes(Message):
    """What every client did in a closed round, as columns: entry k of each belongs to the same client."""

    round_number: RoundNumber
    state: Choice[RoundState]
    ordinals: Tuple[Ordinal]
    outcomes: Annotated[str, Field(pattern=r"^[drvubnmo]*$")] = Field(
        description="one letter for each client: " + "; ".join(f"`{key}` {text}" for key, text in OUTCOMES.items())
    )
    rho: Tuple[SpentRho] = Field(description="the declared budgets; 0 without a declaration")
    payment_micro: Tuple[Micro] = Field(description="paid and held in escrow")


class RoundCost(Message):
    """What the paper's model says of a settled round: the cost of the server, and how far bids are from the best."""

    round_number: RoundNumber
    cost: float | None = Field(
        description="the server's cost: a bound on the loss by noise and signal, plus the discounted reward, each with"
        " its weight. It is computed from the declared budgets, not measured; null without noise, or if no update with"
        " a budget counts"
    )
    reward_cost: float = Field(ge=0, description="the part of the cost that is the discounted reward")
    regret: float | None = Field(
        default=None,
        ge=0,
        description="the most that one bidder could have gained by another budget while all others stay the same; 0 at"
        " the equilibrium, null without a bid",
    )


class ClientRound(Message):
    """One closed round of one client."""

    round_number: RoundNumber
    state: Choice[RoundState]
    standing: Choice[Standing]
    outcome: Outcome
    rho: SpentRho
    payment_micro: Micro
    escrow_micro: Micro
    utility: float = Field(description="payment minus the cost of the budget at the client's own privacy value")
    verdict: Choice[NoiseVerdict] | None = Field(default=None, description="of the noise audit; null if it is off")
    alignment: float | None = None
    digest: Digest | None = Field(default=None, description="of the update")
    received_at: Moment | None = None


class AccountSummary(Message):
    """The account of one client over all closed rounds. The open round is left out: it would show a budget."""

    client_id: Name
    ordinal: Ordinal
    releases: Count = Field(description="the histogram and all updates")
    spent_rho: SpentRho | None = Field(description="what is proven for them together; null: one is unprotected")
    epsilon: float | None = Field(ge=0, description="of the spent budget at delta, by the formula of the contract")
    delta: float = Field(gt=0, lt=1)
    guarantee: Literal["proven", "heuristic", "none"] = Field(
        description="`proven`: all releases keep what they declare; `heuristic`: some guarantee less; `none`: at least"
        " one is unprotected"
    )
    lifetime_rho: Rho | None = None
    left_rho: SpentRho | None = Field(default=None, description="of the lifetime budget; null without a limit")
    answering: bool = Field(description="true: the client has declared a budget in the open round, which is reserved")
    earned_micro: Micro
    escrow_micro: Micro = Field(description="what closed rounds have held back in all")
    utility: float = Field(description="payments and escrow minus the cost of the budgets of all updates")


class AccountPage(Message):
    """Accounts in the order of the ordinals, and the guarantee of the whole task."""

    accounts: Tuple[AccountSummary]
    statement: Text | None = Field(
        default=None, description="the guarantee for every record of the task; only on a page with all clients"
    )


class LossForecast(Message):
    """The loss for a total budget, fitted to the settled rounds of the task. The paper has no such curve."""

    floor: float = Field(description="loss = floor + rise * exp(-rate * total)")
    rise: float
    rate: float
    total_min: float = Field(description="the curve holds from here ...")
    total_max: float = Field(description="... to here only")
    rmse: float = Field(ge=0, description="root mean square error of the fit")


class Forecast(Message):
    """The accuracy and the loss for a total budget, fitted to the settled rounds of the task."""

    status: Literal["fitted", "not_identifiable"]
    ceiling: float | None = Field(default=None, description="accuracy = ceiling - drop * exp(-rate * total)")
    drop: float | None = None
    rate: float | None = None
    total_min: float | None = Field(default=None, description="the curve holds from here ...")
    total_max: float | None = Field(default=None, description="... to here only")
    rmse: float | None = Field(default=None, ge=0, description="root mean square error of the fit")
    loss: LossForecast | None = Field(
        default=None, exclude_if=is_absent, description="left out if the rounds determine no curve of the loss"
    )


class EnrolmentCodeInfo(Message):
    """An enrolment code without its secret."""

    code_id: Name = Field(description="the beginning of the SHA-256 of the code")
    single_use: bool
    used_by: Name | None = Field(default=None, description="the client that used it last")
    revoked_at: Moment | None = None


class CreateCodes(Message):
    """New enrolment codes of a task."""

    # Not a `PositiveCount`: pydantic would apply the larger one of the two limits.
    count: int = Field(default=1, ge=1, le=1000)
    single_use: bool = Field(default=True, description="false: many clients may use each code, for testbeds")


class CreatedCodes(Message):
    """The new codes. They are shown only once."""

    enrolment_codes: Tuple[str]


class Deadlines(Message):
    """How long clients may take, from the next round or attempt on. Null: what the spec says."""

    declare_s: Seconds | None = Field(default=None, description="seconds to declare a budget")
    deliver_s: Seconds | None = Field(default=None, description="seconds to deliver after that")


class CalibrationPoint(Message):
    """The noise of the average over the rounds of an ended task, and the accuracy after them."""

    noise: float = Field(gt=0, le=1e9)
    accuracy: float = Field(ge=0, le=1)


class WhatIfRequest(Message):
    """A change of a task that is only computed: nothing is stored, and no client learns of it."""

    reward_factor: float = Field(default=1.0, ge=1e-6, le=1e6, description="all rewards are multiplied by it")
    privacy_value_factor: float = Field(
        default=1.0, ge=1e-3, le=1e3, description="the privacy values of all clients are multiplied by it"
    )
    rounds: RoundNumber | None = Field(default=None, description="null: the horizon of the task")
    without: Tuple[Ordinal] = Field(default=(), max_length=10_000, description="clients that do not take part")
    calibration: Tuple[CalibrationPoint] | None = Field(
        default=None, min_length=1, max_length=1000, description="ended tasks of so many rounds; null: no accuracy"
    )


class ExpectedAccuracy(Message):
    """An expected accuracy, and the interval in which nine of ten new runs lie."""

    low: float
    expected: float
    high: float


class WhatIf(Message):
    """A task as it would run from its first round, if every client bids as planned."""

    status: Literal["answered", "no_market"]
    detail: Text = Field(default="", description="why there is no market, or why there is no accuracy")
    rounds: Count = Field(default=0, description="how many rounds can be planned")
    money_micro: Micro = 0
    first_reward_micro: Micro = 0
    last_reward_micro: Micro = 0
    noise: float | None = Field(
        default=None, ge=0, description="of the average, in units of the bound of one signal; null without a round"
    )
    worst_rho: SpentRho = Field(default=0.0, description="of the client that reveals most, with its histogram")
    worst_epsilon: float = Field(default=0.0, ge=0)
    worst_ordinal: Ordinal | None = None
    accuracy: ExpectedAccuracy | None = Field(
        default=None, description="null without a calibration, and where it does not cover the noise"
    )
