"""Payments: what a round pays at once, what is held in escrow until the task ends, and what becomes of that."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select

from ...clock import Micros
from ...domain import EscrowSettlement, Payment, Round
from ..prepared import Prepared
from ..schema import escrow_settlements, payments, rounds
from ..validation import rows_of
from .chain import ChainRows
from .round_statements import OF_ROUND

_INSERT = Prepared(insert(payments))
# Rounds that were settled by an earlier version have no sums of their own.
_SUM = (
    select(func.sum(payments.c.amount_micro + payments.c.escrow_micro))
    .where(payments.c.task_id == rounds.c.task_id, payments.c.round_number == rounds.c.round_number)
    .scalar_subquery()
)
_TOTALS = Prepared(
    select(rounds.c.round_number, func.coalesce(rounds.c.paid_micro + rounds.c.escrow_micro, _SUM)).where(
        rounds.c.task_id == bindparam("task_id"), rounds.c.round_number > bindparam("after_round")
    )
)


class PaymentRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def pay(self, known: Round, due: Mapping[str, Payment]) -> None:
        """Record the payments of a round, by client."""
        rows = [
            {
                "task_id": known.task_id,
                "round_number": known.round_number,
                "client_id": client_id,
                "amount_micro": payment.amount_micro,
                "escrow_micro": payment.escrow_micro,
            }
            for client_id, payment in due.items()
        ]
        if rows:
            _INSERT.run(self._connection, rows)
            self._chain.mark("round", known.task_id, known.round_number)

    def totals_micro(self, task_id: str, *, after_round: int) -> dict[int, int]:
        """What each later round has cost: payments and escrow, by round."""
        rows = _TOTALS.run(self._connection, {"task_id": task_id, "after_round": after_round})
        return {number: int(amount) for number, amount in rows if amount}

    def of_round(self, task_id: str, round_number: int) -> dict[str, Payment]:
        """The payments of a round, by client."""
        key = {"task_id": task_id, "round_number": round_number}
        return {row.client_id: read_payment(row) for row in OF_ROUND[payments].run(self._connection, key)}

    def total_micro(self, task_id: str) -> int:
        """What the rounds of a task have cost: payments and escrow."""
        return sum(self.totals_micro(task_id, after_round=0).values())

    def escrow(self, task_id: str) -> dict[str, int]:
        """The sum of the escrow of each client that has any, in micro-units."""
        query = (
            select(payments.c.client_id, func.sum(payments.c.escrow_micro))
            .where(payments.c.task_id == task_id)
            .group_by(payments.c.client_id)
            .having(func.sum(payments.c.escrow_micro) > 0)
        )
        return {client_id: int(amount) for client_id, amount in self._connection.execute(query)}

    def settle_escrow(self, task_id: str, settlements: list[EscrowSettlement], at: Micros) -> None:
        """Record what becomes of the escrow of each client."""
        rows = [
            {
                "task_id": task_id,
                "client_id": settlement.client_id,
                "amount_micro": settlement.amount_micro,
                "forfeited": settlement.forfeited,
                "settled_at": at,
            }
            for settlement in settlements
        ]
        if rows:
            self._connection.execute(insert(escrow_settlements), rows)
            self._chain.mark("task", task_id)

    def escrow_settlements(self, task_id: str) -> dict[str, EscrowSettlement]:
        """What became of the escrow, by client."""
        query = select(escrow_settlements).where(escrow_settlements.c.task_id == task_id)
        return {row.client_id: _settlement(row) for row in self._connection.execute(query)}


@rows_of(payments)
def read_payment(row: Row[Any]) -> Payment:
    return Payment(amount_micro=row.amount_micro, escrow_micro=row.escrow_micro)


@rows_of(escrow_settlements)
def _settlement(row: Row[Any]) -> EscrowSettlement:
    return EscrowSettlement(client_id=row.client_id, amount_micro=row.amount_micro, forfeited=row.forfeited)
