"""Nothing is acknowledged before it is durable: the system calls of a live coordinator, in their order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.coordinators import FILE_UPDATES, Coordinator, ScriptedClient, running
from support.faults.broken_rules import acknowledge_uploads_before_the_commit
from support.faults.syscalls import (
    Call,
    StraceUnavailable,
    budget_problems,
    calls_of,
    recorded,
    small_upload_problems,
    upload_problems,
)

pytestmark = pytest.mark.live

WAL, OBJECTS, STAGED = "/state/coordinator.db-wal", "/state/blobs/objects", "/state/blobs/staging/f"
ANSWER, COMMIT = Call("answer"), [Call("write", WAL), Call("sync", WAL)]
NAMED = [Call("rename", STAGED, f"{OBJECTS}/d"), Call("sync", OBJECTS)]
RIGHT = [Call("write", STAGED), Call("sync", STAGED), *NAMED, *COMMIT, ANSWER]


def traced(coordinator: Coordinator, file: Path, act: Callable[[], object]) -> list[Call]:
    """The calls of the coordinator while a client acts."""
    assert coordinator.process is not None
    try:
        with recorded(coordinator.process.pid, file):
            act()
    except StraceUnavailable as reason:
        pytest.skip(str(reason))
    return calls_of(file.read_text(errors="replace").splitlines())


def clients_of(coordinator: Coordinator, **overrides: Any) -> list[ScriptedClient]:
    rounds = {"expected_clients": 3, "min_clients": 2, "min_updates": 2}
    task_id, code = coordinator.create_task(game={"horizon": 1}, rounds=rounds, **overrides)
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


@pytest.mark.parametrize(("overrides", "problems"), [({}, small_upload_problems), (FILE_UPDATES, upload_problems)])
def test_a_budget_and_an_update_are_durable_before_they_are_acknowledged(
    tmp_path: Path, overrides: dict[str, Any], problems: Callable[[list[Call]], list[str]]
) -> None:
    with running(tmp_path / "state") as coordinator:
        client = clients_of(coordinator, **overrides)[0]
        offer = (client.poll(wait=60) or {})["round"]
        calls = traced(coordinator, tmp_path / "budget", lambda: client.declare(offer).raise_for_status())
        assert ANSWER in calls and budget_problems(calls) == []
        calls = traced(coordinator, tmp_path / "update", lambda: client.upload(offer).raise_for_status())
        assert ANSWER in calls and problems(calls) == []


def test_a_coordinator_that_acknowledges_before_the_commit_is_noticed(tmp_path: Path) -> None:
    with running(tmp_path / "state", sabotage=acknowledge_uploads_before_the_commit) as coordinator:
        client = clients_of(coordinator)[0]
        offer = (client.poll(wait=60) or {})["round"]
        client.declare(offer).raise_for_status()
        calls = traced(coordinator, tmp_path / "update", lambda: client.upload(offer).raise_for_status())
        assert ANSWER in calls and small_upload_problems(calls)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ([ANSWER, *RIGHT], "no name before the answer"),
        ([*RIGHT[:-2], ANSWER, RIGHT[-2]], "the commit is not synced"),
        ([*RIGHT[:-2], RIGHT[-2], Call("write", WAL), ANSWER], "the commit is not synced"),
        ([RIGHT[0], *NAMED, *COMMIT, ANSWER], "not synced before they are renamed"),
        ([RIGHT[1], RIGHT[0], *NAMED, *COMMIT, ANSWER], "not synced before they are renamed"),
        ([*RIGHT[:3], *COMMIT, ANSWER], "the folder is not synced"),
        ([*RIGHT[:3], *COMMIT, NAMED[1], ANSWER], "committed before the name"),
    ],
)
def test_a_wrong_order_is_found(wrong: list[Call], problem: str) -> None:
    assert upload_problems(RIGHT) == []
    assert any(problem in found for found in upload_problems(wrong))


def test_a_budget_that_is_answered_first_is_found() -> None:
    assert budget_problems([*COMMIT, ANSWER]) == []
    assert budget_problems([ANSWER, *COMMIT]) and budget_problems([COMMIT[0], ANSWER, COMMIT[1]])


def test_a_sync_counts_when_it_returns_and_an_answer_when_it_begins() -> None:
    lines = [
        '11 pwrite64(7</s/c.db-wal>, "x"..., 4096, 32) = 4096',
        "11 fdatasync(7</s/c.db-wal> <unfinished ...>",
        '10 write(9<TCP:[127.0.0.1:1->127.0.0.1:2]>, "HTTP/1.1 200 OK"..., 300 <unfinished ...>',
        "11 <... fdatasync resumed>) = 0",
        "10 <... write resumed>) = 300",
        '11 rename("/s/staging/f", "/s/objects/d") = 0',
        "11 fsync(8</s/objects>) = -1 EIO (Input/output error)",
    ]
    assert calls_of(lines) == [
        Call("write", "/s/c.db-wal"),
        ANSWER,
        Call("sync", "/s/c.db-wal"),
        Call("rename", "/s/staging/f", "/s/objects/d"),
    ]
