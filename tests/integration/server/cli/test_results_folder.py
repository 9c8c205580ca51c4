"""`serve` with separate folders for results and enrolment codes, and its exit codes."""

import csv
import json
import threading
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from qidpfl_server.cli.serve import ensure_task
from qidpfl_server.clock import SystemClock
from qidpfl_server.domain import EndReason
from qidpfl_server.ops.auto_export import AutoExport
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.service.lifecycle import end_task, get_task_for_update
from qidpfl_server.service.tasks import task_spec
from qidpfl_server.settings import Settings
from qidpfl_server.store.transaction import Transaction
from qidpfl_shared.protocol.messages import TaskState
from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

SHORT = {"game": {"horizon": 2}, "rounds": {"expected_clients": 3, "declare_s": 20.0, "deliver_s": 20.0}}
DIGITS = ("--preset", "digits", "--shared-code", "--overrides", json.dumps(SHORT), "--exit-when-finished")


def command(*arguments: str | Path) -> str:
    done = server_command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def play(coordinator: Coordinator, code: str) -> None:
    """Three clients, to the end of the task."""
    names = [f"client-{number:010d}" for number in range(3)]
    clients = [ScriptedClient(coordinator.url, code.split(".")[0], code, name) for name in names]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def exit_code(coordinator: Coordinator) -> int:
    assert coordinator.process is not None
    return coordinator.process.wait(timeout=60)


def ending(tx: Transaction, state: TaskState = TaskState.FINISHED) -> None:
    (task,) = tx.tasks.all()
    end_task(tx, get_task_for_update(tx, task.task_id), state, EndReason.HORIZON_REACHED, SystemClock().now())


def make_task(settings: Settings) -> None:
    with opened_store(settings, create=True) as store:
        ensure_task(store, name="mine", preset_name="digits", spec=task_spec("digits", {}), write_down=lambda _: None)


@pytest.fixture
def settings(tmp_path: Path, store_url: str) -> Settings:
    """Of a store with one task, `mine`."""
    made = Settings(state_dir=tmp_path / "state", store_url=store_url)
    make_task(made)
    return made


def state_for_others(settings: Settings) -> str:
    """The state of the task as another process sees it at this moment."""
    url = settings.database_url.replace("postgresql://", "postgresql+psycopg://")
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return str(connection.execute(text("SELECT state FROM tasks")).scalar())


def test_results_are_complete_before_the_end_is_visible(settings: Settings, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def look(tx: Transaction) -> None:
        written = json.loads((tmp_path / "results" / "mine" / "task.json").read_text())
        seen.append((written["state"], state_for_others(settings)))

    with opened_store(settings) as store:
        store.before_commit(AutoExport(tmp_path / "results").write_ended)
        store.before_commit(look)
        store.write(ending)
    assert seen == [("finished", "enrolling")]
    assert state_for_others(settings) == "finished"


def test_serve_writes_the_results_of_a_task_and_ends_with_0(tmp_path: Path) -> None:
    folders = ("--code-dir", str(tmp_path / "codes"), "--results-dir", str(tmp_path / "results"))
    with running(tmp_path / "state", arguments=(*DIGITS, *folders)) as coordinator:
        play(coordinator, (tmp_path / "codes" / "digits.code").read_text().strip())
        with (tmp_path / "results" / "digits" / "rounds.csv").open() as file:
            assert [row["state"] for row in csv.DictReader(file)] == ["settled", "settled"]
        assert (tmp_path / "results" / "digits" / "model-2.safetensors").exists()
        assert exit_code(coordinator) == 0


def test_a_code_folder_holds_the_code_alone_and_is_part_of_a_backup(tmp_path: Path) -> None:
    codes, state = tmp_path / "codes", tmp_path / "state"
    with running(state, arguments=("--preset", "digits"), environment={"QIDPFL_CODE_DIR": str(codes)}):
        assert [path.name for path in codes.iterdir()] == ["digits.code"]
        assert (codes / "digits.code").stat().st_mode & 0o777 == 0o600
        assert not list(state.glob("*.code"))
    where = ("--state-dir", str(state), "--out", str(tmp_path / "copy"))
    assert server_command("backup", *where, QIDPFL_CODE_DIR=str(codes)).returncode == 0
    assert (tmp_path / "copy" / "digits.code").read_text() == (codes / "digits.code").read_text()


def test_a_server_that_is_stopped_before_its_tasks_have_ended_exits_with_1(tmp_path: Path) -> None:
    with running(tmp_path, arguments=DIGITS) as coordinator:
        assert coordinator.stop() == 1
    with running(tmp_path) as coordinator:
        assert coordinator.stop() == 0


@pytest.mark.parametrize(("state", "code"), [(TaskState.FAILED, 1), (TaskState.STOPPED, 0)])
def test_the_exit_code_tells_whether_a_task_has_failed(tmp_path: Path, state: TaskState, code: int) -> None:
    settings = Settings(state_dir=tmp_path)
    make_task(settings)
    with opened_store(settings) as store:
        store.write(lambda tx: ending(tx, state))
    with running(tmp_path, arguments=("--exit-when-finished",)) as coordinator:
        assert exit_code(coordinator) == code


def test_overrides_that_a_variable_left_empty_change_nothing(tmp_path: Path) -> None:
    with running(tmp_path, arguments=("--preset", "digits", "--overrides", "")):
        listed = command("tasks", "list", "--state-dir", tmp_path)
    assert listed.split("\t")[1:] == ["digits", "enrolling", "0/20\n"]
