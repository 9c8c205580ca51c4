"""Routes of the clients of a task: enrol, profile, selection, ledger, leave; and the operator's list of them."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Body, Request, Response
from pydantic import TypeAdapter

from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.credentials import CertificateEnrolment, NewClientToken
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.evidence import ProfileReceipt
from qidpfl_shared.protocol.ledger import Ledger
from qidpfl_shared.protocol.messages import ClientSummary, EnrolAnswer, EnrolRequest, Profile, SelectionVerdict

from ...errors import CoordinatorError, RequestRefused
from ...identifiers import hash_secret
from ...logs import LimitedLog
from ...service.credentials import CodeHolder, enrol_with_certificate, rotate_client_token
from ...service.enrolment import client_summaries, enrol, leave, revoke_client, store_profile
from ...service.progress.waiting import current_verdict
from ...service.views import ledger
from ..auth import (
    Admin,
    Bearer,
    Callers,
    ClientId,
    Operator,
    OtherClientId,
    TaskId,
    certificate_of,
    takes_certificates,
)
from ..context import Context, Ctx
from ..document import examples
from ..document.security import requirement
from ..errors import JSON_BODY, responses
from ..json_routes import StrictJsonRoute
from ..openapi import success

router = APIRouter(prefix="/v1/tasks/{task_id}/clients", tags=["clients"], route_class=StrictJsonRoute)
_log = structlog.get_logger()
_limited_log = LimitedLog()
_client_list = TypeAdapter(list[ClientSummary])
_OWN = (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN, ErrorCode.INVALID_REQUEST)
_OPERATOR = (*_OWN, ErrorCode.NOT_FOUND)
# Of an enrolment by code and by certificate.
_ENROLMENT = (
    ErrorCode.UNAUTHENTICATED,
    *JSON_BODY,
    ErrorCode.TASK_FULL,
    ErrorCode.TASK_NOT_ENROLLING,
    ErrorCode.TASK_ENDED,
    ErrorCode.ORDINAL_TAKEN,
    ErrorCode.ALREADY_ENROLLED,
    ErrorCode.OUT_OF_BOUNDS,
    ErrorCode.STORAGE_FULL,
)


@router.post(
    "",
    status_code=201,
    operation_id="enrol",
    summary="Enrol",
    responses=responses(*_ENROLMENT, ErrorCode.CODE_USED) | success(examples.ENROLLED, status=201),
)
async def enrol_client(
    context: Ctx,
    callers: Callers,
    task_id: TaskId,
    request: Annotated[EnrolRequest, Body(examples=[examples.ENROL])],
    connection: Request,
) -> EnrolAnswer:
    """Become a client of the task, with the enrolment code in the body and no token.

    Store the key before the request and the token after it. May be repeated with the same key until any call uses the
    token for the first time: the answer then has the same client with a new token. Read the task before: `GET` on the
    task with the enrolment code as bearer token.
    """
    now = context.now()
    try:
        await _limit_enrolments(context, task_id, request, connection)
        answer = await context.write(lambda tx: enrol(tx, task_id, request, now), task_id=task_id)
    except CoordinatorError as error:
        _limited_log.warning("enrolment_refused", task=task_id, reason=error.code.value)
        raise
    callers.clear()
    _log.info("client_enrolled", task=task_id, client_id=answer.client_id, ordinal=answer.ordinal)
    failpoint("enrol.after_commit")
    return context.signed(answer)


@router.post(
    "/certificate",
    status_code=201,
    operation_id="enrol_with_certificate",
    summary="Enrol with a certificate",
    responses=responses(*_ENROLMENT) | success(examples.ENROLLED, status=201),
    openapi_extra={"security": requirement("certificate")},
)
async def enrol_by_certificate(
    context: Ctx,
    callers: Callers,
    task_id: TaskId,
    request: Annotated[CertificateEnrolment, Body(examples=[{}])],
    connection: Request,
) -> EnrolAnswer:
    """Become a client of the task with the TLS certificate of the connection, if the operator allows it for the task.

    A certificate has one place in a task. The token is valid only on connections with this certificate. May be
    repeated until the token is used.
    """
    now, certificate = context.now(), certificate_of(connection)
    try:
        if certificate is None or not await takes_certificates(context, task_id):
            context.enrolments.count_wrong_code(connection.client.host if connection.client else "")
            raise RequestRefused(ErrorCode.UNAUTHENTICATED)
        context.enrolments.count(task_id)
        answer = await context.write(
            lambda tx: enrol_with_certificate(tx, task_id, certificate, request.ordinal, now), task_id=task_id
        )
    except CoordinatorError as error:
        _limited_log.warning("enrolment_refused", task=task_id, reason=error.code.value)
        raise
    callers.clear()
    _log.info(
        "client_enrolled", task=task_id, client_id=answer.client_id, ordinal=answer.ordinal, certificate=certificate
    )
    failpoint("enrol.after_commit")
    return context.signed(answer)


async def _limit_enrolments(context: Context, task_id: str, request: EnrolRequest, connection: Request) -> None:
    found = await context.look_up_credential(hash_secret(request.enrolment_code))
    if not isinstance(found, CodeHolder) or found.task_id != task_id:
        context.enrolments.count_wrong_code(connection.client.host if connection.client else "")
        raise RequestRefused(ErrorCode.UNAUTHENTICATED)
    context.enrolments.count(task_id)


@router.post(
    "/me/token",
    operation_id="renew_token",
    summary="Get a new token",
    responses=responses(*_OWN, ErrorCode.STORAGE_FULL) | success(examples.NEW_TOKEN),
)
async def rotate_token(context: Ctx, client_id: ClientId, task_id: TaskId, credentials: Bearer) -> NewClientToken:
    """The next token of the client. The current one stays valid until the next one is used for the first time.

    Store the new token durably, then use it. A repeat replaces a new token that was not used.
    """
    assert credentials is not None
    token_hash = hash_secret(credentials.credentials)
    answer = await context.write(lambda tx: rotate_client_token(tx, client_id, token_hash), task_id=task_id)
    _log.info("client_rotates", task=task_id, client_id=client_id)
    failpoint("rotate.after_commit")
    return answer


@router.put(
    "/me/profile",
    summary="Store the profile",
    responses=responses(
        *_OWN,
        *JSON_BODY,
        ErrorCode.PROFILE_FROZEN,
        ErrorCode.TASK_NOT_ENROLLING,
        ErrorCode.TASK_ENDED,
        ErrorCode.HISTOGRAM_MISMATCH,
        ErrorCode.HISTOGRAM_REQUIRED,
        ErrorCode.PRIVACY_VALUE_REQUIRED,
        ErrorCode.OUT_OF_BOUNDS,
        ErrorCode.STORAGE_FULL,
    )
    | success(examples.PROFILED),
)
async def put_profile(
    context: Ctx, client_id: ClientId, task_id: TaskId, profile: Annotated[Profile, Body(examples=[examples.PROFILE])]
) -> ProfileReceipt:
    """Label histogram, size, privacy value and caps. A stored profile cannot be changed; a repeat must be the same.

    The counts are noised with standard deviation 1/√ρ, then made whole and non-negative with the sum `size`. Their ρ
    counts against the lifetime budget. The first profile of a task begins its enrolment window.

    Where selection rule `all` keeps every client, the histogram may be left out: `label_counts` is null.
    """
    now = context.now()
    receipt = await context.write(lambda tx: store_profile(tx, client_id, profile, now, context.rules), task_id=task_id)
    failpoint("profile.after_commit")
    return context.signed(receipt)


@router.get("/me/selection", summary="Was I selected?", responses=responses(*_OWN) | success(examples.VERDICT))
async def get_selection(context: Ctx, client_id: ClientId, task_id: TaskId) -> SelectionVerdict:
    """The client's own label distance, the threshold and the counts."""
    now = context.now()
    return await context.read(lambda tx: current_verdict(tx, client_id, now))


