"""What the owner gives to reach a task: its code, id, key and token, checked before anything is sent."""

import re

from pydantic import ValidationError

from qidpfl_shared.protocol.messages import EnrolRequest

from ..errors import Misconfigured


def split_code(code: str) -> tuple[str, str]:
    """The task's id and the secret of an enrolment code."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,300}", code):
        raise Misconfigured("an enrolment code looks like task.secret, in letters, digits, - and _")
    task_id, _, secret = code.partition(".")
    return task_id, secret


def checked_id(identifier: str, *, of: str) -> str:
    """The id of a task or a client, which becomes a part of paths."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identifier):
        raise Misconfigured(f"the id of a {of} is made of letters, digits, - and _")
    return identifier


def checked_token(token: str) -> str:
    """The token, which becomes a header: the HTTP library refuses an impossible one in a message that shows it."""
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{1,400}", token):
        raise Misconfigured("a token is made of letters, digits and ._~+/=- without spaces or line ends")
    return token


def enrol_request(*, task_id: str, code: str, key: str, ordinal: int | None) -> EnrolRequest:
    """The request to join this task."""
    if split_code(code)[0] != task_id:
        raise Misconfigured(f"this enrolment code is not for task {task_id}")
    try:
        return EnrolRequest(enrolment_code=code, enrolment_key=key, ordinal=ordinal)
    except ValidationError:
        # Not chained: pydantic's text shows code and key.
        raise Misconfigured(
            "an enrolment key has 16 to 200 letters, digits, - and _; an ordinal counts from 0"
        ) from None
