"""Signed receipts over HTTP: places in the chain, repeats, restarts, kills, other keys, and the deletion of a task."""

import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest

from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.settings import Settings
from qidpfl_shared.failpoints import DELETE_FAILPOINTS
from qidpfl_shared.protocol.chain import checked
from qidpfl_shared.protocol.evidence import ProfileReceipt, Tombstone
from qidpfl_shared.protocol.messages import Announcement, BudgetReceipt, EnrolAnswer, RoundResult, UpdateReceipt
from qidpfl_shared.protocol.signatures import KeyList, SignedMessage, SigningKey, successors, verify_message
from support.commands import server_command
from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

CLIENTS = 3


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with running(tmp_path) as coordinator:
        yield coordinator


def joined(coordinator: Coordinator, **overrides: Any) -> tuple[str, list[ScriptedClient]]:
    task_id, code = coordinator.create_task(rounds={"expected_clients": CLIENTS}, **overrides)
    clients = [
        ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}", locate=lambda: coordinator.url)
        for n in range(CLIENTS)
    ]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return task_id, clients


def offers(clients: list[ScriptedClient]) -> list[dict[str, Any]]:
    return [client.poll()["round"] for client in clients]  # type: ignore[index]


def public_key(coordinator: Coordinator) -> str:
    keys = httpx.get(f"{coordinator.url}/v1/keys").raise_for_status().content
    return KeyList.model_validate_json(keys).keys[-1].public_key


def test_every_answer_is_signed_and_in_the_chain(coordinator: Coordinator) -> None:
    """Catches an answer without a signature, one of another client, and one whose entry is not in the chain."""
    task_id, code = coordinator.create_task(rounds={"expected_clients": 2, "min_clients": 2, "min_updates": 2})
    key = public_key(coordinator)
    other = ScriptedClient(coordinator.url, task_id, code, "the-key-of-the-other")
    other.enrol()
    other.profile().raise_for_status()
    client = ScriptedClient(coordinator.url, task_id, code, "the-key-of-the-client")
    enrolled = client.http.post("/clients", json={"enrolment_code": code, "enrolment_key": client.key})
    client.http.headers["Authorization"] = f"Bearer {enrolled.json()['token']}"
    profile = client.profile()
    polled = client.http.get("/rounds/current", params={"after": "0.0", "wait": 30})
    offer = polled.json()["round"]
    other.play(offer)
    budget, update = client.declare(offer), client.upload(offer)
    client.seen = "1.1"
    client.poll()
    result = client.http.get("/rounds/1")
    announced = Announcement.model_validate_json(polled.content).round
    assert announced is not None
    messages: list[SignedMessage] = [
        EnrolAnswer.model_validate_json(enrolled.content),
        ProfileReceipt.model_validate_json(profile.content),
        announced,
        BudgetReceipt.model_validate_json(budget.content),
        UpdateReceipt.model_validate_json(update.content),
        RoundResult.model_validate_json(result.content),
    ]
    client_id = enrolled.json()["client_id"]
    subjects = [f"client/{client_id}", f"client/{client_id}", "round/1", f"budget/1/{client_id}"]
    subjects += [f"update/1/{client_id}", "round/1"]
    with opened_store(Settings(state_dir=coordinator.state_dir)) as store:
        entries = store.read(lambda tx: list(checked(tx.chain.entries(task_id))))
    places = []
    for message, subject in zip(messages, subjects, strict=True):
        verify_message(key, message)
        assert message.chain is not None and message.chain.task_id == task_id
        entry = entries[message.chain.sequence - 1]
        assert (entry.head, entry.subject) == (message.chain.head, subject)
        places.append(entry.sequence)
    assert places == sorted(set(places))
    assert enrolled.json()["public_key"] == key
    with coordinator.admin as http:
        assert http.get(f"/v1/tasks/{task_id}").json()["chain"]["head"] == entries[-1].head


def test_a_repeat_gets_the_first_receipt_byte_for_byte_also_after_a_kill(coordinator: Coordinator) -> None:
    task_id, clients = joined(coordinator)
    first_offers = offers(clients)
    signatures = {json.dumps([offer["signature"], offer["chain"]]) for offer in first_offers}
    assert len(signatures) == 1, "one signature for all clients"
    client, offer = clients[0], first_offers[0]
    first = [client.profile(), client.declare(offer), client.upload(offer)]
    for other, its_offer in zip(clients[1:], first_offers[1:], strict=True):
        other.declare(its_offer)
    same = [client.profile(), client.declare(offer), client.upload(offer)]
    coordinator.kill()
    coordinator.start()
    client.http.base_url = f"{coordinator.url}/v1/tasks/{task_id}"
    later = [client.profile(), client.declare(offer), client.upload(offer)]
    contents = [answer.raise_for_status().content for answer in first]
    assert contents == [answer.content for answer in same] == [answer.content for answer in later]
    assert all(json.loads(content)["signature"] for content in contents)
    client.seen = "0.0"
    assert client.poll()["round"]["signature"] == offer["signature"]  # type: ignore[index]