@router.get("/me/ledger", summary="My ledger", responses=responses(*_OWN) | success(examples.LEDGER))
async def get_ledger(context: Ctx, client_id: ClientId, task_id: TaskId) -> Ledger:
    """What the client declared, what privacy loss is proven, and what it was paid.

    The client's own account counts: it also has updates that were sent and refused, which are freed here.
    """
    return await context.read(lambda tx: ledger(tx, client_id))


@router.delete("/me", operation_id="leave", status_code=204, summary="Leave", responses=responses(*_OWN))
async def leave_task(context: Ctx, client_id: ClientId, task_id: TaskId) -> None:
    """The client takes part in no further round. Its ledger stays."""
    now = context.now()
    await context.write(lambda tx: leave(tx, client_id, now), task_id=task_id)


@router.get("", summary="List the clients", response_model=list[ClientSummary], responses=responses(*_OPERATOR))
async def list_clients(context: Ctx, caller: Operator, task_id: TaskId) -> Response:
    """Every client with its profile, label distance and selection."""
    return await context.read_json(_client_list, lambda tx: client_summaries(tx, task_id))


@router.delete(
    "/{client_id}",
    operation_id="revoke_client",
    status_code=204,
    summary="Remove a client",
    responses=responses(*_OPERATOR),
)
async def delete_client(
    context: Ctx, callers: Callers, caller: Admin, task_id: TaskId, client_id: OtherClientId
) -> None:
    """Revoke the token of a client. It takes part in no further round; its ledger and its delivered update stay."""
    now = context.now()
    await context.write(lambda tx: revoke_client(tx, task_id, client_id, now), task_id=task_id)
    callers.clear()
    _log.info("client_revoked", task=task_id, client_id=client_id)
