"""Automatic export: written in the transaction that ends a task, and later for tasks that have no files yet."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from qidpfl_server.ops.auto_export import AutoExport
from qidpfl_server.store.transaction import Transaction
from support.use_cases import UseCases

pytestmark = pytest.mark.slow


def state_in(folder: Path, name: str = "mine") -> str:
    return str(json.loads((folder / name / "task.json").read_text())["state"])


def test_the_files_are_complete_before_another_reader_sees_the_end(cases: UseCases, tmp_path: Path) -> None:
    task = cases.task(name="mine")
    seen: list[tuple[str, str]] = []

    def look(tx: Transaction) -> None:
        seen.append((state_in(tmp_path / "results"), task.now.state.value))

    cases.store.before_commit(AutoExport(tmp_path / "results").write_ended)
    cases.store.before_commit(look)
    task.stop()
    assert seen == [("stopped", "enrolling")]
    assert task.now.state.value == "stopped"


def test_a_task_that_another_process_ended_is_written_later_and_once(cases: UseCases, tmp_path: Path) -> None:
    results, task = AutoExport(tmp_path / "results"), cases.task(name="mine")
    cases.read(results.write_missing)
    assert not (tmp_path / "results").exists()
    task.stop()
    cases.read(results.write_missing)
    assert state_in(tmp_path / "results") == "stopped"
    kept = f'{{"task_id": "{task.task_id}"}}'
    (tmp_path / "results" / "mine" / "task.json").write_text(kept)
    cases.read(AutoExport(tmp_path / "results").write_missing)
    assert (tmp_path / "results" / "mine" / "task.json").read_text() == kept


def test_a_folder_that_cannot_be_written_is_logged_and_the_task_ends(cases: UseCases, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("not a folder")
    task = cases.task()
    cases.store.before_commit(AutoExport(tmp_path / "results").write_ended)
    with capture_logs() as said:
        task.stop()
    assert task.now.state.value == "stopped"
    assert [line["event"] for line in said] == ["results_not_written"]


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_user_who_may_change_the_folder_may_change_the_files_in_it(
    cases: UseCases, tmp_path: Path, mode: int
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results").chmod(mode)
    cases.store.before_commit(AutoExport(tmp_path / "results").write_ended)
    cases.task(name="mine").stop()
    assert (tmp_path / "results" / "mine").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(None, 0o600), (0o700, 0o600), (0o750, 0o640), (0o777, 0o644)])
def test_the_files_are_for_the_operator_only_unless_the_folder_was_opened(
    cases: UseCases, tmp_path: Path, folder_mode: int | None, file_mode: int
) -> None:
    """Catches exports that other users of the machine can read, and results of containers that their owner cannot."""
    results = tmp_path / "results"
    if folder_mode is not None:
        results.mkdir()
        results.chmod(folder_mode)
    cases.store.before_commit(AutoExport(results).write_ended)
    cases.task(name="mine").stop()
    assert results.stat().st_mode & 0o777 == (folder_mode or 0o700)
    assert {path.stat().st_mode & 0o777 for path in (results / "mine").iterdir()} == {file_mode}


def test_a_task_name_with_a_slash_stays_inside_the_folder(cases: UseCases, tmp_path: Path) -> None:
    cases.store.before_commit(AutoExport(tmp_path / "results").write_ended)
    cases.task(name="a/../../b").stop()
    assert state_in(tmp_path / "results", "a%2F..%2F..%2Fb") == "stopped"
