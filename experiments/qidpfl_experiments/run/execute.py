"""Runs one cell: creates its task, runs a fleet, and reads the rows for the tables."""

import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from qidpfl_client.errors import ClientError
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import ClientSummary, RoundResult, TaskView
from qidpfl_shared.protocol.releases import round_of
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..results.cells import Cell, CellResult
from ..results.tables import CellRow, ClientRow, Guarantee, MistakesRow, RoundRow
from ..testbed.process import ProcessEnded
from ..testbed.services import LocalServices
from .honesty import factor_of, misreports, utility
from .mistakes import examined_records
from .spent import spent_of
from .theorems import theorem_checks

# Far above the client's defaults, so that only the budgets of the task hold: an experiment measures what a budget buys
# on public data. The tables report the epsilon that was spent.
_LIMITS = ("--lifetime-rho", "1e6", "--rho-cap", "1e6", "--histogram-rho", "1e6")


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """A task that has ended, read from the coordinator and from the journals of the clients."""

    cell: Cell
    task: TaskView
    clients: Sequence[ClientSummary]
    rounds: Sequence[RoundResult]
    ledgers: Mapping[int, JournalLedger]
    model_digest: str
    mistakes: MistakesRow | None


def run_cell(cell: Cell, testbed: LocalServices) -> CellResult:
    """Run a cell. An error of a client or a process becomes a failed result."""
    try:
        return _result(_run_task(cell, testbed))
    except (ClientError, ProcessEnded) as error:
        return failed(cell, str(error))
    finally:
        shutil.rmtree(testbed.journals(cell.name), ignore_errors=True)


def failed(cell: Cell, reason: str) -> CellResult:
    """The result of a cell that failed."""
    row = CellRow(
        **asdict(cell.key),
        scale=cell.scale,
        state="failed",
        reason=" ".join(reason.split()),
        clients=cell.clients,
        selected=0,
        rounds=0,
        accuracy=None,
        mean_accuracy=None,
        loss=None,
        reward=0.0,
        paid=0.0,
        cost=None,
        spent_rho=None,
        epsilon=None,
        guarantee=None,
        model_digest="",
        wall_s=0.0,
    )
    return CellResult(fingerprint=cell.fingerprint, cell=row)


def _run_task(cell: Cell, testbed: LocalServices) -> CellRecord:
    # An interrupted attempt may have left journals; the new task must not continue them.
    shutil.rmtree(testbed.journals(cell.name), ignore_errors=True)
    created = testbed.api.create_task(
        _task_name(cell, testbed), preset=cell.preset, overrides=cell.overrides, single_use_codes=0
    )
    testbed.run_fleet(cell.name, codes=created.enrolment_codes, clients=cell.clients, arguments=_arguments(cell))
    task_id = created.task.task_id
    task = testbed.api.task(task_id)
    ledgers = {}
    for ordinal in range(cell.clients):
        with Journal(testbed.journal(cell.name, ordinal), read_only=True) as journal:
            ledgers[ordinal] = read_ledger(journal)
    return CellRecord(
        cell=cell,
        task=task,
        clients=testbed.api.clients(task_id),
        rounds=testbed.api.rounds(task_id),
        ledgers=ledgers,
        model_digest=testbed.api.models(task_id)[-1].digest,
        mistakes=examined_records(testbed.data_dir).mistakes(cell.key, testbed.api, task),
    )


def _task_name(cell: Cell, testbed: LocalServices) -> str:
    taken = {task.name for task in testbed.api.tasks()}
    names = (cell.name, *(f"{cell.name}.again-{number}" for number in range(1, len(taken) + 1)))
    return next(name for name in names if name not in taken)


def _arguments(cell: Cell) -> list[str]:
    noise: list[str] = []
    if cell.unsafe_seed is not None:
        noise = ["--unsafe-seed", str(cell.unsafe_seed), "--common-noise", str(cell.draw)]
    values = ["--seed", str(cell.key.seed), "--privacy-value", cell.privacy_value, *misreports(cell)]
    return ["--workers", "1", *values, *_LIMITS, *noise]


def _result(record: CellRecord) -> CellResult:
    training_s = _training_s(record.ledgers.values())
    rounds = tuple(_round_row(record, result, training_s[result.round_number]) for result in record.rounds)
    clients = tuple(_client_row(record, client) for client in record.clients)
    return CellResult(
        fingerprint=record.cell.fingerprint,
        cell=_cell_row(record, rounds, clients),
        rounds=rounds,
        clients=clients,
        mistakes=record.mistakes,
    )


