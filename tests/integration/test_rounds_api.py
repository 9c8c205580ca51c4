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

from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, digest_header, move_deadline, running

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


def ledger(client: ScriptedClient, number: int = 1) -> dict[str, Any]:
    """The entry of one round."""
    entries = client.http.get("/clients/me/ledger").raise_for_status().json()["entries"]
    found: dict[str, Any] = next(entry for entry in entries if entry["release"] == f"round/{number}")
    return found


def rows(coordinator: Coordinator, table: str, task_id: str) -> list[tuple[Any, ...]]:
    """What the database file holds of a task, read by nobody's code but SQLite's."""
    with closing(sqlite3.connect(f"file:{coordinator.state_dir}/coordinator.db?mode=ro", uri=True)) as database:
        return database.execute(f"select * from {table} where task_id = ? order by 1, 2, 3", [task_id]).fetchall()


def left_behind(coordinator: Coordinator, data: bytes) -> list[str]:
    """Files that some bytes have left on the disk."""
    blobs = coordinator.state_dir / "blobs"
    found = [path.name for path in (blobs / "objects").iterdir() if path.name == hashlib.sha256(data).hexdigest()]
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
    assert len({client_id for _, _, client_id, _ in payments}) == len(payments) == 3
    assert sum(amount for *_, amount in payments) == result(coordinator, first.task_id)["reward_micro"]


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


def test_a_norm_that_no_noise_explains_is_refused_and_leaves_nothing(coordinator: Coordinator, gather: Gather) -> None:
    client, *_ = gather()
    offer = offer_to(client)
    client.declare(offer).raise_for_status()
    honest = np.frombuffer(client.update(offer), dtype="<f4")
    for vector in (np.full_like(honest, 3e38), honest * np.float32(100)):
        assert refusal(client.upload(offer, vector.tobytes())) == (422, "out_of_bounds")
        assert rows(coordinator, "updates", client.task_id) == []
        assert left_behind(coordinator, vector.tobytes()) == []
    # Three times the noise is too much, but that is the audit's to say.
    assert client.upload(offer, (honest * np.float32(3)).tobytes()).status_code == 200


def test_without_noise_only_the_signal_counts(coordinator: Coordinator, gather: Gather) -> None:
    client, *_ = gather(privacy={"noise": False}, game={"policy": "none"})
    offer = offer_to(client)
    client.http.put("/rounds/1/budget", json={"join": True}).raise_for_status()
    empty = bytes(4 * offer["dimension"])
    assert refusal(client.upload(offer, _with_value(empty, 11 * offer["clip_norm"]))) == (422, "out_of_bounds")
    assert client.upload(offer, _with_value(empty, offer["clip_norm"])).status_code == 200


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


def test_a_settled_round_repeats_its_first_receipts_and_takes_nothing_new(
    coordinator: Coordinator, gather: Gather
) -> None:
    *three, late = gather(4, game={"horizon": 3})
    offer = offer_to(late)
    late.http.put("/rounds/1/budget", json={"decline": True, "reason": "busy"}).raise_for_status()
    receipts = [(client.declare(offer).json(), client.upload(offer).json()) for client in three]
    assert offer_to(late, "1.1")["round_number"] == 2

    for client, (budget, update) in zip(three, receipts, strict=True):
        again = client.declare(offer), client.upload(offer)
        assert [answer.status_code for answer in again] == [200, 200]
        assert [answer.json() for answer in again] == [budget, update]
    fresh = late.update(offer)
    assert refusal(put_update(late, fresh)) == (410, "round_closed")
    assert refusal(put_update(three[0], fresh)) == (409, "update_exists")
    assert refusal(late.declare(offer)) == (410, "round_closed")
    assert left_behind(coordinator, fresh) == []
    assert len(rows(coordinator, "updates", late.task_id)) == 3

    second = offer_to(three[0], "1.1")
    three[0].declare(second).raise_for_status()
    assert refusal(put_update(three[0], three[0].sent[1], 2)) == (409, "update_replayed")
    assert len(rows(coordinator, "updates", late.task_id)) == 3


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_a_declaration_can_be_taken_back_once_and_still_counts_in_the_split(
    coordinator: Coordinator, gather: Gather
) -> None:
    *three, changing = gather(4, game={"horizon": 1})
    offer = offer_to(changing)
    declared = changing.declare(offer).json()
    assert changing.declare(offer).json() == declared
    assert refusal(changing.http.put("/rounds/1/budget", json={"rho": 0.06})) == (409, "budget_declared")

    decline = {"decline": True, "reason": "changed my mind"}
    taken_back = changing.http.put("/rounds/1/budget", json=decline)
    assert (taken_back.json()["state"], taken_back.json()["rho"]) == ("declined", 0.05)
    assert changing.http.put("/rounds/1/budget", json=decline).json() == taken_back.json()
    assert refusal(changing.declare(offer)) == (409, "budget_declared")
    assert refusal(changing.upload(offer)) == (409, "budget_missing")

    play_all(three)
    assert answer_to(changing, "1.1")["task_state"] == "finished"
    settled = result(coordinator, changing.task_id)
    assert settled["declared_total"] == pytest.approx(0.2)
    assert settled["kept_micro"] == pytest.approx(settled["reward_micro"] / 4, abs=1)
    assert ledger(changing)["state"] == "freed"


