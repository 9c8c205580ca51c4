"""Rounds over real HTTP: what is refused leaves nothing behind, what is repeated gets its first receipt."""

import hashlib
import http.client
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, digest_header, running

pytestmark = pytest.mark.live

Gather = Callable[..., list[ScriptedClient]]
OCTETS = "application/octet-stream"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("rounds")) as live:
        yield live
        assert "0 violated" in live.audit()


@pytest.fixture(scope="module")
def gather(coordinator: Coordinator) -> Iterator[Gather]:
    """Makes a task whose first round is open, and gives its clients."""
    tasks: list[str] = []

    def gathered(count: int = 3, **overrides: Any) -> list[ScriptedClient]:
        rounds = NO_TIMEOUTS | {"expected_clients": count} | overrides.pop("rounds", {})
        newcomers = strangers(coordinator, count, rounds=rounds, **overrides)
        tasks.append(newcomers[0].task_id)
        for client in newcomers:
            client.enrol()
            client.profile().raise_for_status()
        return newcomers

    yield gathered
    for task_id in tasks:
        change(coordinator, task_id, "stop").raise_for_status()


def strangers(coordinator: Coordinator, count: int, **overrides: Any) -> list[ScriptedClient]:
    """Clients of a new task that have not enrolled yet."""
    rounds = NO_TIMEOUTS | overrides.pop("rounds", {})
    name = f"task-{next(_numbers)}"
    task_id, code = coordinator.create_task(name, rounds=rounds, **overrides)
    return [ScriptedClient(coordinator.url, task_id, code, f"{name}-key-of-client-{n}") for n in range(count)]


def change(coordinator: Coordinator, task_id: str, verb: str) -> httpx.Response:
    with coordinator.admin as http:
        return http.post(f"/v1/tasks/{task_id}/{verb}")


def offer_to(client: ScriptedClient, after: str = "0.0") -> dict[str, Any]:
    """The round that is open after the one already known."""
    answer = answer_to(client, after)
    assert answer["round"] is not None, answer
    offer: dict[str, Any] = answer["round"]
    return offer


def answer_to(client: ScriptedClient, after: str) -> dict[str, Any]:
    client.seen = after
    answer = client.poll(wait=40)
    assert answer is not None
    return answer


def play_all(clients: list[ScriptedClient], after: str = "0.0") -> None:
    for client in clients:
        client.play(offer_to(client, after))


def result(coordinator: Coordinator, task_id: str, number: int = 1) -> dict[str, Any]:
    with coordinator.admin as http:
        found: dict[str, Any] = http.get(f"/v1/tasks/{task_id}/rounds/{number}").raise_for_status().json()
        return found


def rows(coordinator: Coordinator, table: str, task_id: str) -> list[tuple[Any, ...]]:
    """The rows of a task, read with SQLite only."""
    with closing(sqlite3.connect(f"file:{coordinator.state_dir}/coordinator.db?mode=ro", uri=True)) as database:
        return database.execute(f"select * from {table} where task_id = ? order by 1, 2, 3", [task_id]).fetchall()


def left_behind(coordinator: Coordinator, data: bytes) -> list[str]:
    """Files and rows that some bytes have left on the disk."""
    blobs, digest = coordinator.state_dir / "blobs", hashlib.sha256(data).hexdigest()
    found = [path.name for path in (blobs / "objects").iterdir() if path.name == digest]
    with closing(sqlite3.connect(f"file:{coordinator.state_dir}/coordinator.db?mode=ro", uri=True)) as database:
        found += [name for (name,) in database.execute("select digest from small_blobs where digest = ?", [digest])]
    return found + [path.name for path in (blobs / "staging").iterdir()]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def put_update(
    client: ScriptedClient, data: bytes, number: int = 1, headers: dict[str, str | None] | None = None
) -> httpx.Response:
    """An upload with some headers replaced, or (None) left out."""
    usual: dict[str, str | None] = {"Content-Digest": digest_header(data), "Content-Type": OCTETS}
    given = {name: value for name, value in (usual | (headers or {})).items() if value is not None}
    return client.http.put(f"/rounds/{number}/update", content=data, headers=given)


