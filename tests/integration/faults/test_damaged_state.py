"""Damaged or missing state: the server names it, does not end the task, and continues with the other tasks."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from qidpfl_server.ops.tokens import load_secrets
from qidpfl_server.settings import Settings
from support.commands import server_command
from support.coordinators import PAST_DEADLINES_S, Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live


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
        # As another process would do it: all caches are refreshed.
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
}


@pytest.fixture(scope="module")
def half_played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder whose task has an open round with two of three updates; no server runs."""
    state = tmp_path_factory.mktemp("half") / "state"
    with running(state) as coordinator:
        for client in gathered(coordinator, "bad")[:2]:
            client.play(offer_to(client))
    return state


@pytest.fixture
def state(half_played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half_played, tmp_path / "state"))


@pytest.mark.parametrize("table", ["tasks", "rounds"])
def test_a_task_that_becomes_unreadable_does_not_hold_up_the_others(state: Path, table: str) -> None:
    with running(state) as coordinator:
        good = gathered(coordinator, "good")
        bad = coordinator.create_task("waiting")[0]
        change(state, DAMAGE[table] + (" where task_id <> '" + good[0].task_id + "'" if table == "rounds" else ""))
        for client in good[:2]:
            client.play(offer_to(client))
        # The third stays silent: the clock has to close this round.
        coordinator.advance(PAST_DEADLINES_S)
        while (answer := good[0].poll(wait=30)) is None:
            pass
        assert (answer["task_state"], answer["reason"]) == ("finished", "horizon_reached")
        assert httpx.get(f"{coordinator.url}/readyz", timeout=60).status_code == 200
        with coordinator.admin as http:
            assert http.get(f"/v1/tasks/{bad}").status_code == 200


def test_a_waiting_client_is_told_that_its_task_is_unreadable_and_continues_after_the_repair(state: Path) -> None:
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


# --- blobs that are not there ----------------------------------------------------------------------------------------


def test_a_coordinator_starts_only_with_its_blob_folder(state: Path) -> None:
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
    coordinator = Coordinator(state, arguments=("--exit-when-finished",))
    coordinator.advance(PAST_DEADLINES_S)
    with coordinator:
        assert coordinator.process is not None and coordinator.process.wait() == 0
    assert shown(state, "bad") == ("finished", "horizon_reached")


def test_no_command_ends_a_task_or_creates_a_folder_if_the_blob_folder_is_missing(state: Path) -> None:
    (state / "blobs").rename(state / "away")
    for words in (("tasks", "stop", "bad"), ("tasks", "create", "new", "--preset", "digits"), ("audit",)):
        done = server_command(*words, "--state-dir", state)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1 and "models and updates" in done.stderr
    assert shown(state, "bad") == ("training", None)
    assert not (state / "blobs").exists()


# --- tokens --------------------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_while_it_writes_a_token_leaves_none(tmp_path: Path) -> None:
    killed = (
        "import os, sys; from qidpfl_server.ops.tokens import load_secrets;"
        "from qidpfl_server.settings import Settings;"
        "os.fdopen = lambda *_: os._exit(9); load_secrets(Settings(state_dir=sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path)], timeout=60).returncode == 9
    assert list(tmp_path.glob("*.token")) == []
    assert len(load_secrets(Settings(state_dir=tmp_path)).created) == 2
