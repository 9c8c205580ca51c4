"""The entities of the server as frozen values: tasks, clients, rounds, budgets, updates, models. `store` keeps them."""

import math
from dataclasses import dataclass
from enum import StrEnum

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec

from .clock import Micros


class ClientState(StrEnum):
    """The states of a client in a task."""

    ENROLLED = "enrolled"
    PROFILED = "profiled"
    SELECTED = "selected"
    REFUSED = "refused"
    LEFT = "left"


class BudgetState(StrEnum):
    """A client's answer to an announcement."""

    DECLARED = "declared"
    DECLINED = "declined"
    JOINED = "joined"


class EndReason(StrEnum):
    """Why a task ended."""

    HORIZON_REACHED = "horizon_reached"
    TARGET_REACHED = "target_reached"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TOO_FEW_CLIENTS = "too_few_clients"
    TOO_FEW_BIDDERS = "too_few_bidders"
    NO_REWARD = "no_reward"
    TOO_FEW_UPDATES = "too_few_updates"
    MODEL_DIVERGED = "model_diverged"
    OWN_RULE_FAILED = "own_rule_failed"
    STATE_DAMAGED = "state_damaged"
    STEP_FAILED = "step_failed"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A federated job; its spec never changes."""

    task_id: str
    name: str
    preset: str | None
    spec: TaskSpec
    spec_digest: str
    state: TaskState
    reason: str | None
    opened_at: Micros
    last_enrolment_at: Micros
    ended_at: Micros | None
    # Since when no new round opens, and the operator's deadlines in place of those of the spec.
    paused_at: Micros | None = None
    declare_s: float | None = None
    deliver_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.state.ended

    @property
    def is_versioned(self) -> bool:
        """Whether its spec names a version of the protocol. Clients of other tasks may be of release 0.1.0."""
        return self.spec.protocol_version is not None

    @property
    def paused(self) -> bool:
        """Whether no new round opens. An open round goes on to its end."""
        return self.paused_at is not None and not self.ended


@dataclass(frozen=True, kw_only=True)
class EnrolmentCode:
    """An enrolment code, of which only the hash is known."""

    code_hash: str
    single_use: bool
    used_by: str | None
    revoked_at: Micros | None


@dataclass(frozen=True, kw_only=True)
class Client:
    """A data owner within one task."""

    client_id: str
    task_id: str
    ordinal: int
    state: ClientState
    token_used: bool = False
    label_counts: tuple[int, ...] | None = None
    size: int | None = None
    privacy_value: float | None = None
    histogram_rho: float | None = None
    rho_cap: float | None = None
    lifetime_rho: float | None = None
    label_distance: float | None = None
    filled_up: bool = False
    misses: int = 0
    set_aside: bool = False
    coming_back: bool = False
    revoked_at: Micros | None = None
    exclusions: int = 0
    excluded_until: int = 0

    @property
    def has_profile(self) -> bool:
        return self.size is not None

    @property
    def has_histogram(self) -> bool:
        """Whether the profile has label counts. Under rule `all` a client may leave them out."""
        return self.label_counts is not None

    @property
    def has_verdict(self) -> bool:
        """Whether the selection is known to have judged this client. Without a histogram it has no distance."""
        return self.label_distance is not None or self.state in (ClientState.SELECTED, ClientState.REFUSED)

    def counted_value(self, spec: TaskSpec) -> float:
        """The privacy value; a client that reports none counts as if its value were the largest of the task."""
        return spec.bounds.privacy_value_max if self.privacy_value is None else self.privacy_value

    @property
    def rho_limit(self) -> float:
        """The declared cap of one round; infinite if the client declared none."""
        return math.inf if self.rho_cap is None else self.rho_cap


@dataclass(frozen=True, kw_only=True)
class RoundSums:
    """The sums of one round over its clients."""

    paid_micro: int = 0
    escrow_micro: int = 0
    invited: int = 0
    updates: int = 0


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round in its current attempt."""

    task_id: str
    round_number: int
    attempt: int
    state: RoundState
    reward_micro: int
    total: float
    min_updates: int
    base_version: int
    declare_by: Micros
    deliver_by: Micros
    kept_micro: int | None = None
    declared_total: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    opened_at: Micros | None = None
    settled_at: Micros | None = None
    settlement_s: float | None = None
    evaluation_s: float | None = None
    # Whether the model of a settled round is evaluated after the settlement, and when that was done.
    evaluation_deferred: bool = False
    evaluated_at: Micros | None = None
    # Null in rounds that are not settled, and in those of earlier versions.
    sums: RoundSums | None = None

    @property
    def awaits_evaluation(self) -> bool:
        """Whether the model of this settled round has yet to be evaluated."""
        return self.evaluation_deferred and self.evaluated_at is None


