"""Enrolment has a rate, and what outsiders and operators do is in the log without any secret."""

import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, running
from support.http_attacks import repeated

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("enrolment")) as coordinator:
        yield coordinator


def guess(live: Coordinator, task_id: str) -> httpx.Response:
    body = {"enrolment_code": f"{task_id}.{secrets.token_urlsafe(32)}", "enrolment_key": secrets.token_urlsafe(24)}
    return httpx.post(f"{live.url}/v1/tasks/{task_id}/clients", json=body, timeout=30)


def enrolled_after(live: Coordinator, task_id: str, code: str, number: int, tries: int = 6) -> bool:
    """Whether a client that obeys Retry-After has enrolled."""
    body = {"enrolment_code": code, "enrolment_key": f"key-of-a-client-of-a-large-fleet-{number}"}
    for _ in range(tries):
        answer = httpx.post(f"{live.url}/v1/tasks/{task_id}/clients", json=body, timeout=60)
        if answer.status_code == 201:
            return True
        assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
        time.sleep(int(answer.headers["Retry-After"]) + secrets.randbelow(1000) / 1000)
    return False


def events(live: Coordinator, name: str) -> list[dict[str, Any]]:
    return [event for event in live.log if event["event"] == name]


def test_wrong_codes_get_429_and_right_ones_still_enrol(live: Coordinator) -> None:
    task_id, code = live.create_task("guessed")
    answers = [guess(live, task_id) for _ in range(60)]
    assert {answer.status_code for answer in answers} == {401, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert int(refused.headers["Retry-After"]) > 0
    with repeated(lambda: guess(live, task_id).close()):
        assert enrolled_after(live, task_id, code, 0, tries=1)


@pytest.mark.parametrize(("rate", "clients"), [("50.0", 200), ("10.0", 150)])
def test_a_fleet_that_enrols_at_once_gets_in(tmp_path: Path, rate: str, clients: int) -> None:
    with running(tmp_path, environment={"QIDPFL_ENROLMENTS_PER_S": rate}) as live:
        workload = {"dataset": "none", "partition": None}
        task_id, code = live.create_task("fleet", "mnist", workload=workload, rounds={"expected_clients": clients})
        outcomes: list[bool] = []
        threads = [
            threading.Thread(target=lambda n=n: outcomes.append(enrolled_after(live, task_id, code, n)))
            for n in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [True] * clients


def test_attempts_actions_and_failures_are_logged_without_secrets(live: Coordinator) -> None:
    task_id, code = live.create_task("logged")
    client = ScriptedClient(live.url, task_id, code, "key-of-a-client-that-is-logged")
    client.enrol()
    time.sleep(1.1)
    wrong = guess(live, task_id)
    httpx.get(f"{live.url}/v1/tasks", headers={"Authorization": "Bearer wrong-token-of-an-outsider"}, timeout=30)
    with live.admin as admin:
        revoked = admin.delete(f"/v1/tasks/{task_id}/clients/{client.client_id}")
        assert revoked.status_code == 204
        assert admin.post(f"/v1/tasks/{task_id}/stop").status_code == 200
        token = admin.headers["Authorization"].split()[1]
    time.sleep(0.2)
    assert [event["client_id"] for event in events(live, "client_enrolled")][-1] == client.client_id
    refused = events(live, "enrolment_refused")[-1]
    assert (refused["task"], refused["client"]) == (task_id, "127.0.0.1")
    assert refused["request_id"] == wrong.headers["X-Request-ID"]
    assert events(live, "login_failed")[-1]["client"] == "127.0.0.1"
    assert events(live, "client_revoked")[-1]["request_id"] == revoked.headers["X-Request-ID"]
    actions = [event["action"] for event in events(live, "admin_action") if event["task"] == task_id]
    assert actions == ["create", "stop"]
    log = str(live.log)
    assert not [secret for secret in (code, client.key, client.token, token, "wrong-token") if secret in log]


def test_failed_logins_do_not_fill_the_log(live: Coordinator) -> None:
    before, start = len(live.log), time.monotonic()
    with httpx.Client(base_url=live.url, timeout=30) as http:
        for number in range(300):
            http.get("/v1/tasks", headers={"Authorization": f"Bearer wrong-{number}"})
    assert len(live.log) - before <= time.monotonic() - start + 2
