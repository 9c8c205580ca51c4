"""Measures whole tasks: a live coordinator and a fleet, each in its own process, on this machine.

Every client enrols, bids, trains, adds noise, writes its journal and uploads. For each size of the fleet the benchmark
prints seconds per round, uploads per second, threads and peak memory of the fleet, its requests and journal commits per
upload, and the processor time per upload of both processes. Requests are those that the coordinator has counted from
the first announcement on; commits are the frames that end a transaction in the SQLite logs of three members. Members
that commit at the same time share one fsync.

The last line is one MNIST task of QI-DPFL: 20 clients, 30 rounds, 60,000 records.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from qidpfl_client.api import AdminApi, connect

# All clients take part in every round: none is rejected or priced out.
# On a slow machine too.
PATIENT = {"quiet_s": 600.0, "enrolment_window_s": 600.0, "declare_s": 600.0, "deliver_s": 900.0}
ALL_CLIENTS = {"selection": {"rule": "all"}, "privacy": {"lifetime_rho": 1000.0}}
# Public data: budgets that never end, far above the defaults of the client, so that every client trains in every round.
LIMITS = ["--lifetime-rho", "1000", "--rho-cap", "0.5", "--histogram-rho", "0.1"]
MNIST_CLIENTS, MNIST_ROUNDS = 20, 30
# Whose journals are looked at.
SAMPLED = 3
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Result:
    """What one task has cost, from the announcement of its first round to the settlement of its last one."""

    whole_s: float
    rounds_s: float
    threads: int
    peak_mib: float
    requests: float
    commits: float
    fleet_cpu_s: float
    server_cpu_s: float


@dataclass(frozen=True)
class Server:
    """A running coordinator."""

    url: str
    pid: int
    token: str

    def requests(self) -> float:
        """How many requests it has answered, by its own metrics."""
        answer = httpx.get(f"{self.url}/metrics", headers={"Authorization": f"Bearer {self.token}"})
        counted = re.findall(r"^qidpfl_requests_total(?:\{[^}]*\})? (\S+)$", answer.text, re.MULTILINE)
        return sum(map(float, counted)) if counted else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100, 1000], help="sizes of the fleet")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each task; fewer for more than 100 clients")
    parser.add_argument("--preset", help="task of the fleets  [default: mnist if its data are there, else digits]")
    parser.add_argument("--no-task", action="store_true", help="leave out the MNIST task of QI-DPFL")
    options = parser.parse_args()
    has_mnist = (Path(os.environ.get("QIDPFL_DATA_DIR", "data")) / "MNIST").is_dir()
    preset = options.preset or ("mnist" if has_mnist else "digits")
    print(f"fleet, preset {preset}")
    print(
        "  clients   s/round   uploads/s   threads   peak MiB   requests   commits   fleet ms   server ms  (per upload)"
    )
    for clients in options.clients:
        rounds = max(2, min(options.rounds, 1000 // clients)) if clients > 100 else options.rounds
        result, uploads = measure(preset, clients, rounds, limits=ALL_CLIENTS), clients * rounds
        print(
            f"  {clients:7d}  {result.rounds_s / rounds:8.3f}  {uploads / result.rounds_s:10.1f}  {result.threads:8d}"
            f"  {result.peak_mib:9.0f}  {result.requests / uploads:9.2f}  {result.commits / (rounds * SAMPLED):8.2f}"
            f"  {1000 * result.fleet_cpu_s / uploads:9.2f}  {1000 * result.server_cpu_s / uploads:10.2f}",
            flush=True,
        )
    if not options.no_task and has_mnist:
        result = measure("mnist", MNIST_CLIENTS, MNIST_ROUNDS, limits=ALL_CLIENTS)
        print(
            f"MNIST task, {MNIST_CLIENTS} clients, {MNIST_ROUNDS} rounds: {result.whole_s:.1f} s with the start of the"
            f" fleet, {result.rounds_s:.1f} s of rounds; processor time {result.fleet_cpu_s:.1f} s of the fleet and"
            f" {result.server_cpu_s:.1f} s of the coordinator in the rounds"
        )


def measure(preset: str, clients: int, rounds: int, *, limits: dict[str, Any]) -> Result:
    """Run one task on a new coordinator."""
    with tempfile.TemporaryDirectory() as name, coordinator(Path(name)) as server, connect(server.url) as http:
        api = AdminApi(http, token=server.token)
        partition = {"kind": "iid", "clients": clients, "concentration": None, "two_class_ordinals": []}
        overrides = {
            **limits,
            "workload": {"partition": partition},
            "rounds": PATIENT | {"expected_clients": clients},
            "game": {"horizon": rounds, "min_share": 0.0},
        }
        made = api.create_task("fleet", preset=preset, overrides=overrides, single_use_codes=0)
        folder = Path(name)
        (folder / "code").write_text(made.enrolment_codes[0])
        command = ["fleet", "--server", server.url, "--code-file", str(folder / "code"), "--clients", str(clients)]
        options = ["--journals", str(folder / "journals"), "--privacy-value", "1.0", "--device", "cpu", *LIMITS]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen([sys.executable, "-m", "qidpfl_client", *command, *options], stderr=log) as fleet,
        ):
            return watch(api, made.task.task_id, fleet, server, folder / "journals")


@contextmanager
def coordinator(folder: Path) -> Iterator[Server]:
    """A coordinator in a process of its own, with its state in the folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", "qidpfl_server", "serve", "--port", "0", "--state-dir", str(folder / "state")],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"QIDPFL_LOG_FORMAT": "json"},
    )
    try:
        assert process.stderr is not None
        lines = process.stderr
        url = json.loads(next(line for line in lines if '"listening"' in line))["url"]
        # The pipe must not fill up: the coordinator would wait.
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
        yield Server(url, process.pid, (folder / "state" / "admin.token").read_text().strip())
    finally:
        process.terminate()
        process.wait()