def test_the_key_is_private_and_another_one_does_not_start(coordinator: Coordinator) -> None:
    coordinator.create_task()
    path = coordinator.state_dir / "signing.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert coordinator.stop() == 0
    mine = path.read_text()
    path.write_text(SigningKey.new().pem())
    for command in (["serve", "--port", "0"], ["tasks", "stop", "task"]):
        said = _fails(coordinator, *command)
        assert "sign" in said and "QIDPFL_SIGNING_KEY" in said and said.count("\n") == 1
    path.unlink()
    assert "keys rotate --lost" in _fails(coordinator, "serve", "--port", "0")
    path.write_text(mine)
    assert "0 violated" in _runs(coordinator, "audit")


def test_a_key_can_be_replaced_and_is_endorsed_by_the_old_one(coordinator: Coordinator) -> None:
    coordinator.create_task()
    old = public_key(coordinator)
    assert "another coordinator is running" in _fails(coordinator, "keys", "rotate")
    coordinator.stop()
    assert "endorsed by" in _runs(coordinator, "keys", "rotate")
    coordinator.start()
    keys = KeyList.model_validate_json(httpx.get(f"{coordinator.url}/v1/keys").content)
    assert [key.public_key for key in successors(old, keys)] == [public_key(coordinator)] != [old]
    assert "0 violated" in _runs(coordinator, "audit", "--public-key", old)
    assert stat.S_IMODE((coordinator.state_dir / "signing.key").stat().st_mode) == 0o600
    coordinator.stop()
    (coordinator.state_dir / "signing.key").unlink()
    assert "not endorsed" in _runs(coordinator, "keys", "rotate", "--lost")
    coordinator.start()
    assert "is not endorsed" in _fails(coordinator, "audit", "--public-key", old, code=1)


def test_a_task_is_deleted_only_after_its_end_and_leaves_a_tombstone(coordinator: Coordinator) -> None:
    task_id, clients = joined(coordinator, game={"horizon": 1})
    with coordinator.admin as http:
        early = http.delete(f"/v1/tasks/{task_id}")
        assert (early.status_code, early.json()["code"]) == (409, "task_not_ended")
        for client, offer in zip(clients, offers(clients), strict=True):
            client.play(offer)
        clients[0].poll()
        before = http.get(f"/v1/tasks/{task_id}").json()
        stone = http.delete(f"/v1/tasks/{task_id}").raise_for_status()
        again = http.delete(f"/v1/tasks/{task_id}").raise_for_status()
        assert http.get(f"/v1/tasks/{task_id}").status_code == 404
        assert http.get(f"/v1/tasks/{task_id}/rounds/1").status_code == 404
        assert http.get("/v1/tasks").json() == []
        assert http.delete(f"/v1/tasks/{'0' * 24}").status_code == 404
    assert clients[0].http.get("/rounds/1").status_code == 401
    assert stone.content == again.content
    left = Tombstone.model_validate_json(stone.content)
    verify_message(public_key(coordinator), left)
    assert (left.name, left.clients, left.settled_rounds) == ("task", CLIENTS, 1)
    assert (left.paid_micro, left.spec_digest) == (before["paid_micro"], before["spec_digest"])
    assert left.chain is not None and left.chain.model_dump() == before["chain"]
    kept = f"{task_id}={left.chain.sequence}:{left.chain.head}"
    assert "0 violated" in _runs(coordinator, "audit", "--head", kept)
    assert "does not follow" in _fails(coordinator, "audit", "--head", kept[:-4] + "0000", code=1)
    (listed,) = json.loads(_runs(coordinator, "tasks", "list", "--deleted"))
    assert listed == json.loads(stone.content)
    assert json.loads(_runs(coordinator, "tasks", "delete", task_id)) == listed
    # The name is free again.
    coordinator.create_task()


@pytest.mark.parametrize("name", DELETE_FAILPOINTS)
def test_a_kill_during_the_deletion_leaves_the_task_or_its_tombstone(name: str, tmp_path: Path) -> None:
    """Catches a deletion in several transactions: some rows would be gone without a tombstone."""
    with running(tmp_path, environment={"QIDPFL_FAILPOINT": name}) as coordinator:
        task_id, _ = coordinator.create_task()
        with coordinator.admin as http:
            http.post(f"/v1/tasks/{task_id}/stop").raise_for_status()
            with pytest.raises(httpx.TransportError):
                http.delete(f"/v1/tasks/{task_id}")
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        with coordinator.admin as http:
            tasks = http.get("/v1/tasks").json()
            assert len(tasks) == (name == "delete.before_commit")
            assert "0 violated" in coordinator.audit()
            assert http.delete(f"/v1/tasks/{task_id}").raise_for_status().json()["task_id"] == task_id
        assert "0 violated" in coordinator.audit()


def _run(coordinator: Coordinator, *arguments: str) -> CompletedProcess[str]:
    return server_command(*arguments, "--state-dir", str(coordinator.state_dir))


def _runs(coordinator: Coordinator, *arguments: str) -> str:
    done = _run(coordinator, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _fails(coordinator: Coordinator, *arguments: str, code: int = 1) -> str:
    done = _run(coordinator, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if arguments[0] == "audit" else done.stderr
