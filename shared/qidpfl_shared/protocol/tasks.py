"""`TaskSpec`: everything that defines a task. Immutable once the task is created; clients pin its digest."""

import hashlib
import json
import math
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ..core.arguments import ImpossibleArgument, Vector
from ..core.money import from_micro
from ..core.own_rules import OwnSelect
from ..core.planning import RoundRules
from ..core.privacy.mechanisms import UploadKind
from ..core.reward import CostModel, RewardPolicy, RewardRange, Weighting
from ..core.selection import (
    All,
    Histograms,
    Own,
    Random,
    Rule,
    Shortfall,
    Threshold,
    Union,
    given_reference,
    pooled_reference,
    uniform_reference,
)
from . import layouts
from .errors import ErrorCode
from .fields import Choice, Fraction, Message, Micro, Name, PositiveCount, PrivacyValue, Rho, Seconds, Tuple, is_absent
from .mechanisms import MechanismSpec
from .wire import TensorLayout

Labels = Annotated[int, Field(ge=1, le=100_000)]
Ordinal = Annotated[int, Field(ge=0, le=1_000_000)]


class PartitionKind(StrEnum):
    """How a testbed divides one data set among its clients."""

    IID = "iid"
    DIRICHLET_CLASS = "dirichlet_class"
    DIRICHLET_CLIENT = "dirichlet_client"
    SHARDS = "shards"
    QUALITY_MIX = "quality_mix"


class SelectionRule(StrEnum):
    """Who may take part, judged by labels."""

    THRESHOLD = "threshold"
    ALL = "all"
    UNION = "union"
    RANDOM = "random"
    OWN = "own"


class AuditMode(StrEnum):
    """What follows from a failed noise audit: nothing, a mark, or rejection without pay."""

    OFF = "off"
    FLAG = "flag"
    REJECT = "reject"


class Partition(Message):
    """The shards of a testbed: client k gets the k-th. Clients with data of their own ignore it."""

    kind: Choice[PartitionKind]
    clients: PositiveCount = Field(le=1_000_000)
    concentration: float | None = Field(default=None, gt=0, le=1e6, description="of the Dirichlet distribution")
    two_class_ordinals: Tuple[Ordinal] = Field(default=(), description="quality_mix: who holds two labels only")
    seed: int = Field(default=0, ge=0, le=2**32 - 1)


class WorkloadSpec(Message):
    """What is learnt: the data set, the network, and how a testbed divides the data."""

    dataset: Name = Field(description="a built-in data set, or module:Class of a workload of your own")
    network: Name
    labels: Labels
    convex: bool = Field(default=False, description="the loss is convex in the parameters (softmax regression)")
    partition: Partition | None = None
    training_records: PositiveCount | None = Field(
        default=None,
        exclude_if=is_absent,
        description="of a testbed's training records only so many, chosen at random, the same ones everywhere; null:"
        " all. Clients with data of their own ignore it",
    )
    validation_records: PositiveCount | None = Field(
        default=None,
        exclude_if=is_absent,
        description="so many of a testbed's training records are nobody's, and models are evaluated on them instead of"
        " the held-out ones: for choosing hyper-parameters without looking at the test set; null: none",
    )

    @property
    def whole(self) -> "WorkloadSpec":
        """The same workload with all of its records."""
        return self.model_copy(update={"training_records": None, "validation_records": None})


class SelectionSpec(Message):
    """Quality-aware selection by label distance (L1, 0 to 2) to a reference distribution."""

    rule: Choice[SelectionRule] = SelectionRule.THRESHOLD
    distance_threshold: float = Field(default=0.75, ge=0, le=2)
    reference: Literal["uniform", "pooled", "given"] = "uniform"
    reference_weights: Tuple[Annotated[float, Field(ge=0, le=1e15)]] | None = Field(default=None, max_length=100_000)
    shortfall: Choice[Shortfall] = Field(
        default=Shortfall.FAIL, description="when fewer than min_clients pass: fail, or fill up with the nearest"
    )
    random_clients: PositiveCount | None = Field(
        default=None, exclude_if=is_absent, description="rule random: how many are kept, all where fewer are there"
    )
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1, exclude_if=is_absent, description="of rule random")
    own_rules: Name | None = Field(
        default=None, exclude_if=is_absent, description="rule own: the operator's rules of this name, FILE of FILE.py"
    )


class RewardRangeSpec(Message):
    """The rewards that are admissible in a round."""

    minimum_micro: Micro
    maximum_micro: Micro