def watch(api: AdminApi, task_id: str, fleet: "subprocess.Popen[bytes]", server: Server, journals: Path) -> Result:
    """Measure from the announcement of the first round to the settlement of the last one."""
    begun, polls = time.perf_counter(), 0
    threads, peak, started = 0, 0.0, 0.0
    cpu_before, cpu_now, requests_before, commits_before, commits_now = (0.0, 0.0), (0.0, 0.0), 0.0, 0, 0
    while (task := api.task(task_id)).state in ("enrolling", "training"):
        if fleet.poll() is not None:
            raise RuntimeError(f"the fleet ended with {fleet.returncode} while the task was {task.state}")
        cpu_now = cpu_s(fleet.pid), cpu_s(server.pid)
        if not started and task.state == "training":
            started, cpu_before, requests_before = time.perf_counter(), cpu_now, server.requests()
            commits_before = commits(journals)
        commits_now = max(commits_now, commits(journals))
        polls += bool(started)
        threads, peak = max(threads, status(fleet.pid, "Threads")), max(peak, status(fleet.pid, "VmHWM") / 1024)
        # Seldom: this program shares the processors with those that it measures.
        time.sleep(_PAUSE_S)
    ended = time.perf_counter()
    fleet.wait()
    return Result(
        whole_s=ended - begun,
        rounds_s=ended - started,
        threads=threads,
        peak_mib=peak,
        # Not the polls of this program, nor its own two reads of the metrics.
        requests=server.requests() - requests_before - polls - 1,
        commits=commits_now - commits_before,
        fleet_cpu_s=cpu_now[0] - cpu_before[0],
        server_cpu_s=cpu_now[1] - cpu_before[1],
    )


def commits(journals: Path) -> int:
    """How many transactions the SQLite logs of some journals hold. Valid until a log begins anew, after 1,000 pages."""
    return sum(_commits(journals / f"client-{ordinal:05d}.sqlite-wal") for ordinal in range(SAMPLED))


def _commits(log: Path) -> int:
    try:
        data = log.read_bytes()
    except OSError:
        return 0
    frame, salts = 24 + int.from_bytes(data[8:12]), data[16:24]
    starts = range(32, len(data) - 23, frame)
    # A frame that ends a transaction has the size of the database; frames of an earlier log have other salts.
    return sum(
        data[start + 8 : start + 16] == salts and int.from_bytes(data[start + 4 : start + 8]) > 0 for start in starts
    )


def cpu_s(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(pid: int, key: str) -> int:
    """A number of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


if __name__ == "__main__":
    main()
