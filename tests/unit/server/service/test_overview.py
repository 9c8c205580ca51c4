"""What operators read of a whole task: the same numbers as elsewhere, and no budget of an open round."""

import json
import math

import pytest

from qidpfl_server.ops.export import read_export
from qidpfl_server.ops.tables import COLUMNS, TableName, last_exported_round, table_part, whole_rows
from qidpfl_server.service.figures import round_costs, task_figures
from qidpfl_server.service.overview import (
    client_rounds,
    forecast,
    round_outcomes,
    round_progress,
    round_summaries,
)
from qidpfl_server.service.progress.accounts import account_page, closed_ledger
from qidpfl_server.service.views import task_summary
from qidpfl_server.store.schema import rounds
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.core.reward import round_cost
from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.operators import AccountPage, AnswerState
from support.use_cases import ServedClient, ServedTask, UseCases

# A number that occurs nowhere else.
SECRET_RHO = 0.0512345


@pytest.fixture
def played(cases: UseCases) -> tuple[ServedTask, list[ServedClient]]:
    """A task with two settled rounds, one with a decline, and an open round in which one client has declared."""
    task, clients = cases.training(4)
    task.play(clients)
    clients[3].decline(2)
    task.play(clients[:3], 2)
    clients[0].declare(3, rho=SECRET_RHO)
    clients[0].upload(clients[0].noise(SECRET_RHO, 3), 3)
    clients[1].declare(3, rho=SECRET_RHO)
    clients[2].decline(3)
    return task, clients


