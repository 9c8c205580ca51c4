"""The OpenAPI document: errors under their own media type, answers with examples, and the credentials of operations."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE
from qidpfl_shared.protocol.messages import Event

from .document.guides import guide_text
from .document.security import SCHEMES, security_of
from .document.texts import SUMMARY

_JSON = "application/json"
_REFERENCES = "#/components/schemas/{model}"


class DocumentedApp(FastAPI):
    """An application behind an edge of its own, which completes the document that FastAPI makes.

    FastAPI puts error models under the media type of a success, and knows one security scheme for all roles.
    """

    # What is in front of the whole application, also of its answer to an unexpected error.
    edge: ASGIApp | None = None

    def __init__(self, **options: Any) -> None:
        # FastAPI hides the routes of an included router.
        self._included: list[BaseRoute] = []
        super().__init__(**options)

    def include_router(self, router: APIRouter, **options: Any) -> None:
        """Include a router, whose routes already have their whole paths."""
        self._included += router.routes
        super().include_router(router, **options)

    def serves(self, start: str) -> bool:
        """Whether a route begins with this path."""
        return any(getattr(route, "path", "").startswith(start) for route in self._included)

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
            # Read here and not at the start: the coordinator works without its guides.
            self.description = SUMMARY + guide_text("contract")
            document = super().openapi()
            for route in self._included:
                if isinstance(route, APIRoute) and route.include_in_schema:
                    for method in route.methods or ():
                        _complete(route, document["paths"][route.path_format][method.lower()])
            components = document["components"]
            components["securitySchemes"] = SCHEMES
            components["examples"] = _shared_examples(document["paths"])
            # The live feed is a text of events, so no answer has this schema.
            components["schemas"]["Event"] = Event.model_json_schema(ref_template=_REFERENCES)
        return super().openapi()


def _complete(route: APIRoute, operation: dict[str, Any]) -> None:
    operation["security"] = security_of(route, operation.get("security", []))
    for answer in operation["responses"].values():
        _move_problem(answer.get("content", {}))


def _move_problem(content: dict[str, Any]) -> None:
    if PROBLEM_MEDIA_TYPE in content and _JSON in content:
        content[PROBLEM_MEDIA_TYPE]["schema"] = content.pop(_JSON)["schema"]


def _shared_examples(paths: dict[str, Any]) -> dict[str, Any]:
    """The examples of all errors, by code. Each answer then refers to them, so that the document stays small."""
    found: dict[str, Any] = {}
    for operation in (operation for path in paths.values() for operation in path.values()):
        for answer in operation["responses"].values():
            shown = answer.get("content", {}).get(PROBLEM_MEDIA_TYPE, {}).get("examples", {})
            for code in shown:
                found[code], shown[code] = shown[code], {"$ref": f"#/components/examples/{code}"}
    return found


def operation_id(route: APIRoute) -> str:
    """The id of an operation, from which generated clients make the names of their functions: that of its function."""
    return route.name


def success(
    example: Any = None, *, status: int = 200, examples: Any = None, description: str | None = None
) -> dict[int | str, dict[str, Any]]:
    """The success answer of an operation, with one example or with several named ones."""
    shown = {"example": example} if examples is None else {"examples": examples}
    found: dict[str, Any] = {"content": {_JSON: shown}}
    if description is not None:
        found["description"] = description
    return {status: found}
