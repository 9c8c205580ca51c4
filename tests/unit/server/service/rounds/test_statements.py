"""How many statements a round takes: neither more rounds nor more clients may add any."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from sqlalchemy import event

from qidpfl_server.service.rounds.submissions import (
    BudgetAnswer,
    StagedDelivery,
    accept_updates,
    declare_budgets,
)
from qidpfl_shared.protocol.messages import Declaration
from support.use_cases import ServedClient, ServedTask, UseCases

RHO = 1e-4
# The statements of one group of budgets, one group of uploads, and the settlement. BEGIN counts as one.
MOST = {"budgets": 14, "uploads": 11, "settlement": 43}
# The statements of the budget or the upload of one more client, after another one has answered.
MOST_OF_ONE = {"budget": 7, "upload": 8}


@contextmanager
def counted(cases: UseCases) -> Iterator[list[str]]:
    """The statements that are executed in the `with` block."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(cases.store.engine, "before_cursor_execute", note)
    yield statements
    event.remove(cases.store.engine, "before_cursor_execute", note)


def play(task: ServedTask, clients: list[ServedClient], number: int) -> dict[str, int]:
    """Play a round in which all clients answer at the same time; the number of statements of each step."""
    cases, task_id, found = task.cases, task.task_id, {}
    now = cases.clock.now()
    answers = [BudgetAnswer(client_id=client.client_id, request=Declaration(rho=RHO), at=now) for client in clients]
    with counted(cases) as statements:
        receipts = cases.write(lambda tx: declare_budgets(tx, task_id, number, answers))
    found["budgets"] = len(statements)
    assert not [one for one in receipts if isinstance(one, Exception)]
    staged = [stage(client, number) for client in clients]
    with counted(cases) as statements:
        stored = cases.write(lambda tx: accept_updates(tx, task_id, number, staged))
    found["uploads"] = len(statements)
    assert not [one for one in stored if isinstance(one, Exception)]
    with counted(cases) as statements:
        assert task.settle()
    found["settlement"] = len(statements)
    return found


def stage(client: ServedClient, number: int) -> StagedDelivery:
    data = client.noise(RHO, number)
    vector = np.frombuffer(data, dtype="<f4").astype(np.float64)
    blob = client.cases.store.blobs.stage()
    blob.write(data)
    blob.sync()
    return StagedDelivery(
        client_id=client.client_id,
        digest=blob.digest,
        at=client.cases.clock.now(),
        blob=blob,
        squared_norm=float(vector @ vector),
    )


def test_a_round_takes_the_same_statements_however_many_rounds_and_clients_there_are(cases: UseCases) -> None:
    rounds_of: dict[int, list[dict[str, int]]] = {}
    for size in (4, 12):
        task, clients = cases.training(size, preset="mnist", workload={"dataset": "none", "partition": None})
        rounds_of[size] = [play(task, clients, number) for number in range(1, 8)]
    assert len({tuple(counts.items()) for counts in rounds_of[4] + rounds_of[12]}) == 1
    assert {step: rounds_of[12][0][step] <= most for step, most in MOST.items()} == dict.fromkeys(MOST, True)


def test_one_more_answer_reads_none_of_the_rows_that_the_writer_keeps(cases: UseCases) -> None:
    _, (first, second, *_) = cases.training(5, preset="mnist", workload={"dataset": "none", "partition": None})
    first.declare(rho=RHO)
    with counted(cases) as statements:
        second.declare(rho=RHO)
    assert len(statements) <= MOST_OF_ONE["budget"], statements
    first.deliver(first.noise(RHO))
    update = second.noise(RHO)
    with counted(cases) as statements:
        second.deliver(update)
    assert len(statements) <= MOST_OF_ONE["upload"], statements
