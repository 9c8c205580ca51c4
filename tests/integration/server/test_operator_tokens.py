"""Tokens of operators on live coordinators: commands, replicas, revocation, and the token files on SIGHUP."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("state")) as live:
        yield live


def status(coordinator: Coordinator, token: str, path: str = "/v1/tasks") -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{coordinator.url}{path}", headers=headers, timeout=60).status_code


def created(coordinator: Coordinator, role: str = "viewer", **options: Any) -> tuple[str, str]:
    """The id and the token."""
    with coordinator.admin as http:
        body = {"name": "someone", "role": role} | options
        answer = http.post("/v1/operator-tokens", json=body).raise_for_status().json()
    return answer["info"]["token_id"], answer["token"]


def seconds_until(condition: Callable[[], bool], limit_s: float = 60.0) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s
        time.sleep(0.05)
    return time.monotonic() - start


# --- over HTTP -------------------------------------------------------------------------------------------------------


def test_a_revoked_token_is_refused_at_once(coordinator: Coordinator) -> None:
    """The fault: the caller stays in the cache."""
    token_id, token = created(coordinator, "admin")
    assert [status(coordinator, token) for _ in range(2)] == [200, 200]
    with coordinator.admin as http:
        http.delete(f"/v1/operator-tokens/{token_id}").raise_for_status()
    assert status(coordinator, token) == 401


def test_a_rotated_token_works_beside_the_old_one_for_the_overlap(coordinator: Coordinator) -> None:
    token_id, old = created(coordinator)
    assert status(coordinator, old) == 200
    with coordinator.admin as http:
        new = http.post(f"/v1/operator-tokens/{token_id}/rotate", json={}).raise_for_status().json()["token"]
        assert [status(coordinator, token) for token in (old, new)] == [200, 200]
        newest = http.post(f"/v1/operator-tokens/{token_id}/rotate", json={"overlap_s": 0}).raise_for_status().json()
    assert [status(coordinator, token) for token in (old, new, newest["token"])] == [401, 401, 200]
    with coordinator.admin as http:
        listed = http.get("/v1/operator-tokens").text
    assert token_id in listed and not [token for token in (old, new, newest["token"]) if token in listed]


def test_a_coordinator_killed_while_an_operator_rotates_locks_no_operator_out(tmp_path: Path) -> None:
    """The new token is in the store, and its answer is lost: the old one is valid, and a new rotation succeeds."""
    coordinator = Coordinator(tmp_path, environment={"QIDPFL_FAILPOINT": "rotate.operator_after_commit"})
    with coordinator.start():
        token_id, token = created(coordinator)
        assert status(coordinator, token) == 200
        with coordinator.admin as http, pytest.raises(httpx.TransportError):
            http.post(f"/v1/operator-tokens/{token_id}/rotate", json={"overlap_s": 600})
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        with coordinator.admin as http:
            answer = http.post(f"/v1/operator-tokens/{token_id}/rotate", json={"overlap_s": 600})
        assert [status(coordinator, one) for one in (token, answer.json()["token"])] == [200, 200]


def test_an_open_feed_ends_with_its_token(tmp_path: Path) -> None:
    """The fault: a stream that was opened before the revocation goes on for the rest of the task."""
    with running(tmp_path) as coordinator:
        task_id, code = coordinator.create_task(rounds={"expected_clients": 3})
        token_id, token = created(coordinator, task_id=task_id)
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{coordinator.url}/v1/tasks/{task_id}/events"
        with httpx.stream("GET", url, headers=headers, timeout=60) as feed:
            lines = feed.iter_lines()
            seen = [next(lines)]
            while seen[-1] != ": still here":
                seen.append(next(lines))
            with coordinator.admin as http:
                http.delete(f"/v1/operator-tokens/{token_id}").raise_for_status()
            client = ScriptedClient(coordinator.url, task_id, code, "the-key-of-client-0")
            client.enrol()
            assert "event: client.enrolled" not in list(lines)


def test_the_log_says_which_operator_did_it(coordinator: Coordinator) -> None:
    token_id, token = created(coordinator, "admin")
    headers = {"Authorization": f"Bearer {token}"}
    body = {"name": "made-by-someone", "preset": "digits"}
    httpx.post(f"{coordinator.url}/v1/tasks", json=body, headers=headers, timeout=60).raise_for_status()
    (line,) = [one for one in coordinator.log if one.get("name") == "made-by-someone"]
    assert (line["event"], line["operator"]) == ("admin_action", token_id)


# --- commands and replicas -------------------------------------------------------------------------------------------


def test_the_commands_change_tokens_of_a_live_coordinator(coordinator: Coordinator) -> None:
    task_id, _ = coordinator.create_task("for-commands")
    where = ("--state-dir", coordinator.state_dir)
    made = server_command("tokens", "create", "dash", "--role", "viewer", "--task", "for-commands", *where)
    assert made.returncode == 0, made.stderr
    token_id, token = made.stdout.split()
    assert status(coordinator, token, f"/v1/tasks/{task_id}/clients") == 200
    assert status(coordinator, token, "/v1/operator-tokens") == 403
    rotated = server_command("tokens", "rotate", token_id, "--overlap", "0", "--days", "1", *where)
    new = rotated.stdout.strip()
    assert status(coordinator, new) == 200
    assert seconds_until(lambda: status(coordinator, token) == 401) < 10
    assert server_command("tokens", "revoke", token_id, *where).returncode == 0
    seconds_until(lambda: status(coordinator, new) == 401)
    (row,) = [line for line in server_command("tokens", "list", *where).stdout.splitlines() if token_id in line]
    assert row.split("\t")[1:4] == ["dash", "viewer", task_id] and row.split("\t")[4].startswith("revoked")
    assert new not in row and token not in row


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "x", "--role", "viewer", "--task", "nowhere"), "there is no task 'nowhere'"),
        (("create", "not a name", "--role", "viewer"), "cannot be a name"),
        (("create", "x", "--role", "viewer", "--days", "0"), "valid_s"),
        (("revoke", "0" * 24), "there is no such token"),
        (("rotate", "0" * 24), "there is no such token"),
    ],
)
def test_a_mistake_is_one_line(coordinator: Coordinator, arguments: tuple[str, ...], says: str) -> None:
    done = server_command("tokens", *arguments, "--state-dir", coordinator.state_dir)
    assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_another_replica_refuses_a_revoked_token_within_about_a_second(postgres_url: str, tmp_path: Path) -> None:
    pair = [Coordinator(tmp_path / name, store_url=postgres_url, blob_dir=tmp_path / "blobs") for name in "ab"]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Coordinator.start, pair))
    with pair[0], pair[1]:
        token_id, token = created(pair[0])
        assert [status(one, token) for one in pair] == [200, 200]
        with pair[0].admin as http:
            http.delete(f"/v1/operator-tokens/{token_id}").raise_for_status()
        assert status(pair[0], token) == 401
        # About a second; the machine of the test may be slow.
        assert seconds_until(lambda: status(pair[1], token) == 401) < 10


# --- the token files -------------------------------------------------------------------------------------------------


def test_sighup_reads_the_token_files_again(tmp_path: Path) -> None:
    """A request in flight is answered, the old token is refused afterwards, and no connection is closed."""
    with running(tmp_path) as coordinator:
        assert coordinator.process is not None
        task_id, _ = coordinator.create_task()
        files = {role: tmp_path / f"{role}.token" for role in ("admin", "viewer")}
        old = {role: path.read_text().strip() for role, path in files.items()}
        with httpx.Client(base_url=coordinator.url, timeout=60) as connection:
            assert connection.get("/healthz").status_code == 200
            files["admin"].write_text("the-new-token-of-the-admin\n")
            files["viewer"].unlink()
            coordinator.process.send_signal(signal.SIGHUP)
            seconds_until(lambda: status(coordinator, "the-new-token-of-the-admin") == 200)
            new = files["viewer"].read_text().strip()
            assert [status(coordinator, token) for token in (*old.values(), new)] == [401, 401, 200]
            assert connection.get("/healthz").status_code == 200
        (line,) = [one for one in coordinator.log if one["event"] == "reloaded"]
        assert line["roles"] == ["admin", "viewer"] and new not in str(line)
        # A file without a token changes nothing.
        files["admin"].write_text("short\n")
        coordinator.process.send_signal(signal.SIGHUP)
        seconds_until(lambda: any(one["event"] == "reload_failed" for one in coordinator.log))
        assert [status(coordinator, token) for token in ("short", "the-new-token-of-the-admin")] == [401, 200]
        assert coordinator.stop() == 0
    assert task_id


def test_many_operators_at_once_are_known(coordinator: Coordinator) -> None:
    """Lookups, first uses and revocations at the same time end in the right state for every token."""
    made = [created(coordinator) for _ in range(8)]
    answers: list[int] = []

    def ask(number: int) -> None:
        answers.append(status(coordinator, made[number][1]))

    threads = [threading.Thread(target=ask, args=(number % 8,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 32
