"""A real client that is stopped, and a coordinator that is down for a while: both continue where they were."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.client_checks import client_violations
from support.coordinators import NO_TIMEOUTS, Coordinator, WaitingClient
from support.peers.recording_proxy import recording
from support.synthetic_clients import TESTBED_LIMITS

pytestmark = pytest.mark.live

SCRIPTED = 2
STOPPED = "qidpfl-client: stopped; start it again with the same journal to continue"


class RealClient:
    """`qidpfl-client run` on digits, and what it says."""

    def __init__(self, server: str, code: str, journal: Path) -> None:
        self._log = journal.with_suffix(".log")
        command = [sys.executable, "-m", "qidpfl_client", "run", "--server", server, "--journal", str(journal)]
        command += TESTBED_LIMITS
        with self._log.open("w") as log:
            self.process = subprocess.Popen([*command], stderr=log, env=os.environ | {"QIDPFL_CODE_FILE": code})

    @property
    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def wait_for(self, said: str) -> None:
        deadline = time.monotonic() + 120
        while not any(said in line for line in self.lines):
            assert time.monotonic() < deadline and self.process.poll() is None, self.lines
            time.sleep(0.02)

    def stopped_by(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def client(server: str, code: str, journal: Path) -> Iterator[RealClient]:
    running = RealClient(server, code, journal)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.mark.long
def test_stops_and_outages_lose_nothing(tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "coordinator")
    journal, may_deliver = tmp_path / "journal.sqlite", threading.Event()
    with coordinator.start(), recording(coordinator.url) as proxy, ThreadPoolExecutor(SCRIPTED) as threads:
        rounds = NO_TIMEOUTS | {"expected_clients": 3, "min_clients": 3, "min_updates": 3}
        task_id, code = coordinator.create_task(game={"horizon": 3}, rounds=rounds, selection={"rule": "all"})
        (tmp_path / "code").write_text(code)
        others = [
            WaitingClient(
                *(coordinator.url, task_id, code, f"the-key-of-client-{n}"),
                may_deliver=may_deliver,
                locate=lambda: coordinator.url,
            )
            for n in range(SCRIPTED)
        ]
        runs = [threads.submit(other.run, patience_s=240.0) for other in others]
        with client(proxy.url, str(tmp_path / "code"), journal) as first:
            first.wait_for("round 1: delivered")
            assert first.stopped_by(signal.SIGTERM) == 0
            assert first.lines[-1] == STOPPED
        with client(proxy.url, str(tmp_path / "code"), journal) as second:
            second.wait_for("takes part")
            coordinator.kill()
            second.wait_for("trying again")
            # At another port, which only the proxy and the scripted clients notice.
            proxy.target = coordinator.start().url
            second.wait_for("the coordinator is back")
            assert second.stopped_by(signal.SIGINT) == 0
            assert second.lines[-1] == STOPPED
        with client(proxy.url, str(tmp_path / "code"), journal) as third:
            third.wait_for("takes part")
            may_deliver.set()
            assert third.process.wait(120) == 0, third.lines
            assert "the task is finished: horizon_reached" in third.lines[-2]
        assert [run.result()["task_state"] for run in runs] == ["finished"] * SCRIPTED
        assert client_violations(coordinator, proxy, journal, task_id) == []
        assert len(proxy.digests) == 3
        for other in others:
            other.http.close()