def test_a_decline_after_the_upload_comes_too_late(gather: Gather) -> None:
    client = gather()[0]
    client.play(offer_to(client))
    answer = client.http.put("/rounds/1/budget", json={"decline": True, "reason": "too late"})
    assert refusal(answer) == (409, "update_exists")


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


@pytest.fixture(scope="module")
def bounded(gather: Gather) -> ScriptedClient:
    """A client that is invited to a round where budgets lie in [0.01, 0.5]."""
    client = gather(bounds={"rho_min": 0.01})[0]
    assert offer_to(client)["standing"] == "invited"
    return client


@pytest.mark.parametrize("cap", [{"rho_cap": 0.04}, {"lifetime_rho": 0.14}])
def test_a_budget_above_the_clients_own_caps_is_refused(coordinator: Coordinator, cap: dict[str, float]) -> None:
    capped, *others = strangers(coordinator, 3, rounds={"expected_clients": 3})
    capped.enrol()
    profile = {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0, "histogram_rho": 0.1}
    capped.http.put("/clients/me/profile", json=profile | cap).raise_for_status()
    for client in others:
        client.enrol()
        client.profile().raise_for_status()
    assert offer_to(capped)["standing"] == "invited"
    assert refusal(capped.http.put("/rounds/1/budget", json={"rho": 0.041})) == (422, "out_of_bounds")
    assert capped.http.put("/rounds/1/budget", json={"rho": 0.039}).status_code == 200
    change(coordinator, capped.task_id, "stop").raise_for_status()


# --- enrolment -------------------------------------------------------------------------------------------------------


def enrol(client: ScriptedClient, **changes: Any) -> httpx.Response:
    body = {"enrolment_code": client.code, "enrolment_key": client.key} | changes
    return httpx.post(f"{client.url}/v1/tasks/{client.task_id}/clients", json=body, timeout=60)


def test_enrolling_again_with_the_same_key_gives_the_same_client_and_revokes_the_old_token(
    coordinator: Coordinator,
) -> None:
    client = strangers(coordinator, 1)[0]
    client.enrol()
    first = enrol(client).json()
    assert refusal(client.http.get("/clients/me/ledger")) == (401, "unauthenticated")
    client.enrol()
    second = enrol(client).json()
    assert (first["client_id"], first["ordinal"]) == (second["client_id"], second["ordinal"])
    assert first["token"] != second["token"]
    client.http.headers["Authorization"] = f"Bearer {second['token']}"
    client.profile().raise_for_status()
    assert refusal(enrol(client)) == (409, "already_enrolled")


def test_a_single_use_code_serves_one_client(coordinator: Coordinator) -> None:
    body = {"name": f"task-{next(_numbers)}", "preset": "digits", "single_use_codes": 2}
    with coordinator.admin as http:
        made = http.post("/v1/tasks", json=body).raise_for_status().json()
    one, two = made["enrolment_codes"]
    client = ScriptedClient(coordinator.url, made["task"]["task_id"], one, "key-of-the-first-client")
    first = enrol(client)
    assert first.status_code == 201
    assert enrol(client).json()["client_id"] == first.json()["client_id"]
    assert refusal(enrol(client, enrolment_key="key-of-another-client")) == (409, "code_used")
    assert enrol(client, enrolment_key="key-of-another-client", enrolment_code=two).status_code == 201


