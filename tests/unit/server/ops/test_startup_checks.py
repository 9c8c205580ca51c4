"""What the server checks before it starts: the blob folder, the rows, the model and the rules of living tasks."""

import shutil
from pathlib import Path

import pytest

from qidpfl_server.errors import CoordinatorError, DamagedState
from qidpfl_server.ops.startup_checks import prepare_blobs, require_living_tasks
from qidpfl_server.plugins.rules import NO_RULES, load_rules
from support.use_cases import ServedTask, UseCases

pytestmark = pytest.mark.slow

DAMAGE = {
    "tasks": "update tasks set state = 'foo'",
    "rounds": "update rounds set declare_by = 'soon'",
    "clients": "update clients set label_counts = '[' where ordinal = 1",
    "invitations": "update invitations set standing = 'welcome'",
    "budgets": "update budgets set rho = 'much'",
    "updates": "update updates set squared_norm = 'x'",
}


@pytest.fixture
def half_played(cases: UseCases) -> ServedTask:
    """A task with an open round and two of three updates."""
    task, clients = cases.training()
    for client in clients[:2]:
        client.play()
    return task


def check(cases: UseCases) -> None:
    cases.read(lambda tx: require_living_tasks(tx, NO_RULES))


def test_a_sound_store_passes(cases: UseCases, half_played: ServedTask) -> None:
    prepare_blobs(cases.store)
    check(cases)


@pytest.mark.parametrize("table", DAMAGE)
def test_a_row_that_cannot_be_read_is_named(cases: UseCases, half_played: ServedTask, table: str) -> None:
    with cases.store.engine.begin() as connection:
        assert connection.exec_driver_sql(DAMAGE[table]).rowcount > 0
    with pytest.raises(DamagedState, match=rf"^the row with .* in table {table} cannot be read: "):
        check(cases)


def test_a_store_with_tasks_needs_its_blob_folder_and_makes_none(
    cases: UseCases, half_played: ServedTask, tmp_path: Path
) -> None:
    (tmp_path / "blobs").rename(tmp_path / "away")
    with pytest.raises(DamagedState, match=f"models and updates are not at {tmp_path / 'blobs'}"):
        prepare_blobs(cases.store)
    assert not (tmp_path / "blobs").exists()


def test_a_new_store_gets_its_blob_folder(cases: UseCases, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "blobs", ignore_errors=True)
    prepare_blobs(cases.store)
    assert cases.store.blobs.present


def test_a_living_task_needs_its_newest_model(cases: UseCases, half_played: ServedTask, tmp_path: Path) -> None:
    for blob in (tmp_path / "blobs" / "objects").iterdir():
        blob.unlink()
    with pytest.raises(DamagedState, match="model version 0, is missing from"):
        check(cases)


def test_a_living_task_needs_its_rules_and_an_ended_task_does_not(cases: UseCases, tmp_path: Path) -> None:
    (tmp_path / "paying.py").write_text("def reward(question):\n    return 1.0\n")
    rules = load_rules([tmp_path / "paying.py"])
    task = cases.task(name="mine", rules=rules, game={"policy": "own", "own_rules": "paying"})
    cases.read(lambda tx: require_living_tasks(tx, rules))
    with pytest.raises(CoordinatorError, match="task mine is enrolling with custom rules: rules paying are not"):
        check(cases)
    task.stop()
    check(cases)