def _cell_row(record: CellRecord, rounds: Sequence[RoundRow], clients: Sequence[ClientRow]) -> CellRow:
    accuracies = [row.accuracy for row in rounds if row.accuracy is not None]
    unprotected = any(row.spent_rho is None for row in clients)
    costs = [row.cost for row in rounds if row.cost is not None]
    return CellRow(
        **asdict(record.cell.key),
        scale=record.cell.scale,
        state=record.task.state,
        reason=record.task.reason or "",
        clients=len(clients),
        selected=sum(row.selected for row in clients),
        rounds=len(rounds),
        accuracy=rounds[-1].accuracy if rounds else None,
        mean_accuracy=math.fsum(accuracies) / len(accuracies) if accuracies else None,
        loss=rounds[-1].loss if rounds else None,
        reward=math.fsum(row.reward for row in rounds),
        paid=math.fsum(row.paid for row in rounds),
        cost=math.fsum(costs) if costs else None,
        spent_rho=None if unprotected else max((row.spent_rho or 0.0 for row in clients), default=0.0),
        epsilon=None if unprotected else max((row.epsilon or 0.0 for row in clients), default=0.0),
        guarantee=_guarantee(record.task.spec),
        model_digest=record.model_digest,
        wall_s=math.fsum(row.wall_s for row in rounds),
        delta=record.task.spec.privacy.delta,
        **vars(theorem_checks(record.task.spec, record.clients, record.rounds)),
    )


def _guarantee(spec: TaskSpec) -> Guarantee:
    if not spec.privacy.noise:
        return Guarantee.NONE
    return Guarantee.HEURISTIC if spec.privacy.mechanism.build().heuristic else Guarantee.PROVEN


def _round_row(record: CellRecord, result: RoundResult, training: float) -> RoundRow:
    timing = result.timing
    assert timing is not None and timing.settled_at is not None
    wall = (timing.settled_at - timing.opened_at).total_seconds()
    settlement, evaluation = timing.settlement_s or 0.0, timing.evaluation_s or 0.0
    # An evaluation after the settlement takes no time of its own round.
    inside = evaluation if timing.evaluated_at is None else 0.0
    return RoundRow(
        **asdict(record.cell.key),
        round_number=result.round_number,
        accuracy=result.accuracy,
        loss=result.loss,
        reward=from_micro(result.reward_micro),
        paid=from_micro(result.paid_micro),
        cost=_cost(record.task.spec, record.clients, result),
        total=result.total,
        declared_total=result.declared_total or 0.0,
        updates=result.updates,
        wall_s=wall,
        training_s=training,
        http_s=max(0.0, wall - training - settlement - inside),
        settlement_s=settlement,
        evaluation_s=evaluation,
    )


def _training_s(ledgers: Iterable[JournalLedger]) -> defaultdict[int, float]:
    """The training seconds of each round, summed over the clients: a fleet trains them one after the other."""
    seconds: defaultdict[int, float] = defaultdict(float)
    for ledger in ledgers:
        for entry in ledger.entries:
            number = round_of(entry.release)
            if number is not None:
                seconds[number] += entry.training_s or 0.0
    return seconds


def _cost(spec: TaskSpec, clients: Sequence[ClientSummary], result: RoundResult) -> float | None:
    """The server's cost of a round with the declared budgets; None if the round pays no client."""
    sizes = {client.ordinal: client.size or 1 for client in clients}
    counted = [part for part in result.clients or () if part.accepted and part.rho > 0]
    return spec.declared_cost(
        round_number=result.round_number,
        reward=from_micro(result.reward_micro),
        budgets=[part.rho for part in counted],
        sizes=[sizes[part.ordinal] for part in counted],
    )


def _client_row(record: CellRecord, client: ClientSummary) -> ClientRow:
    ledger = record.ledgers[client.ordinal]
    parts = [part for result in record.rounds for part in result.clients or () if part.ordinal == client.ordinal]
    delivered = [part.rho for part in parts if part.delivered]
    spent_rho, epsilon = spent_of(record.cell, ledger, spec=record.task.spec, size=client.size or 1)
    return ClientRow(
        **asdict(record.cell.key),
        ordinal=client.ordinal,
        size=client.size or 0,
        privacy_value=client.privacy_value or 0.0,
        label_distance=client.label_distance or 0.0,
        selected=client.state == "selected",
        updates=len(delivered),
        mean_rho=math.fsum(delivered) / len(delivered) if delivered else 0.0,
        spent_rho=spent_rho,
        epsilon=epsilon,
        earned=from_micro(ledger.earned_micro),
        utility=utility(record.cell, client.ordinal, parts, privacy_weight=record.task.spec.game.privacy_weight),
        misreport=factor_of(record.cell, client.ordinal),
    )
