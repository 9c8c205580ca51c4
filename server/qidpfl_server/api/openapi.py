"""The OpenAPI document: errors under their own media type, and answers with examples."""

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE

from .security_headers import SecurityHeaders

_JSON = "application/json"


class DocumentedApp(FastAPI):
    """Adds security headers, and moves error models to problem+json in the document.

    FastAPI puts error models under the media type of a success.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Outside of all other middleware, so that the answer to an unexpected error has the headers too."""
        return SecurityHeaders(super().build_middleware_stack())

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
