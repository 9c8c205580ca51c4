"""Which clients take part: when the selection is due, which clients the rule of the task keeps, and late joiners."""

from collections.abc import Sequence

import numpy as np

from qidpfl_shared.core.custom_rules import CustomRuleFailed
from qidpfl_shared.core.selection import Selection, SelectionStatus, label_distances, select
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.task_spec import SelectionRule, TaskSpec

from ..clock import Micros, seconds
from ..domain import Client, ClientState, EndReason, Task
from ..errors import RequestRefused
from ..plugins.rules import RuleRegistry
from ..store.transaction import Transaction
from .lifecycle import end_task, fail_by_rule, get_task_for_update, known_client
from .rounds.planning import open_round

# Why a task ends whose selection leaves too few clients.
TOO_FEW_PASS = "too few pass the selection"
# A sum of noise exceeds so many standard deviations about once in a thousand times.
_NOISE_DEVIATIONS = 3.0


def selection_is_due(tx: Transaction, task: Task, now: Micros) -> bool:
    """Whether enough clients have a profile: the expected number, or the minimum once the waiting time is over.

    A paused task selects no clients, because its first round would open.
    """
    if task.paused:
        return False
    profiled = tx.clients.counts(task.task_id).of(ClientState.PROFILED)
    rules = task.spec.rounds
    if profiled < rules.min_clients:
        return False
    if rules.expected_clients is not None and profiled >= rules.expected_clients:
        return True
    return now >= selection_time(tx, task)


def selection_time(tx: Transaction, task: Task) -> Micros:
    """When the server stops waiting for more clients: the enrolment window ends, or no client came for `quiet_s`."""
    rules, opened_at = task.spec.rounds, window_start(tx, task)
    quiet = task.last_enrolment_at + seconds(rules.quiet_s)
    return quiet if opened_at is None else min(opened_at + seconds(rules.enrolment_window_s), quiet)


def window_start(tx: Transaction, task: Task) -> Micros | None:
    """When the enrolment window began: with the first stored profile, or when an admin opened it. None: not yet.

    In a task of an earlier release it began when the task was created.
    """
    if not task.is_versioned:
        return task.opened_at
    return tx.events.first_at(task.task_id, "client.profiled", "enrolment.opened")


def open_window(tx: Transaction, task_id: str, now: Micros) -> None:
    """Begin the enrolment window now. No effect if it has begun, or once the task trains. Raises `RequestRefused`."""
    task = get_task_for_update(tx, task_id)
    if task.ended:
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}")
    if task.state is TaskState.ENROLLING and window_start(tx, task) is None:
        tx.events.add(task_id, "enrolment.opened", at=now)
        tx.touch(task_id)


def select_clients(tx: Transaction, task: Task, now: Micros, rules: RuleRegistry) -> None:
    """Select among all profiled clients, then open the first round or end the task."""
    candidates = tx.clients.in_state(task.task_id, ClientState.PROFILED)
    try:
        selection = selection_of(task.spec, candidates, rules)
    except CustomRuleFailed as error:
        fail_by_rule(tx, task, task.spec.selection.own_rules, error, now)
        return
    for client, kept, filled_up, distance in zip(
        candidates, selection.selected, selection.filled_up, selection.label_distances, strict=True
    ):
        tx.clients.set_selection(
            client.client_id,
            selected=bool(kept),
            label_distance=float(distance) if client.has_histogram else None,
            filled_up=bool(filled_up),
        )
    kept_count = int(np.count_nonzero(selection.selected))
    tx.events.add(
        task.task_id,
        "task.selected",
        at=now,
        detail=f"{kept_count} of {len(candidates)} clients",
        fields={"selected": kept_count, "clients": len(candidates)},
    )
    if absent := absent_labels(task.spec, candidates):
        detail = f"the histograms of all clients show no records of {', '.join(absent)[:500]}"
        tx.events.add(task.task_id, "labels.absent", at=now, detail=detail)
    tx.touch(task.task_id)
    if selection.status is SelectionStatus.TOO_FEW_CLIENTS:
        end_task(tx, task, TaskState.FAILED, EndReason.TOO_FEW_CLIENTS, now, TOO_FEW_PASS)
        return
    tx.tasks.move(task.task_id, before=TaskState.ENROLLING, after=TaskState.TRAINING)
    open_round(tx, get_task_for_update(tx, task.task_id), 1, now, rules)


def selection_of(spec: TaskSpec, candidates: Sequence[Client], rules: RuleRegistry) -> Selection:
    """Apply the rule of a task to these clients, which come in the order of their ordinals.

    A client without a histogram has the distance NaN. Raises `CustomRuleFailed` if a custom rule fails.
    """
    if spec.selection.rule is SelectionRule.ALL and not all(client.has_histogram for client in candidates):
        return _all_of(spec, candidates)
    histograms = [client.label_counts or () for client in candidates]
    return select(
        rule=spec.selection_rule(rules.select(spec)),
        histograms=histograms,
        reference=spec.label_reference(histograms),
        min_clients=spec.rounds.min_clients,
        shortfall=spec.selection.shortfall,
        sizes=[client.size or 0 for client in candidates],
        privacy_values=[client.counted_value(spec) for client in candidates],
    )


def absent_labels(spec: TaskSpec, candidates: Sequence[Client]) -> list[str]:
    """The labels of a task of own data of which all histograms together show no more than noise alone can.

    The result is empty if a client has sent no histogram: it may have the label.
    """
    if spec.data is None or not all(client.has_histogram for client in candidates):
        return []
    counts = np.sum([client.label_counts or () for client in candidates], axis=0)
    variances = [0.0 if client.histogram_rho is None else 1 / client.histogram_rho for client in candidates]
    noise = _NOISE_DEVIATIONS * sum(variances) ** 0.5
    return [name for name, count in zip(spec.data.label.shown, counts, strict=True) if count <= noise]


def _all_of(spec: TaskSpec, candidates: Sequence[Client]) -> Selection:
    """Select all clients, some of which sent no histogram: only rule `all` lets them in."""
    histograms = [client.label_counts for client in candidates if client.label_counts is not None]
    distances = np.full(len(candidates), np.nan)
    reference = spec.label_reference(histograms or [[0] * spec.workload.labels])
    if histograms:
        known = [client.has_histogram for client in candidates]
        distances[known] = label_distances(histograms=histograms, reference=reference)
    enough = len(candidates) >= spec.rounds.min_clients
    return Selection(
        status=SelectionStatus.SELECTED if enough else SelectionStatus.TOO_FEW_CLIENTS,
        selected=np.full(len(candidates), enough),
        filled_up=np.zeros(len(candidates), dtype=np.bool_),
        label_distances=distances,
        reference=reference,
    )


def select_late_joiner(tx: Transaction, task: Task, client_id: str) -> None:
    """Apply the rule of the task to one client that stored its profile after the first selection."""
    client = known_client(tx, client_id)
    if client.label_counts is None:
        tx.clients.set_selection(client_id, selected=True, label_distance=None)
        return
    all_counts = [other.label_counts for other in tx.clients.of_task(task.task_id) if other.label_counts is not None]
    verdict = select(
        rule=task.spec.selection_rule(),
        histograms=[client.label_counts],
        reference=task.spec.label_reference(all_counts),
        min_clients=1,
    )
    tx.clients.set_selection(
        client_id,
        selected=bool(verdict.selected[0]),
        label_distance=float(verdict.label_distances[0]),
        filled_up=False,
    )
