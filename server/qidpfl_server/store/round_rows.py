"""Rounds, and what happens once per round and client: invitations, budgets, updates, payments."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, func, insert, or_, select, update

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState

from ..domain import Budget, BudgetState, ClientState, Invitation, Round, Update
from .schema import budgets, clients, invitations, payments, rounds, updates


class RoundRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
            )
        )

    def get(self, task_id: str, round_number: int) -> Round | None:
        query = select(rounds).where(rounds.c.task_id == task_id, rounds.c.round_number == round_number)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else _round(row)

    def latest(self, task_id: str) -> Round | None:
        query = select(rounds).where(rounds.c.task_id == task_id).order_by(rounds.c.round_number.desc()).limit(1)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else _round(row)

    def of_task(self, task_id: str) -> list[Round]:
        query = select(rounds).where(rounds.c.task_id == task_id).order_by(rounds.c.round_number)
        return [_round(row) for row in self._connection.execute(query)]

    def change(self, known: Round, **values: Any) -> bool:
        """Change a round if it is still in the known state and attempt."""
        where = (
            rounds.c.task_id == known.task_id,
            rounds.c.round_number == known.round_number,
            rounds.c.state == known.state,
            rounds.c.attempt == known.attempt,
        )
        return self._connection.execute(update(rounds).where(*where).values(**values)).rowcount == 1

    def invite(self, known: Round, standings: Sequence[Invitation]) -> None:
        rows = [
            _key(known, invitation.client_id)
            | {"standing": invitation.standing, "expected_rho": invitation.expected_rho}
            for invitation in standings
        ]
        if rows:
            self._connection.execute(insert(invitations), rows)

    def invitations(self, task_id: str, round_number: int) -> dict[str, Invitation]:
        return {
            row.client_id: Invitation(
                client_id=row.client_id, standing=Standing(row.standing), expected_rho=row.expected_rho
            )
            for row in self._of_round(invitations, task_id, round_number)
        }

    def awaited(self, task_id: str, round_number: int, *, silent: bool) -> int:
        """How many invited clients may still deliver: those with a budget and, with `silent`, those without answer."""
        same_round = [
            (table.c.task_id == invitations.c.task_id)
            & (table.c.round_number == invitations.c.round_number)
            & (table.c.client_id == invitations.c.client_id)
            for table in (budgets, updates)
        ]
        joined = (
            invitations.join(clients, clients.c.client_id == invitations.c.client_id)
            .outerjoin(budgets, same_round[0])
            .outerjoin(updates, same_round[1])
        )
        answered = budgets.c.state.in_((BudgetState.DECLARED, BudgetState.JOINED))
        query = (
            select(func.count())
            .select_from(joined)
            .where(
                invitations.c.task_id == task_id,
                invitations.c.round_number == round_number,
                invitations.c.standing == Standing.INVITED,
                clients.c.state == ClientState.SELECTED,
                updates.c.digest.is_(None),
                or_(answered, budgets.c.state.is_(None)) if silent else answered,
            )
        )
        return int(self._connection.execute(query).scalar_one())

    def standing(self, task_id: str, round_number: int, client_id: str) -> Standing | None:
        query = select(invitations.c.standing).where(*_where(invitations, task_id, round_number, client_id))
        found = self._connection.execute(query).scalar()
        return None if found is None else Standing(found)

    def put_budget(self, known: Round, budget: Budget) -> None:
        """Insert or replace a client's answer."""
        values = {
            "state": budget.state,
            "rho": budget.rho,
            "reason": budget.reason,
            "recorded_at": budget.recorded_at,
        }
        where = _where(budgets, known.task_id, known.round_number, budget.client_id)
        if self._connection.execute(update(budgets).where(*where).values(**values)).rowcount == 0:
            self._connection.execute(insert(budgets).values(**_key(known, budget.client_id), **values))

    def budget(self, task_id: str, round_number: int, client_id: str) -> Budget | None:
        query = select(budgets).where(*_where(budgets, task_id, round_number, client_id))
        row = self._connection.execute(query).one_or_none()
        return None if row is None else _budget(row)

    def budgets(self, task_id: str, round_number: int) -> dict[str, Budget]:
        return {row.client_id: _budget(row) for row in self._of_round(budgets, task_id, round_number)}

    def insert_update(self, known: Round, new: Update) -> None:
        self._connection.execute(
            insert(updates).values(
                **_key(known, new.client_id),
                digest=new.digest,
                byte_length=new.byte_length,
                squared_norm=new.squared_norm,
                received_at=new.received_at,
            )
        )

    def update(self, task_id: str, round_number: int, client_id: str) -> Update | None:
        query = select(updates).where(*_where(updates, task_id, round_number, client_id))
        row = self._connection.execute(query).one_or_none()
        return None if row is None else _update(row)

    def updates(self, task_id: str, round_number: int) -> dict[str, Update]:
        return {row.client_id: _update(row) for row in self._of_round(updates, task_id, round_number)}

    def update_count(self, task_id: str, round_number: int) -> int:
        query = (
            select(func.count())
            .select_from(updates)
            .where(updates.c.task_id == task_id, updates.c.round_number == round_number)
        )
        return int(self._connection.execute(query).scalar_one())

    def digest_is_known(self, task_id: str, digest: str) -> bool:
        """Whether any update of the task has these bytes."""
        query = select(updates.c.client_id).where(updates.c.digest == digest, updates.c.task_id == task_id).limit(1)
        return self._connection.execute(query).scalar() is not None

    def judge(self, known: Round, client_id: str, *, verdict: NoiseVerdict | None, accepted: bool) -> None:
        where = _where(updates, known.task_id, known.round_number, client_id)
        self._connection.execute(update(updates).where(*where).values(verdict=verdict, accepted=accepted))

    def pay(self, known: Round, amounts: dict[str, int]) -> None:
        rows = [_key(known, client_id) | {"amount_micro": amount} for client_id, amount in amounts.items()]
        if rows:
            self._connection.execute(insert(payments), rows)

    def payments(self, task_id: str, round_number: int) -> dict[str, int]:
        return {row.client_id: row.amount_micro for row in self._of_round(payments, task_id, round_number)}

    def paid_micro(self, task_id: str) -> int:
        query = select(func.sum(payments.c.amount_micro)).where(payments.c.task_id == task_id)
        return int(self._connection.execute(query).scalar() or 0)

    def history(self, task_id: str, client_id: str) -> list[tuple[Round, Budget, Update | None, int | None]]:
        """Every round a client has answered: its budget, its update and its payment."""
        own = (budgets.c.task_id == task_id, budgets.c.client_id == client_id)
        answered = self._connection.execute(select(budgets).where(*own).order_by(budgets.c.round_number)).all()
        known = {held.round_number: held for held in self.of_task(task_id)}
        sent = {row.round_number: _update(row) for row in self._of_client(updates, task_id, client_id)}
        paid = {row.round_number: row.amount_micro for row in self._of_client(payments, task_id, client_id)}
        return [
            (known[row.round_number], _budget(row), sent.get(row.round_number), paid.get(row.round_number))
            for row in answered
        ]

    def spent_budgets(self, task_id: str, client_ids: Sequence[str]) -> list[tuple[int, str, float]]:
        """(round, client, rho) of every update that came; of one client, or of all where more are asked for."""
        joined = budgets.join(
            updates,
            (budgets.c.task_id == updates.c.task_id)
            & (budgets.c.round_number == updates.c.round_number)
            & (budgets.c.client_id == updates.c.client_id),
        )
        query = (
            select(budgets.c.round_number, budgets.c.client_id, budgets.c.rho)
            .select_from(joined)
            .where(budgets.c.task_id == task_id)
            .order_by(budgets.c.round_number)
        )
        if len(client_ids) == 1:
            query = query.where(budgets.c.client_id == client_ids[0])
        return [(row.round_number, row.client_id, row.rho) for row in self._connection.execute(query)]

    def _of_round(self, table: Table, task_id: str, round_number: int) -> Sequence[Row[Any]]:
        where = (table.c.task_id == task_id, table.c.round_number == round_number)
        return self._connection.execute(select(table).where(*where)).all()

    def _of_client(self, table: Table, task_id: str, client_id: str) -> Sequence[Row[Any]]:
        where = (table.c.task_id == task_id, table.c.client_id == client_id)
        return self._connection.execute(select(table).where(*where)).all()


def _key(known: Round, client_id: str) -> dict[str, Any]:
    return {"task_id": known.task_id, "round_number": known.round_number, "client_id": client_id}


def _where(table: Table, task_id: str, round_number: int, client_id: str) -> tuple[Any, ...]:
    return table.c.task_id == task_id, table.c.round_number == round_number, table.c.client_id == client_id


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
        settled_at=row.settled_at,
    )


def _budget(row: Row[Any]) -> Budget:
    return Budget(
        client_id=row.client_id,
        state=BudgetState(row.state),
        rho=row.rho,
        reason=row.reason,
        recorded_at=row.recorded_at,
    )


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
