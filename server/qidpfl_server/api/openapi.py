"""The OpenAPI document: errors under their own media type, and answers with examples."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE

_JSON = "application/json"


class DocumentedApp(FastAPI):
    """An application behind an edge of its own, which moves error models to problem+json in the document.

    FastAPI puts error models under the media type of a success.
    """

    # What is in front of the whole application, also of its answer to an unexpected error.
    edge: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.edge is None or scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self.edge(scope, receive, send)

    def put_behind(self, edge: Callable[[ASGIApp], ASGIApp]) -> None:
        """Let all requests pass `edge`, which gets the application without it."""
        self.edge = edge(super().__call__)

    def openapi(self) -> dict[str, Any]:
        """The document; it is built once."""
        if self.openapi_schema is None:
            for path in super().openapi()["paths"].values():
                for operation in path.values():
                    for answer in operation["responses"].values():
                        _move_problem(answer.get("content", {}))
        return super().openapi()


def _move_problem(content: dict[str, Any]) -> None:
    if PROBLEM_MEDIA_TYPE in content and _JSON in content:
        content[PROBLEM_MEDIA_TYPE]["schema"] = content.pop(_JSON)["schema"]


def success(example: Any, *, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The success answer of an operation, with an example."""
    return {status: {"content": {_JSON: {"example": example}}}}
