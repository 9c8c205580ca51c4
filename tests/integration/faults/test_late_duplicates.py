"""Enrolments that arrive twice, the second time late: no client that works with its token loses it."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support.coordinators import Coordinator, ScriptedClient, running

pytestmark = pytest.mark.live

CLIENTS = 20


def late_duplicate(client: ScriptedClient, coordinator: Coordinator) -> int:
    """Send the enrolment of a client again, as a network that has delayed it would; the status of the answer."""
    body = {"enrolment_code": client.code, "enrolment_key": client.key}
    return httpx.post(f"{coordinator.url}/v1/tasks/{client.task_id}/clients", json=body, timeout=60).status_code


def test_a_late_duplicate_revokes_no_token_that_was_used(tmp_path: Path) -> None:
    with running(tmp_path) as coordinator:
        task_id, code = coordinator.create_task()
        client = ScriptedClient(coordinator.url, task_id, code, "the-key-of-the-client")
        client.enrol()
        assert client.http.get("/clients/me/ledger").status_code == 200
        assert late_duplicate(client, coordinator) == 409
        assert client.profile().status_code == 200
        assert late_duplicate(client, coordinator) == 409
        assert client.http.get("/clients/me/ledger").status_code == 200


def test_no_client_with_a_stored_profile_is_locked_out_by_duplicates_at_another_coordinator(
    postgres_url: str, tmp_path: Path
) -> None:
    blobs = tmp_path / "blobs"
    first = Coordinator(tmp_path / "a", store_url=postgres_url, blob_dir=blobs)
    second = Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=blobs)
    with first.start(), second.start(), ExitStack() as connections, ThreadPoolExecutor(4) as threads:
        bounds, rounds = {"clients_max": CLIENTS}, {"expected_clients": CLIENTS}
        task_id, code = first.create_task(bounds=bounds, rounds=rounds, workload={"partition": None})
        clients = [ScriptedClient(first.url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
        for client in clients:
            connections.enter_context(client.http)
            client.enrol()
            # The first coordinator knows the token, the second one gets the duplicate.
            duplicate = threads.submit(late_duplicate, client, second)
            stored = client.profile().status_code
            assert (stored, duplicate.result()) in ((200, 409), (401, 201))
            if stored == 200:
                assert client.http.get("/clients/me/ledger").status_code == 200
                client.http.base_url = f"{second.url}/v1/tasks/{task_id}"
                assert client.http.get("/clients/me/ledger").status_code == 200