def put_headers_only(client: ScriptedClient, digest: str, length: int) -> int:
    """The status of an upload whose body is never sent."""
    address = urlsplit(client.url)
    assert address.hostname is not None
    with closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as connection:
        connection.putrequest("PUT", f"/v1/tasks/{client.task_id}/rounds/1/update")
        for name, value in {
            "Authorization": f"Bearer {client.token}",
            "Content-Digest": digest,
            "Content-Type": OCTETS,
            "Content-Length": str(length),
        }.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status


# --- uploads ---------------------------------------------------------------------------------------------------------


def test_ten_parallel_repeats_of_one_upload_are_one_row_one_receipt_one_payment(
    coordinator: Coordinator, gather: Gather
) -> None:
    first, *others = gather(game={"horizon": 1})
    offer = offer_to(first)
    first.declare(offer).raise_for_status()
    body = first.update(offer)

    def send(_: int) -> httpx.Response:
        with httpx.Client(base_url=first.http.base_url, headers=first.http.headers, timeout=60) as own:
            headers = {"Content-Digest": digest_header(body), "Content-Type": OCTETS}
            return own.put("/rounds/1/update", content=body, headers=headers)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(send, range(10)))
    assert [answer.status_code for answer in answers] == [200] * 10
    assert len({answer.content for answer in answers}) == 1
    assert len(rows(coordinator, "updates", first.task_id)) == 1

    play_all(others)
    assert answer_to(first, "1.1")["task_state"] == "finished"
    payments = rows(coordinator, "payments", first.task_id)
    assert len({client_id for _, _, client_id, *_ in payments}) == len(payments) == 3
    assert sum(amount for _, _, _, amount, _ in payments) == result(coordinator, first.task_id)["reward_micro"]


class Doomed:
    """A round in which one client has declared, one has declined, one is silent and one was never selected."""

    def __init__(self, coordinator: Coordinator, gather: Gather) -> None:
        newcomers = strangers(coordinator, 5, rounds={"expected_clients": 5, "min_clients": 3})
        newcomers[4].labels = (110, *(0,) * 9)
        for client in newcomers:
            client.enrol()
            client.profile().raise_for_status()
        self.declared, self.declined, self.silent, self.delivered, self.unselected = newcomers
        self.foreign = gather()[0]
        offer = offer_to(self.declared)
        self.declared.declare(offer).raise_for_status()
        self.declined.http.put("/rounds/1/budget", json={"decline": True, "reason": "no"}).raise_for_status()
        self.delivered.play(offer)
        self.body = self.declared.update(offer)
        self.stored = self.delivered.update(offer)


@pytest.fixture(scope="module")
def doomed(coordinator: Coordinator, gather: Gather) -> Iterator[Doomed]:
    made = Doomed(coordinator, gather)
    yield made
    change(coordinator, made.declared.task_id, "stop").raise_for_status()


def _with_value(data: bytes, value: float) -> bytes:
    vector = np.frombuffer(data, "<f4").copy()
    vector[-1] = value
    return vector.tobytes()


