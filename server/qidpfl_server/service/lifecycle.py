"""How a use case reads and locks a task, and how a task ends."""

import structlog

from qidpfl_shared.core.custom_rules import CustomRuleFailed
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import TaskState

from ..clock import Micros
from ..domain import Client, ClientState, EndReason, Task
from ..errors import RequestRefused
from ..store.transaction import Transaction
from .rounds.payments import settle_escrow

_log = structlog.get_logger()
# Faults of the server, which an operator can remove: a task may be resumed. All other ends are results.
RESUMABLE = {EndReason.STEP_FAILED, EndReason.STATE_DAMAGED}


def end_task(tx: Transaction, task: Task, after: TaskState, reason: EndReason, now: Micros, detail: str = "") -> None:
    """End a task. No effect if another process has changed its state since it was read."""
    text = f"{reason.value}: {detail}" if detail else reason.value
    if tx.tasks.end(task.task_id, before=task.state, after=after, reason=text, at=now):
        if reason not in RESUMABLE:
            settle_escrow(tx, task.task_id, now)
        fields = {"reason": reason.value, "detail": detail} if detail else {"reason": reason.value}
        tx.events.add(task.task_id, f"task.{after.value}", at=now, detail=text, fields=fields)
        tx.touch(task.task_id)


def fail_by_rule(tx: Transaction, task: Task, name: str | None, error: CustomRuleFailed, now: Micros) -> None:
    """Fail a task whose custom rule failed. Clients read the reason, so it holds no data; the log has the rest."""
    _log.error("own_rule_failed", task=task.task_id, rules=name, exc_info=error)
    end_task(tx, task, TaskState.FAILED, EndReason.OWN_RULE_FAILED, now, f"rules {name}: {error}")


def get_task(tx: Transaction, task_id: str) -> Task:
    """The task, for a transaction that only reads it. Raises `RequestRefused` if there is none."""
    return _require(tx.tasks.get(task_id))


def get_task_for_update(tx: Transaction, task_id: str) -> Task:
    """The task, locked until the end of a writing transaction. Raises `RequestRefused` if there is none."""
    return _require(tx.tasks.get_for_update(task_id))


def _require(task: Task | None) -> Task:
    if task is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such task")
    return task


def active_clients(tx: Transaction, task_id: str) -> list[Client]:
    """The selected clients that have not left, in the order of their ordinals."""
    return tx.clients.in_state(task_id, ClientState.SELECTED)


def known_client(tx: Transaction, client_id: str) -> Client:
    """The client with this id, whose credentials were already checked. Raises `RequestRefused` if it is gone."""
    client = tx.clients.get(client_id)
    if client is None:
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    return client
