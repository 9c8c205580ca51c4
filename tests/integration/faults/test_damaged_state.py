"""What is stored was damaged, or is not there: said where, never taken for the end of a task, and no harm to others."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from qidpfl_server.api.app import create_app
from qidpfl_server.cli import app as commands
from qidpfl_server.cli.serve import ensure_task
from qidpfl_server.clock import SystemClock
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.ops.tokens import Secrets, create_private, load_secrets
from qidpfl_server.service.notifications import ChangeNotifier
from qidpfl_server.service.scheduler import Scheduler
from qidpfl_server.service.tasks import task_spec
from qidpfl_server.settings import Settings
from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, move_deadline, running

pytestmark = pytest.mark.live

SPEC = task_spec("digits", {})


def refused_start(state: Path) -> str:
    """The last line of a coordinator that does not start."""
    done = server_command("serve", "--port", "0", "--state-dir", state)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def gathered(coordinator: Coordinator, name: str) -> list[ScriptedClient]:
    """Three clients of a new task of one round, which is open."""
    rounds = {"expected_clients": 3, "min_clients": 2, "min_updates": 2}
    task_id, code = coordinator.create_task(name, game={"horizon": 1}, rounds=rounds)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-{name}-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def offer_to(client: ScriptedClient) -> dict[str, Any]:
    answer = client.poll(wait=60)
    assert answer is not None
    offer: dict[str, Any] = answer["round"]
    return offer


def change(state: Path, *statements: str) -> None:
    database = sqlite3.connect(state / "coordinator.db", timeout=30)
    with database:
        for statement in statements:
            database.execute(statement)
        # As another process would: everybody looks again.
        database.execute("update pulse set changes = changes + 1")
    database.close()


def shown(state: Path, task: str) -> tuple[str, str | None]:
    database = sqlite3.connect(state / "coordinator.db")
    found: tuple[str, str | None] = database.execute(
        "select state, reason from tasks where name = ?", (task,)
    ).fetchone()
    database.close()
    return found


# --- rows that cannot be read ----------------------------------------------------------------------------------------

DAMAGE = {
    "tasks": "update tasks set state = 'foo' where name = 'bad'",
    "rounds": "update rounds set declare_by = 'soon'",
    "clients": "update clients set label_counts = '[' where ordinal = 1",
    "invitations": "update invitations set standing = 'welcome'",
    "budgets": "update budgets set rho = 'much'",
    "updates": "update updates set squared_norm = 'x'",
}


@pytest.fixture(scope="module")
def half_played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder whose task has an open round with two of three updates; nobody serves it."""
    state = tmp_path_factory.mktemp("half") / "state"
    with running(state) as coordinator:
        for client in gathered(coordinator, "bad")[:2]:
            client.play(offer_to(client))
    return state


@pytest.fixture
def state(half_played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half_played, tmp_path / "state"))


@pytest.mark.parametrize("table", DAMAGE)
def test_a_row_that_cannot_be_read_is_named_when_the_coordinator_starts(state: Path, table: str) -> None:
    change(state, DAMAGE[table])
    said = refused_start(state)
    assert said.startswith("qidpfl-server: the row with ") and f" in table {table} cannot be read: " in said


@pytest.mark.parametrize("table", ["tasks", "rounds"])
def test_a_task_that_becomes_unreadable_does_not_hold_up_the_others(state: Path, table: str) -> None:
    with running(state) as coordinator:
        good = gathered(coordinator, "good")
        bad = coordinator.create_task("waiting")[0]
        change(state, DAMAGE[table] + (" where task_id <> '" + good[0].task_id + "'" if table == "rounds" else ""))
        for client in good[:2]:
            client.play(offer_to(client))
        # The third stays silent: the clock has to close this round.
        move_deadline(state, "declare_by", task_id=good[0].task_id, in_s=2)
        while (answer := good[0].poll(wait=30)) is None:
            pass
        assert (answer["task_state"], answer["reason"]) == ("finished", "horizon_reached")
        assert httpx.get(f"{coordinator.url}/readyz", timeout=60).status_code == 200
        with coordinator.admin as http:
            assert http.get(f"/v1/tasks/{bad}").status_code == 200


def test_whoever_waits_for_a_task_that_becomes_unreadable_is_told_so_and_comes_back_to_it(state: Path) -> None:
    with running(state) as coordinator:
        clients = gathered(coordinator, "good")
        for client in clients[:2]:
            client.play(offer_to(client))
        answers: list[httpx.Response] = []
        parameters = {"after": "1.1", "wait": "60"}
        waiting = threading.Thread(
            target=lambda: answers.append(clients[0].http.get("/rounds/current", params=parameters))
        )
        waiting.start()
        # Several times: the waiting client may come only after the first.
        while waiting.is_alive():
            change(state, "update tasks set state = 'foo' where name = 'good'")
            waiting.join(0.5)
        assert (answers[0].status_code, answers[0].json()["code"]) == (500, "internal_error")
        change(state, "update tasks set state = 'training' where name = 'good'")
        clients[2].play(offer_to(clients[2]))
        answer = clients[0].poll(wait=60)
        assert answer is not None and answer["task_state"] == "finished"


