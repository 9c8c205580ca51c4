"""What an operator changes in a running task: pause it, set the deadlines of later rounds, make and revoke codes."""

import json
from collections.abc import Iterator

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.operators import CreateCodes, CreatedCodes, Deadlines, EnrolmentCodeInfo

from ..clock import Micros, as_datetime
from ..domain import Task
from ..errors import RequestRefused
from ..identifiers import hash_secret, new_secret
from ..plugins.rules import RuleRegistry
from ..store.transaction import Transaction
from .lifecycle import get_task, get_task_for_update
from .rounds.planning import open_round

# So many characters of the hash of a code name it.
_CODE_ID = 24


def pause_task(tx: Transaction, task_id: str, now: Micros) -> None:
    """Open no new round. An open round goes on to its end. Idempotent. Raises `RequestRefused` after the end."""
    task = _running(tx, task_id)
    if task.paused or not tx.tasks.set_paused(task, now):
        return
    tx.events.add(task_id, "task.paused", at=now)
    tx.touch(task_id)
    failpoint("pause.before_commit")


def end_pause(tx: Transaction, task: Task, now: Micros, rules: RuleRegistry) -> None:
    """End the pause of a locked task, and open the next round in the same transaction if none is open."""
    if not task.paused:
        return
    rules.require(task.spec)
    tx.tasks.set_paused(task, None)
    tx.events.add(task.task_id, "task.resumed", at=now, detail="after a pause")
    tx.touch(task.task_id)
    round_ = tx.rounds.latest(task.task_id)
    if round_ is not None and round_.state is RoundState.SETTLED:
        open_round(tx, get_task_for_update(tx, task.task_id), round_.round_number + 1, now, rules)
    failpoint("resume.before_commit")


def set_deadlines(tx: Transaction, task_id: str, wanted: Deadlines, now: Micros) -> None:
    """Set the deadlines of later rounds and attempts. The announced deadlines of an open round stay. Idempotent."""
    task = _running(tx, task_id)
    if (task.declare_s, task.deliver_s) == (wanted.declare_s, wanted.deliver_s):
        return
    tx.tasks.set_deadlines(task, declare_s=wanted.declare_s, deliver_s=wanted.deliver_s)
    rules = task.spec.rounds
    # In full, so that the audit can compare the deadlines of every round with this event.
    applied = {
        "declare_s": rules.declare_s if wanted.declare_s is None else wanted.declare_s,
        "deliver_s": rules.deliver_s if wanted.deliver_s is None else wanted.deliver_s,
    }
    tx.events.add(task_id, "task.deadlines", at=now, detail=json.dumps(applied))
    tx.touch(task_id)


def changed_deadlines(tx: Transaction, task: Task) -> Iterator[tuple[float, float]]:
    """(declare_s, deliver_s) that operators have set, in the order of the changes."""
    for event in tx.events.of_kind(task.task_id, "task.deadlines"):
        try:
            applied = json.loads(event.detail or "")
            yield float(applied["declare_s"]), float(applied["deliver_s"])
        except (ValueError, KeyError, TypeError):
            # The chain shows that the event was changed.
            continue


def enrolment_codes(tx: Transaction, task_id: str) -> list[EnrolmentCodeInfo]:
    """All enrolment codes of a task, without their secrets."""
    get_task(tx, task_id)
    return [
        EnrolmentCodeInfo(
            code_id=code.code_hash[:_CODE_ID],
            single_use=code.single_use,
            used_by=code.used_by,
            revoked_at=None if code.revoked_at is None else as_datetime(code.revoked_at),
        )
        for code in tx.tasks.codes(task_id)
    ]


def create_codes(tx: Transaction, task_id: str, request: CreateCodes, now: Micros) -> CreatedCodes:
    """Make further enrolment codes. Raises `RequestRefused` after the end."""
    _running(tx, task_id)
    codes = tuple(f"{task_id}.{new_secret()}" for _ in range(request.count))
    for code in codes:
        tx.tasks.add_code(task_id, hash_secret(code), single_use=request.single_use)
    tx.events.add(task_id, "codes.created", at=now, detail=str(len(codes)))
    tx.touch(task_id)
    return CreatedCodes(enrolment_codes=codes)


def revoke_code(tx: Transaction, task_id: str, code_id: str, now: Micros) -> None:
    """Let no further client enrol with a code. Clients that have used it stay. Idempotent."""
    get_task_for_update(tx, task_id)
    code = next((code for code in tx.tasks.codes(task_id) if code.code_hash.startswith(code_id)), None)
    if code is None or len(code_id) < _CODE_ID:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such enrolment code in this task")
    if code.revoked_at is not None:
        return
    tx.tasks.revoke_code(code.code_hash, now)
    tx.events.add(task_id, "code.revoked", at=now, detail=code_id[:_CODE_ID])
    tx.touch(task_id)


def _running(tx: Transaction, task_id: str) -> Task:
    task = get_task_for_update(tx, task_id)
    if task.ended:
        raise RequestRefused(ErrorCode.TASK_ENDED, f"the task is {task.state}")
    return task
