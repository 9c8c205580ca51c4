"""What an admin does with a task: create it, set its first model, start it, stop it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qidpfl_shared.core.aggregation import Parameters, ServerState
from qidpfl_shared.core.selection import Shortfall
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.presets import OWN, UnknownPreset, preset
from qidpfl_shared.protocol.task_spec import SelectionRule, TaskSpec

from ..clock import Micros
from ..domain import ClientState, EndReason, Model, Task
from ..errors import RequestRefused, StoreBusy
from ..identifiers import hash_secret, new_id, new_secret
from ..plugins.rules import NO_RULES, RuleRegistry
from ..store.blobs import Blobs, StagedBlob
from ..store.store import Store
from ..store.transaction import Transaction
from .controls import end_pause
from .evaluation import Evaluator
from .lifecycle import RESUMABLE, end_task, get_task_for_update
from .rounds.aggregation import initial_parameters, require_stored, save_model
from .rounds.planning import deadlines
from .rounds.settlement import settle_if_due
from .rounds.settlement_timer import Stopwatch
from .selection import select_clients

_STOP_ATTEMPTS = 20


@dataclass(frozen=True)
class NewTask:
    """A new task and its enrolment codes. The store keeps only their hashes, so they are shown only once."""

    task: Task
    codes: tuple[str, ...]


def task_spec(
    preset_name: str,
    overrides: Mapping[str, Any] | None,
    rules: RuleRegistry = NO_RULES,
    *,
    clients: int | None = None,
    rounds: int | None = None,
) -> TaskSpec:
    """The spec of a preset for so many clients and rounds, with overrides.

    Raises `RequestRefused` for an unknown preset, missing rules, a network that does not fit the data set or a testbed
    whose shards cannot pass the selection, and pydantic's `ValidationError` for a bad value.
    """
    if (given := {"protocol_version", "requires"} & (overrides or {}).keys()) != set():
        raise RequestRefused(ErrorCode.INCONSISTENT_SPEC, f"the coordinator sets {min(given)}: leave it out")
    try:
        spec = preset(preset_name, overrides, clients=clients, rounds=rounds)
    except UnknownPreset as error:
        raise RequestRefused(ErrorCode.UNKNOWN_PRESET, str(error)) from error
    _require_workload(spec)
    _require_enough_shards(spec)
    rules.require(spec)
    return spec


def _require_workload(spec: TaskSpec) -> None:
    """Refuse a task that no client could take part in. Not part of the spec's own checks: stored tasks must open."""
    workload = spec.workload
    if workload.dataset == OWN:
        text = "preset own is for a workload of your own: name it with --workload, or set workload and layout"
        raise RequestRefused(ErrorCode.INCONSISTENT_SPEC, text)
    if (problem := layouts.misfit(dataset=workload.dataset, network=workload.network)) is not None:
        raise RequestRefused(ErrorCode.INCONSISTENT_SPEC, problem)


def _require_enough_shards(spec: TaskSpec) -> None:
    """Refuse a testbed whose shards cannot pass its selection. Not part of the spec's own checks, as above."""
    partition, chosen = spec.workload.partition, spec.selection
    by_distance = chosen.rule is SelectionRule.THRESHOLD and chosen.reference == "uniform"
    if partition is None or not by_distance or chosen.shortfall is not Shortfall.FAIL:
        return
    # The label distance of two labels in equal parts.
    two_labels = 2 - 4 / spec.workload.labels
    rest, needed = partition.clients - len(partition.two_class_ordinals), spec.rounds.min_clients
    if rest < needed and chosen.distance_threshold < two_labels:
        text = (
            f"the selection refuses clients with two labels, and only {rest} of {partition.clients} shards have more,"
            f" but min_clients is {needed}: name fewer two_class_ordinals, or lower min_clients"
        )
        raise RequestRefused(ErrorCode.INCONSISTENT_SPEC, text)


def save_initial_model(blobs: Blobs, spec: TaskSpec, parameters: Parameters | None = None) -> Model:
    """Write version 0: the given parameters, or those of the workload."""
    return save_model(blobs, 0, ServerState.start(initial_parameters(spec) if parameters is None else parameters))


def new_codes(task_id: str, spec: TaskSpec, single_use_codes: int | None) -> tuple[str, ...]:
    """New enrolment codes of a task: by default one for each expected client, and for 0 one for many clients."""
    if single_use_codes is None:
        single_use_codes = spec.rounds.expected_clients or spec.rounds.min_clients
    return tuple(f"{task_id}.{new_secret()}" for _ in range(max(1, single_use_codes)))


