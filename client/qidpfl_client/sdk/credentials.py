"""Enrolment codes, ids, keys and tokens, checked before the client sends anything."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.messages import EnrolRequest

from ..errors import Conflict, Misconfigured, Unauthenticated


@contextmanager
def enrolment_code_in_words() -> Iterator[None]:
    """Say in the errors of a call with an enrolment code what is wrong with it, and what to do."""
    try:
        yield
    except Unauthenticated as error:
        detail = "the enrolment code is wrong, or was revoked: ask the operator for another"
        raise Unauthenticated(code=error.code, status=error.status, detail=detail) from error
    except Conflict as error:
        if error.code is not ErrorCode.CODE_USED:
            raise
        detail = "ask the operator for another, or use the journal with which it was used"
        raise Conflict(code=error.code, status=error.status, detail=detail) from error


def split_code(code: str) -> tuple[str, str]:
    """The task id and the secret of an enrolment code.

    Raises:
        Misconfigured: the text is not an enrolment code.

    >>> split_code("digits1.s3cret")
    ('digits1', 's3cret')
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,300}", code):
        raise Misconfigured("an enrolment code looks like task.secret, in letters, digits, - and _")
    task_id, _, secret = code.partition(".")
    return task_id, secret


def checked_id(identifier: str, *, of: str) -> str:
    """The id of a task or a client, safe as a part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identifier):
        raise Misconfigured(f"the id of a {of} is made of letters, digits, - and _")
    return identifier


def checked_token(token: str) -> str:
    """The token, safe as a header. The check is here because the error of the HTTP library would show the token."""
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{1,400}", token):
        raise Misconfigured("a token is made of letters, digits and ._~+/=- without spaces or line ends")
    return token


def enrol_request(*, task_id: str, code: str, key: str, ordinal: int | None) -> EnrolRequest:
    """The request to enrol in this task."""
    if split_code(code)[0] != task_id:
        raise Misconfigured(f"this enrolment code is not for task {task_id}")
    try:
        return EnrolRequest(enrolment_code=code, enrolment_key=key, ordinal=ordinal)
    except ValidationError:
        # Not chained: pydantic's text shows code and key.
        raise Misconfigured(
            "an enrolment key has 16 to 200 letters, digits, - and _; an ordinal counts from 0"
        ) from None
