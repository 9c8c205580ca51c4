"""Coordinators that fail, lie or send too much: scripted answers for the SDK, without a network."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx

from qidpfl_client.api import AdminApi, Retries, TaskApi
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, Problem
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.wire import digest_of

AT_ONCE = Retries(attempts=4, wait_initial_s=0.0, wait_max_s=0.0, jitter_s=0.0, retry_after_max_s=0.0)
TASK, TOKEN, KEY = "0123abcd", "a-token-that-must-stay-secret", "a-key-of-the-client"
CODE = f"{TASK}.the-secret-of-this-task"
SPEC = preset("digits")
UPDATE = bytes(4 * 650)
MOMENT = "2026-01-02T03:04:05Z"
Handler = Callable[[httpx.Request], httpx.Response]


class Scripted:
    """A coordinator that gives these answers in order, then repeats the last one."""

    def __init__(self, *answers: httpx.Response | Exception | Handler) -> None:
        self._answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url="https://coordinator.test", transport=httpx.MockTransport(self))

    def task(self, *, retries: Retries = AT_ONCE) -> TaskApi:
        return TaskApi(self.http(), task_id=TASK, token=TOKEN, retries=retries)

    def admin(self) -> AdminApi:
        return AdminApi(self.http(), token=TOKEN, retries=AT_ONCE)


class Pieces(httpx.SyncByteStream):
    """A body in pieces that counts how many were read."""

    def __init__(self, piece: bytes, count: int) -> None:
        self._piece, self._count = piece, count
        self.taken = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < self._count:
            self.taken += 1
            yield self._piece

    def close(self) -> None:
        self.closed = True


def problem(code: ErrorCode, detail: str | None = None, headers: dict[str, str] | None = None) -> httpx.Response:
    body = Problem.of(code, detail).model_dump_json()
    return httpx.Response(code.status, text=body, headers={"Content-Type": PROBLEM_MEDIA_TYPE, **(headers or {})})


def verdict() -> httpx.Response:
    return httpx.Response(200, json={"selected": None, "profiles": 2})


def task_view(**changes: Any) -> httpx.Response:
    view = {
        "task_id": TASK,
        "name": "digits-1",
        "preset": "digits",
        "state": "enrolling",
        "settled_rounds": 0,
        "horizon": 20,
        "clients": 0,
        "paid_micro": 0,
        "spec": SPEC.model_dump(mode="json"),
        "spec_digest": SPEC.digest,
    }
    return httpx.Response(200, json=view | changes)


def enrolled(**changes: Any) -> httpx.Response:
    answer = {"client_id": "c1", "token": "another-token-of-the-client", "ordinal": 0, "spec_digest": SPEC.digest}
    return httpx.Response(201, json=answer | changes)


def update_receipt(data: bytes = UPDATE, round_number: int = 1) -> httpx.Response:
    receipt = {
        "round_number": round_number,
        "client_id": "c1",
        "digest": digest_of(data),
        "byte_length": len(data),
        "received_at": MOMENT,
    }
    return httpx.Response(200, json=receipt)


def budget_receipt(**changes: Any) -> httpx.Response:
    receipt = {"round_number": 1, "state": "declared", "rho": 0.05, "recorded_at": MOMENT}
    return httpx.Response(200, json=receipt | changes)


NOTHING = httpx.Response(204)
