"""The statements of rounds that a busy task repeats. Building a statement costs several times as much as running it."""

from sqlalchemy import BindParameter, Select, and_, bindparam, func, insert, or_, select, text, update

from qidpfl_shared.core.planning import Standing

from ...domain import BudgetState, ClientState
from ..prepared import Prepared
from ..schema import budgets, clients, invitations, payments, rounds, updates

_task_id: BindParameter[str] = bindparam("task_id")
_round_number: BindParameter[int] = bindparam("round_number")
_attempt: BindParameter[int] = bindparam("attempt")

_OF_TASK = select(rounds).where(rounds.c.task_id == _task_id)
ROUND = Prepared(_OF_TASK.where(rounds.c.round_number == _round_number))
LATEST = Prepared(_OF_TASK.order_by(rounds.c.round_number.desc()).limit(1))

# By table: all its rows of a round, or those of some clients.
_OF_ROUND = {
    table: select(table).where(table.c.task_id == _task_id, table.c.round_number == _round_number)
    for table in (invitations, budgets, updates, payments)
}
OF_ROUND = {table: Prepared(query) for table, query in _OF_ROUND.items()}
OF_CLIENTS = {
    table: query.where(table.c.client_id.in_(bindparam("client_ids", expanding=True)))
    for table, query in _OF_ROUND.items()
}

# Each update with the budget that was declared for it.
DELIVERED_BUDGETS = budgets.join(
    updates, and_(*(budgets.c[key] == updates.c[key] for key in ("task_id", "round_number", "client_id")))
)

INSERT = {table: Prepared(insert(table)) for table in (rounds, invitations, updates)}
# The state and the attempt must be the known ones. A parameter must not have the name of a column that is set.
CHANGE = Prepared(
    update(rounds).where(
        rounds.c.task_id == bindparam("of_task"),
        rounds.c.round_number == bindparam("of_round"),
        rounds.c.state == bindparam("of_state"),
        rounds.c.attempt == bindparam("of_attempt"),
    )
)
UPDATE_COUNT = Prepared(
    select(func.count())
    .select_from(updates)
    .where(updates.c.task_id == _task_id, updates.c.round_number == _round_number)
)
# The rounds in a range, and when their budgets and updates arrived.
RANGE = Prepared(_OF_TASK.where(rounds.c.round_number.between(bindparam("first"), bindparam("last"))))
ANSWER_TIMES = Prepared(
    select(updates.c.round_number, budgets.c.recorded_at, updates.c.received_at)
    .select_from(DELIVERED_BUDGETS)
    .where(updates.c.task_id == _task_id, updates.c.round_number.between(bindparam("first"), bindparam("last")))
)
SET_VERDICT = Prepared(
    update(updates).where(
        updates.c.task_id == bindparam("of_task"),
        updates.c.round_number == bindparam("of_round"),
        updates.c.client_id == bindparam("of_client"),
    )
)
# The scores of the first rounds, in the order of the rounds.
ALIGNMENTS = Prepared(
    select(updates.c.client_id, updates.c.alignment)
    .where(
        updates.c.task_id == _task_id,
        updates.c.round_number <= bindparam("first_rounds"),
        updates.c.alignment.is_not(None),
    )
    .order_by(updates.c.round_number)
)

AWAITING_EVALUATION = (
    select(rounds)
    .where(rounds.c.evaluation_deferred.is_(True), rounds.c.evaluated_at.is_(None))
    .order_by(rounds.c.task_id, rounds.c.round_number)
)
TASK_AWAITS_EVALUATION = Prepared(AWAITING_EVALUATION.where(rounds.c.task_id == _task_id))
SET_SCORES = (
    update(rounds)
    .where(
        rounds.c.task_id == bindparam("of_task"),
        rounds.c.round_number == bindparam("of_round"),
        rounds.c.evaluation_deferred.is_(True),
        rounds.c.evaluated_at.is_(None),
    )
    .values({name: bindparam(name) for name in ("accuracy", "loss", "evaluation_s", "evaluated_at")})
)

KNOWN_DIGEST = Prepared(
    select(updates.c.digest).where(updates.c.task_id == _task_id, updates.c.digest == bindparam("digest")).limit(1)
)
# By digest alone: with the task and several digests SQLite reads all updates of the task.
KNOWN_DIGESTS = select(updates.c.task_id, updates.c.digest).where(
    updates.c.digest.in_(bindparam("digests", expanding=True))
)

PUT_BUDGET = Prepared(
    text(
        "INSERT INTO budgets (task_id, round_number, client_id, state, rho, reason, recorded_at, attempt)"
        " VALUES (:task_id, :round_number, :client_id, :state, :rho, :reason, :recorded_at, :attempt)"
        " ON CONFLICT (task_id, round_number, client_id) DO UPDATE"
        " SET state = excluded.state, rho = excluded.rho, reason = excluded.reason, recorded_at = excluded.recorded_at,"
        " attempt = excluded.attempt"
    )
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
    answered = or_(budgets.c.state == BudgetState.DECLARED, budgets.c.state == BudgetState.JOINED)
    # A client that only declined an earlier attempt may still answer this one.
    undecided = or_(
        budgets.c.state.is_(None),
        and_(budgets.c.state == BudgetState.DECLINED, budgets.c.rho == 0, budgets.c.attempt < _attempt),
    )
    return (
        select(invitations.c.client_id)
        .select_from(joined)
        .where(
            invitations.c.task_id == _task_id,
            invitations.c.round_number == _round_number,
            invitations.c.standing == Standing.INVITED,
            clients.c.state == ClientState.SELECTED,
            updates.c.digest.is_(None),
            or_(answered, undecided) if silent else answered,
        )
        .limit(1)
    )


# By whether clients that have not answered count too.
AWAITED = {silent: Prepared(_awaited(silent=silent)) for silent in (False, True)}

DECLINED = Prepared(
    select(budgets.c.client_id)
    .select_from(budgets.join(clients, clients.c.client_id == budgets.c.client_id))
    .where(
        budgets.c.task_id == _task_id,
        budgets.c.round_number == _round_number,
        budgets.c.state == BudgetState.DECLINED,
        budgets.c.rho == 0,
        clients.c.state == ClientState.SELECTED,
    )
    .limit(1)
)

_SPENT = (
    select(budgets.c.round_number, budgets.c.client_id, budgets.c.rho)
    .select_from(DELIVERED_BUDGETS)
    .where(budgets.c.task_id == _task_id, budgets.c.round_number > bindparam("after_round"))
    .order_by(budgets.c.round_number)
)
SPENT = Prepared(_SPENT)
SPENT_BY_SOME = _SPENT.where(budgets.c.client_id.in_(bindparam("client_ids", expanding=True)))