class GameSpec(Message):
    """The two-stage game: how the reward is chosen, and the constants of the server's cost."""

    policy: Choice[RewardPolicy] = RewardPolicy.OPTIMAL
    horizon: int = Field(ge=1, le=1_000_000, description="the number of rounds T")
    discount: float = Field(ge=1e-6, le=1, description="π: what a unit of reward counts one round later")
    privacy_weight: float = Field(ge=1e-9, le=1e9, description="φ1: weight of the privacy cost")
    accuracy_weight: float = Field(default=0.5, ge=0, lt=1, description="γ: weight of accuracy against reward")
    smoothness: float = Field(default=10.0, ge=1e-9, le=1e9, description="β")
    convexity: float = Field(ge=1e-9, le=1e9, description="λ")
    gradient_bound: float = Field(default=1.0, ge=0, le=1e9, description="V: bound of the mean gradient")
    min_share: float = Field(default=0.3, ge=0, le=1, description="invite no client below this part of a fair share")
    reward_range: RewardRangeSpec | None = None
    fixed_reward_micro: Micro | None = Field(default=None, description="policy fixed: the reward of every round")
    reward_schedule_micro: Tuple[Micro] | None = Field(
        default=None,
        max_length=1_000_000,
        exclude_if=is_absent,
        description="policy fixed, instead of fixed_reward_micro: the reward of each round",
    )
    own_rules: Name | None = Field(
        default=None, exclude_if=is_absent, description="policy own: the operator's rules of this name, FILE of FILE.py"
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="of policy random")


class PrivacySpec(Message):
    """What clients release, and how it is audited."""

    mechanism: MechanismSpec
    noise: bool = Field(default=True, description="off: the same computation without noise, an unprotected release")
    delta: Fraction = Field(default=1e-5, description="at which epsilon is reported")
    histogram_rho: Rho | None = Field(default=None, description="suggested budget of the label histogram")
    lifetime_rho: Rho | None = Field(default=None, description="suggested lifetime budget of a client")
    audit: Choice[AuditMode] = AuditMode.FLAG
    audit_alpha: Fraction = Field(default=1e-3, description="chance of any false accusation in the whole task")


class AggregationSpec(Message):
    """How updates are averaged and applied."""

    weighting: Choice[Weighting] = Weighting.SIZE
    learning_rate: float = Field(default=1.0, ge=1e-9, le=1e6)
    momentum: float = Field(default=0.0, ge=0, lt=1)


class RoundsSpec(Message):
    """Windows, minima and retries."""

    enrolment_window_s: Seconds = 60.0
    quiet_s: Seconds = Field(default=10.0, description="selection starts when nobody new came for this long")
    declare_s: Seconds = 30.0
    deliver_s: Seconds = 120.0
    expected_clients: PositiveCount | None = Field(default=None, description="selection starts when so many are there")
    min_clients: int = Field(default=3, ge=2, le=1_000_000)
    min_updates: int = Field(default=3, ge=1, le=1_000_000)
    max_attempts: int = Field(default=3, ge=1, le=1000)
    set_aside_after: int = Field(default=3, ge=1, le=1_000_000, description="rounds missed in a row")
    late_joiners: bool = False


class BoundsSpec(Message):
    """Limits on what clients may report and the task may pay; what lies outside is refused."""

    rho_max: Rho
    rho_min: Rho = Field(default=1e-6, description="a smaller budget would drown the average in noise")
    privacy_value_min: PrivacyValue = 0.01
    privacy_value_max: PrivacyValue = 100.0
    size_max: PositiveCount = 10_000_000
    clients_max: PositiveCount = Field(default=1000, le=1_000_000)
    reward_max_micro: Micro
    reward_total_micro: Micro


class Retention(Message):
    """Which updates and models are kept on disk: all, or those of the last rounds."""

    last_rounds: PositiveCount | None = Field(default=None, description="null: all")


