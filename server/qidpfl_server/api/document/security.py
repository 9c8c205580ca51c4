"""The security schemes of the OpenAPI document: one for each role, and which of them an operation takes.

The dependencies of a route decide which callers it serves. So the document is made from them and cannot differ.
"""

from collections.abc import Callable, Iterator
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from .. import auth

_TOKEN = {"type": "http", "scheme": "bearer"}
SCHEMES: dict[str, dict[str, str]] = {
    "client": {
        **_TOKEN,
        "description": "The token that `enrol` returns: for the operations of one client in one task. The token of a"
        " client that has enrolled with a certificate is valid only on connections with this certificate.",
    },
    "enrolment_code": {
        **_TOKEN,
        "description": "An enrolment code `{task_id}.{secret}`, which the operator hands out. As a bearer token it only"
        " reads the task; `enrol` takes it in its body.",
    },
    "viewer": {
        **_TOKEN,
        "description": "The token of an operator that only reads: of all tasks, or of one task.",
    },
    "admin": {
        **_TOKEN,
        "description": "The token of an operator that may change everything: of all tasks, or of one task. Creating"
        " tasks and tokens needs an admin of all tasks.",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "A TLS certificate of the client, in tasks in which the operator accepts it instead of an"
        " enrolment code.",
    },
}
_OPERATORS = ("admin", "viewer")
_ROLES: dict[Callable[..., Any], tuple[str, ...]] = {
    auth.global_admin: ("admin",),
    auth.admin: ("admin",),
    auth.any_operator: _OPERATORS,
    auth.operator: _OPERATORS,
    auth.reader: ("client", *_OPERATORS),
    auth.task_caller: ("client", "enrolment_code", "certificate", *_OPERATORS),
    auth.participant: ("client",),
}


def requirement(*roles: str) -> list[dict[str, list[str]]]:
    """The security of an operation that takes the credentials of any of these roles."""
    return [{role: []} for role in roles]


def security_of(route: APIRoute, documented: list[dict[str, list[str]]]) -> list[dict[str, list[str]]]:
    """The security of a route: of its dependencies, or what the route itself documents; empty for an open one."""
    roles = [role for call in _calls(route.dependant) for role in _ROLES.get(call, ())]
    if roles:
        return requirement(*dict.fromkeys(roles))
    # FastAPI also names the scheme of its own dependency.
    return [one for one in documented if one.keys() <= SCHEMES.keys()]


def _calls(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    if dependant.call is not None:
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _calls(inner)
