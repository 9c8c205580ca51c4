"""Routes that accept a body only as JSON, and only from callers that they know."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from .auth import bearer, identify
from .context import get_context
from .json import json_limits, media_type, parse

_JSON = "application/json"


class StrictRequest(Request):
    """A request whose JSON body is parsed by the rules of the protocol."""

    async def json(self) -> Any:
        return parse(await self.body(), json_limits(self.scope["path"]))


class StrictJsonRoute(APIRoute):
    """A route that accepts a body only as JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        needs_caller = _depends_on_caller(self.dependant)

        async def handle_strictly(request: Request) -> Response:
            if media_type(request.headers.get("content-type", "")) != _JSON:
                raise HTTPException(415)
            if needs_caller:
                # FastAPI would read and parse the body of an outsider first.
                await identify(request, await get_context(request), request.app.state.callers, await bearer(request))
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def _depends_on_caller(dependant: Dependant) -> bool:
    return dependant.call is identify or any(map(_depends_on_caller, dependant.dependencies))
