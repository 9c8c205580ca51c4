"""The checks between the parts of a task's spec. Each failure has a stable error code."""

import math

from pydantic_core import PydanticCustomError

from ...core.aggregation import AggregationRule
from ...core.arguments import ImpossibleArgument
from ...core.averaging.post_processing import PostProcessing
from ...core.markets.design import MarketKind
from ...core.markets.schedules import ScheduleKind
from ...core.privacy.mechanisms import UploadKind
from ...core.reward import RewardPolicy, Weighting
from .. import layouts
from ..compatibility import unknown_requirements
from ..errors import ErrorCode
from ..wire import TensorLayout
from .data import DataSpec
from .parts import PartitionKind, SelectionRule, TaskParts

# With more labels the label shares of all clients would take much of the coordinator's memory.
MOST_BALANCED_LABELS = 1000


def check_consistent(spec: TaskParts) -> None:
    """Raise `PydanticCustomError` with an error code if parts contradict each other."""
    _check_layout(spec)
    _check_game(spec)
    _check_mechanism(spec)
    _check_selection(spec)
    _check_bounds(spec)
    _check_partition(spec)
    _check_aggregation(spec)
    _check_requirements(spec)


def _refuse(code: ErrorCode, message: str) -> PydanticCustomError:
    # pydantic would read braces as placeholders.
    return PydanticCustomError(code.value, message.replace("{", "(").replace("}", ")"))


def _check_layout(spec: TaskParts) -> None:
    workload = spec.workload
    if spec.data is not None:
        _check_own_data(spec, spec.data)
        return
    if workload.hidden is not None:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "hidden belongs to network mlp on own data")
    known = layouts.built_in(dataset=workload.dataset, network=workload.network)
    # Every built-in network ends with one bias per label.
    if known is not None and (_shapes(spec.layout) != _shapes(known) or known.tensors[-1].shape != (workload.labels,)):
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in known.tensors)
        message = f"network {workload.network} on data set {workload.dataset} has the layout {shapes}"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)


def _check_own_data(spec: TaskParts, data: DataSpec) -> None:
    workload, shown = spec.workload, data.label.shown
    if workload.dataset in layouts.DATA_SETS:
        message = f"{workload.dataset} is a built-in data set: a task of own data needs another name for its data"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if workload.partition is not None:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "own data have no partition: every owner trains on all its records")
    if workload.labels != len(shown):
        message = f"workload.labels is {workload.labels}, but data.label names {len(shown)}: {', '.join(shown)[:200]}"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if (workload.network == "mlp") != (workload.hidden is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "network mlp needs hidden; other networks do not accept it")
    if ":" in workload.network:
        return
    if workload.network not in layouts.OWN_DATA_NETWORKS:
        message = f"there is no network {workload.network}: use {', '.join(layouts.OWN_DATA_NETWORKS)}, or module:Class"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    known = layouts.of_records(
        network=workload.network, hidden=workload.hidden or (), record_shape=data.record_shape, labels=workload.labels
    )
    if known is None:
        message = f"network {workload.network} does not accept records of shape {list(data.record_shape)}"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if _shapes(spec.layout) != _shapes(known):
        shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in known.tensors)
        message = f"network {workload.network} on these data has the layout {shapes}"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)


def _shapes(layout: TensorLayout) -> list[tuple[str, tuple[int, ...]]]:
    # A later version may have more fields.
    return [(tensor.name, tensor.shape) for tensor in layout.tensors]


def _check_game(spec: TaskParts) -> None:
    game, noise = spec.game, spec.privacy.noise
    if game.policy in (RewardPolicy.MAX, RewardPolicy.RANDOM) and game.reward_range is None:
        raise _refuse(ErrorCode.REWARD_RANGE_REQUIRED, f"policy {game.policy} needs a reward range")
    given = [rewards for rewards in (game.fixed_reward_micro, game.reward_schedule_micro) if rewards is not None]
    if len(given) != (game.policy == RewardPolicy.FIXED):
        message = "policy fixed needs either fixed_reward_micro or reward_schedule_micro; other policies accept neither"
        raise _refuse(ErrorCode.REWARD_REQUIRED, message)
    if game.reward_schedule_micro is not None and len(game.reward_schedule_micro) != game.horizon:
        message = f"reward_schedule_micro must have one reward for each of the {game.horizon} rounds"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    _check_market(spec)
    _check_schedule(spec)
    if (game.policy == RewardPolicy.OWN) != (game.own_rules is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "policy own needs game.own_rules; other policies do not accept it")
    if game.policy != RewardPolicy.NONE and not noise:
        raise _refuse(ErrorCode.PAID_WITHOUT_NOISE, f"policy {game.policy} pays for budgets: switch the noise on")
    if game.policy == RewardPolicy.NONE and noise:
        raise _refuse(ErrorCode.NOISE_WITHOUT_BUDGET, "policy none has no budgets: switch the noise off")
    if game.reward_range is not None and game.reward_range.minimum_micro > game.reward_range.maximum_micro:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "the reward range is empty: its minimum exceeds its maximum")
    try:
        spec.cost_model()
    except ImpossibleArgument as error:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, str(error)) from error


def _check_market(spec: TaskParts) -> None:
    game, market = spec.game, spec.market
    if market is not MarketKind.CONTEST and game.policy is RewardPolicy.NONE:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, f"policy none pays nothing: it has no market {market}")
    if game.winners is not None:
        if market is not MarketKind.AUCTION:
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, "winners belong to market auction")
        if game.winners < spec.rounds.min_clients:
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, "winners is below min_clients: a round needs so many clients")
        if game.winners <= spec.rounds.min_updates:
            message = "winners must exceed min_updates: a single winner that declines would end the task"
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if game.prior is not None and market is not MarketKind.MENU:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "prior belongs to market menu")


