"""The base of `TaskApi` and `AdminApi`: the calls that both make, and the checks of their answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Unpack

import httpx

from qidpfl_shared.protocol.compatibility import refusal_of_spec
from qidpfl_shared.protocol.messages import Event, RoundResult, TaskView
from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER, Vector32, WireError, content_digest_of, decode, digest_of

from ..errors import UnsupportedTask
from ._sse import follow
from .answers import SPEC
from .credentials import checked_token
from .retries import Retries
from .transport import ApiResponse, Call, CallOptions, Channel, untrusted

JSON = {"Content-Type": "application/json"}


class Interface:
    """A channel, and a token that no message and no repr shows."""

    def __init__(self, http: httpx.Client, *, token: str | None, retries: Retries) -> None:
        self._channel = Channel(http, retries=retries)
        self._token = None if token is None else checked_token(token)

    @property
    def server(self) -> str:
        """The coordinator's address."""
        return self._channel.where

    def _call(self, method: str, path: str, **options: Unpack[CallOptions]) -> Call:
        if "token" not in options:
            options["token"] = self._token
        return Call(method, path, **options)

    def _send(self, call: Call) -> ApiResponse:
        return self._channel.send(call)

    def _task(self, call: Call, *, task_id: str) -> TaskView:
        answer = self._send(replace(call, limit=SPEC))
        if (refusal := refusal_of_spec(answer.member("spec"))) is not None:
            raise UnsupportedTask(refusal)
        view = answer.read(TaskView)
        if view.task_id != task_id:
            raise untrusted(call, f"it shows task {view.task_id}")
        if view.spec.digest != view.spec_digest:
            raise untrusted(call, "the spec does not match its digest")
        return view

    def _round(self, call: Call, *, round_number: int) -> RoundResult:
        result = self._send(call).read(RoundResult)
        if result.round_number != round_number:
            raise untrusted(call, f"it shows round {result.round_number}")
        return result

    def _events(self, path: str, after: int, *, task: Callable[[], TaskView]) -> Iterator[Event]:
        call = self._call("GET", f"{path}/events", headers={"Accept": "text/event-stream"})
        return follow(self._channel, call, after=after, ended=lambda: task().state.ended)

    def _model(self, call: Call, *, digest: str, dimension: int) -> Vector32:
        """A vector that must have this length and digest."""
        body = self._send(replace(call, limit=dimension * BYTES_PER_PARAMETER)).body
        if digest_of(body) != digest:
            raise untrusted(call, f"{len(body)} bytes with a digest that is not the announced one")
        try:
            return decode(body, dimension=dimension)
        except WireError as error:
            raise untrusted(call, error.detail) from None

    def _vector(self, path: str, data: bytes, *, digest: str) -> Call:
        """The call that sends a vector with this digest."""
        headers = {"Content-Type": "application/octet-stream", "Content-Digest": content_digest_of(digest)}
        return self._call("PUT", path, content=data, headers=headers)