@dataclass(frozen=True, kw_only=True)
class RoundInvitation:
    """The standing of a client in a round, the budget that the plan expects of it, and the largest it may declare."""

    client_id: str
    standing: Standing
    expected_rho: float
    rho_limit: float | None = None


def standing_of(invitation: RoundInvitation | None, *, refused: bool = False) -> Standing:
    """The standing of a client in a round. A client that joined after it was opened is set aside until the next one.

    `refused`: the selection has refused the client, in a task whose clients know this word.
    """
    if invitation is not None:
        return invitation.standing
    return Standing.REFUSED if refused else Standing.SET_ASIDE


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A client's answer to an announcement. `rho` stays after the client has withdrawn a declaration."""

    client_id: str
    state: BudgetState
    rho: float
    reason: str | None
    recorded_at: Micros
    attempt: int = 1

    @property
    def withdrawn(self) -> bool:
        """Whether the client has taken back a declared budget."""
        return self.state is BudgetState.DECLINED and self.rho > 0


@dataclass(frozen=True, kw_only=True)
class Update:
    """An acknowledged upload. Settlement sets verdict and acceptance."""

    client_id: str
    digest: str
    byte_length: int
    squared_norm: float
    received_at: Micros
    verdict: NoiseVerdict | None = None
    accepted: bool | None = None
    alignment: float | None = None
    voided_at: Micros | None = None


@dataclass(frozen=True, kw_only=True)
class UpdateVerdict:
    """What a settlement says of an update. `alignment` is None if it was not measured."""

    verdict: NoiseVerdict | None
    accepted: bool
    alignment: float | None


@dataclass(frozen=True, kw_only=True)
class Payment:
    """What a client gets for one round: paid now, and held in escrow until the task ends."""

    amount_micro: int
    escrow_micro: int = 0


@dataclass(frozen=True, kw_only=True)
class EscrowSettlement:
    """What became of a client's escrow at the end of its task."""

    client_id: str
    amount_micro: int
    forfeited: bool


@dataclass(frozen=True, kw_only=True)
class Model:
    """A version of the global model: the digests of its parameters and of the server's momentum."""

    version: int
    digest: str
    momentum_digest: str | None


@dataclass(frozen=True, kw_only=True)
class OperatorToken:
    """A token of an operator, for one task or (`task_id` None) for all. Only the hashes of tokens are stored.

    After a rotation `previous_hash` is that of the old token, which is valid until `previous_until`.
    """

    token_id: str
    name: str
    role: str
    task_id: str | None
    token_hash: str
    token_used: bool
    created_at: Micros
    expires_at: Micros | None = None
    revoked_at: Micros | None = None
    rotated_at: Micros | None = None
    previous_hash: str | None = None
    previous_until: Micros | None = None

    def is_valid(self, now: Micros) -> bool:
        """Whether the token is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def valid_until(self, token_hash: str) -> Micros | None:
        """When the token of this hash, the current or the old one, ends by itself; None: never."""
        if token_hash == self.token_hash:
            return self.expires_at
        return min(end for end in (self.previous_until, self.expires_at) if end is not None)