def test_a_full_task_takes_nobody_and_an_ordinal_belongs_to_one_client(coordinator: Coordinator) -> None:
    first, second, third, fourth = strangers(coordinator, 4, bounds={"clients_max": 3}, rounds={"expected_clients": 3})
    assert enrol(first, ordinal=1).json()["ordinal"] == 1
    assert refusal(enrol(second, ordinal=1)) == (409, "ordinal_taken")
    assert refusal(enrol(second, ordinal=3)) == (422, "out_of_bounds")
    assert [enrol(second).json()["ordinal"], enrol(third).json()["ordinal"]] == [0, 2]
    assert refusal(enrol(fourth)) == (409, "task_full")
    assert enrol(third).json()["ordinal"] == 2


def test_a_wrong_code_or_one_of_another_task_enrols_nobody(coordinator: Coordinator) -> None:
    client, other = strangers(coordinator, 1)[0], strangers(coordinator, 1)[0]
    for code in (other.code, f"{client.task_id}.{'x' * 43}", f"{client.task_id}.x"):
        assert refusal(enrol(client, enrolment_code=code)) == (401, "unauthenticated")
    assert rows(coordinator, "clients", client.task_id) == []


def test_nobody_enrols_in_a_task_that_trains_or_has_ended(coordinator: Coordinator, gather: Gather) -> None:
    client = gather()[0]
    assert refusal(enrol(client, enrolment_key="key-of-somebody-late")) == (409, "task_not_enrolling")
    change(coordinator, client.task_id, "stop").raise_for_status()
    assert refusal(enrol(client, enrolment_key="key-of-somebody-late")) == (409, "task_ended")


def test_a_profile_is_frozen_and_must_fit_the_task(coordinator: Coordinator) -> None:
    client = strangers(coordinator, 1)[0]
    client.enrol()
    for change_of, code in (
        ({"label_counts": [11] * 9 + [12]}, "histogram_mismatch"),
        ({"label_counts": [55, 55]}, "histogram_mismatch"),
        ({"privacy_value": 1000.0}, "out_of_bounds"),
        ({"privacy_value": 0.001}, "out_of_bounds"),
        ({"label_counts": [0] * 9 + [10_000_001], "size": 10_000_001}, "out_of_bounds"),
        ({"label_counts": [-11] + [11] * 9 + [22]}, "invalid_request"),
    ):
        profile = {"label_counts": [11] * 10, "size": 110, "privacy_value": 1.0} | change_of
        assert refusal(client.http.put("/clients/me/profile", json=profile)) == (422, code)
    assert client.profile().status_code == 204
    assert client.profile().status_code == 204
    client.privacy_value = 2.0
    assert refusal(client.profile()) == (409, "profile_frozen")


# --- the life of a task ----------------------------------------------------------------------------------------------


def test_a_client_that_leaves_is_not_waited_for_and_keeps_its_ledger(coordinator: Coordinator, gather: Gather) -> None:
    *three, leaving = gather(4)
    offer_to(leaving)
    play_all(three)
    assert [leaving.http.delete("/clients/me").status_code for _ in range(2)] == [204, 204]
    second = offer_to(three[0], "1.1")
    assert second["round_number"] == 2
    assert refusal(leaving.declare(second)) == (409, "not_invited")
    entries = leaving.http.get("/clients/me/ledger").raise_for_status().json()["entries"]
    assert [entry["release"] for entry in entries] == ["histogram"]
    assert result(coordinator, leaving.task_id)["updates"] == 3


def time_is_over(coordinator: Coordinator, client: ScriptedClient, deadline: str = "deliver_by") -> None:
    """For whoever has not answered the open round of this client, or (`declare_by`) is still silent."""
    move_deadline(coordinator.state_dir, deadline, task_id=client.task_id)


def test_a_silent_client_is_set_aside_and_comes_back_by_polling(coordinator: Coordinator, gather: Gather) -> None:
    *three, silent = gather(4, rounds={"set_aside_after": 1})
    play_all(three)
    time_is_over(coordinator, silent, "declare_by")
    second = offer_to(three[0], "1.1")
    assert second["round_number"] == 2
    refused = silent.declare(second)
    assert refusal(refused) == (409, "not_invited")
    assert "set_aside" in refused.json()["detail"]
    assert offer_to(silent, "1.1")["standing"] == "set_aside"
    play_all(three, "1.1")
    assert offer_to(silent, "2.1")["standing"] == "invited"