def _check_schedule(spec: TaskParts) -> None:
    game = spec.game
    if (game.schedule is ScheduleKind.GIVEN) != (game.schedule_weights is not None):
        message = "schedule given needs schedule_weights; other schedules do not accept them"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if game.schedule_weights is not None and len(game.schedule_weights) != game.horizon:
        message = f"schedule_weights must have one number for each of the {game.horizon} rounds"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if game.schedule is None:
        return
    if game.policy is RewardPolicy.NONE:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "policy none has no rewards that a schedule could change")
    if game.reward_schedule_micro is not None:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "reward_schedule_micro gives every reward: leave schedule out")


def _check_mechanism(spec: TaskParts) -> None:
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


def _check_aggregation(spec: TaskParts) -> None:
    rule, trim = spec.aggregation.rule, spec.aggregation.trim
    if (rule is AggregationRule.TRIMMED_MEAN) != (trim is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "rule trimmed_mean needs trim; other rules do not accept it")
    if rule is AggregationRule.NORM_BOUNDED and (spec.defence is None or not spec.defence.clip_uploads):
        message = "rule norm_bounded needs the norm bounds of defence.clip_uploads"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    _check_weighting(spec)
    _check_post_processing(spec)


def _check_weighting(spec: TaskParts) -> None:
    if spec.aggregation.weighting is not Weighting.OPTIMAL:
        return
    if spec.aggregation.rule is AggregationRule.TRIMMED_MEAN:
        message = "optimal weights may be 0, which a trimmed mean cannot use: choose another rule or another weighting"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if spec.workload.labels > MOST_BALANCED_LABELS:
        message = f"optimal weights balance up to {MOST_BALANCED_LABELS} labels: choose another weighting"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if spec.rounds.late_joiners and spec.selection.reference == "pooled":
        message = (
            "optimal weights need a reference that stays the same: switch late_joiners off, or use reference uniform"
            " or given"
        )
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)


def _check_post_processing(spec: TaskParts) -> None:
    step = spec.aggregation
    if step.post_processing is not PostProcessing.LOWPASS:
        if step.cutoff is not None:
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, "cutoff belongs to post_processing lowpass")
        return
    if spec.image_rows is None:
        message = (
            f"lowpass needs a model whose rows are images, and network {spec.workload.network} on"
            f" {spec.workload.dataset} is not known to have any: use network linear on a built-in data set or on own"
            " images (data.image), or post_processing none"
        )
        raise _refuse(ErrorCode.IMAGE_ROWS_REQUIRED, message)


def _check_selection(spec: TaskParts) -> None:
    weights = spec.selection.reference_weights
    if (spec.selection.reference == "given") != (weights is not None):
        raise _refuse(
            ErrorCode.INCONSISTENT_SPEC, "reference given needs reference_weights; other references do not accept them"
        )
    if weights is not None and (len(weights) != spec.workload.labels or not 0 < math.fsum(weights) < math.inf):
        message = f"reference_weights must be {spec.workload.labels} numbers with a positive sum"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    _check_selection_rule(spec)


def _check_selection_rule(spec: TaskParts) -> None:
    chosen = spec.selection
    for field in (chosen.random_clients, chosen.seed):
        if (chosen.rule is SelectionRule.RANDOM) != (field is not None):
            message = "rule random needs random_clients and selection.seed; other rules do not accept them"
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
    if chosen.random_clients is not None and chosen.random_clients < spec.rounds.min_clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "random_clients is below min_clients: no selection could succeed")
    if (chosen.rule is SelectionRule.OWN) != (chosen.own_rules is not None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "rule own needs selection.own_rules; other rules do not accept it")
    if spec.rounds.late_joiners and chosen.rule in (SelectionRule.RANDOM, SelectionRule.OWN):
        message = f"rule {chosen.rule} compares all clients and cannot select late joiners: switch late_joiners off"
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)


def _check_bounds(spec: TaskParts) -> None:
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
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "the minimum of the reward range exceeds reward_max_micro")
    if max(rounds.min_clients, rounds.expected_clients or 0) > bounds.clients_max:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "min_clients or expected_clients exceeds clients_max")


def _check_partition(spec: TaskParts) -> None:
    partition = spec.workload.partition
    if partition is None:
        if spec.workload != spec.workload.whole:
            message = "training_records and validation_records need a partition"
            raise _refuse(ErrorCode.INCONSISTENT_SPEC, message)
        return
    if (spec.workload.training_records or partition.clients) < partition.clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "training_records is below the number of clients of the partition")
    if partition.concentration is None and partition.kind not in (PartitionKind.IID, PartitionKind.SHARDS):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, f"partition {partition.kind} needs a concentration")
    ordinals = partition.two_class_ordinals
    if ordinals and partition.kind is not PartitionKind.QUALITY_MIX:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "two_class_ordinals need partition quality_mix")
    if len(set(ordinals)) != len(ordinals) or any(ordinal >= partition.clients for ordinal in ordinals):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "two_class_ordinals must be different clients of the partition")
    if max(spec.rounds.min_clients, spec.rounds.expected_clients or 0) > partition.clients:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "min_clients or expected_clients exceeds partition.clients")


def _check_requirements(spec: TaskParts) -> None:
    if (spec.protocol_version is None) != (spec.requires is None):
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, "protocol_version and requires belong together")
    if spec.requires is None:
        return
    unknown, missing = unknown_requirements(spec.requires), set(spec.needs) - set(spec.requires)
    if unknown:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, f"requires names what this version does not know: {unknown[0]}")
    if missing:
        raise _refuse(ErrorCode.INCONSISTENT_SPEC, f"requires lacks {min(missing)}, which the task needs")
