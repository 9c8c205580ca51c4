"""JSON as the protocol defines it: UTF-8 without a byte order mark, no repeated key, media type application/json."""

import codecs
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

_JSON = "application/json"


def parse(body: bytes) -> Any:
    """The value of a JSON text. Raises `JSONDecodeError` for anything that the protocol does not allow."""
    if body.startswith(codecs.BOM_UTF8):
        raise json.JSONDecodeError("a byte order mark", "", 0)
    try:
        return json.loads(body.decode(), object_pairs_hook=_without_repeats)
    except (UnicodeDecodeError, RecursionError) as error:
        raise json.JSONDecodeError(type(error).__name__, "", 0) from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise json.JSONDecodeError("a repeated key", "", 0)
    return found


def media_type(header: str) -> str:
    """The media type of a Content-Type header in lower case, without its parameters."""
    return header.partition(";")[0].strip().lower()


class StrictRequest(Request):
    """A request whose JSON body is parsed by the rules of the protocol."""

    async def json(self) -> Any:
        return parse(await self.body())


class StrictJsonRoute(APIRoute):
    """A route that accepts a body only as JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_strictly(request: Request) -> Response:
            if media_type(request.headers.get("content-type", "")) != _JSON:
                raise HTTPException(415)
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly
