"""The short way of an operation and its documented route give the same answer."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, budget_in, digest_header, running

pytestmark = pytest.mark.live

# The short way does not take a request with a repeated header.
ROUTE = [("X-Again", "1"), ("X-Again", "2")]
# Of each request, or of its moment.
VOLATILE = {"x-request-id", "date"}
SECONDS_LEFT = ("declare_in_s", "deliver_in_s")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ScriptedClient]]:
    with running(tmp_path_factory.mktemp("fast-path")) as live:
        yield gathered(live)
        assert "0 violated" in live.audit()


def gathered(coordinator: Coordinator) -> list[ScriptedClient]:
    task_id, code = coordinator.create_task(rounds=NO_TIMEOUTS | {"expected_clients": 3})
    found = [ScriptedClient(coordinator.url, task_id, code, f"a-key-of-client-{n}") for n in range(3)]
    for client in found:
        client.enrol()
        client.profile().raise_for_status()
    return found


def offer_of(client: ScriptedClient) -> dict[str, Any]:
    offer: dict[str, Any] = (client.poll() or {})["round"]
    return offer


def both(client: ScriptedClient, method: str, path: str, **request: Any) -> tuple[httpx.Response, httpx.Response]:
    """The answers of the short way and of the route."""
    headers = request.pop("headers", [])
    return tuple(  # type: ignore[return-value]
        client.http.request(
            method, path, headers=httpx.Headers([*client.http.headers.items(), *headers, *extra]), **request
        )
        for extra in ([], ROUTE)
    )


def seen(answer: httpx.Response) -> tuple[int, dict[str, str], Any]:
    headers = {name: value for name, value in answer.headers.items() if name not in VOLATILE}
    body: Any = answer.content
    if "json" in answer.headers.get("content-type", ""):
        body = answer.json()
        if body.get("round") is not None:
            body["round"] = {name: value for name, value in body["round"].items() if name not in SECONDS_LEFT}
            headers.pop("content-length")
    return answer.status_code, headers, body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/rounds/current", 200),
        ("/rounds/current?after=0.0&wait=5", 200),
        ("/rounds/current?wait=0.5", 200),
        ("/rounds/current?after=1.1&wait=0", 204),
        ("/rounds/current?after=1.1&wait=0&more=1", 204),
        ("/rounds/current?after=1&wait=0", 422),
        ("/rounds/current?after=1.1wait=0", 422),
        ("/rounds/current?wait=61", 422),
        ("/rounds/current?wait=-1", 422),
        ("/models/0", 200),
        ("/models/1", 404),
        ("/models/-1", 422),
        ("/models/1000001", 422),
    ],
)
def test_a_reading_request_has_one_answer(clients: list[ScriptedClient], path: str, status: int) -> None:
    offer_of(clients[0])
    short, route = both(clients[0], "GET", path)
    assert short.status_code == status
    assert seen(short) == seen(route)


def test_a_known_model_is_not_sent_again(clients: list[ScriptedClient]) -> None:
    etag = clients[0].http.get("/models/0").headers["etag"]
    short, route = both(clients[0], "GET", "/models/0", headers=[("If-None-Match", etag)])
    assert short.status_code == 304
    assert seen(short) == seen(route)


@pytest.mark.parametrize(
    ("content", "media", "status"),
    [
        (b'{"rho": "1"}', "application/json", 422),
        (b'{"rho": 0.1, "rho": 0.1}', "application/json", 400),
        (b'{"rho": 0.1', "application/json", 400),
        (b"", "application/json", 422),
        (b'{"rho": 1e9}', "application/json", 422),
        (b'{"rho": 0.1}', "text/plain", 415),
        (b" " * 20_000, "application/json", 413),
    ],
)
def test_a_wrong_budget_has_one_answer(clients: list[ScriptedClient], content: bytes, media: str, status: int) -> None:
    offer_of(clients[0])
    headers = [("Content-Type", media)]
    short, route = both(clients[0], "PUT", "/rounds/1/budget", content=content, headers=headers)
    assert short.status_code == status
    assert seen(short) == seen(route)


@pytest.mark.parametrize("number", ["0", "2", "1000001", "x"])
def test_a_round_that_is_not_open_has_one_answer(clients: list[ScriptedClient], number: str) -> None:
    for path, request in (("budget", {"json": {"rho": 0.1}}), ("update", {"content": b"1234"})):
        digest = [("Content-Digest", digest_header(b"1234"))]
        short, route = both(clients[0], "PUT", f"/rounds/{number}/{path}", headers=digest, **request)
        assert short.status_code in (404, 422)
        assert seen(short) == seen(route)


def test_receipts_are_the_same(clients: list[ScriptedClient]) -> None:
    client = clients[1]
    offer = offer_of(client)
    short, route = both(client, "PUT", "/rounds/1/budget", json={"rho": budget_in(offer)})
    assert short.status_code == 200 and seen(short) == seen(route)
    update = client.update(offer)
    headers = [("Content-Digest", digest_header(update)), ("Content-Type", "application/octet-stream")]
    short, route = both(client, "PUT", "/rounds/1/update", content=update, headers=headers)
    assert short.status_code == 200 and seen(short) == seen(route)


@pytest.mark.parametrize("credentials", ["", "Bearer", "Bearer wrong", "Basic eDp5", "bearer  wrong"])
def test_a_caller_without_a_token_has_one_answer(clients: list[ScriptedClient], credentials: str) -> None:
    base = str(clients[0].http.base_url)
    with httpx.Client(base_url=base, headers={"Authorization": credentials}) as outsider:
        for method, path in (("GET", "/rounds/current"), ("GET", "/models/0"), ("PUT", "/rounds/1/update")):
            answers = [outsider.request(method, path, headers=httpx.Headers(extra)) for extra in ([], ROUTE)]
            assert answers[0].status_code == 401
            assert seen(answers[0]) == seen(answers[1])


def test_a_client_of_another_task_has_one_answer(clients: list[ScriptedClient]) -> None:
    other = httpx.Client(base_url=clients[0].url + "/v1/tasks/abc", headers=clients[0].http.headers)
    with other:
        for path in ("/rounds/current", "/models/0"):
            answers = [other.get(path, headers=httpx.Headers(extra)) for extra in ([], ROUTE)]
            assert answers[0].status_code == 403
            assert seen(answers[0]) == seen(answers[1])
