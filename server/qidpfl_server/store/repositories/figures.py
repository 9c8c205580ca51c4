"""Sums and columns over many rounds for operators, each read by one statement instead of one per round."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, TextClause, and_, bindparam, func, select, text

from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState

from ...domain import RoundSums
from ..schema import budgets, clients, invitations, payments, rounds, updates
from ..settled import NO_SUMS, SettledSums
from .round_statements import DELIVERED_BUDGETS

# What a client did in a round and what it got.
_ANSWER = (
    rounds.c.round_number,
    rounds.c.state.label("round_state"),
    invitations.c.standing,
    budgets.c.state.label("answer"),
    updates.c.accepted,
    updates.c.voided_at,
    updates.c.received_at,
    budgets.c.rho,
    payments.c.amount_micro,
    payments.c.escrow_micro,
)


def _of_some_clients(columns: str, *tables: str, end: str) -> TextClause:
    """The rows of some clients in some rounds, each found by its whole key.

    SQLite would read all rows of the task instead. It keeps the order of a CROSS JOIN.
    """
    joined = "".join(f" CROSS JOIN {table}" for table in tables)
    keys = "".join(
        f" AND {table}.task_id = r.task_id AND {table}.round_number = r.round_number"
        f" AND {table}.client_id = c.client_id"
        for table in tables
    )
    query = (
        f"SELECT {columns} FROM rounds r CROSS JOIN clients c{joined} WHERE r.task_id = :task_id"
        f" AND r.round_number > :after AND r.round_number <= :last AND c.client_id IN :client_ids{keys} {end}"
    )
    return text(query).bindparams(bindparam("client_ids", expanding=True))


_EARNED = _of_some_clients(
    "c.client_id, SUM(payments.amount_micro), SUM(payments.escrow_micro)", "payments", end="GROUP BY c.client_id"
)
_RELEASED = _of_some_clients(
    "r.round_number, c.client_id, budgets.rho", "budgets", "updates", end="ORDER BY r.round_number"
)


class FigureRows:
    """Reads only. `first` and `last` are round numbers, both included."""

    def __init__(self, connection: Connection, settled: SettledSums) -> None:
        self._connection = connection
        self._settled = settled

    def sums(self, task_id: str, first: int, last: int, *, settled: int) -> dict[int, RoundSums]:
        """The sums of rounds, by their number. Those up to round `settled` are read once and then kept."""
        known = self._settled.rounds(task_id)
        missing = next((number for number in range(first, last + 1) if number not in known), last + 1)
        found = {number: known[number] for number in range(first, missing)}
        if missing <= last:
            read = self._sums(task_id, missing, last)
            found |= read
            self._settled.keep(task_id, {n: read.get(n, NO_SUMS) for n in range(missing, min(settled, last) + 1)})
        return found

    def bids(self, task_id: str, first: int, last: int) -> Sequence[Sequence[Any]]:
        """The columns round, client, rho and accepted of all positive budgets, in the order of the rounds."""
        with_updates = budgets.outerjoin(
            updates, and_(*(budgets.c[key] == updates.c[key] for key in ("task_id", "round_number", "client_id")))
        )
        query = (
            select(budgets.c.round_number, budgets.c.client_id, budgets.c.rho, updates.c.accepted)
            .select_from(with_updates)
            .where(budgets.c.task_id == task_id, budgets.c.round_number.between(first, last), budgets.c.rho > 0)
            .order_by(budgets.c.round_number)
        )
        return tuple(zip(*self._connection.execute(query), strict=True)) or ((), (), (), ())

    def _sums(self, task_id: str, first: int, last: int) -> dict[int, RoundSums]:
        amounts = func.sum(payments.c.amount_micro), func.sum(payments.c.escrow_micro)
        is_invited = invitations.c.standing == Standing.INVITED
        paid = self._grouped(payments, task_id, first, last, amounts)
        sent = self._grouped(updates, task_id, first, last, (func.count(),))
        invited = self._grouped(invitations, task_id, first, last, (func.count(),), is_invited)
        return {
            number: RoundSums(
                paid_micro=int(paid[number][0]) if number in paid else 0,
                escrow_micro=int(paid[number][1]) if number in paid else 0,
                invited=int(invited[number][0]) if number in invited else 0,
                updates=int(sent[number][0]) if number in sent else 0,
            )
            for number in {*paid, *sent, *invited}
        }

    def answers(self, task_id: str, first: int, last: int) -> Sequence[Any]:
        """One row for each invitation to a closed round, by round and ordinal: what the client did and got."""
        query = (
            select(*_ANSWER, clients.c.ordinal)
            .select_from(self._joined())
            .where(
                rounds.c.task_id == task_id,
                rounds.c.round_number.between(first, last),
                rounds.c.state != RoundState.OPEN,
            )
            .order_by(rounds.c.round_number, clients.c.ordinal)
        )
        return self._connection.execute(query).all()

    def answers_of(self, task_id: str, client_id: str) -> Sequence[Any]:
        """The same for one client in all closed rounds, with what the audit of its updates says."""
        query = (
            select(*_ANSWER, rounds.c.reward_micro, updates.c.verdict, updates.c.alignment, updates.c.digest)
            .select_from(self._joined())
            .where(
                rounds.c.task_id == task_id,
                invitations.c.client_id == client_id,
                rounds.c.state != RoundState.OPEN,
            )
            .order_by(rounds.c.round_number)
        )
        return self._connection.execute(query).all()

    def earned(self, task_id: str, client_ids: Sequence[str], *, after: int, last: int) -> dict[str, tuple[int, int]]:
        """(paid, escrow) of clients in the rounds after `after` up to `last`, in micro-units."""
        where = {"task_id": task_id, "client_ids": list(client_ids), "after": after, "last": last}
        return {
            client_id: (int(paid), int(escrow)) for client_id, paid, escrow in self._connection.execute(_EARNED, where)
        }

    def released(
        self, task_id: str, client_ids: Sequence[str], *, after: int, last: int
    ) -> Sequence[tuple[int, str, float]]:
        """(round, client, rho) of each update of clients in the rounds after `after` up to `last`, by round."""
        where = {"task_id": task_id, "client_ids": list(client_ids), "after": after, "last": last}
        return [(number, client_id, rho) for number, client_id, rho in self._connection.execute(_RELEASED, where)]

    def spent_rho(self, task_id: str, *, after_round: int, up_to_round: int) -> float:
        """The declared budgets of all updates of these rounds together."""
        query = (
            select(func.sum(budgets.c.rho))
            .select_from(DELIVERED_BUDGETS)
            .where(
                updates.c.task_id == task_id,
                updates.c.round_number > after_round,
                updates.c.round_number <= up_to_round,
            )
        )
        return float(self._connection.execute(query).scalar() or 0.0)

    def clients_by_state(self, task_id: str) -> dict[str, int]:
        """How many clients a task has in each state; those set aside count as `set_aside`."""
        query = (
            select(clients.c.state, clients.c.set_aside, func.count())
            .where(clients.c.task_id == task_id)
            .group_by(clients.c.state, clients.c.set_aside)
        )
        found: dict[str, int] = {}
        for state, set_aside, count in self._connection.execute(query):
            key = "set_aside" if set_aside and state == "selected" else str(state)
            found[key] = found.get(key, 0) + int(count)
        return found

    def _grouped(
        self, table: Table, task_id: str, first: int, last: int, columns: tuple[Any, ...], *where: Any
    ) -> dict[int, tuple[Any, ...]]:
        query = (
            select(table.c.round_number, *columns)
            .where(table.c.task_id == task_id, table.c.round_number.between(first, last), *where)
            .group_by(table.c.round_number)
        )
        return {row[0]: tuple(row[1:]) for row in self._connection.execute(query)}

    @staticmethod
    def _joined() -> Any:
        def same(table: Any) -> Any:
            return and_(*(table.c[key] == invitations.c[key] for key in ("task_id", "round_number", "client_id")))

        return (
            rounds.join(
                invitations,
                and_(invitations.c.task_id == rounds.c.task_id, invitations.c.round_number == rounds.c.round_number),
            )
            .join(clients, clients.c.client_id == invitations.c.client_id)
            .outerjoin(budgets, same(budgets))
            .outerjoin(updates, same(updates))
            .outerjoin(payments, same(payments))
        )