class TaskSpec(Message):
    """A federated task."""

    workload: WorkloadSpec
    layout: TensorLayout
    selection: SelectionSpec = SelectionSpec()
    game: GameSpec
    privacy: PrivacySpec
    aggregation: AggregationSpec = AggregationSpec()
    rounds: RoundsSpec = RoundsSpec()
    bounds: BoundsSpec
    retention: Retention = Retention()
    target_accuracy: Fraction | None = Field(default=None, description="stop when it is reached")

    @model_validator(mode="after")
    def _check(self) -> "TaskSpec":
        _check_layout(self)
        _check_game(self)
        _check_mechanism(self)
        _check_selection(self)
        _check_bounds(self)
        _check_partition(self)
        return self

    @property
    def dimension(self) -> int:
        """The number of model parameters d."""
        return self.layout.dimension

    @property
    def digest(self) -> str:
        """The SHA-256 of the spec in canonical JSON: the same on every machine."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def cost_model(self) -> CostModel:
        """The constants of the server's cost."""
        return CostModel(
            dimension=self.dimension,
            horizon=self.game.horizon,
            accuracy_weight=self.game.accuracy_weight,
            smoothness=self.game.smoothness,
            convexity=self.game.convexity,
            gradient_bound=self.game.gradient_bound,
            discount=self.game.discount,
        )

    def round_rules(self) -> RoundRules:
        """What `plan_round` needs to know of the task."""
        game = self.game
        admissible = RewardRange()
        if game.reward_range is not None:
            admissible = RewardRange(
                minimum=from_micro(game.reward_range.minimum_micro), maximum=from_micro(game.reward_range.maximum_micro)
            )
        return RoundRules(
            policy=game.policy,
            mechanism=self.privacy.mechanism.build(),
            weighting=self.aggregation.weighting,
            cost_model=self.cost_model(),
            privacy_weight=game.privacy_weight,
            min_share=game.min_share,
            min_clients=self.rounds.min_clients,
            min_updates=self.rounds.min_updates,
            rho_max=self.bounds.rho_max,
            rho_min=self.bounds.rho_min,
            reward_range=admissible,
            fixed_reward=None if game.fixed_reward_micro is None else from_micro(game.fixed_reward_micro),
            reward_schedule=(
                None if game.reward_schedule_micro is None else tuple(map(from_micro, game.reward_schedule_micro))
            ),
            seed=game.seed,
            reward_max_micro=self.bounds.reward_max_micro,
        )

    def selection_rule(self, own_select: OwnSelect | None = None) -> Rule:
        """The rule that decides who is kept; rule own needs its function."""
        match self.selection.rule:
            case SelectionRule.THRESHOLD:
                return Threshold(self.selection.distance_threshold)
            case SelectionRule.ALL:
                return All()
            case SelectionRule.UNION:
                return Union(self.rounds.min_clients)
            case SelectionRule.RANDOM:
                assert self.selection.random_clients is not None and self.selection.seed is not None
                return Random(self.selection.random_clients, self.selection.seed)
            case SelectionRule.OWN:
                if own_select is None:
                    raise ImpossibleArgument("own_select", own_select, "must be given under rule own")
                return Own(own_select)

    def label_reference(self, histograms: Histograms) -> Vector:
        """The reference distribution of labels; the profiles matter only if it is pooled from them."""
        match self.selection.reference:
            case "uniform":
                return uniform_reference(labels=self.workload.labels)
            case "pooled":
                return pooled_reference(histograms=histograms)
            case "given":
                return given_reference(weights=self.selection.reference_weights or ())


def _refuse(code: ErrorCode, message: str) -> PydanticCustomError:
    # Braces would be read as placeholders.
    return PydanticCustomError(code.value, message.replace("{", "(").replace("}", ")"))


def _check_layout(spec: TaskSpec) -> None:
    workload = spec.workload
    known = layouts.built_in(dataset=workload.dataset, network=workload.network)
    # Every built-in network ends with one bias per label.
    if known is not None and (spec.layout != known or known.tensors[-1].shape != (workload.labels,)):
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in known.tensors)
        message = f"network {workload.network} on data set {workload.dataset} has the layout {shapes}"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)


def _check_game(spec: TaskSpec) -> None:
    game, noise = spec.game, spec.privacy.noise
    if game.policy in (RewardPolicy.MAX, RewardPolicy.RANDOM) and game.reward_range is None:
        raise _refuse(ErrorCode.REWARD_RANGE_REQUIRED, f"policy {game.policy} needs a reward range")
    given = [rewards for rewards in (game.fixed_reward_micro, game.reward_schedule_micro) if rewards is not None]
    if len(given) != (game.policy == RewardPolicy.FIXED):
        message = "fixed_reward_micro or reward_schedule_micro belongs to policy fixed, and it needs one of them"
        raise _refuse(ErrorCode.REWARD_REQUIRED, message)
    if game.reward_schedule_micro is not None and len(game.reward_schedule_micro) != game.horizon:
        message = f"reward_schedule_micro must have one reward for each of the {game.horizon} rounds"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if (game.policy == RewardPolicy.OWN) != (game.own_rules is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "game.own_rules belongs to policy own, and it needs it")
    if game.policy != RewardPolicy.NONE and not noise:
        raise _refuse(ErrorCode.PAID_WITHOUT_NOISE, f"policy {game.policy} pays for budgets, which need noise")
    if game.policy == RewardPolicy.NONE and noise:
        raise _refuse(ErrorCode.NOISE_WITHOUT_BUDGET, "policy none has no budgets: switch the noise off")
    if game.reward_range is not None and game.reward_range.minimum_micro > game.reward_range.maximum_micro:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "the reward range is empty: its minimum exceeds its maximum")
    try:
        spec.cost_model()
    except ImpossibleArgument as error:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, str(error)) from error