def create_task(
    tx: Transaction,
    *,
    name: str,
    preset_name: str | None,
    spec: TaskSpec,
    model: Model,
    now: Micros,
    single_use_codes: int | None = None,
    task_id: str | None = None,
    codes: tuple[str, ...] = (),
) -> NewTask:
    """Create a task with its enrolment codes: single-use, or with `single_use_codes` 0 one for many clients.

    A caller that must store the code before the task exists passes `task_id` and `codes`. Raises `RequestRefused`.
    """
    task_id = task_id or new_id()
    if tx.tasks.by_name(name) is not None:
        raise RequestRefused(
            ErrorCode.TASK_EXISTS,
            f"there is already a task named {name!r}: take another name, make new codes for it (`qidpfl-server tasks"
            " codes NAME --new 3`), or delete it once it has ended (`tasks delete`)",
        )
    if tx.tasks.get(name) is not None:
        raise RequestRefused(ErrorCode.TASK_EXISTS, f"{name!r} is the id of another task")
    task = Task(
        task_id=task_id,
        name=name,
        preset=preset_name,
        spec=spec,
        spec_digest=spec.digest,
        state=TaskState.ENROLLING,
        reason=None,
        opened_at=now,
        last_enrolment_at=now,
        ended_at=None,
    )
    require_stored(tx, model)
    tx.tasks.insert(task)
    tx.tasks.add_model(task.task_id, model, now)
    codes = codes or new_codes(task_id, spec, single_use_codes)
    for code in codes:
        tx.tasks.add_code(task.task_id, hash_secret(code), single_use=single_use_codes != 0)
    tx.events.add(task.task_id, "task.created", at=now, detail=name, fields={"name": name, "preset": preset_name})
    tx.touch(task.task_id)
    return NewTask(task, codes)


def known_initial_model(tx: Transaction, task: Task, digest: str) -> Model | None:
    """Version 0 if it has this digest already, in any state of the task; None if the admin may still set it."""
    known = tx.tasks.model(task.task_id, 0)
    if known is not None and known.digest == digest:
        return known
    if task.ended:
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}")
    if task.state is not TaskState.ENROLLING:
        raise RequestRefused(ErrorCode.MODEL_FROZEN, "the first round has been announced with another version 0")
    return None


def give_initial_model(tx: Transaction, task_id: str, blob: StagedBlob, now: Micros) -> Model:
    """Replace version 0 by a staged model. Idempotent. Raises `RequestRefused` once the first round is announced."""
    known = known_initial_model(tx, get_task_for_update(tx, task_id), blob.digest)
    if known is not None:
        return known
    model = Model(version=0, digest=blob.digest, momentum_digest=None)
    tx.publish(blob)
    tx.tasks.replace_model(task_id, model, now)
    tx.events.add(task_id, "model.given", at=now, detail="version 0")
    tx.touch(task_id)
    failpoint("model.before_commit")
    return model


def start_task(tx: Transaction, task_id: str, now: Micros, rules: RuleRegistry = NO_RULES) -> None:
    """Select clients now, without waiting for more. No effect once the task trains. Raises `RequestRefused`."""
    task = get_task_for_update(tx, task_id)
    if task.ended:
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}")
    if task.state is TaskState.ENROLLING:
        if task.paused:
            raise RequestRefused(ErrorCode.TASK_PAUSED, "resume the task first")
        rules.require(task.spec)
        profiled = tx.clients.counts(task_id).of(ClientState.PROFILED)
        if profiled < task.spec.rounds.min_clients:
            detail = f"{profiled} clients have a profile, {task.spec.rounds.min_clients} are needed"
            raise RequestRefused(ErrorCode.PROFILE_MISSING, detail)
        select_clients(tx, task, now, rules)


def resume_task(tx: Transaction, task_id: str, now: Micros, rules: RuleRegistry = NO_RULES) -> None:
    """Continue a task that is paused, or that failed because of a fault of the server. No effect on a running task.

    A paused task opens its next round at once, if none is open. After a fault, the void round opens again with new
    deadlines and with all budgets and updates that it had. Raises `RequestRefused` for a task that ended for another
    reason: such an end is final.
    """
    task = get_task_for_update(tx, task_id)
    if not task.ended:
        end_pause(tx, task, now, rules)
        return
    round_ = tx.rounds.latest(task_id)
    by_fault = task.state is TaskState.FAILED and (task.reason or "").partition(":")[0] in RESUMABLE
    if not by_fault or (round_ is not None and round_.state is not RoundState.VOID):
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}: {task.reason}")
    tx.tasks.resume(task_id, TaskState.ENROLLING if round_ is None else TaskState.TRAINING)
    if round_ is not None:
        declare_by, deliver_by = deadlines(tx, task, round_.round_number, now)
        tx.rounds.reopen(round_, declare_by=declare_by, deliver_by=deliver_by)
    tx.events.add(task_id, "task.resumed", at=now, detail=task.reason)
    tx.touch(task_id)


def stop_task(store: Store, task_id: str, evaluator: Evaluator | None, clock_now: Micros) -> None:
    """Stop a task: settle its open round if it has enough updates, else void it. Blocks. Raises `StoreBusy`."""
    store.write(lambda tx: _stop_without_round(tx, task_id, clock_now))
    watch = Stopwatch(clock_now)
    for _ in range(_STOP_ATTEMPTS):
        # An upload that arrives meanwhile changes the round: try again with the new state.
        if settle_if_due(store, task_id, evaluator, watch.now(), stop=True) or _has_ended(store, task_id):
            return
    raise StoreBusy("the open round keeps changing; try again")


def _has_ended(store: Store, task_id: str) -> bool:
    task = store.read(lambda tx: tx.tasks.get(task_id))
    return task is None or task.ended


def _stop_without_round(tx: Transaction, task_id: str, now: Micros) -> None:
    task = get_task_for_update(tx, task_id)
    round_ = tx.rounds.latest(task_id)
    if task.state is TaskState.ENROLLING or (task.paused and round_ is not None and round_.state is RoundState.SETTLED):
        end_task(tx, task, TaskState.STOPPED, EndReason.STOPPED, now)
