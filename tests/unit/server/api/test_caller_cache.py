"""Which callers are cached, which of them are valid, and which requests take the lane of operators."""

from typing import Any

import pytest

from qidpfl_server.api.auth import Caller, CallerCache, CallerRole
from qidpfl_server.api.limits import Lane, RequestLimits
from qidpfl_server.api.metrics import Metrics
from qidpfl_server.api.rates import CallerRates
from qidpfl_server.identifiers import hash_secret
from qidpfl_server.ops.tokens import Secrets

ADMIN = Caller(CallerRole.ADMIN, operator="1")
OF_TASK = Caller(CallerRole.ADMIN, task_id="t", operator="2")
CLIENT = Caller(CallerRole.CLIENT, client_id="c", task_id="t")


@pytest.fixture
def callers() -> CallerCache:
    return CallerCache()


def add(callers: CallerCache, token: str, caller: Caller) -> None:
    callers.add(hash_secret(token), caller, generation=callers.generation)


def test_a_caller_that_was_read_before_a_revocation_is_not_cached(callers: CallerCache) -> None:
    before = callers.generation
    callers.clear()
    callers.add(hash_secret("token"), ADMIN, generation=before)
    assert callers.get(hash_secret("token")) is None


def test_credentials_end_at_their_time_and_need_their_certificate() -> None:
    until = Caller(CallerRole.VIEWER, expires_at=100)
    assert [until.is_valid(None, now) for now in (99, 100)] == [True, False]
    bound = Caller(CallerRole.CLIENT, certificate="mine")
    assert [bound.is_valid(shown, 0) for shown in ("mine", "other", None)] == [True, False, False]
    assert ADMIN.is_valid("any", 0) and ADMIN.is_valid(None, 0)


def test_only_operators_of_all_tasks_have_a_lane_of_their_own(callers: CallerCache) -> None:
    """An operator of one task, or a client, cannot fill the lane of the others. Clearing the cache changes no lane."""
    for token, caller in {"admin": ADMIN, "of-task": OF_TASK, "client": CLIENT}.items():
        add(callers, token, caller)
    secrets = Secrets(admin="static-admin", viewer="static-viewer")
    limits = RequestLimits(
        _no_app,
        metrics=Metrics(),
        secrets=secrets,
        callers=callers,
        rates=CallerRates(per_client_s=1.0, per_address_s=1.0),
        max_requests=1,
        max_requests_per_client=1,
    )

    def lane(token: str) -> Lane:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        return limits._kind({"path": "/v1/tasks", "headers": headers}).lane

    operators = ("static-admin", "static-viewer", "admin")
    callers.clear()
    assert {lane(token) for token in operators} == {Lane.OPERATOR}
    assert {lane(token) for token in ("of-task", "client", "unknown")} == {Lane.CLIENT}
    callers.forget_operator(hash_secret("admin"))
    secrets.replace(Secrets(admin="new-admin", viewer="static-viewer"))
    assert {lane(token) for token in ("admin", "static-admin")} == {Lane.CLIENT}
    assert lane("new-admin") is Lane.OPERATOR


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not called")


def test_changed_tokens_are_named_by_their_roles() -> None:
    secrets = Secrets(admin="a", viewer="v")
    assert secrets.replace(Secrets(admin="a", viewer="w")) == ["viewer"]
    assert (secrets.admin, secrets.viewer) == ("a", "w")
