"""What `qidpfl-client verify` compares of an export agrees in tasks where not everything went well."""

from pathlib import Path

import pytest

from qidpfl_client.journal.export_files import read_export as read_files
from qidpfl_client.journal.export_tables import ExportCheck, check_models, check_tables
from qidpfl_server.ops.export import read_export, write_export
from qidpfl_server.ops.tables import TableFormat
from qidpfl_server.service.rounds.submissions import void_update
from qidpfl_server.service.scoring import Evaluation, Score
from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.task_spec import TaskSpec
from support.use_cases import ServedTask, UseCases

pytestmark = pytest.mark.slow


class _Scores:
    def prepare(self) -> None:
        """Nothing is needed."""

    def evaluate(self, spec: TaskSpec, parameters: Parameters) -> Evaluation:
        score = Score(accuracy=0.5, loss=1.25)
        return Evaluation(deciding=score, reported=score)


def checked(task: ServedTask, folder: Path, table_format: TableFormat = TableFormat.CSV) -> ExportCheck:
    write_export(read_export(task.cases.store, task.task_id), folder, table_format)
    files, check = read_files(folder), ExportCheck()
    models = check_models(check, files, task.now.spec.layout, {})
    check_tables(check, files, [int(subject.removeprefix("round/")) for subject in files.rows], models)
    return check


@pytest.mark.parametrize("table_format", TableFormat)
def test_declined_missing_and_void_updates_agree(cases: UseCases, tmp_path: Path, table_format: TableFormat) -> None:
    cases.evaluator = _Scores()
    task, clients = cases.training(5, game={"horizon": 2}, defence={"escrow": 0.25})
    for client in clients[:4]:
        client.play()
    clients[4].declare()
    cases.write(lambda tx: void_update(tx, task.task_id, 1, clients[0].client_id, cases.clock.now()))
    clients[4].upload()
    task.settle()
    clients[0].decline(2)
    clients[1].declare(2)
    for client in clients[2:]:
        client.play(2)
    task.stop()
    check = checked(task, tmp_path, table_format)
    assert task.result(1).state == "settled" and task.result(1).paid_micro > 0
    assert check.differences == [] and check.compared["table"] > 20


def test_a_round_that_ended_void_agrees(cases: UseCases, tmp_path: Path) -> None:
    task, (first, second, _) = cases.training()
    first.play()
    second.declare()
    task.stop()
    assert task.result().state == "void"
    assert checked(task, tmp_path).differences == []


def test_an_open_round_is_not_checked(cases: UseCases, tmp_path: Path) -> None:
    task, clients = cases.training()
    task.play(clients)
    clients[0].declare(2)
    check = checked(task, tmp_path)
    assert check.differences == [] and "table rounds: 2, which was not closed" in check.not_checked


def test_late_scores_are_compared_with_their_own_entry(cases: UseCases, tmp_path: Path) -> None:
    cases.evaluator, cases.defer_from_s = _Scores(), 0.0
    task, clients = cases.training(game={"horizon": 3})
    for number in (1, 2):
        # Only the length of the first evaluation tells that the second is a long one.
        task.play(clients, number)
    assert checked(task, tmp_path / "before").differences == []
    assert task.evaluate() and task.result(2).accuracy == 0.5
    assert checked(task, tmp_path / "after").differences == []
    table = tmp_path / "after" / "rounds.csv"
    begin, _, end = table.read_text().rpartition(",0.5,1.25,")
    table.write_text(f"{begin},0.9,1.25,{end}")
    (difference,) = _again(task, tmp_path / "after").differences
    assert difference == "table rounds: accuracy of round 2 differs from the recorded rows"
    (tmp_path / "after" / "models.jsonl").unlink()
    check = _again(task, tmp_path / "after")
    assert check.differences == []
    assert "table rounds: accuracy, loss, evaluation_s, evaluated_at of round 2" in check.not_checked


def _again(task: ServedTask, folder: Path) -> ExportCheck:
    files, check = read_files(folder), ExportCheck()
    check_tables(check, files, [1, 2], check_models(check, files, task.now.spec.layout, {}))
    return check
