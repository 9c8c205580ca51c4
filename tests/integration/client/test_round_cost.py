"""What a round costs a client in the normal case: requests to a live coordinator, and commits of its journal."""

import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from qidpfl_client.api import connect
from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import JournalLedger, read_ledger
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_shared.protocol.ledger import SpendState
from support.coordinators import NO_TIMEOUTS, Coordinator
from support.synthetic_clients import enrolment

pytestmark = pytest.mark.live

CLIENTS, ROUNDS = 3, 4


class Recorder(httpx.BaseTransport):
    """Counts the requests of each kind. `earlier` hides from the coordinator what earlier clients did not ask for."""

    def __init__(self, transport: httpx.BaseTransport, *, earlier: bool) -> None:
        self._transport = transport
        self._earlier = earlier
        self.sent: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        kind = request.url.path.split("/", 4)[-1].rstrip("0123456789")
        self.sent.append(f"{request.method} {kind}")
        if self._earlier:
            request.url = request.url.copy_remove_param("last_result")
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()


class Client:
    """A client that runs in a thread until its task has ended."""

    def __init__(self, url: str, code: str, path: Path, *, earlier: bool = False) -> None:
        self._url, self._code, self._path, self._earlier = url, code, path, earlier
        self.sent: list[str] = []
        self.commits = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with connect(self._url) as http, Journal(self._path) as journal:
            recorder = Recorder(http._transport, earlier=self._earlier)
            http._transport = recorder
            journal._file._opened.set_trace_callback(self._executed)
            run_until_finished(enrolment(http, self._code, journal), patience_s=60, first_contact_s=10)
            self.sent = recorder.sent
            self.ledger: JournalLedger = read_ledger(journal)

    def _executed(self, statement: str) -> None:
        self.commits += statement == "COMMIT"


def play(tmp_path: Path, *, earlier: bool) -> Client:
    with Coordinator(tmp_path / "state").start() as coordinator:
        rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS}
        _, code = coordinator.create_task(game={"horizon": ROUNDS}, rounds=rounds)
        clients = [
            Client(coordinator.url, code, tmp_path / f"journal-{number}.sqlite", earlier=earlier)
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.thread.join(timeout=120)
        assert "0 violated" in coordinator.audit()
    return clients[0]


def is_paid_for_all(ledger: JournalLedger) -> bool:
    rounds = ledger.entries[1:]
    return len(rounds) == ROUNDS and all(
        entry.state is SpendState.SPENT and entry.payment_micro is not None for entry in rounds
    )


def test_a_round_costs_five_requests_and_two_commits(tmp_path: Path) -> None:
    client = play(tmp_path, earlier=False)
    assert is_paid_for_all(client.ledger)
    first = client.sent.index("PUT rounds/1/budget")
    counts = Counter(client.sent[first:])
    # From the first declaration on: the other four of each round, and the announcement of the next round or the end.
    assert counts.total() == 5 * ROUNDS, counts
    assert "GET rounds/" not in counts
    # Before the first round: the limit, the membership twice, the pinned key, the records, the profile.
    assert client.commits <= 2 * ROUNDS + 1 + 8


def test_a_coordinator_that_sends_no_results_is_asked_for_them(tmp_path: Path) -> None:
    client = play(tmp_path, earlier=True)
    assert is_paid_for_all(client.ledger)
    assert Counter(client.sent)["GET rounds/"] == ROUNDS