def test_a_coordinator_whose_background_work_has_ended_is_not_ready(tmp_path: Path) -> None:
    async def statuses() -> list[int]:
        settings = Settings(state_dir=tmp_path)
        with opened_store(settings, create=True) as store:
            clock = SystemClock()
            scheduler = Scheduler(store, clock, lambda task: None)
            app = create_app(
                settings=settings,
                store=store,
                clock=clock,
                secrets=Secrets(admin="a" * 43, viewer="v" * 43),
                scheduler=scheduler,
                notifier=ChangeNotifier(store),
            )
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
                work = asyncio.create_task(scheduler.run())
                found = [(await http.get("/readyz")).status_code]
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                return [*found, (await http.get("/readyz")).status_code]

    assert asyncio.run(statuses()) == [200, 503]


# --- blobs that are not there ----------------------------------------------------------------------------------------


def test_a_coordinator_without_its_blob_folder_does_not_start_and_goes_on_once_it_is_back(state: Path) -> None:
    change(state, "update rounds set declare_by = 1, deliver_by = 2")
    (state / "blobs").rename(state / "away")
    assert f"models and updates are not at {state / 'blobs'}" in refused_start(state)
    assert not (state / "blobs").exists()

    shutil.copytree(state / "away", state / "blobs")
    for blob in (state / "blobs" / "objects").iterdir():
        blob.unlink()
    assert "model version 0, is missing from" in refused_start(state)
    assert shown(state, "bad") == ("training", None)

    shutil.rmtree(state / "blobs")
    (state / "away").rename(state / "blobs")
    done = server_command("serve", "--port", "0", "--exit-when-finished", "--state-dir", state)
    assert done.returncode == 0, done.stderr
    assert shown(state, "bad") == ("finished", "horizon_reached")


def test_no_command_ends_a_task_or_makes_a_folder_because_the_blob_folder_is_away(state: Path) -> None:
    (state / "blobs").rename(state / "away")
    for words in (("tasks", "stop", "bad"), ("tasks", "create", "new", "--preset", "digits"), ("audit",)):
        done = server_command(*words, "--state-dir", state)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1 and "models and updates" in done.stderr
    assert shown(state, "bad") == ("training", None)
    assert not (state / "blobs").exists()


def test_the_reason_of_a_task_that_lost_an_update_names_no_folder(state: Path) -> None:
    database = sqlite3.connect(state / "coordinator.db")
    (digest,) = database.execute("select digest from updates limit 1").fetchone()
    database.close()
    (state / "blobs" / "objects" / digest).unlink()
    assert server_command("tasks", "stop", "bad", "--state-dir", state).returncode == 0
    assert shown(state, "bad") == ("failed", f"state_damaged: blob {digest} is missing from the blob folder")


# --- enrolment codes and tokens --------------------------------------------------------------------------------------


def ensured(settings: Settings, folder: Path) -> list[str]:
    """Make the task `mine`; the files of codes there are then, the first of which has to open it."""
    with opened_store(settings, create=True) as store:
        commands._ensure(settings, store, "mine", "digits", SPEC)
        code = (folder / "mine.code").read_text().strip()
        assert store.read(lambda tx: tx.tasks.task_of_code(hash_secret(code))) == code.split(".")[0]
    return sorted(path.name for path in folder.iterdir() if "code" in path.name)


def test_a_coordinator_that_comes_second_leaves_the_code_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(state_dir=tmp_path)
    others: list[list[str]] = []

    def overtaken(path: Path, code: str) -> bool:
        monkeypatch.undo()
        others.append(ensured(settings, tmp_path))
        return create_private(path, code)

    monkeypatch.setattr(commands, "create_private", overtaken)
    assert ensured(settings, tmp_path) == ["mine.code"]
    assert others == [["mine.code"]]


def test_a_code_that_was_written_down_before_a_crash_is_found_again(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    ensured(settings, tmp_path)
    (tmp_path / "mine.code").rename(tmp_path / "mine.code~1")
    (tmp_path / "mine.code~2").write_text("task.of-a-task-that-was-never-made\n")
    (tmp_path / "mine.code.code").write_text("of another task\n")
    assert ensured(settings, tmp_path) == ["mine.code", "mine.code.code"]


def test_a_task_that_is_there_with_another_spec_stays_and_is_mentioned(tmp_path: Path) -> None:
    other = task_spec("digits", {"game": {"horizon": 3}})
    settings = Settings(state_dir=tmp_path)
    ensured(settings, tmp_path)
    with opened_store(settings) as store:
        for spec, said in ((SPEC, []), (other, ["task_differs"])):
            with capture_logs() as logs:
                assert not ensure_task(store, name="mine", preset_name="digits", spec=spec, write_down=pytest.fail)
            assert [line["event"] for line in logs] == said


def test_a_process_that_is_killed_while_it_writes_a_token_leaves_none(tmp_path: Path) -> None:
    killed = (
        "import os, pathlib, sys; from qidpfl_server.ops.tokens import load_secrets;"
        "os.fdopen = lambda *_: os._exit(9); load_secrets(pathlib.Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path)], timeout=60).returncode == 9
    assert list(tmp_path.glob("*.token")) == []
    assert len(load_secrets(tmp_path).created) == 2


def test_only_the_operator_can_read_the_database_and_the_folder_made_for_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with opened_store(Settings(state_dir=tmp_path / "state"), create=True) as store:
            ensure_task(store, name="mine", preset_name="digits", spec=SPEC, write_down=lambda _: None)
            files = list((tmp_path / "state").glob("coordinator.db*"))
            assert len(files) > 1
            assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