REFUSED_BODIES: dict[str, tuple[Callable[[bytes], bytes], dict[str, str | None], int, str]] = {
    "short by one parameter": (lambda body: body[:-4], {}, 422, "wrong_length"),
    "short by one byte": (lambda body: body[:-1], {}, 422, "wrong_length"),
    "empty": (lambda body: b"", {}, 422, "wrong_length"),
    "one parameter more": (lambda body: body + b"\0" * 4, {}, 413, "body_too_large"),
    "eight megabytes": (lambda body: b"\0" * (8 << 20), {}, 413, "body_too_large"),
    "NaN": (lambda body: _with_value(body, np.nan), {}, 422, "not_finite"),
    "infinity": (lambda body: _with_value(body, np.inf), {}, 422, "not_finite"),
    "minus infinity": (lambda body: _with_value(body, -np.inf), {}, 422, "not_finite"),
    "other bytes": (lambda body: body, {"Content-Digest": digest_header(b"other")}, 422, "digest_mismatch"),
    "no digest": (lambda body: body, {"Content-Digest": None}, 422, "digest_required"),
    "a digest of another kind": (lambda body: body, {"Content-Digest": "md5=:AAAA:"}, 422, "digest_required"),
    "half a digest": (lambda body: body, {"Content-Digest": "sha-256=:AAAA:"}, 422, "digest_required"),
    "a digest without colons": (lambda body: body, {"Content-Digest": "sha-256=AAAA"}, 422, "digest_required"),
    "compressed": (lambda body: body, {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    "as JSON": (lambda body: body, {"Content-Type": "application/json"}, 415, "unsupported_media_type"),
    "as a form": (lambda body: body, {"Content-Type": "multipart/form-data"}, 415, "unsupported_media_type"),
}


@pytest.mark.parametrize("what", REFUSED_BODIES)
def test_an_impossible_body_is_refused_and_leaves_nothing(coordinator: Coordinator, doomed: Doomed, what: str) -> None:
    make, headers, status, code = REFUSED_BODIES[what]
    data = make(doomed.body)
    before = rows(coordinator, "updates", doomed.declared.task_id)
    assert refusal(put_update(doomed.declared, data, headers=headers)) == (status, code)
    assert rows(coordinator, "updates", doomed.declared.task_id) == before
    assert left_behind(coordinator, data) == []


def test_an_upload_without_a_length_is_refused(coordinator: Coordinator, doomed: Doomed) -> None:
    headers = {"Content-Digest": digest_header(doomed.body), "Content-Type": OCTETS}
    answer = doomed.declared.http.put("/rounds/1/update", content=iter([doomed.body]), headers=headers)
    assert refusal(answer) == (411, "length_required")
    assert left_behind(coordinator, doomed.body) == []


REFUSED_SENDERS: dict[str, tuple[Callable[[Doomed], tuple[ScriptedClient, bytes, int]], int, str]] = {
    "without a budget": (lambda d: (d.silent, d.body, 1), 409, "budget_missing"),
    "after a decline": (lambda d: (d.declined, d.body, 1), 409, "budget_missing"),
    "never invited": (lambda d: (d.unselected, d.body, 1), 409, "not_invited"),
    "before the round is announced": (lambda d: (d.declared, d.body, 2), 404, "not_found"),
    "for an impossible round": (lambda d: (d.declared, d.body, 1_000_001), 422, "invalid_request"),
    "with another's bytes": (lambda d: (d.declared, d.stored, 1), 409, "update_replayed"),
    "a second one": (lambda d: (d.delivered, d.body, 1), 409, "update_exists"),
}


@pytest.mark.parametrize("what", REFUSED_SENDERS)
def test_an_upload_that_may_not_be_sent_is_refused_and_leaves_nothing(
    coordinator: Coordinator, doomed: Doomed, what: str
) -> None:
    pick, status, code = REFUSED_SENDERS[what]
    client, data, number = pick(doomed)
    before = rows(coordinator, "updates", client.task_id)
    assert refusal(put_update(client, data, number)) == (status, code)
    assert rows(coordinator, "updates", client.task_id) == before
    assert data == doomed.stored or left_behind(coordinator, data) == []


def test_a_client_of_another_task_cannot_upload_here(coordinator: Coordinator, doomed: Doomed) -> None:
    before = rows(coordinator, "updates", doomed.declared.task_id)
    url = f"{doomed.declared.http.base_url}rounds/1/update"
    headers = {"Content-Digest": digest_header(doomed.body), "Content-Type": OCTETS}
    assert refusal(doomed.foreign.http.put(url, content=doomed.body, headers=headers)) == (403, "forbidden")
    assert rows(coordinator, "updates", doomed.declared.task_id) == before
    assert left_behind(coordinator, doomed.body) == []


def test_a_large_upload_is_refused_or_acknowledged_before_its_body_is_read(coordinator: Coordinator) -> None:
    declared, silent, delivered = clients = strangers(
        coordinator, 3, preset="emnist-small", selection={"rule": "all"}, rounds={"expected_clients": 3}
    )
    for client in clients:
        client.labels = (11,) * 62
        client.enrol()
        client.profile().raise_for_status()
    offer = offer_to(declared)
    declared.declare(offer).raise_for_status()
    delivered.play(offer)
    digest, length = digest_header(declared.update(offer)), len(declared.update(offer))
    assert put_headers_only(silent, digest, length) == 409
    assert put_headers_only(declared, digest, length + 1) == 413
    assert put_headers_only(delivered, digest_header(delivered.update(offer)), length) == 200
    change(coordinator, declared.task_id, "stop").raise_for_status()
    assert put_headers_only(declared, digest, length) == 410


# --- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "code"),
    [
        ({"rho": 0.51}, "out_of_bounds"),
        ({"rho": 0.009}, "out_of_bounds"),
        ({"join": True}, "out_of_bounds"),
        ({"rho": 0}, "invalid_request"),
        ({"rho": -0.05}, "invalid_request"),
        ({"rho": True}, "invalid_request"),
        ({"rho": "0.05"}, "invalid_request"),
        ({"rho": 0.05, "decline": True, "reason": ""}, "invalid_request"),
        ({"decline": False, "reason": ""}, "invalid_request"),
        ({}, "invalid_request"),
    ],
)
def test_an_impossible_budget_is_refused_and_not_recorded(
    coordinator: Coordinator, bounded: ScriptedClient, budget: dict[str, Any], code: str
) -> None:
    assert refusal(bounded.http.put("/rounds/1/budget", json=budget)) == (422, code)
    assert rows(coordinator, "budgets", bounded.task_id) == []


@pytest.mark.parametrize(
    ("budget", "paths"),
    [
        ({"rho": "0.05"}, ["/body/Declaration/rho"]),
        ({"rho": -1.0, "reason": "x"}, ["/body/Declaration/rho", "/body/Declaration/reason"]),
        ({}, ["/body/Declaration/rho"]),
        ({"decline": True}, ["/body/Decline/reason"]),
        ({"decline": True, "reason": "too_late", "rho": 0.05}, ["/body/Decline/rho"]),
        ({"join": 1}, ["/body/Join/join"]),
        ([], ["/body/Declaration"]),
    ],
)
def test_an_answer_lists_the_errors_of_its_own_kind_only(
    bounded: ScriptedClient, budget: Any, paths: list[str]
) -> None:
    answer = bounded.http.put("/rounds/1/budget", json=budget)
    assert answer.status_code == 422
    assert [error["path"] for error in answer.json()["errors"]] == paths


@pytest.fixture(scope="module")
def bounded(gather: Gather) -> ScriptedClient:
    """A client that is invited to a round where budgets lie in [0.01, 0.5]."""
    client = gather(bounds={"rho_min": 0.01})[0]
    assert offer_to(client)["standing"] == "invited"
    return client


# --- enrolment -------------------------------------------------------------------------------------------------------


def test_a_profile_is_frozen_and_must_fit_the_task(coordinator: Coordinator) -> None:
    client = strangers(coordinator, 1)[0]
    client.enrol()
    for change_of, code in (
        ({"label_counts": [11] * 9 + [12]}, "histogram_mismatch"),
        ({"label_counts": [55, 55]}, "histogram_mismatch"),
        ({"privacy_value": 1000.0}, "out_of_bounds"),
        ({"privacy_value": 0.001}, "out_of_bounds"),
        ({"privacy_value": None}, "privacy_value_required"),
        ({"label_counts": [0] * 9 + [10_000_001], "size": 10_000_001}, "out_of_bounds"),
        ({"label_counts": [-11] + [11] * 9 + [22]}, "invalid_request"),
    ):
        profile = {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0} | change_of
        assert refusal(client.http.put("/clients/me/profile", json=profile)) == (422, code)
    assert client.profile().status_code == 200
    assert client.profile().status_code == 200
    client.privacy_value = 2.0
    frozen = client.profile()
    assert refusal(frozen) == (409, "profile_frozen")
    assert frozen.json()["detail"] == "the stored profile has another privacy_value"


# --- the life of a task ----------------------------------------------------------------------------------------------


def test_an_admin_begins_the_enrolment_window(coordinator: Coordinator) -> None:
    (lonely,) = strangers(coordinator, 1)
    refused = change(coordinator, lonely.task_id, "start")
    assert (refused.status_code, refused.json()["code"]) == (409, "profile_missing")
    for _ in range(2):
        begun = change(coordinator, lonely.task_id, "start?window=true")
        assert (begun.status_code, begun.json()["state"]) == (200, "enrolling")
    change(coordinator, lonely.task_id, "stop").raise_for_status()
