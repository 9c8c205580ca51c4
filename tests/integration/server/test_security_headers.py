"""Security headers on every answer: of routes, errors, documents and the HTTP parser."""

from collections.abc import Iterator

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, connected, until_closed

pytestmark = pytest.mark.live

ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
CLOSED = "default-src 'none'; frame-ancestors 'none'"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("state")) as live:
        yield live


def check(headers: httpx.Headers, *, policy: str = CLOSED, cache: str = "no-store") -> None:
    expected = ALWAYS | {"content-security-policy": policy, "cache-control": cache}
    assert {name: headers.get(name) for name in expected} == expected
    for name in expected:
        assert len(headers.get_list(name)) == 1, name
    # Over plain http it would have no effect, and no answer says which program made it.
    assert "strict-transport-security" not in headers and "server" not in headers


def test_answers_with_secrets_errors_and_health_have_the_headers(coordinator: Coordinator) -> None:
    task_id, code = coordinator.create_task("headers")
    client = ScriptedClient(coordinator.url, task_id, code, "the-key-of-client-0")
    enrolment = {"enrolment_code": code, "enrolment_key": "the-key-of-client-0"}
    check(client.http.post("/clients", json=enrolment).headers)
    client.enrol()
    with coordinator.admin as admin:
        answers = [
            admin.get("/healthz"),
            admin.get("/metrics"),
            admin.get("/openapi.json"),
            admin.get("/v1/tasks"),
            admin.get("/nowhere"),
            admin.put("/v1/tasks"),
            admin.post("/v1/tasks", content=b"{", headers={"Content-Type": "application/json"}),
            admin.post("/v1/operator-tokens", json={"name": "x", "role": "viewer"}),
            client.http.get("/clients/me/ledger"),
            client.http.get("/clients/me/selection", headers={"Authorization": "Bearer wrong"}),
            client.http.get("/rounds/current"),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404, 405, 400, 201, 200, 401, 200]
    for answer in answers:
        check(answer.headers)
        assert "x-request-id" in answer.headers


def test_a_model_keeps_its_etag_and_may_be_kept_by_its_reader(coordinator: Coordinator) -> None:
    task_id, _ = coordinator.create_task("models")
    with coordinator.admin as admin:
        model = admin.get(f"/v1/tasks/{task_id}/models/0")
        again = admin.get(f"/v1/tasks/{task_id}/models/0", headers={"If-None-Match": model.headers["ETag"]})
    assert (model.status_code, again.status_code) == (200, 304)
    for answer in (model, again):
        check(answer.headers, cache="private, no-cache")


@pytest.mark.parametrize("path", ["/", "/guide", "/guide/protocol", "/docs", "/docs/static/docs.js"])
def test_the_pages_of_the_documentation_load_only_from_this_server(coordinator: Coordinator, path: str) -> None:
    page = httpx.get(f"{coordinator.url}{path}", timeout=60)
    assert page.status_code == 200
    policy = page.headers["Content-Security-Policy"]
    check(page.headers, policy=policy, cache="private, no-cache")
    assert "frame-ancestors 'none'" in policy and "default-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy


@pytest.mark.parametrize("sent", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000])
def test_an_answer_of_the_parser_has_the_headers_too(coordinator: Coordinator, sent: bytes) -> None:
    with connected(coordinator) as connection:
        connection.sendall(sent)
        head = until_closed(connection).partition(b"\r\n\r\n")[0].decode()
    lines = [line.partition(": ") for line in head.splitlines()[1:]]
    check(httpx.Headers([(name, value) for name, _, value in lines]))


def test_an_unexpected_error_has_the_headers_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    """This answer comes from outside of all middleware of the application."""
    with Coordinator(tmp_path_factory.mktemp("state"), sabotage=fail_on_list) as coordinator:
        with coordinator.admin as admin:
            answer = admin.get("/v1/operator-tokens")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        check(answer.headers)


def fail_on_list() -> None:
    """Break the list of tokens in the process of the coordinator."""
    from qidpfl_server.store.repositories.credentials import OperatorTokenRows

    def broken(self: OperatorTokenRows) -> None:
        raise RuntimeError("broken on purpose")

    OperatorTokenRows.all = broken  # type: ignore[assignment, method-assign]
