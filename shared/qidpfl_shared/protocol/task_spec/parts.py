"""The parts of a task's spec: workload, selection, game, privacy, aggregation, rounds, bounds, retention."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from ...core.aggregation import AggregationRule
from ...core.averaging.post_processing import ImageRows, PostProcessing
from ...core.markets.design import MarketKind
from ...core.reward import CostModel, RewardPolicy, Weighting
from ...core.selection import Shortfall
from .. import layouts
from ..compatibility import requirements
from ..fields import (
    Choice,
    Fraction,
    Message,
    Micro,
    Name,
    PositiveCount,
    PrivacyValue,
    Rho,
    Seconds,
    Tuple,
    is_absent,
    is_absent_step,
)
from ..mechanism_specs import MechanismSpec
from ..wire import TensorLayout
from .data import DataSpec
from .game import GameSpec

Labels = Annotated[int, Field(ge=1, le=100_000)]
Ordinal = Annotated[int, Field(ge=0, le=1_000_000)]
ProtocolVersion = Annotated[str, Field(max_length=20, pattern=r"^[0-9]+\.[0-9]+$", examples=["1.2"])]


class PartitionKind(StrEnum):
    """How a testbed divides one data set among its clients."""

    IID = "iid"
    DIRICHLET_CLASS = "dirichlet_class"
    DIRICHLET_CLIENT = "dirichlet_client"
    SHARDS = "shards"
    QUALITY_MIX = "quality_mix"


class SelectionRule(StrEnum):
    """The rule that selects clients by their labels."""

    THRESHOLD = "threshold"
    ALL = "all"
    UNION = "union"
    RANDOM = "random"
    OWN = "own"


class AuditMode(StrEnum):
    """The consequence of a failed noise audit: none, a mark, or rejection without payment."""

    OFF = "off"
    FLAG = "flag"
    REJECT = "reject"


class Partition(Message):
    """The shards of a testbed: client k gets shard k. Clients with their own data ignore it."""

    kind: Choice[PartitionKind]
    clients: PositiveCount = Field(le=1_000_000)
    concentration: float | None = Field(default=None, gt=0, le=1e6, description="of the Dirichlet distribution")
    two_class_ordinals: Tuple[Ordinal] = Field(default=(), description="quality_mix: the clients with two labels only")
    seed: int = Field(default=0, ge=0, le=2**32 - 1)


class WorkloadSpec(Message):
    """The data set, the network, and how a testbed divides the data."""

    dataset: Name = Field(description="a built-in data set, or module:Class of a custom workload")
    network: Name = Field(description="a built-in network, or module:Class of the owners' own model")
    hidden: Tuple[Annotated[int, Field(ge=1, le=100_000)]] | None = Field(
        default=None, max_length=10, exclude_if=is_absent, description="network mlp: the widths of its hidden layers"
    )
    labels: Labels
    convex: bool = Field(default=False, description="the loss is convex in the parameters (softmax regression)")
    partition: Partition | None = None
    training_records: PositiveCount | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the number of a testbed's training records to use, chosen at random, the same on every machine;"
        " null: all. Clients with their own data ignore it",
    )
    validation_records: PositiveCount | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the number of a testbed's training records that no client gets. Models are evaluated on them"
        " instead of the held-out records, to choose hyper-parameters without the test set; null: none",
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
        default=Shortfall.FAIL, description="if fewer than min_clients pass: fail, or add the nearest"
    )
    random_clients: PositiveCount | None = Field(
        default=None,
        exclude_if=is_absent,
        description="rule random: the number of selected clients; all if there are fewer",
    )
    seed: int | None = Field(default=None, ge=0, le=2**32 - 1, exclude_if=is_absent, description="for rule random")
    own_rules: Name | None = Field(
        default=None, exclude_if=is_absent, description="rule own: the operator's rules of this name, FILE of FILE.py"
    )


class PrivacySpec(Message):
    """What clients release, and how the server audits it."""

    mechanism: MechanismSpec
    noise: bool = Field(default=True, description="false: the same computation without noise, an unprotected release")
    delta: Fraction = Field(default=1e-5, description="epsilon is reported at this delta")
    histogram_rho: Rho | None = Field(default=None, description="suggested budget of the label histogram")
    lifetime_rho: Rho | None = Field(default=None, description="suggested lifetime budget of a client")
    audit: Choice[AuditMode] = AuditMode.FLAG
    audit_alpha: Fraction = Field(default=1e-3, description="chance of any false accusation in the whole task")


class AggregationSpec(Message):
    """How updates are averaged and applied."""

    weighting: Choice[Weighting] = Weighting.SIZE
    learning_rate: float = Field(default=1.0, ge=1e-9, le=1e6)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    rule: Choice[AggregationRule] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="null: the weighted mean. `trimmed_mean` leaves out the extremes of every coordinate."
        " `norm_bounded` lowers the weight of clients that could pull more than the median client; it needs `defence`",
    )
    trim: float | None = Field(
        default=None,
        ge=0,
        lt=0.5,
        exclude_if=is_absent,
        description="rule trimmed_mean: the part of the updates that is left out at each end of a coordinate",
    )
    post_processing: Choice[PostProcessing] | None = Field(
        default=None,
        exclude_if=is_absent_step,
        description="what is done with the average before the server's step. `lowpass` removes the high frequencies of"
        " the image of each label; it needs a model whose rows are images. null: nothing",
    )
    cutoff: float | None = Field(
        default=None,
        gt=0,
        le=10_000,
        exclude_if=is_absent,
        description="post_processing lowpass: cosine coefficients (u, v) with √(u² + v²) of at least this are removed;"
        " null: 12 for images of 28x28, in proportion to the shorter side for others",
    )


class DefenceSpec(Message):
    """Bounds on what a single client can do to the model, the money and the pace of a task.

    A task without it has none of them: so were all tasks of version 0.1.0, and so are the methods of the paper.
    """

    clip_uploads: bool = Field(
        default=True,
        description="clip every update to the largest norm that signal and noise explain; no effect on heuristic noise",
    )
    max_signal_ratio: float = Field(
        default=1.0, ge=1, le=1e6, description="the largest signal that counts, as a multiple of that of most updates"
    )
    max_size_ratio: float = Field(
        default=1.0, ge=1, le=1e6, description="a size counts at most as this multiple of the median size"
    )
    max_share: float = Field(
        default=2.0, gt=1, le=1e6, description="no client gets more than this multiple of an equal share of the reward"
    )
    max_bid: float = Field(
        default=1.25, ge=1, le=1e6, description="the largest budget of a client, as a multiple of its planned one"
    )
    escrow: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="the part of every payment that the server holds back until the task ends. A client that the"
        " operator has revoked loses it",
    )
    alignment_rounds: int = Field(
        default=10, ge=0, le=1000, description="the number of rounds whose updates are compared with the others"
    )
    alignment_floor: float = Field(
        default=-4.0, ge=-1000, le=0, description="a client whose alignment score is lower is flagged"
    )
    deadline_factor: float = Field(
        default=3.0, ge=1, le=1e6, description="later deadlines are this multiple of the time that most clients needed"
    )
    deadline_floor: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="but at least this part of the task's own deadlines, and at most all",
    )
    profile_s: Seconds = Field(
        default=60.0, description="a full task gives away the place of a client that has no profile after this time"
    )


class RoundsSpec(Message):
    """Windows, minima and retries."""

    enrolment_window_s: Seconds = 60.0
    quiet_s: Seconds = Field(default=10.0, description="selection starts if no new client enrols for this long")
    declare_s: Seconds = 30.0
    deliver_s: Seconds = 120.0
    expected_clients: PositiveCount | None = Field(
        default=None, description="selection starts when this many clients are ready"
    )
    min_clients: int = Field(default=3, ge=2, le=1_000_000)
    min_updates: int = Field(default=3, ge=1, le=1_000_000)
    max_attempts: int = Field(default=3, ge=1, le=1000)
    set_aside_after: int = Field(default=3, ge=1, le=1_000_000, description="rounds missed in a row")
    late_joiners: bool = False


class BoundsSpec(Message):
    """Limits on what clients may report and the task may pay. Values outside are refused."""

    rho_max: Rho
    rho_min: Rho = Field(default=1e-6, description="with a smaller budget, noise would dominate the average")
    privacy_value_min: PrivacyValue = 0.01
    privacy_value_max: PrivacyValue = 100.0
    size_max: PositiveCount = 10_000_000
    clients_max: PositiveCount = Field(default=1000, le=1_000_000)
    reward_max_micro: Micro
    reward_total_micro: Micro


class Retention(Message):
    """The updates and models that stay on disk: all, or those of the last rounds."""

    last_rounds: PositiveCount | None = Field(default=None, description="null: all")


class TaskParts(Message):
    """All parts together, each valid by itself."""

    workload: WorkloadSpec
    layout: TensorLayout
    selection: SelectionSpec = SelectionSpec()
    game: GameSpec
    privacy: PrivacySpec
    aggregation: AggregationSpec = AggregationSpec()
    rounds: RoundsSpec = RoundsSpec()
    bounds: BoundsSpec
    retention: Retention = Retention()
    defence: DefenceSpec | None = Field(default=None, exclude_if=is_absent)
    data: DataSpec | None = Field(
        default=None, exclude_if=is_absent, description="the features and labels of own data; null: a named data set"
    )
    target_accuracy: Fraction | None = Field(default=None, description="stop when it is reached")
    protocol_version: ProtocolVersion | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the version of the protocol that the task was created with; absent in tasks of release 0.1.0",
    )
    requires: Tuple[Name] | None = Field(
        default=None,
        exclude_if=is_absent,
        description="what a client must know to take part. A client refuses a task that requires a name that it does"
        " not know, and ignores all other fields that it does not know",
        examples=[["mechanism.gradient_once", "answer.rho"]],
    )

    @property
    def needs(self) -> tuple[str, ...]:
        """What a client must know to take part."""
        return requirements(
            mechanism=self.privacy.mechanism.name,
            plays=self.game.policy is not RewardPolicy.NONE,
            data=None if self.data is None else self.data.requirement,
            optimal_weights=self.aggregation.weighting is Weighting.OPTIMAL,
            market=self.market,
        )

    @property
    def market(self) -> MarketKind:
        """The market of the task."""
        return self.game.market or MarketKind.CONTEST

    @property
    def image_rows(self) -> ImageRows | None:
        """The images that the parameters begin with: one per label and channel. None if they are no images."""
        if self.workload.network != "linear":
            return None
        facts = layouts.DATA_SETS.get(self.workload.dataset)
        if self.data is not None:
            shape = None if self.data.image is None else layouts.ImageShape(*self.data.record_shape)
        else:
            shape = None if facts is None else facts.shape
        if shape is None:
            return None
        return ImageRows(images=self.workload.labels * shape.channels, height=shape.height, width=shape.width)

    @property
    def dimension(self) -> int:
        """The number of model parameters d."""
        return self.layout.dimension

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
