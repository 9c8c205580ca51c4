"""Requests to the kit's coordinator, its answers, and the record of both."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, Problem

from .scenarios import UNKNOWN_FIELD, Step


@dataclass(frozen=True)
class ClientRequest:
    """A request to the task; names of headers are in lower case."""

    method: str
    parts: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class ScriptedAnswer:
    """A status with a body. Without a status the connection is closed, and the answer is lost."""

    status: int | None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A request as it was recorded: what it was, of which round and in which step, and what it got.

    A status of None is a lost answer."""

    kind: str
    number: int | None
    step: Step | None
    body: bytes
    headers: Mapping[str, str]
    status: int | None
    code: str | None
    at: float


class Refusal(Exception):
    """The request gets this error."""

    def __init__(self, code: ErrorCode, detail: str | None = None) -> None:
        super().__init__(code.value)
        self.problem = Problem.of(code, detail)


def not_found(_: ClientRequest) -> ScriptedAnswer:
    raise Refusal(ErrorCode.NOT_FOUND)


def json_answer(message: dict[str, Any], status: int = 200) -> ScriptedAnswer:
    body = json.dumps(message | UNKNOWN_FIELD).encode()
    return ScriptedAnswer(status, body, {"Content-Type": "application/json", "Cache-Control": "no-store"})


def problem_answer(problem: Problem, headers: Mapping[str, str] | None = None) -> ScriptedAnswer:
    body = problem.model_dump_json().encode()
    return ScriptedAnswer(problem.status, body, {"Content-Type": PROBLEM_MEDIA_TYPE} | dict(headers or {}))
