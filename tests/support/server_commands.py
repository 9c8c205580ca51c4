"""What the tests of the server's commands share: a short task, its clients, and the output of a command."""

import json
from pathlib import Path
from typing import Any

from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient

SHORT = {"game": {"horizon": 2}, "rounds": {"expected_clients": 3, "declare_s": 20.0, "deliver_s": 20.0}}


def output(*arguments: str | Path) -> str:
    """What a command that succeeds prints."""
    done = server_command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(state: Path, name: str, overrides: dict[str, Any] | None = None) -> tuple[str, str]:
    """A task made by the command: its id and its code."""
    changed = json.dumps(SHORT if overrides is None else overrides)
    lines = output(
        *("tasks", "create", name, "--preset", "digits", "--overrides", changed, "--single-use-codes", "0"),
        *("--state-dir", state),
    )
    task_id, code = lines.split()
    return task_id, code


def join(coordinator: Coordinator, task_id: str, code: str, count: int = 3) -> list[ScriptedClient]:
    """Clients that are enrolled and have a profile."""
    clients = [ScriptedClient(coordinator.url, task_id, code, f"client-{number:010d}") for number in range(count)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


def listed(state: Path) -> dict[str, tuple[str, str]]:
    """State and rounds of every task, by name."""
    rows = [line.split("\t") for line in output("tasks", "list", "--state-dir", state).splitlines()]
    return {name: (task_state, rounds) for _, name, task_state, rounds in rows}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
