"""Routes for operators that only read: rounds in lists, the open round, outcomes, accounts, forecast, exports."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from qidpfl_shared.protocol.credentials import OperatorRole
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.operators import (
    AccountPage,
    ClientRound,
    Forecast,
    Identity,
    PresetInfo,
    RoundCost,
    RoundOutcomes,
    RoundProgress,
    RoundSummary,
)

from ...ops.tables import (
    COLUMNS,
    Row,
    TableFormat,
    TableName,
    csv_text,
    json_items,
    last_exported_round,
    table_part,
    whole_rows,
)
from ...service.figures import round_costs
from ...service.lifecycle import get_task
from ...service.overview import (
    client_rounds,
    forecast,
    presets,
    round_outcomes,
    round_progress,
    round_summaries,
)
from ...service.progress.accounts import account_page, client_of_task, closed_ledger
from ...store.transaction import Transaction
from ..auth import AnyOperator, Operator, OtherClientId, TaskId
from ..context import Context, Ctx
from ..errors import responses
from ..json_routes import StrictJsonRoute
from ..openapi import success

router = APIRouter(prefix="/v1", route_class=StrictJsonRoute)
_READ = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST)
_TASK = "/tasks/{task_id}"
_MOMENT = "2026-01-01T00:00:00Z"
_ID = "5f1d7a84db00d2fce00b31a7"
_ROUND = {
    "round_number": 1,
    "attempt": 1,
    "state": "settled",
    "reward_micro": 18_087_528,
    "paid_micro": 18_087_528,
    "escrow_micro": 0,
    "kept_micro": 0,
    "total": 0.35,
    "declared_total": 0.35,
    "invited": 7,
    "updates": 7,
    "accuracy": 0.81,
    "loss": 0.7,
    "opened_at": _MOMENT,
    "settled_at": _MOMENT,
    "settlement_s": 0.01,
    "evaluation_s": 0.02,
}
_OUTCOMES = {
    "round_number": 1,
    "state": "settled",
    "ordinals": [0, 1, 2],
    "outcomes": "dnm",
    "rho": [0.05, 0.0, 0.0],
    "payment_micro": [18_087_528, 0, 0],
}
_COST = {"round_number": 1, "cost": 27.4, "reward_cost": 9.04, "regret": 0.002}
_ACCOUNT = {
    "client_id": _ID,
    "ordinal": 0,
    "releases": 3,
    "spent_rho": 0.2,
    "epsilon": 2.8,
    "delta": 1e-5,
    "guarantee": "proven",
    "lifetime_rho": 3.0,
    "left_rho": 2.8,
    "answering": True,
    "earned_micro": 5_000_000,
    "escrow_micro": 0,
    "utility": 1.4,
}
RoundAfter = Annotated[int, Query(ge=0, le=1_000_000, description="the number of the last round that is known")]
_round_list = TypeAdapter(list[RoundSummary])
_outcome_list = TypeAdapter(list[RoundOutcomes])


@router.get(
    "/me",
    tags=["operators"],
    summary="My role",
    responses=responses(ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN) | success({"role": "viewer"}),
)
async def get_identity(caller: AnyOperator) -> Identity:
    """The role of the operator's token, and the task that it is for. A dashboard shows what the role may do."""
    return Identity(role=OperatorRole(caller.role.value), task_id=caller.task_id)


@router.get(
    "/presets",
    tags=["tasks"],
    summary="List presets",
    responses=responses(ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN),
)
async def list_presets(caller: AnyOperator) -> list[PresetInfo]:
    """The ready-made tasks with their specs. `POST /v1/tasks` makes a task of one, with overrides."""
    return presets()


@router.get(
    f"{_TASK}/rounds",
    tags=["reading"],
    summary="List rounds",
    response_model=list[RoundSummary],
    responses=responses(*_READ) | success([_ROUND]),
)
async def list_rounds(
    context: Ctx,
    caller: Operator,
    task_id: TaskId,
    after: RoundAfter = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="how many rounds at most")] = 100,
) -> Response:
    """The rounds after `after` in their order, with their totals; the open one too. Ask again with the last number."""
    return await context.read_json(_round_list, lambda tx: round_summaries(tx, task_id, after, limit))


@router.get(f"{_TASK}/progress", tags=["reading"], summary="Who is awaited", responses=responses(*_READ))
async def get_progress(context: Ctx, caller: Operator, task_id: TaskId) -> RoundProgress:
    """The open round: its deadlines, which clients have answered, and which are awaited. It shows no budget."""
    now = context.now()
    return await context.read(lambda tx: round_progress(tx, task_id, now))


@router.get(
    f"{_TASK}/outcomes",
    tags=["reading"],
    summary="What each client did",
    response_model=list[RoundOutcomes],
    responses=responses(*_READ) | success([_OUTCOMES]),
)
async def list_outcomes(
    context: Ctx,
    caller: Operator,
    task_id: TaskId,
    after: RoundAfter = 0,
    limit: Annotated[int, Query(ge=1, le=100, description="how many rounds at most")] = 50,
) -> Response:
    """The closed rounds after `after` as columns: what each client did, declared and got. For a matrix."""
    return await context.read_json(_outcome_list, lambda tx: round_outcomes(tx, task_id, after, limit))


