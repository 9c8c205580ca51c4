"""Version 0 from the admin: over HTTP until the first round is announced, or from a file at creation."""

import hashlib
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from qidpfl_server.errors import CoordinatorError
from qidpfl_server.ops.model_files import read_model_file
from qidpfl_server.service.tasks import task_spec
from qidpfl_shared.failpoints import MODEL_FAILPOINTS
from qidpfl_shared.protocol.presets import preset
from support.commands import server_command
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, digest_header, play_to_the_end, running

pytestmark = pytest.mark.live

SHORT: dict[str, Any] = {"game": {"horizon": 2}, "rounds": NO_TIMEOUTS | {"expected_clients": 3}}

MODEL = np.linspace(-1, 1, 650, dtype="<f4").tobytes()
OTHER = np.linspace(-2, 2, 650, dtype="<f4").tobytes()


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("models")) as live:
        yield live
        assert list((live.state_dir / "blobs" / "staging").iterdir()) == []
        assert "0 violated" in live.audit()


def blobs_of(coordinator: Coordinator) -> set[str]:
    """The names of all blobs, files and rows."""
    with closing(sqlite3.connect(f"file:{coordinator.state_dir}/coordinator.db?mode=ro", uri=True)) as database:
        rows = {name for (name,) in database.execute("select digest from small_blobs")}
    return rows | {path.name for path in (coordinator.state_dir / "blobs" / "objects").iterdir()}


def give(coordinator: Coordinator, task_id: str, data: bytes, **headers: str) -> httpx.Response:
    sent = {"Content-Digest": digest_header(data), "Content-Type": "application/octet-stream"} | headers
    with coordinator.admin as http:
        return http.put(f"/v1/tasks/{task_id}/models/0", content=data, headers=sent)


def model_of(coordinator: Coordinator, task_id: str) -> bytes:
    with coordinator.admin as http:
        return http.get(f"/v1/tasks/{task_id}/models/0").raise_for_status().content


def joined(coordinator: Coordinator, task_id: str, code: str) -> list[ScriptedClient]:
    clients = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(3)]
    for client in clients:
        client.enrol()
        client.profile().raise_for_status()
    return clients


WRONG: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "too short": (MODEL[:-4], {}, 422, "wrong_length"),
    "too long": (MODEL + b"\0\0\0\0", {}, 413, "body_too_large"),
    "much too long": (b"\0" * (3 << 20), {}, 413, "body_too_large"),
    "not finite": (MODEL[:-4] + np.float32("nan").tobytes(), {}, 422, "not_finite"),
    "other bytes than announced": (MODEL, {"Content-Digest": digest_header(OTHER)}, 422, "digest_mismatch"),
    "no digest": (MODEL, {"Content-Digest": ""}, 422, "digest_required"),
    "JSON": (MODEL, {"Content-Type": "application/json"}, 415, "unsupported_media_type"),
    "compressed": (MODEL, {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
}


@pytest.mark.parametrize(("data", "headers", "status", "code"), WRONG.values(), ids=WRONG)
def test_bytes_that_are_not_a_model_of_the_task_are_refused_and_leave_nothing(
    coordinator: Coordinator, data: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    task_id, _ = coordinator.create_task(f"refused-{hashlib.sha256(repr((data[-9:], headers)).encode()).hexdigest()}")
    before = model_of(coordinator, task_id)
    known = blobs_of(coordinator)
    refused = give(coordinator, task_id, data, **headers)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert model_of(coordinator, task_id) == before
    assert blobs_of(coordinator) == known


def test_a_model_larger_than_the_json_limit_is_accepted(coordinator: Coordinator) -> None:
    task_id, _ = coordinator.create_task("large", preset="cifar10-paper")
    data = np.full(preset("cifar10-paper").dimension, 0.5, dtype="<f4").tobytes()
    assert len(data) > 2 << 20
    assert give(coordinator, task_id, data).status_code == 200
    assert model_of(coordinator, task_id) == data


@pytest.mark.parametrize("store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("place", MODEL_FAILPOINTS)
def test_a_coordinator_killed_while_it_stores_a_model_has_the_old_or_the_new_one(
    place: str, store_url: str, tmp_path: Path
) -> None:
    coordinator = Coordinator(tmp_path, store_url=store_url)
    coordinator.environment = {"QIDPFL_FAILPOINT": place}
    with coordinator.start():
        task_id, code = coordinator.create_task("killed", **SHORT)
        before = model_of(coordinator, task_id)
        with pytest.raises(httpx.TransportError):
            give(coordinator, task_id, MODEL)
        assert coordinator.died_of() == signal.SIGKILL
        coordinator.environment = {"QIDPFL_FAILPOINT": ""}
        coordinator.start()
        assert model_of(coordinator, task_id) == (before if place == "model.before_commit" else MODEL)
        assert give(coordinator, task_id, MODEL).status_code == 200
        assert model_of(coordinator, task_id) == MODEL
        play_to_the_end(joined(coordinator, task_id, code))
        assert "0 violated" in coordinator.audit()


# --- from a file -----------------------------------------------------------------------------------------------------


def create(state: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return server_command("tasks", "create", "filed", "--preset", "digits", *arguments, "--state-dir", state)


def model_file(folder: Path, kind: str, **tensors: Any) -> Path:
    path = folder / f"model{kind}"
    if kind == ".safetensors":
        vector = np.frombuffer(MODEL, dtype="<f4")
        save_file({"weight": vector[:640].reshape(10, 64), "bias": vector[640:]} | tensors, path)
    else:
        path.write_bytes(MODEL)
    return path


@pytest.mark.parametrize("kind", [".safetensors", ".f32"])
def test_a_task_is_created_with_the_model_of_a_file(tmp_path: Path, kind: str) -> None:
    made = create(tmp_path / "state", "--model", model_file(tmp_path, kind))
    assert made.returncode == 0, made.stderr
    with running(tmp_path / "state") as coordinator:
        assert model_of(coordinator, made.stdout.split()[0]) == MODEL
        assert "0 violated" in coordinator.audit()


def test_a_file_that_is_not_a_model_of_the_task_is_reported_in_one_line_and_creates_nothing(tmp_path: Path) -> None:
    path = model_file(tmp_path, ".safetensors", bias=np.zeros(11, dtype=np.float32))
    done = create(tmp_path / "state", "--model", path)
    assert (done.returncode, done.stdout) == (1, "")
    reason = f"{path} is not a model of this task: tensor 'bias' has shape (11,), the layout says (10,)"
    assert done.stderr == f"qidpfl-server: {reason}\n"
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("broken.safetensors", b"not tensors at all", "cannot be read: "),
        ("short.f32", MODEL[:-4], "is not a model of this task: 2596 bytes, expected 2600 for 650 parameters"),
        ("hot.f32", MODEL[:-4] + np.float32("inf").tobytes(), "is not a model of this task: element 649 is NaN or inf"),
        ("model.pt", MODEL, "must be a .safetensors or .f32 file"),
    ],
)
def test_a_file_that_cannot_be_a_model_says_why(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CoordinatorError, match=re.escape(f"{tmp_path / name} {reason}")):
        read_model_file(tmp_path / name, task_spec("digits", {}))
