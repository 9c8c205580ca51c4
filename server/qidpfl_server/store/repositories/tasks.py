"""Tasks, their enrolment codes and models."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, or_, select, update

from qidpfl_shared.protocol.messages import TaskState
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...clock import Micros
from ...domain import EnrolmentCode, Model, Task
from ...errors import DamagedState
from ..prepared import Prepared
from ..schema import enrolment_codes, models, tasks
from ..validation import rows_of
from .chain import ChainRows

# Built once: building a statement costs several times as much as running it.
_ONE = select(tasks).where(tasks.c.task_id == bindparam("task_id"))
_TASK, _TASK_FOR_UPDATE = Prepared(_ONE), Prepared(_ONE.with_for_update())
_LIVING = or_(tasks.c.state == TaskState.ENROLLING, tasks.c.state == TaskState.TRAINING)
_LIVE = Prepared(select(tasks).where(_LIVING).order_by(tasks.c.task_id))
_MODEL = Prepared(
    select(models).where(models.c.task_id == bindparam("task_id"), models.c.version == bindparam("version"))
)
_INSERT_MODEL = Prepared(insert(models))


class TaskRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def insert(self, task: Task) -> None:
        self._connection.execute(
            insert(tasks).values(
                task_id=task.task_id,
                name=task.name,
                preset=task.preset,
                spec=task.spec.model_dump_json(),
                spec_digest=task.spec_digest,
                state=task.state,
                opened_at=task.opened_at,
                last_enrolment_at=task.last_enrolment_at,
            )
        )
        self._chain.mark("created", task.task_id, task.spec_digest)
        self._chain.mark("task", task.task_id)

    def get(self, task_id: str) -> Task | None:
        return self._one(_TASK, {"task_id": task_id})

    def get_for_update(self, task_id: str) -> Task | None:
        """The task, locked until the end of the transaction: writers of one task run one after the other."""
        return self._one(_TASK_FOR_UPDATE, {"task_id": task_id})

    def by_name(self, name: str) -> Task | None:
        row = self._connection.execute(select(tasks).where(tasks.c.name == name)).one_or_none()
        return None if row is None else _task(row)

    def all(self) -> list[Task]:
        rows = self._connection.execute(select(tasks).order_by(tasks.c.opened_at, tasks.c.task_id))
        return [_task(row) for row in rows]

    def count(self) -> int:
        return int(self._connection.execute(select(func.count()).select_from(tasks)).scalar_one())

    def live(self) -> list[Task]:
        """The tasks that have not ended."""
        return [_task(row) for row in _LIVE.run(self._connection, {})]

    def live_ids(self) -> list[str]:
        """The ids of the tasks that have not ended; works even if other columns are damaged."""
        query = select(tasks.c.task_id).where(_LIVING).order_by(tasks.c.task_id)
        return list(self._connection.execute(query).scalars())

    def move(self, task_id: str, *, before: TaskState, after: TaskState) -> bool:
        """Change the state if it is still the expected one."""
        return self._change(task_id, before, {"state": after})

    def end(self, task_id: str, *, before: TaskState, after: TaskState, reason: str, at: Micros) -> bool:
        """End a task if it is still in the expected state."""
        return self._change(task_id, before, {"state": after, "reason": reason, "ended_at": at})

    def resume(self, task_id: str, after: TaskState) -> bool:
        """Take back the end of a failed task."""
        return self._change(task_id, TaskState.FAILED, {"state": after, "reason": None, "ended_at": None})

    def set_paused(self, task: Task, at: Micros | None) -> bool:
        """Pause a task, or (`at` None) end its pause, if its state is still the known one."""
        return self._change(task.task_id, task.state, {"paused_at": at})

    def set_deadlines(self, task: Task, *, declare_s: float | None, deliver_s: float | None) -> bool:
        """Replace the deadlines of later rounds, if the state of the task is still the known one."""
        return self._change(task.task_id, task.state, {"declare_s": declare_s, "deliver_s": deliver_s})

    def note_enrolment(self, task_id: str, at: Micros) -> None:
        self._connection.execute(update(tasks).where(tasks.c.task_id == task_id).values(last_enrolment_at=at))

    def add_code(self, task_id: str, code_hash: str, *, single_use: bool) -> None:
        self._connection.execute(
            insert(enrolment_codes).values(task_id=task_id, code_hash=code_hash, single_use=single_use)
        )
        self._chain.mark("code", code_hash)

    def task_of_code(self, code_hash: str) -> str | None:
        """The task of an enrolment code, used or not; None if it is revoked."""
        query = select(enrolment_codes.c.task_id).where(
            enrolment_codes.c.code_hash == code_hash, enrolment_codes.c.revoked_at.is_(None)
        )
        return self._connection.execute(query).scalar()

    def codes(self, task_id: str) -> list[EnrolmentCode]:
        """All enrolment codes of a task, in the order of their hashes."""
        query = select(enrolment_codes).where(enrolment_codes.c.task_id == task_id)
        return [_code(row) for row in self._connection.execute(query.order_by(enrolment_codes.c.code_hash))]

    def revoke_code(self, code_hash: str, at: Micros) -> None:
        """Let no further client enrol with a code."""
        where = enrolment_codes.c.code_hash == code_hash
        self._connection.execute(update(enrolment_codes).where(where).values(revoked_at=at))
        self._chain.mark("code", code_hash)

    def use_code(self, code_hash: str, client_id: str) -> bool:
        """Mark a code as used by a client; False if it is single-use and another client has used it."""
        query = select(enrolment_codes).where(enrolment_codes.c.code_hash == code_hash).with_for_update()
        code = self._connection.execute(query).one()
        if code.single_use and code.used_by not in (None, client_id):
            return False
        where = enrolment_codes.c.code_hash == code_hash
        self._connection.execute(update(enrolment_codes).where(where).values(used_by=client_id))
        self._chain.mark("code", code_hash)
        return True

    def free_codes(self, client_id: str) -> None:
        """Let another client use the code of a client that has lost its place."""
        of_client = enrolment_codes.c.used_by == client_id
        hashes = self._connection.execute(select(enrolment_codes.c.code_hash).where(of_client)).scalars().all()
        self._connection.execute(update(enrolment_codes).where(of_client).values(used_by=None))
        for code_hash in hashes:
            self._chain.mark("code", code_hash)

    def add_model(self, task_id: str, model: Model, at: Micros) -> None:
        row = {
            "task_id": task_id,
            "version": model.version,
            "digest": model.digest,
            "momentum_digest": model.momentum_digest,
            "published_at": at,
        }
        _INSERT_MODEL.run(self._connection, row)
        self._chain.mark("model", task_id, model.version, row=row)

    def replace_model(self, task_id: str, model: Model, at: Micros) -> None:
        """Replace a model version that no round has started from."""
        where = (models.c.task_id == task_id, models.c.version == model.version)
        values = {"digest": model.digest, "momentum_digest": model.momentum_digest, "published_at": at}
        self._connection.execute(update(models).where(*where).values(values))
        self._chain.mark("model", task_id, model.version)

    def model(self, task_id: str, version: int) -> Model | None:
        row = _MODEL.run(self._connection, {"task_id": task_id, "version": version}).one_or_none()
        return None if row is None else _model(row)

    def models(self, task_id: str) -> list[Model]:
        query = select(models).where(models.c.task_id == task_id).order_by(models.c.version)
        return [_model(row) for row in self._connection.execute(query)]

    def _one(self, statement: Prepared, parameters: Mapping[str, str]) -> Task | None:
        row = statement.run(self._connection, parameters).one_or_none()
        return None if row is None else _task(row)

    def _change(self, task_id: str, before: TaskState, values: Mapping[str, object]) -> bool:
        where = (tasks.c.task_id == task_id, tasks.c.state == before)
        changed = self._connection.execute(update(tasks).where(*where).values(values)).rowcount == 1
        if changed:
            self._chain.mark("task", task_id)
        return changed


# A spec never changes, so it is parsed and checked once.
@lru_cache(maxsize=256)
def _spec(task_id: str, text: str, digest: str) -> TaskSpec:
    try:
        spec = TaskSpec.model_validate_json(text)
    except ValueError as error:
        raise DamagedState(f"the spec of task {task_id} in table tasks cannot be read") from error
    if spec.digest != digest:
        raise DamagedState(f"the spec of task {task_id} in table tasks does not have its recorded digest")
    return spec


@rows_of(tasks)
def _task(row: Row[Any]) -> Task:
    return Task(
        task_id=row.task_id,
        name=row.name,
        preset=row.preset,
        spec=_spec(row.task_id, row.spec, row.spec_digest),
        spec_digest=row.spec_digest,
        state=TaskState(row.state),
        reason=row.reason,
        opened_at=row.opened_at,
        last_enrolment_at=row.last_enrolment_at,
        ended_at=row.ended_at,
        paused_at=row.paused_at,
        declare_s=row.declare_s,
        deliver_s=row.deliver_s,
    )


@rows_of(enrolment_codes)
def _code(row: Row[Any]) -> EnrolmentCode:
    return EnrolmentCode(
        code_hash=row.code_hash, single_use=row.single_use, used_by=row.used_by, revoked_at=row.revoked_at
    )


@rows_of(models)
def _model(row: Row[Any]) -> Model:
    return Model(version=row.version, digest=row.digest, momentum_digest=row.momentum_digest)
