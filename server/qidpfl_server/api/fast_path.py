"""The short way of the four operations that a client makes in every round.

It takes only well-formed requests and calls the same functions as the documented routes, without FastAPI's search of
routes, dependencies and serialisation. All other requests go to the routes, which say what is wrong with them.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qidpfl_shared.protocol.messages import BudgetRequest

from .auth import CERTIFICATE, Caller, CallerCache, identify_token, participant, reader
from .context import Context
from .json import SMALL_JSON, media_type, parse
from .routes.models import get_model
from .routes.rounds import get_announcement, put_budget, receive_update

_TASK = r"/v1/tasks/([0-9a-f]{1,64})"
_NUMBER = r"([1-9][0-9]{0,5})"
_AFTER, _WAIT = rb"after=([0-9]{1,7}\.[0-9]{1,4})", rb"wait=([0-9]{1,2}(?:\.[0-9]{1,9})?)"
_QUERY = re.compile(rb"(?:" + _AFTER + rb")?(?:(?:^|&)" + _WAIT + rb")?(?:(?:^|&)last_result=(true))?")
_BEARER = re.compile(rb"[Bb]earer ([!-~]+)")
_LONGEST_WAIT_S = 60.0
_LONGEST_ETAGS = 1000
_budget_request: TypeAdapter[BudgetRequest] = TypeAdapter(BudgetRequest)


class _Call(NamedTuple):
    """A request of a known caller."""

    scope: Scope
    headers: dict[bytes, bytes]
    receive: Receive
    caller: Caller
    task_id: str
    number: int


_Operation = Callable[[_Call], Awaitable[Response]]


class _NotWellFormed(Exception):
    """The routes must answer this request. `receive` gives them its body again."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive


class FastPath:
    """Answers the four operations, and hands all other requests to the application."""

    def __init__(self, app: ASGIApp, owner: FastAPI, context: Context, callers: CallerCache) -> None:
        self._app = app
        self._owner = owner
        self._context = context
        self._callers = callers
        self._operations: tuple[tuple[str, re.Pattern[str], _Operation], ...] = (
            ("GET", re.compile(f"{_TASK}/rounds/current()"), self._announcement),
            ("PUT", re.compile(f"{_TASK}/rounds/{_NUMBER}/budget"), self._budget),
            ("GET", re.compile(f"{_TASK}/models/(0|{_NUMBER[1:-1]})"), self._model),
            ("PUT", re.compile(f"{_TASK}/rounds/{_NUMBER}/update"), self._update),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for method, path, operation in self._operations:
            if scope["method"] == method and (found := path.fullmatch(scope["path"])) is not None:
                await self._answer(operation, found, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(
        self, operation: _Operation, found: re.Match[str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = dict(scope["headers"])
        token = _BEARER.fullmatch(headers.get(b"authorization", b""))
        # With a repeated header it is not clear which one the routes take.
        if token is None or len(headers) != len(scope["headers"]):
            await self._app(scope, receive, send)
            return
        try:
            certificate = scope.get(CERTIFICATE)
            caller = await identify_token(self._context, self._callers, token[1].decode("ascii"), certificate)
            answer = await operation(_Call(scope, headers, receive, caller, found[1], int(found[2] or 0)))
        except _NotWellFormed as request:
            await self._app(scope, request.receive, send)
            return
        except Exception as error:
            answer = await self._problem(Request(scope, receive), error)
        await answer(scope, receive, send)

    async def _announcement(self, call: _Call) -> Response:
        query = _QUERY.fullmatch(call.scope["query_string"])
        wait = float(query[2] or 0) if query is not None else 0.0
        if query is None or wait > _LONGEST_WAIT_S:
            raise _NotWellFormed(call.receive)
        client_id = await participant(call.task_id, call.caller)
        after, last_result = (query[1] or b"0.0").decode(), query[3] is not None
        return await get_announcement(self._context, client_id, call.task_id, after, wait, last_result)

    async def _budget(self, call: _Call) -> Response:
        if media_type(call.headers.get(b"content-type", b"").decode("latin-1")) != "application/json":
            raise _NotWellFormed(call.receive)
        client_id = await participant(call.task_id, call.caller)
        body = await _whole_body(call.receive)
        try:
            request = _budget_request.validate_python(parse(body, SMALL_JSON))
        except (json.JSONDecodeError, ValidationError):
            raise _NotWellFormed(_replayed(body, call.receive)) from None
        receipt = await put_budget(self._context, client_id, call.task_id, call.number, request)
        return Response(receipt.model_dump_json(), media_type="application/json")

    async def _model(self, call: _Call) -> Response:
        etags = call.headers.get(b"if-none-match", b"").decode("latin-1")
        if len(etags) > _LONGEST_ETAGS:
            raise _NotWellFormed(call.receive)
        caller = await reader(call.task_id, call.caller)
        return await get_model(self._context, caller, call.task_id, call.number, etags)

    async def _update(self, call: _Call) -> Response:
        client_id = await participant(call.task_id, call.caller)
        request = Request(call.scope, call.receive)
        return await receive_update(self._context, request, client_id, (call.task_id, call.number))

    async def _problem(self, request: Request, error: Exception) -> Response:
        """The answer that the application gives to this kind of error."""
        handlers = self._owner.exception_handlers
        handle = next(handlers[kind] for kind in type(error).__mro__ if kind in handlers)
        answer: Response = await handle(request, error)  # type: ignore[misc]
        return answer


async def _whole_body(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body was already read."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return unread.pop() if unread else await receive()

    return replayed
