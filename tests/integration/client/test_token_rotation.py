"""New tokens of clients on a live coordinator: a kill on either side at any point locks no client out."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from qidpfl_client.api import TaskApi, connect
from qidpfl_client.cli.app import app
from qidpfl_client.errors import Unauthenticated
from qidpfl_client.journal.journal import Journal, Membership
from qidpfl_client.participant.token_rotation import rotate_token
from qidpfl_shared.failpoints import TOKEN_FAILPOINTS
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient
from support.forked_clients import ForkedClient

pytestmark = pytest.mark.live

OTHERS = 2
OF_CLIENT = ("client.token_received", "client.token_stored", "client.token_used")
OF_SERVER = [name for name in TOKEN_FAILPOINTS if "operator" not in name]


@dataclass
class Scene:
    """A task of two rounds, two scripted clients, and a client that replaces its token all the time."""

    coordinator: Coordinator
    client: ForkedClient
    task_id: str
    others: list[Future[dict[str, Any]]]

    def played_on(self) -> None:
        self.client.failpoint = ""
        self.client.start()
        assert self.client.ended_with() == 0, self.client.said
        assert [other.result()["task_state"] for other in self.others] == ["finished"] * OTHERS
        assert self.coordinator.audit()

    def membership(self) -> Membership:
        with Journal(self.client.journal, read_only=True) as journal:
            (known,) = journal.memberships()
        return known

    def status(self, token: str | None) -> int:
        url = f"{self.coordinator.url}/v1/tasks/{self.task_id}/clients/me/selection"
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=60).status_code


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    coordinator = Coordinator(tmp_path / "state")
    with coordinator, ThreadPoolExecutor(OTHERS) as threads:
        rounds = NO_TIMEOUTS | {"expected_clients": OTHERS + 1, "min_clients": 3, "min_updates": 3}
        task_id, code = coordinator.create_task(game={"horizon": 2}, rounds=rounds)
        others = [
            ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}", locate=lambda: coordinator.url)
            for n in range(OTHERS)
        ]
        runs = [threads.submit(other.run, patience_s=120.0) for other in others]
        client = ForkedClient(coordinator.url, code, tmp_path / "journal.sqlite", rotate_every_s=0.0)
        yield Scene(coordinator, client, task_id, runs)


def test_a_client_takes_part_while_it_replaces_its_token(scene: Scene) -> None:
    scene.played_on()
    assert scene.client.said.count("has a new token") >= 2
    assert scene.status(scene.membership().token) == 200


@pytest.mark.parametrize("name", OF_CLIENT)
def test_a_client_killed_while_it_rotates_goes_on(name: str, scene: Scene) -> None:
    """The faults: the token is used before it is stored, or the old one is dropped before the new one is accepted."""
    scene.client.failpoint = f"{name}:1"
    assert scene.client.start().ended_with() == -signal.SIGKILL
    killed = scene.membership()
    assert (killed.next_token is not None) == (name != "client.token_received")
    scene.played_on()
    known = scene.membership()
    assert known.next_token is None and scene.status(known.token) == 200
    old = {killed.token, killed.next_token} - {None}
    assert {scene.status(token) for token in old} == {401}


def test_a_late_duplicate_of_the_rotation_does_not_lock_the_client_out(scene: Scene) -> None:
    """The fault: the client has only the new token, and the duplicate has replaced it."""
    scene.client.failpoint = "client.token_stored:1"
    assert scene.client.start().ended_with() == -signal.SIGKILL
    known = scene.membership()
    url = f"{scene.coordinator.url}/v1/tasks/{scene.task_id}/clients/me/token"
    httpx.post(url, headers={"Authorization": f"Bearer {known.token}"}, timeout=60).raise_for_status()
    assert scene.status(known.next_token) == 401
    scene.played_on()


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("name", OF_SERVER)
def test_a_coordinator_killed_while_a_client_rotates_locks_no_client_out(
    name: str, store_url: str, tmp_path: Path
) -> None:
    """One of the two tokens is valid after the restart, and a new rotation succeeds."""
    coordinator = Coordinator(tmp_path, store_url=store_url, blob_dir=tmp_path / "blobs")
    coordinator.environment = {"QIDPFL_FAILPOINT": f"{name}:1"}
    with coordinator:
        task_id, code = coordinator.create_task()
        tokens = [_enrolled(coordinator.url, task_id, code)]
        with pytest.raises(httpx.TransportError), httpx.Client(base_url=coordinator.url, timeout=60) as http:
            tokens.append(_rotated(http, task_id, tokens[0]))
            _selection(http, task_id, tokens[1])
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        with httpx.Client(base_url=coordinator.url, timeout=60) as http:
            assert _selection(http, task_id, tokens[0]).status_code == 200
            new = _rotated(http, task_id, tokens[0])
            # A token of before the kill was never used, so the newer one has replaced it.
            assert [_selection(http, task_id, token).status_code for token in tokens[1:]] == [401] * (len(tokens) - 1)
            assert _selection(http, task_id, new).status_code == 200
            assert _selection(http, task_id, tokens[0]).status_code == 401
        assert coordinator.audit()


def _enrolled(url: str, task_id: str, code: str) -> str:
    body = {"enrolment_code": code, "enrolment_key": "the-key-of-client-0"}
    token: str = httpx.post(f"{url}/v1/tasks/{task_id}/clients", json=body, timeout=60).json()["token"]
    return token


def _rotated(http: httpx.Client, task_id: str, token: str) -> str:
    path = f"/v1/tasks/{task_id}/clients/me/token"
    answer = http.post(path, headers={"Authorization": f"Bearer {token}"}).raise_for_status()
    new: str = answer.json()["token"]
    return new


def _selection(http: httpx.Client, task_id: str, token: str) -> httpx.Response:
    path = f"/v1/tasks/{task_id}/clients/me/selection"
    return http.get(path, headers={"Authorization": f"Bearer {token}"})


# --- the command and the SDK -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("state")) as live:
        yield live


def membership(coordinator: Coordinator, name: str) -> Membership:
    task_id, code = coordinator.create_task(name)
    with connect(coordinator.url) as http:
        api = TaskApi(http, task_id=task_id)
        answer = api.enrol(code=code)
        spec = api.task().spec.model_dump_json()
    return Membership(
        task_id=task_id,
        server=coordinator.url,
        enrolment_key="k" * 20,
        spec=spec,
        spec_digest=answer.spec_digest,
        client_id=answer.client_id,
        token=answer.token,
        ordinal=answer.ordinal,
    )


def test_the_command_replaces_the_token_of_the_journal(coordinator: Coordinator, tmp_path: Path) -> None:
    known, path = membership(coordinator, "by-command"), tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        journal.save_membership(known)
        in_use = CliRunner().invoke(app, ["rotate-token", "--journal", str(path)])
        assert in_use.exit_code == 1 and "in use" in in_use.stderr
    done = CliRunner().invoke(app, ["rotate-token", "--journal", str(path)])
    assert done.exit_code == 0, done.output
    with Journal(path, read_only=True) as journal, connect(coordinator.url) as http:
        (after,) = journal.memberships()
        assert after.token is not None and after.token != known.token and after.next_token is None
        assert after.token not in done.output
        TaskApi(http, task_id=known.task_id, token=after.token).selection()
        with pytest.raises(Unauthenticated):
            TaskApi(http, task_id=known.task_id, token=known.token).selection()
    elsewhere = ["rotate-token", "--journal", str(path), "--server", "http://127.0.0.1:1"]
    refused = CliRunner().invoke(app, elsewhere)
    assert refused.exit_code == 1 and "--moved" in refused.stderr
    nothing = CliRunner().invoke(app, ["rotate-token", "--journal", str(path), "--task", "0" * 24])
    assert nothing.exit_code == 1 and "has no client of task" in nothing.stderr


def test_a_revoked_client_gets_no_token(coordinator: Coordinator, tmp_path: Path) -> None:
    known = membership(coordinator, "revoked")
    with connect(coordinator.url) as http, Journal(tmp_path / "journal.sqlite") as journal:
        journal.save_membership(known)
        api = TaskApi(http, task_id=known.task_id, token=known.token)
        with coordinator.admin as admin:
            admin.delete(f"/v1/tasks/{known.task_id}/clients/{known.client_id}").raise_for_status()
        with pytest.raises(Unauthenticated):
            rotate_token(api, journal)
        assert journal.membership(known.task_id) == known
