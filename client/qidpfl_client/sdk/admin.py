"""The protocol for admin and viewer."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from qidpfl_shared.protocol.messages import (
    ClientSummary,
    CreatedTask,
    Event,
    ModelInfo,
    RoundResult,
    TaskSummary,
    TaskView,
)
from qidpfl_shared.protocol.wire import Vector32, digest_of

from ..errors import Misconfigured
from ._base import JSON, Interface
from .credentials import checked_id
from .retries import Retries
from .transport import LARGE, untrusted


class AdminApi(Interface):
    """All tasks of one coordinator, with the token of its admin; a viewer's token does for what only reads."""

    def __init__(self, http: httpx.Client, *, token: str, retries: Retries | None = None) -> None:
        super().__init__(http, token=token, retries=retries or Retries())

    def __repr__(self) -> str:
        return f"AdminApi({self.server})"

    def create_task(
        self, name: str, *, preset: str, overrides: Mapping[str, Any] | None = None, single_use_codes: int = 0
    ) -> CreatedTask:
        """Make a task from a preset. Never repeated by itself: the codes of a lost answer are lost."""
        body = {
            "name": name,
            "preset": preset,
            "overrides": dict(overrides or {}),
            "single_use_codes": single_use_codes,
        }
        content = _json_bytes(body)
        options: dict[str, Any] = {"limit": LARGE, "expected": (201,), "repeatable": False}
        return self._send(self._call("POST", "/v1/tasks", content=content, headers=JSON, **options)).read(CreatedTask)

    def tasks(self) -> list[TaskSummary]:
        """All tasks, oldest first."""
        return self._send(self._call("GET", "/v1/tasks", limit=LARGE)).read(list[TaskSummary])

    def task(self, task_id: str) -> TaskView:
        """One task with its spec."""
        return self._task(self._call("GET", _path(task_id)), task_id=task_id)

    def start(self, task_id: str) -> TaskSummary:
        """Select now, without waiting for more clients."""
        return self._send(self._call("POST", f"{_path(task_id)}/start")).read(TaskSummary)

    def stop(self, task_id: str) -> TaskSummary:
        """End a task; its open round is settled if enough updates are there."""
        return self._send(self._call("POST", f"{_path(task_id)}/stop")).read(TaskSummary)

    def clients(self, task_id: str) -> list[ClientSummary]:
        """Every client with its profile, label distance and verdict."""
        return self._send(self._call("GET", f"{_path(task_id)}/clients", limit=LARGE)).read(list[ClientSummary])

    def put_out(self, task_id: str, client_id: str) -> None:
        """Revoke a client's token; it is out from the next round on."""
        path = f"{_path(task_id)}/clients/{checked_id(client_id, of='client')}"
        self._send(self._call("DELETE", path, expected=(204,)))

    def round(self, task_id: str, round_number: int) -> RoundResult:
        """A round; everybody's part once it is closed."""
        return self._round(self._call("GET", f"{_path(task_id)}/rounds/{round_number}"), round_number=round_number)

    def rounds(self, task_id: str) -> list[RoundResult]:
        """All settled rounds, in order."""
        return [self.round(task_id, number + 1) for number in range(self.task(task_id).settled_rounds)]

    def models(self, task_id: str) -> list[ModelInfo]:
        """All versions of the model, 0 first."""
        return self._send(self._call("GET", f"{_path(task_id)}/models", limit=LARGE)).read(list[ModelInfo])

    def model(self, task_id: str, info: ModelInfo) -> Vector32:
        """The parameters of a version."""
        call = self._call("GET", f"{_path(task_id)}/models/{info.version}")
        return self._model(call, digest=info.digest, dimension=info.dimension)

    def safetensors(self, task_id: str, version: int) -> bytes:
        """A version with named tensors, as a safetensors file."""
        limit = self.task(task_id).spec.layout.byte_length + LARGE
        return self._send(self._call("GET", f"{_path(task_id)}/models/{version}.safetensors", limit=limit)).body

    def give_model(self, task_id: str, data: bytes) -> ModelInfo:
        """Let the task start from this model, as long as no round has been announced."""
        call = self._vector(f"{_path(task_id)}/models/0", data)
        info = self._send(call).read(ModelInfo)
        if (info.version, info.digest) != (0, digest_of(data)):
            raise untrusted(call, "a receipt for another model")
        return info

    def events(self, task_id: str, *, after: int = 0) -> Iterator[Event]:
        """The task's events as they happen, until it has ended; goes on after a lost connection."""
        return self._events(_path(task_id), after, task=lambda: self.task(task_id))


def _json_bytes(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Misconfigured(f"the overrides cannot be written as JSON: {error}") from error


def _path(task_id: str) -> str:
    return f"/v1/tasks/{checked_id(task_id, of='task')}"
