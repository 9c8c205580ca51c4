"""Every error as problem+json with a stable code. An error answer never repeats input."""

import errno
from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, FieldProblem, Problem, one_line
from qidpfl_shared.protocol.wire import WireError

from ..errors import CoordinatorError, DiskFailure, ObjectStoreFailure
from ..logs import LogThrottle
from .document.texts import error_headers

_log = structlog.get_logger()
_BY_STATUS = {
    400: ErrorCode.MALFORMED_JSON,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.BODY_TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    429: ErrorCode.TOO_MANY_REQUESTS,
}
# What a disk reports that fails, is not mounted or read-only, and a process without file handles.
_DISK = {
    *(errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR),
    *(errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO),
}
_MAX_REPORTED = 20
# Errors of a JSON body, for every operation that takes one.
JSON_BODY = (
    ErrorCode.MALFORMED_JSON,
    ErrorCode.BODY_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.INVALID_REQUEST,
)
# Errors that every operation may answer.
COMMON = (
    ErrorCode.MALFORMED_REQUEST,
    ErrorCode.METHOD_NOT_ALLOWED,
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.TOO_MANY_REQUESTS,
    ErrorCode.HEADER_TOO_LARGE,
    ErrorCode.STORE_BUSY,
    ErrorCode.INTERNAL_ERROR,
)


def problem_response(
    code: ErrorCode,
    detail: str | None = None,
    errors: tuple[FieldProblem, ...] = (),
    retry_after_s: int | None = None,
) -> JSONResponse:
    """The problem+json answer for a code."""
    headers = {}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if code is ErrorCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    body = Problem.of(code, detail, errors).model_dump(mode="json", exclude_none=True)
    return JSONResponse(body, status_code=code.status, headers=headers, media_type=PROBLEM_MEDIA_TYPE)


def invalid_response(errors: Sequence[Any]) -> JSONResponse:
    """Validation errors of pydantic as field problems. A rule of the task spec has its own code."""
    fields = tuple(
        FieldProblem(path=one_line("/" + "/".join(map(str, error["loc"]))), message=one_line(error["msg"]))
        for error in errors[:_MAX_REPORTED]
    )
    known = [code for error in errors if (code := ErrorCode.named(error["type"])) is not None]
    if any(error["type"] == "json_invalid" for error in errors):
        return problem_response(ErrorCode.MALFORMED_JSON)
    return problem_response(known[0] if known else ErrorCode.INVALID_REQUEST, errors=fields)


def install(app: FastAPI) -> None:
    """Register the exception handlers."""
    throttle = LogThrottle()

    def log_failure(request: Request, error: CoordinatorError, *, reason: str = "") -> None:
        """Log a failed request; errors that may pass at most once a second, because they come in crowds."""
        dropped = throttle.dropped(error.code.value) if error.retry_after_s is not None else 0
        if dropped is not None:
            _log.warning(
                "request_failed",
                path=request.url.path,
                client=request.client.host if request.client else None,
                code=error.code.value,
                reason=reason or error.detail,
                dropped=dropped,
            )

    @app.exception_handler(CoordinatorError)
    async def refused(request: Request, error: CoordinatorError) -> JSONResponse:
        if error.code.status >= 500:
            # An error of the object store has a reason that only the operator may read.
            log_failure(request, error, reason=str(error) if isinstance(error, ObjectStoreFailure) else "")
        # Internal details go to the log only: they name files and tables.
        detail = None if error.code is ErrorCode.INTERNAL_ERROR else error.detail or None
        return problem_response(error.code, detail, retry_after_s=error.retry_after_s)

    @app.exception_handler(WireError)
    async def unreadable(request: Request, error: WireError) -> JSONResponse:
        return problem_response(error.code, error.detail)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        return invalid_response(error.errors())

    @app.exception_handler(ValidationError)
    async def invalid_model(request: Request, error: ValidationError) -> JSONResponse:
        return invalid_response(error.errors(include_input=False, include_url=False, include_context=False))

    @app.exception_handler(ImpossibleArgument)
    async def impossible(request: Request, error: ImpossibleArgument) -> JSONResponse:
        return problem_response(ErrorCode.OUT_OF_BOUNDS, f"{error.name}: {error.requirement}")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = _BY_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST)
        answer = problem_response(code, retry_after_s=1 if code is ErrorCode.TOO_MANY_REQUESTS else None)
        if code is ErrorCode.METHOD_NOT_ALLOWED:
            answer.headers["Allow"] = ", ".join(_allowed_methods(request))
        return answer

    @app.exception_handler(OSError)
    async def disk_error(request: Request, error: OSError) -> JSONResponse:
        if error.errno not in _DISK:
            _log.error("internal_error", path=request.url.path, exc_info=error)
            return problem_response(ErrorCode.INTERNAL_ERROR)
        # The text of the error names files, so it goes to the log only.
        failure = DiskFailure("the disk reports an error")
        log_failure(request, failure, reason=str(error))
        return problem_response(failure.code, failure.detail, retry_after_s=failure.retry_after_s)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> JSONResponse:
        return problem_response(ErrorCode.REQUEST_TIMEOUT)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        _log.error("internal_error", path=request.url.path, exc_info=error)
        return problem_response(ErrorCode.INTERNAL_ERROR)


def _allowed_methods(request: Request) -> list[str]:
    """All methods of the path of a request; the router itself stops at the first route of that path."""

    def is_route(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in ("GET", "POST", "PUT", "DELETE") if is_route(method)]


def responses(*codes: ErrorCode) -> dict[int | str, dict[str, Any]]:
    """The error answers of an operation, for the OpenAPI document."""
    found: dict[int | str, dict[str, Any]] = {}
    for code in dict.fromkeys((*codes, *COMMON)):
        known = found.setdefault(
            code.status,
            {
                "model": Problem,
                "description": "",
                "headers": error_headers(code.status),
                "content": {PROBLEM_MEDIA_TYPE: {"examples": {}}},
            },
        )
        known["description"] += f"- `{code.value}`: {code.summary}. The client {code.advice}.\n"
        example = Problem.of(code).model_dump(mode="json", exclude_none=True)
        known["content"][PROBLEM_MEDIA_TYPE]["examples"][code.value] = {"summary": code.summary, "value": example}
    return found
