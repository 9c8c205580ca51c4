"""Rounds, and the tables with one row per round and client: invitations, budgets, updates, payments."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, Table, select, update

from qidpfl_shared.core.noise_audit import NoiseVerdict
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.protocol.messages import RoundState

from ...clock import Micros
from ...domain import Budget, BudgetState, Payment, Round, RoundInvitation, RoundSums, Update, UpdateVerdict
from ..schema import budgets, invitations, payments, rounds, updates
from ..validation import rows_of
from . import round_statements as statements
from .chain import ChainRows
from .payments import read_payment

# A statement names at most this many clients; for more it reads all rows.
_MAX_NAMED = 1000


class RoundRows:
    def __init__(self, connection: Connection, chain: ChainRows) -> None:
        self._connection = connection
        self._chain = chain

    def insert(self, new: Round) -> None:
        row = {
            "task_id": new.task_id,
            "round_number": new.round_number,
            "attempt": new.attempt,
            "state": new.state,
            "reward_micro": new.reward_micro,
            "total": new.total,
            "min_updates": new.min_updates,
            "base_version": new.base_version,
            "declare_by": new.declare_by,
            "deliver_by": new.deliver_by,
            "opened_at": new.opened_at,
        }
        statements.INSERT[rounds].run(self._connection, row)
        self._mark(new)

    def get(self, task_id: str, round_number: int) -> Round | None:
        key = {"task_id": task_id, "round_number": round_number}
        row = statements.ROUND.run(self._connection, key).one_or_none()
        return None if row is None else _round(row)

    def latest(self, task_id: str) -> Round | None:
        row = statements.LATEST.run(self._connection, {"task_id": task_id}).one_or_none()
        return None if row is None else _round(row)

    def of_task(self, task_id: str) -> list[Round]:
        query = select(rounds).where(rounds.c.task_id == task_id).order_by(rounds.c.round_number)
        return [_round(row) for row in self._connection.execute(query)]

    def between(self, task_id: str, first: int, last: int) -> list[Round]:
        """The rounds with these numbers, both included, in their order."""
        numbered = rounds.c.round_number.between(first, last)
        query = select(rounds).where(rounds.c.task_id == task_id, numbered).order_by(rounds.c.round_number)
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
        sums: RoundSums,
        evaluation_deferred: bool = False,
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
                "evaluation_deferred": True if evaluation_deferred else None,
            }
            | asdict(sums),
        )

    def set_scores(
        self,
        known: Round,
        *,
        accuracy: float | None,
        loss: float | None,
        evaluation_s: float | None,
        evaluated_at: Micros,
    ) -> bool:
        """Store the scores of a round that was settled before; False if another process has stored them."""
        key = {"of_task": known.task_id, "of_round": known.round_number}
        scores = {"accuracy": accuracy, "loss": loss, "evaluation_s": evaluation_s, "evaluated_at": evaluated_at}
        changed = self._connection.execute(statements.SET_SCORES, key | scores).rowcount == 1
        if changed:
            self._chain.mark("evaluation", known.task_id, known.round_number)
        return changed

    def awaiting_evaluation(self, task_id: str | None = None) -> list[Round]:
        """The settled rounds, of all tasks or of one, whose models have yet to be evaluated."""
        if task_id is None:
            return [_round(row) for row in self._connection.execute(statements.AWAITING_EVALUATION)]
        found = statements.TASK_AWAITS_EVALUATION.run(self._connection, {"task_id": task_id})
        return [_round(row) for row in found]

    def set_timing(self, known: Round, *, settlement_s: float | None, evaluation_s: float | None) -> bool:
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
        key = {
            "of_task": known.task_id,
            "of_round": known.round_number,
            "of_state": known.state,
            "of_attempt": known.attempt,
        }
        changed = statements.CHANGE.run(self._connection, {**key, **values}).rowcount == 1
        if changed:
            self._mark(known)
        return changed

    def invite(self, known: Round, standings: Sequence[RoundInvitation]) -> None:
        rows = [
            _key(known, invitation.client_id)
            | {
                "standing": invitation.standing,
                "expected_rho": invitation.expected_rho,
                "rho_limit": invitation.rho_limit,
            }
            for invitation in standings
        ]
        if rows:
            statements.INSERT[invitations].run(self._connection, rows)
            self._mark(known)

    def invitations(
        self, task_id: str, round_number: int, among: Collection[str] | None = None
    ) -> dict[str, RoundInvitation]:
        """The invitations of a round by client, of all clients or of those in `among`."""
        return {row.client_id: _invitation(row) for row in self._of_round(invitations, task_id, round_number, among)}

    def awaits(self, known: Round, *, silent: bool) -> bool:
        """Whether a client may still deliver: one with a budget or, with `silent`, one that has not answered."""
        key = {"task_id": known.task_id, "round_number": known.round_number}
        if silent:
            key["attempt"] = known.attempt
        return statements.AWAITED[silent].run(self._connection, key).scalar() is not None

    def has_declines(self, known: Round) -> bool:
        """Whether a client that is still here has declined without a declaration, so that it may answer again."""
        key = {"task_id": known.task_id, "round_number": known.round_number}
        return statements.DECLINED.run(self._connection, key).scalar() is not None

    def put_budget(self, known: Round, *answers: Budget) -> None:
        """Insert or replace the answers of clients."""
        rows = [
            _key(known, answer.client_id)
            | {
                "state": answer.state,
                "rho": answer.rho,
                "reason": answer.reason,
                "recorded_at": answer.recorded_at,
                "attempt": answer.attempt,
            }
            for answer in answers
        ]
        if rows:
            statements.PUT_BUDGET.run(self._connection, rows)
        for row in rows:
            self._chain.mark("budget", known.task_id, known.round_number, row["client_id"], row=row)

    def budgets(self, task_id: str, round_number: int, among: Collection[str] | None = None) -> dict[str, Budget]:
        return {row.client_id: _budget(row) for row in self._of_round(budgets, task_id, round_number, among)}

    def planned_clients(self, task_id: str) -> set[str]:
        """The clients that are in the plan of a round of the task."""
        query = select(invitations.c.client_id).where(invitations.c.task_id == task_id).distinct()
        return set(self._connection.execute(query).scalars())

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
            statements.INSERT[updates].run(self._connection, rows)
        for row in rows:
            self._chain.mark("update", known.task_id, known.round_number, row["client_id"], row=row)

    def updates(self, task_id: str, round_number: int, among: Collection[str] | None = None) -> dict[str, Update]:
        return {row.client_id: _update(row) for row in self._of_round(updates, task_id, round_number, among)}

    def update_digests(self, task_id: str, *, after_round: int) -> set[str]:
        """The digests of the updates of all later rounds."""
        query = select(updates.c.digest).where(updates.c.task_id == task_id, updates.c.round_number > after_round)
        return set(self._connection.execute(query).scalars())

    def update_count(self, task_id: str, round_number: int) -> int:
        key = {"task_id": task_id, "round_number": round_number}
        return int(statements.UPDATE_COUNT.run(self._connection, key).scalar())

    def range(self, task_id: str, first: int, last: int) -> list[Round]:
        """The rounds from number `first` to number `last`."""
        key = {"task_id": task_id, "first": first, "last": last}
        return [_round(row) for row in statements.RANGE.run(self._connection, key)]

    def answer_times(self, task_id: str, first: int, last: int) -> list[tuple[int, Micros, Micros]]:
        """(round, declared at, delivered at) of each update of these rounds."""
        key = {"task_id": task_id, "first": first, "last": last}
        rows = statements.ANSWER_TIMES.run(self._connection, key)
        return [(number, declared_at, delivered_at) for number, declared_at, delivered_at in rows]

    def known_digests(self, task_id: str, digests: Collection[str]) -> set[str]:
        """Those of the digests that belong to an update of the task."""
        if len(digests) == 1:
            (digest,) = digests
            return set(statements.KNOWN_DIGEST.run(self._connection, {"task_id": task_id, "digest": digest}).scalars())
        found = self._connection.execute(statements.KNOWN_DIGESTS, {"digests": list(digests)})
        return {digest for of_task, digest in found if of_task == task_id}

    def set_verdicts(self, known: Round, verdicts: Mapping[str, UpdateVerdict]) -> None:
        """Store what the settlement says of the updates of a round, by client."""
        rows = [
            {
                "of_task": known.task_id,
                "of_round": known.round_number,
                "of_client": client_id,
                "verdict": one.verdict,
                "accepted": one.accepted,
                "alignment": one.alignment,
            }
            for client_id, one in verdicts.items()
        ]
        if rows:
            statements.SET_VERDICT.run(self._connection, rows)
            self._mark(known)

    def void_update(self, known: Round, client_id: str, at: Micros) -> bool:
        """Mark an update that must not count; False if it was marked before."""
        where = (*_where(updates, known.task_id, known.round_number, client_id), updates.c.voided_at.is_(None))
        changed = self._connection.execute(update(updates).where(*where).values(voided_at=at)).rowcount == 1
        if changed:
            self._chain.mark("update", known.task_id, known.round_number, client_id)
        return changed

    def alignments(self, task_id: str, *, first_rounds: int) -> dict[str, list[float]]:
        """The alignment scores of each client in the first rounds, in the order of the rounds."""
        key = {"task_id": task_id, "first_rounds": first_rounds}
        scores: dict[str, list[float]] = {}
        for client_id, score in statements.ALIGNMENTS.run(self._connection, key):
            scores.setdefault(client_id, []).append(score)
        return scores

    def history(self, task_id: str, client_id: str) -> list[tuple[Round, Budget, Update | None, Payment | None]]:
        """All rounds that a client has answered, with its budget, update and payment."""
        own = (budgets.c.task_id == task_id, budgets.c.client_id == client_id)
        answered = self._connection.execute(select(budgets).where(*own).order_by(budgets.c.round_number)).all()
        known = {past.round_number: past for past in self.of_task(task_id)}
        sent = {row.round_number: _update(row) for row in self._of_client(updates, task_id, client_id)}
        paid = {row.round_number: read_payment(row) for row in self._of_client(payments, task_id, client_id)}
        return [
            (known[row.round_number], _budget(row), sent.get(row.round_number), paid.get(row.round_number))
            for row in answered
        ]

    def spent_budgets(
        self, task_id: str, client_ids: Collection[str], *, after_round: int = 0
    ) -> list[tuple[int, str, float]]:
        """(round, client, rho) of each update of these clients, in the order of the rounds."""
        where: dict[str, Any] = {"task_id": task_id, "after_round": after_round}
        rows: Iterable[Any]
        if len(client_ids) <= _MAX_NAMED:
            rows = self._connection.execute(statements.SPENT_BY_SOME, where | {"client_ids": list(client_ids)})
        else:
            rows = statements.SPENT.run(self._connection, where)
        return [(number, client_id, rho) for number, client_id, rho in rows if client_id in client_ids]

    def _of_round(
        self, table: Table, task_id: str, round_number: int, among: Collection[str] | None = None
    ) -> Sequence[Row[Any]]:
        key: dict[str, Any] = {"task_id": task_id, "round_number": round_number}
        if among is None:
            return statements.OF_ROUND[table].run(self._connection, key).all()
        return self._connection.execute(statements.OF_CLIENTS[table], key | {"client_ids": list(among)}).all()

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
        evaluation_deferred=bool(row.evaluation_deferred),
        evaluated_at=row.evaluated_at,
        sums=None
        if row.paid_micro is None
        else RoundSums(
            paid_micro=row.paid_micro, escrow_micro=row.escrow_micro, invited=row.invited, updates=row.updates
        ),
    )


@rows_of(budgets)
def _budget(row: Row[Any]) -> Budget:
    return Budget(
        client_id=row.client_id,
        state=BudgetState(row.state),
        rho=row.rho,
        reason=row.reason,
        recorded_at=row.recorded_at,
        attempt=row.attempt,
    )


@rows_of(invitations)
def _invitation(row: Row[Any]) -> RoundInvitation:
    return RoundInvitation(
        client_id=row.client_id,
        standing=Standing(row.standing),
        expected_rho=row.expected_rho,
        rho_limit=row.rho_limit,
    )


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
        alignment=row.alignment,
        voided_at=row.voided_at,
    )