def test_a_void_round_is_retried_as_it_was_and_pays_everybody_once(coordinator: Coordinator, gather: Gather) -> None:
    *two, slow = gather(game={"horizon": 1})
    first = offer_to(slow)
    receipts = [(client.declare(first).json(), client.upload(first).json()) for client in two]
    slow.declare(first).raise_for_status()
    time_is_over(coordinator, slow)
    again = offer_to(slow, "1.1")
    assert (again["round_number"], again["attempt"]) == (1, 2)
    unchanged = ("reward_micro", "total", "model_version", "model_digest", "standing")
    assert {name: again[name] for name in unchanged} == {name: first[name] for name in unchanged}
    assert again["deliver_by"] > first["deliver_by"]
    for client, known in zip(two, receipts, strict=True):
        assert (client.declare(again).json(), client.upload(again).json()) == known
    assert refusal(slow.http.put("/rounds/1/budget", json={"rho": 0.06})) == (409, "budget_declared")
    assert result(coordinator, slow.task_id)["paid_micro"] == 0
    slow.upload(again).raise_for_status()
    assert answer_to(slow, "1.2")["task_state"] == "finished"
    settled = result(coordinator, slow.task_id)
    assert (settled["paid_micro"], settled["kept_micro"]) == (settled["reward_micro"], 0)
    assert len(rows(coordinator, "payments", slow.task_id)) == 3


def test_after_the_last_attempt_the_task_fails_and_says_what_was_spent_unpaid(
    coordinator: Coordinator, gather: Gather
) -> None:
    *two, silent = gather(rounds={"max_attempts": 2})
    play_all(two)
    silent.declare(offer_to(silent)).raise_for_status()
    time_is_over(coordinator, silent)
    assert offer_to(silent, "1.1")["attempt"] == 2
    time_is_over(coordinator, silent)
    end = answer_to(silent, "1.2")
    assert end["task_state"] == "failed"
    assert end["reason"].startswith("too_few_updates")
    assert [ledger(client)["state"] for client in (*two, silent)] == ["spent_unpaid", "spent_unpaid", "freed"]
    assert result(coordinator, silent.task_id)["state"] == "void"
    assert rows(coordinator, "payments", silent.task_id) == []


def test_stopping_settles_a_round_that_has_enough_updates(coordinator: Coordinator, gather: Gather) -> None:
    *three, silent = gather(4)
    play_all(three)
    assert change(coordinator, silent.task_id, "stop").json()["state"] == "stopped"
    settled = result(coordinator, silent.task_id)
    assert (settled["state"], settled["paid_micro"]) == ("settled", settled["reward_micro"])
    assert refusal(silent.declare({"round_number": 1})) == (410, "round_closed")
    assert change(coordinator, silent.task_id, "stop").json()["state"] == "stopped"


def test_stopping_voids_a_round_that_has_too_few_updates(coordinator: Coordinator, gather: Gather) -> None:
    first, *_ = gather()
    first.play(offer_to(first))
    assert change(coordinator, first.task_id, "stop").json()["state"] == "stopped"
    assert result(coordinator, first.task_id)["state"] == "void"
    assert ledger(first)["state"] == "spent_unpaid"
    assert first.upload({"round_number": 1}).status_code == 200
    assert refusal(change(coordinator, first.task_id, "start")) == (409, "task_ended")


def test_an_admin_starts_with_the_minimum_and_not_below_it(coordinator: Coordinator) -> None:
    clients = strangers(coordinator, 3)
    for client in clients:
        assert refusal(change(coordinator, client.task_id, "start")) == (409, "profile_missing")
        client.enrol()
        client.profile().raise_for_status()
    assert change(coordinator, clients[0].task_id, "start").json()["state"] == "training"
    assert change(coordinator, clients[0].task_id, "start").json()["state"] == "training"
    assert offer_to(clients[0])["standing"] == "invited"
    change(coordinator, clients[0].task_id, "stop").raise_for_status()


def test_a_late_joiner_takes_part_from_the_next_round_on(gather: Gather) -> None:
    three = gather(rounds={"late_joiners": True})
    first = offer_to(three[0])
    late = ScriptedClient(three[0].url, three[0].task_id, three[0].code, f"{three[0].key}-who-is-late")
    late.enrol()
    late.profile().raise_for_status()
    assert offer_to(late)["standing"] != "invited"
    assert refusal(late.declare(first)) == (409, "not_invited")
    play_all(three)
    assert offer_to(late, "1.1")["standing"] == "invited"


