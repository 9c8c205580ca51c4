"""A coordinator for one client, which lies where a test wants it to."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import digest_of, encode
from support.peers.local_http import served

TASK = "0123456789abcdef"
CODE = f"{TASK}.the-secret-of-the-task"
NOW = "2026-01-01T00:00:00Z"
_FOREVER_S = 600.0


@dataclass
class HostileCoordinator:
    """Honest by default. `lies` replaces values of the announcement of a round; other lies have a field each."""

    spec: TaskSpec = field(default_factory=lambda: preset("digits", {"game": {"horizon": 3}}))
    lies: dict[int, dict[str, Any]] = field(default_factory=dict)
    shown_spec: TaskSpec | None = None
    enrolment_digest: str | None = None
    model_lie: bytes | None = None
    receipt_lie: dict[str, Any] = field(default_factory=dict)
    budget_lie: dict[str, Any] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    # The statuses of the next uploads; later ones are accepted as usual.
    update_statuses: list[int] = field(default_factory=list)
    # How long it does not answer, from the first poll for a round on.
    away_for_s: float = 0.0
    # Whether the task fails, as by a fault, when an upload gets 410; and whether it has failed.
    fails_at_410: bool = False
    failed: bool = False
    number: int = 1
    ended: bool = False
    enrolled: int = 0
    declared: list[dict[str, Any]] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    profiles: list[bytes] = field(default_factory=list)
    left: int = 0
    polls: int = 0
    back_at: float | None = None
    url: str = ""
    # Another task than the usual one, and another place in it.
    task_id: str = TASK
    ordinal: int = 0
    payment_micro: int = 1000
    # What requests with this method and this last part of the path get instead: a status and a body.
    instead: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    # All requests, and when they came.
    requests: list[tuple[float, str]] = field(default_factory=list)

    def model(self, version: int) -> bytes:
        return encode(np.full(self.spec.dimension, version / 100))

    def offer(self) -> dict[str, Any]:
        """The round that is open."""
        honest = {
            "round_number": self.number,
            "attempt": 1,
            "reward_micro": 30_000_000,
            "total": 0.5,
            "standing": "invited",
            "model_version": self.number - 1,
            "model_digest": digest_of(self.model(self.number - 1)),
            "mechanism": self.spec.privacy.mechanism.name,
            "clip_norm": 1.0,
            "dimension": self.spec.dimension,
            "rho_max": self.spec.bounds.rho_max,
            "noise": self.spec.privacy.noise,
            "declare_by": NOW,
            "deliver_by": NOW,
            "declare_in_s": _FOREVER_S,
            "deliver_in_s": _FOREVER_S,
        }
        return honest | self.lies.get(self.number, {})

    @property
    def code(self) -> str:
        """The enrolment code of the task."""
        return CODE.replace(TASK, self.task_id)

    def next_round(self) -> None:
        self.ended = self.number == self.spec.game.horizon
        self.number += 1

    # --- what each request gets: a status and a body ------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> tuple[int, Any]:
        self.requests.append((time.monotonic(), f"{method} {path}"))
        if (lie := self.instead.get((method, path.rpartition("/")[2]))) is not None:
            return lie
        match method, path.removeprefix(f"/v1/tasks/{self.task_id}").split("/")[1:]:
            case "GET", []:
                return 200, self._task()
            case "POST", ["clients"]:
                self.enrolled += 1
                digest = self.enrolment_digest or self._shown.digest
                return 201, {"client_id": "me", "token": "t" * 40, "ordinal": self.ordinal, "spec_digest": digest}
            case "PUT", ["clients", "me", "profile"]:
                self.profiles.append(body)
                return 204, None
            case "DELETE", ["clients", "me"]:
                self.left += 1
                return 204, None
            case "GET", ["clients", "me", "selection"]:
                return 200, {"profiles": 3, "selected": True, "label_distance": 0.2}
            case "GET", ["clients", "me", "ledger"]:
                totals = {"spent_rho": 0.0, "epsilon": 0.0, "delta": 1e-5, "earned_micro": 0}
                return 200, totals | {"client_id": "me", "entries": self.ledger}
            case "GET", ["rounds", "current"]:
                return self._announcement(query["after"][0])
            case "PUT", ["rounds", number, "budget"]:
                return 200, self._budget(int(number), json.loads(body))
            case "GET", ["models", version]:
                return 200, self.model(int(version)) if self.model_lie is None else self.model_lie
            case "PUT", ["rounds", number, "update"]:
                return self._update(int(number), body)
            case "GET", ["rounds", number]:
                return 200, self._result(int(number))
        return 404, None

    def is_away(self, path: str) -> bool:
        """Whether it gives no answer at all."""
        if self.back_at is None and path.endswith("/rounds/current"):
            self.back_at = time.monotonic() + self.away_for_s
        return self.back_at is not None and time.monotonic() < self.back_at

    @property
    def _shown(self) -> TaskSpec:
        return self.shown_spec or self.spec

    def _task(self) -> dict[str, Any]:
        return {
            **{
                "task_id": self.task_id,
                "name": "hostile",
                "preset": "digits",
                "state": "enrolling",
                "settled_rounds": 0,
            },
            **{"horizon": self.spec.game.horizon, "clients": 0, "paid_micro": 0},
            **{"spec": self._shown.model_dump(mode="json"), "spec_digest": self.spec.digest},
        }

    def _announcement(self, after: str) -> tuple[int, Any]:
        # No test needs so many polls: the coordinator ends the task, and the test fails instead of hanging.
        self.polls += 1
        if self.failed:
            return 200, {"task_state": "failed", "reason": "step_failed"}
        if self.ended or self.polls > 300:
            return 200, {"task_state": "finished", "reason": "horizon_reached"}
        offer, (number, attempt) = self.offer(), map(int, re.findall(r"\d+", after))
        if (offer["round_number"], offer["attempt"]) <= (number, attempt) and self.number not in self.lies:
            time.sleep(0.02)
            return 204, None
        return 200, {"task_state": "training", "round": offer}

    def _budget(self, number: int, request: dict[str, Any]) -> dict[str, Any]:
        self.declared.append(request)
        if request.get("decline"):
            self.next_round()
        state = "declined" if request.get("decline") else "declared"
        honest = {"round_number": number, "state": state, "rho": request.get("rho"), "recorded_at": NOW}
        if self.spec.game.market is not None and state == "declared":
            honest["payment_micro"] = self.payment_micro
        return honest | self.budget_lie

    def _update(self, number: int, body: bytes) -> tuple[int, Any]:
        self.received.append(digest_of(body))
        status = self.update_statuses.pop(0) if self.update_statuses else 200
        self.failed = self.failed or (status == 410 and self.fails_at_410)
        if status < 500 and number == self.number and not self.failed:
            self.next_round()
        honest = {"round_number": number, "client_id": "me", "digest": digest_of(body), "byte_length": len(body)}
        return status, honest | {"received_at": NOW} | self.receipt_lie

    def _result(self, number: int) -> dict[str, Any]:
        own = {"client_id": "me", "ordinal": self.ordinal, "standing": "invited", "rho": 0.1, "declined": False}
        own |= {"delivered": True, "accepted": True, "payment_micro": self.payment_micro}
        return {
            **{"round_number": number, "attempt": 1, "state": "settled", "reward_micro": 1000, "paid_micro": 1000},
            **{"kept_micro": 0, "total": 0.5, "updates": 1, "model_version": number, "own": own},
        }


@contextmanager
def serving(hostile: HostileCoordinator) -> Iterator[HostileCoordinator]:
    """The coordinator on a free port, over real HTTP."""
    with served(type("Handler", (_Handler,), {"hostile": hostile})) as hostile.url:
        yield hostile


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hostile: HostileCoordinator

    def log_message(self, *_: object) -> None:
        """No log."""

    def _serve(self) -> None:
        where = urlsplit(self.path)
        received = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.hostile.is_away(where.path):
            self.close_connection = True
            return
        status, answer = self.hostile.answer(self.command, where.path, parse_qs(where.query), received)
        body = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        self.send_response_only(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = _serve