def test_rounds_in_a_list_have_the_totals_of_their_results(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, _ = played
    listed = task.cases.read(lambda tx: round_summaries(tx, task.task_id, 0, 100))
    assert [one.state for one in listed] == [RoundState.SETTLED, RoundState.SETTLED, RoundState.OPEN]
    for one in listed:
        result = task.result(one.round_number)
        assert (one.reward_micro, one.paid_micro, one.kept_micro) == (
            result.reward_micro,
            result.paid_micro,
            result.kept_micro,
        )
        assert (one.updates, one.declared_total, one.invited) == (result.updates, result.declared_total, 4)
    assert task.cases.read(lambda tx: round_summaries(tx, task.task_id, 1, 1)) == listed[1:2]
    assert task.cases.read(lambda tx: round_summaries(tx, task.task_id, 3, 100)) == []


def test_sums_of_settled_rounds_are_read_once_and_stay_right(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, clients = played
    cases = task.cases

    def seen() -> list[object]:
        return [*cases.read(lambda tx: round_summaries(tx, task.task_id, 0, 100)), cases.read(paid)]

    def paid(tx: Transaction) -> int:
        return task_summary(tx, task.now).paid_micro

    def from_rows() -> list[object]:
        """The same from a transaction that has kept nothing."""
        return [*cases.write(lambda tx: round_summaries(tx, task.task_id, 0, 100)), cases.write(paid)]

    assert seen() == seen() == from_rows()
    clients[1].upload(clients[1].noise(SECRET_RHO, 3), 3)
    clients[3].play(3)
    assert task.settle()
    assert seen() == seen() == from_rows()
    assert [one.updates for one in seen()[:3]] == [4, 3, 3]  # type: ignore[attr-defined]


def test_cost_and_regret_of_settled_rounds_follow_the_model(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, _ = played
    found = task.cases.read(lambda tx: round_costs(tx, task.task_id, 0, 100))
    assert [one.round_number for one in found] == [1, 2]
    spec, sizes = (
        task.now.spec,
        {client.client_id: client.size for client in task.cases.read(lambda tx: tx.clients.of_task(task.task_id))},
    )
    scale = {size: spec.privacy.mechanism.build().noise_scale(size=size or 1) for size in sizes.values()}
    for one in found:
        result = task.result(one.round_number)
        counted = [part for part in result.clients or () if part.accepted and part.rho > 0]
        whole = sum(sizes[part.client_id] or 0 for part in counted)
        # Weights by size: the variance of the averaged noise is the sum of p² v / rho.
        variance = sum(
            ((sizes[part.client_id] or 0) / whole) ** 2 * scale[sizes[part.client_id]] / part.rho for part in counted
        )
        cost = round_cost(
            cost_model=spec.cost_model(),
            round_number=one.round_number,
            reward=result.reward_micro / 1e6,
            noise_variance=variance,
        )
        assert one.cost == pytest.approx(cost)
        assert one.reward_cost == pytest.approx(
            (1 - spec.game.accuracy_weight) * spec.game.discount ** (one.round_number - 1) * result.reward_micro / 1e6
        )
        assert one.regret == max(part.regret for part in result.clients or () if part.regret is not None)
    assert task.cases.read(lambda tx: round_costs(tx, task.task_id, 2, 100)) == []


def test_progress_says_who_is_awaited(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, clients = played
    seen = task.cases.read(lambda tx: round_progress(tx, task.task_id, task.cases.clock.now()))
    assert seen.round is not None
    answers = {answer.client_id: answer.answer for answer in seen.round.clients}
    assert [answers[client.client_id] for client in clients] == [
        AnswerState.DELIVERED,
        AnswerState.DECLARED,
        AnswerState.DECLINED,
        AnswerState.AWAITED,
    ]
    clients[3].leave()
    late = task.round(3).declare_by + 1
    seen = task.cases.read(lambda tx: round_progress(tx, task.task_id, late))
    assert seen.round is not None and seen.round.clients[3].answer is AnswerState.LEFT


def test_outcomes_and_the_rounds_of_a_client_agree_with_the_results(
    played: tuple[ServedTask, list[ServedClient]],
) -> None:
    task, clients = played
    columns = task.cases.read(lambda tx: round_outcomes(tx, task.task_id, 0, 100))
    assert [(one.round_number, one.outcomes) for one in columns] == [(1, "dddd"), (2, "dddn")]
    for one in columns:
        results = task.result(one.round_number).clients or ()
        assert list(one.rho) == [result.rho for result in results]
        assert list(one.payment_micro) == [result.payment_micro for result in results]
    own = task.cases.read(lambda tx: client_rounds(tx, task.task_id, clients[3].client_id))
    assert [(one.round_number, one.outcome, one.payment_micro) for one in own] == [
        (1, "d", columns[0].payment_micro[3]),
        (2, "n", 0),
    ]
    weight = task.now.spec.game.privacy_weight
    assert math.isclose(own[0].utility, own[0].payment_micro / 1e6 - weight * own[0].rho)


def test_accounts_are_the_ledgers_without_the_open_round(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, clients = played
    page = task.cases.read(lambda tx: account_page(tx, task.task_id, -1, 100))
    assert [account.answering for account in page.accounts] == [True, True, False, False]
    assert page.statement is not None and "zCDP" in page.statement
    for account, client in zip(page.accounts, clients, strict=True):
        ledger = task.cases.read(lambda tx, own=client: closed_ledger(tx, task.now, own.now))  # type: ignore[misc]
        assert (account.spent_rho, account.epsilon) == (ledger.spent_rho, ledger.epsilon)
        own = task.cases.read(lambda tx, own=client: client_rounds(tx, task.task_id, own.client_id))  # type: ignore[misc]
        assert math.isclose(account.utility, sum(one.utility for one in own))
        assert account.earned_micro == ledger.earned_micro == client.ledger().earned_micro
    silent = clients[3].ledger()
    assert page.accounts[3].spent_rho == silent.spent_rho and page.accounts[3].guarantee == "proven"
    assert [a.ordinal for a in task.cases.read(lambda tx: account_page(tx, task.task_id, 1, 1)).accounts] == [2]


def test_rounds_of_an_earlier_version_without_sums_of_their_own_show_the_same(
    played: tuple[ServedTask, list[ServedClient]],
) -> None:
    task, _ = played
    cases = task.cases

    def seen() -> list[object]:
        return cases.write(
            lambda tx: [
                round_summaries(tx, task.task_id, 0, 100),
                tx.payments.totals_micro(task.task_id, after_round=0),
                tx.payments.totals_micro(task.task_id, after_round=1),
            ]
        )

    before = seen()
    cases.write(lambda tx: tx.connection.execute(rounds.update().values(paid_micro=None)))
    assert seen() == before
    assert before[1] == {number: task.result(number).paid_micro for number in (1, 2)}


def test_accounts_that_are_read_again_are_those_of_a_first_read(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, clients = played
    cases = task.cases

    def first() -> object:
        """From a transaction that has kept nothing."""
        return cases.write(lambda tx: account_page(tx, task.task_id, -1, 100))

    def again(after: int = -1) -> AccountPage:
        return cases.read(lambda tx: account_page(tx, task.task_id, after, 100))

    assert again(after=1).accounts == again().accounts[2:]
    assert again() == first()
    clients[1].upload(clients[1].noise(SECRET_RHO, 3), 3)
    clients[3].play(3)
    assert task.settle()
    # Two clients are read up to the new round before the others are.
    assert again(after=1).accounts == again().accounts[2:]
    assert again() == first()
    assert [one.releases for one in again().accounts] == [4, 4, 3, 3]


def test_nothing_shows_a_budget_of_the_open_round(played: tuple[ServedTask, list[ServedClient]]) -> None:
    task, clients = played
    now = task.cases.clock.now()
    shown = task.cases.read(
        lambda tx: [
            *round_summaries(tx, task.task_id, 0, 100),
            round_progress(tx, task.task_id, now),
            *round_outcomes(tx, task.task_id, 0, 100),
            account_page(tx, task.task_id, -1, 100),
            forecast(tx, task.task_id),
            *(closed_ledger(tx, task.now, client.now) for client in clients),
            *(one for client in clients for one in client_rounds(tx, task.task_id, client.client_id)),
        ]
    )
    text = json.dumps([message.model_dump(mode="json") for message in shown])
    assert str(SECRET_RHO) not in text and "round/3" not in text
    spent = task.cases.read(lambda tx: account_page(tx, task.task_id, -1, 100)).accounts[0].spent_rho
    assert spent == task.cases.read(lambda tx: account_page(tx, task.task_id, -1, 100)).accounts[1].spent_rho
    assert str(SECRET_RHO) in clients[0].ledger().model_dump_json()


@pytest.mark.parametrize("table", TableName)
def test_a_streamed_table_has_the_rows_of_the_export(
    played: tuple[ServedTask, list[ServedClient]], table: TableName
) -> None:
    task, _ = played
    cases = task.cases
    last = cases.read(lambda tx: last_exported_round(tx, task.task_id))
    parts = cases.read(lambda tx: [table_part(tx, task.task_id, table, part, last) for part in range(9)])
    rows = [row for part in parts for row in whole_rows(COLUMNS[table], part or [])]
    assert parts[-1] is None
    columns, exported = read_export(cases.store, task.task_id).tables[table]
    closed = [row for row in exported if row.get("state") != "open"] if table is TableName.ROUNDS else exported
    assert rows == whole_rows(columns, closed) and rows


def test_figures_are_extended_from_earlier_ones(cases: UseCases) -> None:
    task, clients = cases.training()
    first = cases.read(lambda tx: task_figures(tx, 100, {}))
    task.play(clients)
    known = {of_task.task.task_id: of_task for of_task in first}
    extended, fresh = (cases.read(lambda tx, k=k: task_figures(tx, 100, k)) for k in (known, {}))  # type: ignore[misc]
    assert extended == fresh
    assert fresh[0].paid_micro == sum(task.payments(1).values()) and fresh[0].clients == {"selected": 3}
    assert math.isclose(fresh[0].spent_rho, 3 * 0.05)
