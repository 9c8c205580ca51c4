"""An update that came too late: if the round is repeated, the same bytes are sent again, without a second release."""

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from qidpfl_client.journal.journal import Journal
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode, Problem
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import TaskState
from support.coordinators import PAST_DEADLINES_S, ScriptedClient, running
from support.synthetic_clients import enrolment

pytestmark = pytest.mark.live


class FirstUploadTooLate(httpx.BaseTransport):
    """Forwards all requests except the first update, which it answers as if the round were closed."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._through = httpx.HTTPTransport()
        self._close_round = close
        self.digests: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/update"):
            self.digests.append(request.headers["Content-Digest"])
            if len(self.digests) == 1:
                self._close_round()
                body = Problem.of(ErrorCode.ROUND_CLOSED).model_dump_json()
                return httpx.Response(410, text=body, headers={"Content-Type": PROBLEM_MEDIA_TYPE}, request=request)
        return self._through.handle_request(request)

    def close(self) -> None:
        self._through.close()


def test_a_round_that_is_opened_again_gets_the_same_bytes(tmp_path: Path) -> None:
    rounds = {"expected_clients": 3, "min_clients": 3, "min_updates": 3}
    with running(tmp_path / "state") as coordinator:
        task_id, code = coordinator.create_task(game={"horizon": 2}, rounds=rounds, selection={"rule": "all"})
        others = [ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}") for n in range(2)]
        threads = [threading.Thread(target=other.run) for other in others]
        for thread in threads:
            thread.start()
        transport = FirstUploadTooLate(lambda: coordinator.advance(PAST_DEADLINES_S))
        with (
            httpx.Client(transport=transport, base_url=coordinator.url, timeout=60) as http,
            Journal(tmp_path / "journal.sqlite") as journal,
        ):
            end = run_until_finished(enrolment(http, code, journal), patience_s=30.0, first_contact_s=10.0)
            entries = {entry.release: entry for entry in journal.entries(task_id)}
        for thread in threads:
            thread.join()
        with coordinator.admin as admin:
            first = admin.get(f"/v1/tasks/{task_id}/rounds/1").raise_for_status().json()
    assert end.task_state is TaskState.FINISHED
    assert first["attempt"] == 2 and first["updates"] == 3
    assert transport.digests[0] == transport.digests[1]
    assert entries["round/1"].state is SpendState.SPENT and entries["round/1"].acknowledged
    assert "0 violated" in coordinator.audit()
