"""Rounds, and the tables with one row per round and client: invitations, budgets, updates, payments."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState

from ...clock import Micros
from ...domain import Budget, BudgetState, ClientState, Round, RoundInvitation, Update
from ..schema import budgets, clients, invitations, payments, rounds, updates
from ..validation import rows_of
from .chain import ChainRows

# A statement names at most this many clients; for more it reads all rows.
_MAX_NAMED = 1000

# Statements that a busy round repeats are built once: building one costs several times as much as running it.
_task_id: BindParameter[str] = bindparam("task_id")
_round_number: BindParameter[int] = bindparam("round_number")

_OF_TASK = select(rounds).where(rounds.c.task_id == _task_id)
_ROUND = _OF_TASK.where(rounds.c.round_number == _round_number)
_LATEST = _OF_TASK.order_by(rounds.c.round_number.desc()).limit(1)

# By table: all its rows of a round, or those of some clients.
_OF_ROUND = {
    table: select(table).where(table.c.task_id == _task_id, table.c.round_number == _round_number)
    for table in (invitations, budgets, updates, payments)
}
_OF_CLIENTS = {
    table: query.where(table.c.client_id.in_(bindparam("client_ids", expanding=True)))
    for table, query in _OF_ROUND.items()
}

_KNOWN_DIGESTS = select(updates.c.digest).where(
    updates.c.task_id == _task_id, updates.c.digest.in_(bindparam("digests", expanding=True))
)

_PUT_BUDGET = text(
    "INSERT INTO budgets (task_id, round_number, client_id, state, rho, reason, recorded_at)"
    " VALUES (:task_id, :round_number, :client_id, :state, :rho, :reason, :recorded_at)"
    " ON CONFLICT (task_id, round_number, client_id) DO UPDATE"
    " SET state = excluded.state, rho = excluded.rho, reason = excluded.reason, recorded_at = excluded.recorded_at"
)


def _awaited(*, silent: bool) -> Select[tuple[str]]:
    """Selects one invited client that may still deliver."""
    same_client = [
        and_(*(table.c[key] == invitations.c[key] for key in ("task_id", "round_number", "client_id")))
        for table in (budgets, updates)
    ]
    joined = (
        invitations.join(clients, clients.c.client_id == invitations.c.client_id)
        .outerjoin(budgets, same_client[0])
        .outerjoin(updates, same_client[1])
    )
    answered = budgets.c.state.in_((BudgetState.DECLARED, BudgetState.JOINED))
    return (
        select(invitations.c.client_id)
        .select_from(joined)
        .where(
            invitations.c.task_id == _task_id,
            invitations.c.round_number == _round_number,
            invitations.c.standing == Standing.INVITED,
            clients.c.state == ClientState.SELECTED,
            updates.c.digest.is_(None),
            or_(answered, budgets.c.state.is_(None)) if silent else answered,
        )
        .limit(1)
    )


# By whether clients that have not answered count too.
_AWAITED = {silent: _awaited(silent=silent) for silent in (False, True)}

_SPENT = (
    select(budgets.c.round_number, budgets.c.client_id, budgets.c.rho)
    .select_from(
        budgets.join(
            updates, and_(*(budgets.c[key] == updates.c[key] for key in ("task_id", "round_number", "client_id")))
        )
    )
    .where(budgets.c.task_id == _task_id)
    .order_by(budgets.c.round_number)
)
_SPENT_BY_SOME = _SPENT.where(budgets.c.client_id.in_(bindparam("client_ids", expanding=True)))


class RoundRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def insert(self, new: Round) -> None:
        self._connection.execute(
            insert(rounds).values(
                task_id=new.task_id,
                round_number=new.round_number,
                attempt=new.attempt,
                state=new.state,
                reward_micro=new.reward_micro,
                total=new.total,
                min_updates=new.min_updates,
                base_version=new.base_version,
                declare_by=new.declare_by,
                deliver_by=new.deliver_by,
                opened_at=new.opened_at,
            )
        )
        self._mark(new)

    def get(self, task_id: str, round_number: int) -> Round | None:
        row = self._connection.execute(_ROUND, {"task_id": task_id, "round_number": round_number}).one_or_none()
        return None if row is None else _round(row)

    def latest(self, task_id: str) -> Round | None:
        row = self._connection.execute(_LATEST, {"task_id": task_id}).one_or_none()
        return None if row is None else _round(row)

    def of_task(self, task_id: str) -> list[Round]:
        query = select(rounds).where(rounds.c.task_id == task_id).order_by(rounds.c.round_number)
        return [_round(row) for row in self._connection.execute(query)]

    def settle(
        self,
        known: Round,
        *,
        kept_micro: int,
        declared_total: float,
        accuracy: float | None,
        loss: float | None,
        settled_at: Micros,
    ) -> bool:
        """Settle a round. Like all changes of a round: False if its state or attempt are no longer those known."""
        return self._change(
            known,
            {
                "state": RoundState.SETTLED,
                "kept_micro": kept_micro,
                "declared_total": declared_total,
                "accuracy": accuracy,
                "loss": loss,
                "settled_at": settled_at,
            },
        )

    def set_timing(self, known: Round, *, settlement_s: float, evaluation_s: float | None) -> bool:
        """Store how long the settlement and the evaluation of a round took."""
        return self._change(known, {"settlement_s": settlement_s, "evaluation_s": evaluation_s})

    def void(self, known: Round) -> bool:
        """Close a round without a result."""
        return self._change(known, {"state": RoundState.VOID})

    def start_attempt(self, known: Round, *, declare_by: Micros, deliver_by: Micros) -> bool:
        """Start the next attempt of a round, with new deadlines."""
        return self._change(known, {"attempt": known.attempt + 1, "declare_by": declare_by, "deliver_by": deliver_by})

    def reopen(self, known: Round, *, declare_by: Micros, deliver_by: Micros) -> bool:
        """Open a void round again in the same attempt, with new deadlines. Its budgets and updates have stayed."""
        return self._change(known, {"state": RoundState.OPEN, "declare_by": declare_by, "deliver_by": deliver_by})

    def _mark(self, known: Round) -> None:
        self._chain.mark("round", known.task_id, known.round_number)

    def _change(self, known: Round, values: Mapping[str, object]) -> bool:
        where = (
            rounds.c.task_id == known.task_id,
            rounds.c.round_number == known.round_number,
            rounds.c.state == known.state,
            rounds.c.attempt == known.attempt,
        )
        changed = self._connection.execute(update(rounds).where(*where).values(values)).rowcount == 1
        if changed:
            self._mark(known)
        return changed

    def invite(self, known: Round, standings: Sequence[RoundInvitation]) -> None:
        rows = [
            _key(known, invitation.client_id)
            | {"standing": invitation.standing, "expected_rho": invitation.expected_rho}
            for invitation in standings
        ]
        if rows:
            self._connection.execute(insert(invitations), rows)
            self._mark(known)

    def invitations(
        self, task_id: str, round_number: int, among: Collection[str] | None = None
    ) -> dict[str, RoundInvitation]:
        """The invitations of a round by client, of all clients or of those in `among`."""
        return {row.client_id: _invitation(row) for row in self._of_round(invitations, task_id, round_number, among)}

    def awaits(self, task_id: str, round_number: int, *, silent: bool) -> bool:
        """Whether a client may still deliver: one with a budget or, with `silent`, one that has not answered."""
        key = {"task_id": task_id, "round_number": round_number}
        return self._connection.execute(_AWAITED[silent], key).scalar() is not None

    def put_budget(self, known: Round, *answers: Budget) -> None:
        """Insert or replace the answers of clients."""
        rows = [
            _key(known, answer.client_id)
            | {
                "state": answer.state,
                "rho": answer.rho,
                "reason": answer.reason,
                "recorded_at": answer.recorded_at,
            }
            for answer in answers
        ]
        if rows:
            self._connection.execute(_PUT_BUDGET, rows)
        for answer in answers:
            self._chain.mark("budget", known.task_id, known.round_number, answer.client_id)

    def budgets(self, task_id: str, round_number: int, among: Collection[str] | None = None) -> dict[str, Budget]:
        return {row.client_id: _budget(row) for row in self._of_round(budgets, task_id, round_number, among)}

    def insert_update(self, known: Round, *new: Update) -> None:
        rows = [
            _key(known, update.client_id)
            | {
                "digest": update.digest,
                "byte_length": update.byte_length,
                "squared_norm": update.squared_norm,
                "received_at": update.received_at,
            }
            for update in new
        ]
        if rows:
            self._connection.execute(insert(updates), rows)
        for added in new:
            self._chain.mark("update", known.task_id, known.round_number, added.client_id)

    def updates(self, task_id: str, round_number: int, among: Collection[str] | None = None) -> dict[str, Update]:
        return {row.client_id: _update(row) for row in self._of_round(updates, task_id, round_number, among)}

    def update_digests(self, task_id: str, *, after_round: int) -> set[str]:
        """The digests of the updates of all later rounds."""
        query = select(updates.c.digest).where(updates.c.task_id == task_id, updates.c.round_number > after_round)
        return set(self._connection.execute(query).scalars())

    def update_count(self, task_id: str, round_number: int) -> int:
        query = (
            select(func.count())
            .select_from(updates)
            .where(updates.c.task_id == task_id, updates.c.round_number == round_number)
        )
        return int(self._connection.execute(query).scalar_one())

    def known_digests(self, task_id: str, digests: Collection[str]) -> set[str]:
        """Those of the digests that belong to an update of the task."""
        where = {"task_id": task_id, "digests": list(digests)}
        return set(self._connection.execute(_KNOWN_DIGESTS, where).scalars())

    def set_verdict(self, known: Round, client_id: str, *, verdict: NoiseVerdict | None, accepted: bool) -> None:
        where = _where(updates, known.task_id, known.round_number, client_id)
        self._connection.execute(update(updates).where(*where).values(verdict=verdict, accepted=accepted))
        self._mark(known)

    def pay(self, known: Round, amounts: dict[str, int]) -> None:
        rows = [_key(known, client_id) | {"amount_micro": amount} for client_id, amount in amounts.items()]
        if rows:
            self._connection.execute(insert(payments), rows)
            self._mark(known)

    def payments(self, task_id: str, round_number: int) -> dict[str, int]:
        return {row.client_id: _amount(row) for row in self._of_round(payments, task_id, round_number)}

    def paid_micro(self, task_id: str) -> int:
        query = select(func.sum(payments.c.amount_micro)).where(payments.c.task_id == task_id)
        return int(self._connection.execute(query).scalar() or 0)

    def history(self, task_id: str, client_id: str) -> list[tuple[Round, Budget, Update | None, int | None]]:
        """All rounds that a client has answered, with its budget, update and payment."""
        own = (budgets.c.task_id == task_id, budgets.c.client_id == client_id)
        answered = self._connection.execute(select(budgets).where(*own).order_by(budgets.c.round_number)).all()
        known = {past.round_number: past for past in self.of_task(task_id)}
        sent = {row.round_number: _update(row) for row in self._of_client(updates, task_id, client_id)}
        paid = {row.round_number: _amount(row) for row in self._of_client(payments, task_id, client_id)}
        return [
            (known[row.round_number], _budget(row), sent.get(row.round_number), paid.get(row.round_number))
            for row in answered
        ]

    def spent_budgets(self, task_id: str, client_ids: Collection[str]) -> list[tuple[int, str, float]]:
        """(round, client, rho) of each update of these clients."""
        if len(client_ids) <= _MAX_NAMED:
            rows = self._connection.execute(_SPENT_BY_SOME, {"task_id": task_id, "client_ids": list(client_ids)})
        else:
            rows = self._connection.execute(_SPENT, {"task_id": task_id})
        return [(number, client_id, rho) for number, client_id, rho in rows if client_id in client_ids]

    def _of_round(
        self, table: Table, task_id: str, round_number: int, among: Collection[str] | None = None
    ) -> Sequence[Row[Any]]:
        key: dict[str, Any] = {"task_id": task_id, "round_number": round_number}
        if among is None:
            return self._connection.execute(_OF_ROUND[table], key).all()
        return self._connection.execute(_OF_CLIENTS[table], key | {"client_ids": list(among)}).all()

    def _of_client(self, table: Table, task_id: str, client_id: str) -> Sequence[Row[Any]]:
        where = (table.c.task_id == task_id, table.c.client_id == client_id)
        return self._connection.execute(select(table).where(*where)).all()


def _key(known: Round, client_id: str) -> dict[str, Any]:
    return {"task_id": known.task_id, "round_number": known.round_number, "client_id": client_id}


def _where(table: Table, task_id: str, round_number: int, client_id: str) -> tuple[Any, ...]:
    return table.c.task_id == task_id, table.c.round_number == round_number, table.c.client_id == client_id


@rows_of(rounds)
def _round(row: Row[Any]) -> Round:
    return Round(
        task_id=row.task_id,
        round_number=row.round_number,
        attempt=row.attempt,
        state=RoundState(row.state),
        reward_micro=row.reward_micro,
        total=row.total,
        min_updates=row.min_updates,
        base_version=row.base_version,
        declare_by=row.declare_by,
        deliver_by=row.deliver_by,
        kept_micro=row.kept_micro,
        declared_total=row.declared_total,
        accuracy=row.accuracy,
        loss=row.loss,
        opened_at=row.opened_at,
        settled_at=row.settled_at,
        settlement_s=row.settlement_s,
        evaluation_s=row.evaluation_s,
    )


@rows_of(budgets)
def _budget(row: Row[Any]) -> Budget:
    return Budget(
        client_id=row.client_id,
        state=BudgetState(row.state),
        rho=row.rho,
        reason=row.reason,
        recorded_at=row.recorded_at,
    )


@rows_of(invitations)
def _invitation(row: Row[Any]) -> RoundInvitation:
    return RoundInvitation(client_id=row.client_id, standing=Standing(row.standing), expected_rho=row.expected_rho)


@rows_of(payments)
def _amount(row: Row[Any]) -> int:
    amount: int = row.amount_micro
    return amount


@rows_of(updates)
def _update(row: Row[Any]) -> Update:
    return Update(
        client_id=row.client_id,
        digest=row.digest,
        byte_length=row.byte_length,
        squared_norm=row.squared_norm,
        received_at=row.received_at,
        verdict=None if row.verdict is None else NoiseVerdict(row.verdict),
        accepted=row.accepted,
    )