def test_a_task_ends_when_the_next_reward_does_not_fit_its_total(coordinator: Coordinator, gather: Gather) -> None:
    clients = gather(
        game={"policy": "fixed", "fixed_reward_micro": 10_000_000},
        bounds={"reward_max_micro": 10_000_000, "reward_total_micro": 15_000_000},
    )
    play_all(clients)
    end = answer_to(clients[0], "1.1")
    assert (end["task_state"], end["reason"]) == ("finished", "budget_exhausted")
    assert result(coordinator, clients[0].task_id)["paid_micro"] == 10_000_000


def test_without_noise_and_game_clients_join_and_the_ledger_says_unprotected(
    coordinator: Coordinator, gather: Gather
) -> None:
    clients = gather(game={"policy": "none", "horizon": 2}, privacy={"noise": False})
    for number in (1, 2):
        for client in clients:
            offer = offer_to(client, f"{number - 1}.1")
            assert (offer["round_number"], offer["reward_micro"], offer["noise"]) == (number, 0, False)
            assert refusal(client.declare(offer)) == (422, "out_of_bounds")
            assert client.http.put(f"/rounds/{number}/budget", json={"join": True}).json()["state"] == "joined"
            client.upload(offer, bytes(4 * offer["dimension"])).raise_for_status()
    assert answer_to(clients[0], "2.1")["reason"] == "horizon_reached"
    entry = ledger(clients[0])
    assert "unprotected" in entry["mechanism"]
    assert (entry["state"], entry["proven_rho"]) == ("spent", None)
    assert result(coordinator, clients[0].task_id, 2)["paid_micro"] == 0


def test_an_upload_without_noise_is_rejected_unpaid_and_kept(coordinator: Coordinator, gather: Gather) -> None:
    *three, cheat = gather(4, privacy={"audit": "reject"}, game={"horizon": 1})
    offer = offer_to(cheat)
    cheat.declare(offer).raise_for_status()
    bare = _with_value(bytes(4 * offer["dimension"]), 0.25)
    cheat.upload(offer, bare).raise_for_status()
    play_all(three)
    assert answer_to(cheat, "1.1")["task_state"] == "finished"
    settled = result(coordinator, cheat.task_id)
    seen = {entry["ordinal"]: entry for entry in settled["clients"]}
    assert (seen[3]["verdict"], seen[3]["accepted"], seen[3]["payment_micro"]) == ("too_little_noise", False, 0)
    assert all(seen[ordinal]["accepted"] and seen[ordinal]["payment_micro"] > 0 for ordinal in range(3))
    assert settled["kept_micro"] == pytest.approx(settled["reward_micro"] / 4, abs=1)
    assert ledger(cheat)["state"] == "spent_unpaid"
    assert left_behind(coordinator, bare) == [hashlib.sha256(bare).hexdigest()]


def test_drop_outs_raise_nobody_elses_pay(coordinator: Coordinator, gather: Gather) -> None:
    clients = gather(5, rounds={"min_clients": 3}, game={"horizon": 1})
    for client in clients:
        client.declare(offer_to(client)).raise_for_status()
    for client in clients[:3]:
        client.upload(offer_to(client)).raise_for_status()
    time_is_over(coordinator, clients[0])
    assert answer_to(clients[0], "1.1")["task_state"] == "finished"
    settled = result(coordinator, clients[0].task_id)
    fair = settled["reward_micro"] / 5
    payments = [entry["payment_micro"] for entry in settled["clients"]]
    assert payments[3:] == [0, 0]
    assert all(fair - 1 <= payment <= fair + 1 for payment in payments[:3])
    assert settled["kept_micro"] == settled["reward_micro"] - sum(payments) > 0


def test_a_model_that_nobody_can_evaluate_is_trained_unevaluated(coordinator: Coordinator, gather: Gather) -> None:
    layout = {"tensors": [{"name": "theirs", "shape": [100]}]}
    clients = gather(workload={"network": "theirs"}, layout=layout, game={"horizon": 1})
    play_all(clients)
    assert answer_to(clients[0], "1.1")["reason"] == "horizon_reached"
    settled = result(coordinator, clients[0].task_id)
    assert (settled["state"], settled["accuracy"], settled["loss"]) == ("settled", None, None)