@router.get(
    f"{_TASK}/costs",
    tags=["reading"],
    summary="Server cost and regret",
    responses=responses(*_READ) | success([_COST]),
)
async def list_costs(
    context: Ctx,
    caller: Operator,
    task_id: TaskId,
    after: RoundAfter = 0,
    limit: Annotated[int, Query(ge=1, le=100, description="how many rounds at most")] = 50,
) -> list[RoundCost]:
    """Server cost and largest regret of the settled rounds after `after`, by the paper's model."""
    return await context.read(lambda tx: round_costs(tx, task_id, after, limit))


@router.get(
    f"{_TASK}/accounts",
    tags=["reading"],
    summary="Accounts of all clients",
    responses=responses(*_READ) | success({"accounts": [_ACCOUNT]}),
)
async def list_accounts(
    context: Ctx,
    caller: Operator,
    task_id: TaskId,
    after: Annotated[int, Query(ge=-1, le=1_000_000, description="the last ordinal that is known; -1: none")] = -1,
    limit: Annotated[int, Query(ge=1, le=1000, description="how many clients at most")] = 100,
) -> AccountPage:
    """What each client has spent, has left and has earned in closed rounds, in the order of the ordinals."""
    return await context.read(lambda tx: account_page(tx, task_id, after, limit))


@router.get(
    f"{_TASK}/clients/{{client_id}}/rounds", tags=["reading"], summary="Rounds of a client", responses=responses(*_READ)
)
async def list_client_rounds(
    context: Ctx, caller: Operator, task_id: TaskId, client_id: OtherClientId
) -> list[ClientRound]:
    """What one client did and got in every closed round, with the result of the noise audit."""
    return await context.read(lambda tx: client_rounds(tx, task_id, client_id))


@router.get(
    f"{_TASK}/clients/{{client_id}}/ledger", tags=["reading"], summary="Ledger of a client", responses=responses(*_READ)
)
async def get_client_ledger(context: Ctx, caller: Operator, task_id: TaskId, client_id: OtherClientId) -> Ledger:
    """The ledger of one client without the open round. The client itself reads all of it at `/clients/me/ledger`."""
    return await context.read(
        lambda tx: closed_ledger(tx, get_task(tx, task_id), client_of_task(tx, task_id, client_id))
    )


@router.get(
    f"{_TASK}/forecast",
    tags=["reading"],
    summary="Forecast of accuracy and loss",
    responses=responses(*_READ) | success({"status": "not_identifiable"}),
)
async def get_forecast(context: Ctx, caller: Operator, task_id: TaskId) -> Forecast:
    """Accuracy and loss for a total budget, fitted to the settled rounds. They hold only within the budgets seen."""
    return await context.read(lambda tx: forecast(tx, task_id))


@router.get(
    f"{_TASK}/export/{{table}}",
    tags=["reading"],
    summary="Export a table",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "the rows, as a stream",
            "content": {
                "text/csv": {"schema": {"type": "string", "description": "a header and one line for each row"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            },
        },
        **responses(*_READ),
    },
)
async def export_table(
    context: Ctx,
    caller: Operator,
    task_id: TaskId,
    table: TableName,
    table_format: Annotated[TableFormat, Query(alias="format", description="`csv` or `json`")] = TableFormat.CSV,
) -> StreamingResponse:
    """One table of the task up to its last closed round, as a stream. `qidpfl-server export` writes the same tables."""
    last_round = await context.read(lambda tx: last_exported_round(tx, task_id))
    media_type = "text/csv; charset=utf-8" if table_format is TableFormat.CSV else "application/json"
    return StreamingResponse(
        _table(context, task_id, table, table_format, last_round),
        media_type=media_type,
        headers={"Content-Disposition": f'attachment; filename="{table}.{table_format}"'},
    )


async def _table(
    context: Context, task_id: str, table: TableName, table_format: TableFormat, last_round: int
) -> AsyncIterator[str]:
    """A table part by part: only one round or client is in memory."""
    columns, part, first = COLUMNS[table], 0, True
    yield csv_text(columns, []) if table_format is TableFormat.CSV else "[\n"
    while (rows := await context.read(partial(_part, task_id, table, part, last_round))) is not None:
        whole = whole_rows(columns, rows)
        if whole:
            yield (
                csv_text(columns, whole, header=False)
                if table_format is TableFormat.CSV
                else json_items(whole, first=first)
            )
            first = False
        part += 1
    if table_format is TableFormat.JSON:
        yield "\n]\n"


def _part(task_id: str, table: TableName, part: int, last_round: int, tx: Transaction) -> list[Row] | None:
    return table_part(tx, task_id, table, part, last_round)