def _check_mechanism(spec: TaskSpec) -> None:
    try:
        mechanism = spec.privacy.mechanism.build()
    except ImpossibleArgument as error:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, str(error)) from error
    step = spec.aggregation
    if mechanism.kind is UploadKind.UPDATE and (step.learning_rate, step.momentum) != (1.0, 0.0):
        message = f"{mechanism.name} uploads finished updates: learning_rate must be 1 and momentum 0"
        raise _refuse(ErrorCode.SERVER_STEP_FIXED, message)
    if mechanism.name == "bolt_on" and not spec.workload.convex:
        raise _refuse(ErrorCode.CONVEX_NETWORK_REQUIRED, "bolt_on is proven for convex workloads only")


def _check_selection(spec: TaskSpec) -> None:
    weights = spec.selection.reference_weights
    if (spec.selection.reference == "given") != (weights is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "reference_weights belong to reference given, and it needs them")
    if weights is not None and (len(weights) != spec.workload.labels or not 0 < math.fsum(weights) < math.inf):
        message = f"reference_weights must be {spec.workload.labels} numbers with a positive sum"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    _check_selection_rule(spec)


def _check_selection_rule(spec: TaskSpec) -> None:
    chosen = spec.selection
    for field in (chosen.random_clients, chosen.seed):
        if (chosen.rule is SelectionRule.RANDOM) != (field is not None):
            message = "random_clients and selection.seed belong to rule random, and it needs both"
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if chosen.random_clients is not None and chosen.random_clients < spec.rounds.min_clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "random_clients is below min_clients: no selection could succeed")
    if (chosen.rule is SelectionRule.OWN) != (chosen.own_rules is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "selection.own_rules belongs to rule own, and it needs it")
    if spec.rounds.late_joiners and chosen.rule in (SelectionRule.RANDOM, SelectionRule.OWN):
        message = f"rule {chosen.rule} looks at all clients together: late joiners could only be judged alone"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)


def _check_bounds(spec: TaskSpec) -> None:
    bounds, rounds = spec.bounds, spec.rounds
    if bounds.privacy_value_min > bounds.privacy_value_max:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "privacy_value_min exceeds privacy_value_max")
    if bounds.rho_min > bounds.rho_max:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "rho_min exceeds rho_max")
    if (spec.game.fixed_reward_micro or 0) > bounds.reward_max_micro:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "fixed_reward_micro exceeds reward_max_micro")
    if max(spec.game.reward_schedule_micro or (0,)) > bounds.reward_max_micro:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "a reward of reward_schedule_micro exceeds reward_max_micro")
    if bounds.reward_max_micro > bounds.reward_total_micro:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "reward_max_micro exceeds reward_total_micro")
    if rounds.min_updates > rounds.min_clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "min_updates exceeds min_clients: a round could never settle")
    if rounds.expected_clients is not None and rounds.expected_clients < rounds.min_clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "expected_clients is below min_clients")
    if spec.game.reward_range is not None and spec.game.reward_range.minimum_micro > bounds.reward_max_micro:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "the reward range begins above reward_max_micro")
    if max(rounds.min_clients, rounds.expected_clients or 0) > bounds.clients_max:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "more clients are expected than clients_max allows")


def _check_partition(spec: TaskSpec) -> None:
    partition = spec.workload.partition
    if partition is None:
        if spec.workload != spec.workload.whole:
            message = "training_records and validation_records are of a testbed, which has a partition"
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
        return
    if (spec.workload.training_records or partition.clients) < partition.clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "training_records are fewer than the clients of the partition")
    if partition.concentration is None and partition.kind not in (PartitionKind.IID, PartitionKind.SHARDS):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, f"partition {partition.kind} needs a concentration")
    ordinals = partition.two_class_ordinals
    if ordinals and partition.kind is not PartitionKind.QUALITY_MIX:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "two_class_ordinals belong to partition quality_mix")
    if len(set(ordinals)) != len(ordinals) or any(ordinal >= partition.clients for ordinal in ordinals):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "two_class_ordinals must be different clients of the partition")
    if max(spec.rounds.min_clients, spec.rounds.expected_clients or 0) > partition.clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "more clients are expected than the partition has shards")
