"""Coordinators on an object store: the commands, the check that replicas share it, and a replica that is killed."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.commands import server_command
from support.coordinators import FILE_UPDATES, Coordinator, ScriptedClient, play_to_the_end, running
from support.task_checks import violations

pytestmark = pytest.mark.live

CLIENTS = 3
ROUNDS = {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}


def clients_of(coordinator: Coordinator, horizon: int, **more: Any) -> list[ScriptedClient]:
    task_id, code = coordinator.create_task(game={"horizon": horizon}, rounds=ROUNDS, **FILE_UPDATES)
    return [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}", **more) for n in range(CLIENTS)]


def said(*arguments: str | Path, **environment: str) -> str:
    done = server_command(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_task_is_played_audited_exported_and_backed_up_on_a_bucket(
    tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, out, copy = tmp_path / "state", tmp_path / "out", tmp_path / "copy"
    where = {"QIDPFL_BLOBS": bucket_url, "QIDPFL_STATE_DIR": str(state)}
    with running(state, blobs=bucket_url, arguments=("--results-dir", str(tmp_path / "results"))) as coordinator:
        assert [line["place"] for line in coordinator.log if line["event"] == "blob_store"] == [bucket_url]
        clients = clients_of(coordinator, 2)
        play_to_the_end(clients)
        assert violations(coordinator, clients[0].task_id, clients) == []
        assert "0 violated" in said("audit", **where)
    assert not (state / "blobs" / "objects").exists()
    assert (tmp_path / "results" / "task" / "model-2.safetensors").stat().st_size > 4 * 20_000
    said("export", "task", "--out", out, **where)
    assert (out / "model-2.safetensors").read_bytes() == (
        tmp_path / "results" / "task" / "model-2.safetensors"
    ).read_bytes()
    said("backup", "--out", copy, "--blobs", bucket_url, "--state-dir", state)
    # Version 0 to 2, the momentum of the last two, and the updates; a backup needs no bucket.
    assert len(list((copy / "blobs" / "objects").iterdir())) == 3 + 2 + 2 * CLIENTS
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "0 violated" in said("audit", "--state-dir", copy)
    with running(copy) as restored, restored.admin as http:
        model = http.get(f"/v1/tasks/{clients[0].task_id}/models/2").raise_for_status().content
        assert len(model) == 4 * 20_000


def test_doctor_says_where_the_blobs_are_and_whether_the_bucket_answers(
    tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blobs(*options: str) -> tuple[str, str]:
        done = server_command("doctor", "--json", "--port", "0", "--state-dir", tmp_path, *options)
        found = next(check for check in json.loads(done.stdout) if check["what"] == "blobs")
        return found["state"], found["finding"]

    assert blobs() == ("ok", f"the folder {tmp_path / 'blobs'}")
    state, found = blobs("--blobs", bucket_url)
    assert state == "ok" and found.startswith(f"{bucket_url} answers in ")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    state, found = blobs("--blobs", bucket_url)
    assert state == "wrong" and "refuses" in found
    assert blobs("--blobs", "ftp://bucket")[0] == "wrong"


@pytest.mark.parametrize("url", ["ftp://bucket/prefix", "s3://me:secret@bucket/prefix"])
def test_serve_refuses_a_url_that_names_no_bucket_in_one_line(url: str, tmp_path: Path) -> None:
    done = server_command("serve", "--port", "0", "--state-dir", tmp_path, "--blobs", url)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "s3://bucket/prefix" in done.stderr and "secret" not in done.stderr


def test_a_store_with_tasks_refuses_to_start_on_another_prefix(tmp_path: Path, bucket_url: str) -> None:
    with running(tmp_path, blobs=bucket_url) as coordinator:
        coordinator.create_task(rounds=ROUNDS, **FILE_UPDATES)
    done = server_command("serve", "--port", "0", "--state-dir", tmp_path, "--blobs", f"{bucket_url}-other")
    assert done.returncode == 1 and f"not at {bucket_url}-other: name the right bucket" in done.stderr


def test_replicas_refuse_to_serve_one_database_with_two_buckets(
    tmp_path: Path, bucket_url: str, postgres_url: str
) -> None:
    key = {"QIDPFL_SIGNING_KEY": str(tmp_path / "signing.key")}
    with running(tmp_path / "a", store_url=postgres_url, blobs=bucket_url, environment=key):
        other: list[str | Path] = [
            "--state-dir",
            tmp_path / "b",
            "--store-url",
            postgres_url,
            "--blobs",
            f"{bucket_url}-other",
        ]
        done = server_command("serve", "--port", "0", *other, **key)
    assert done.returncode == 1 and "does not have the blobs that the other coordinators" in done.stderr


@pytest.fixture
def replicas(tmp_path: Path, bucket_url: str, postgres_url: str) -> Iterator[list[Coordinator]]:
    """Two coordinators that share a database and a bucket, and no folder."""
    key = {"QIDPFL_SIGNING_KEY": str(tmp_path / "signing.key")}
    pair = [
        Coordinator(tmp_path / name, store_url=postgres_url, blobs=bucket_url, environment=key) for name in ("a", "b")
    ]
    with pair[0]:
        # Operators have the same tokens on all of them.
        (tmp_path / "b").mkdir()
        for token in (tmp_path / "a").glob("*.token"):
            shutil.copy(token, tmp_path / "b")
        with pair[1]:
            yield pair


def test_a_replica_finishes_the_task_of_one_that_is_killed_without_a_shared_folder(
    replicas: list[Coordinator],
) -> None:
    with ExitStack() as connections, ThreadPoolExecutor(CLIENTS) as threads:
        clients = clients_of(replicas[0], 3, locate=lambda: replicas[0].url or replicas[1].url)
        for client in clients:
            connections.enter_context(client.http)
        runs = [threads.submit(client.run, patience_s=120.0) for client in clients]
        while not any(2 in client.receipts for client in clients) and not all(run.done() for run in runs):
            time.sleep(0.005)
        replicas[0].kill()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
        for client in clients:
            client.http.base_url = f"{replicas[1].url}/v1/tasks/{client.task_id}"
        assert violations(replicas[1], clients[0].task_id, clients) == []
