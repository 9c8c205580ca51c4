"""Measures rounds per second of whole tasks: a live coordinator and a fleet, each in its own process, on the digits.

Every client enrols, bids, trains, adds noise, writes its journal and uploads. The benchmark prints seconds per round,
uploads per second, and the threads and peak memory of the fleet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from qidpfl_client.api import AdminApi, connect

# All clients take part in every round: none is rejected or priced out.
ALL_CLIENTS = {"selection": {"rule": "all"}, "privacy": {"lifetime_rho": 1000.0}}
# Public data: budgets that never end, far above the defaults of the client, so that every client trains in every round.
LIMITS = ["--lifetime-rho", "1000", "--rho-cap", "0.5", "--histogram-rho", "0.1"]


@dataclass(frozen=True)
class Result:
    round_s: float
    uploads_per_s: float
    threads: int
    peak_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100], help="sizes of the fleet")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each task")
    options = parser.parse_args()
    print("  clients   s/round   rounds/s   uploads/s   fleet threads   fleet peak memory")
    for clients in options.clients:
        result = measure(clients, options.rounds)
        print(
            f"  {clients:7d}  {result.round_s:8.3f}  {1 / result.round_s:9.2f}  {result.uploads_per_s:10.1f}"
            f"  {result.threads:14d}  {result.peak_mib:14.0f} MiB"
        )


def measure(clients: int, rounds: int) -> Result:
    """Measure one task from its first to its last round."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = subprocess.Popen(
            [sys.executable, "-m", "qidpfl_server", "serve", "--port", "0", "--state-dir", str(folder / "state")],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"QIDPFL_LOG_FORMAT": "json"},
        )
        try:
            assert server.stderr is not None
            url = json.loads(next(line for line in server.stderr if '"listening"' in line))["url"]
            return run_task(url, folder, clients, rounds)
        finally:
            server.terminate()
            server.communicate()


def run_task(url: str, folder: Path, clients: int, rounds: int) -> Result:
    with connect(url) as http:
        api = AdminApi(http, token=(folder / "state" / "admin.token").read_text().strip())
        partition = {"kind": "iid", "clients": clients, "concentration": None, "two_class_ordinals": []}
        overrides = {
            **ALL_CLIENTS,
            "workload": {"partition": partition},
            "rounds": {"quiet_s": 600.0, "enrolment_window_s": 600.0, "expected_clients": clients},
            "game": {"horizon": rounds, "min_share": 0.0},
        }
        made = api.create_task("fleet", preset="digits", overrides=overrides, single_use_codes=0)
        code = folder / "code"
        code.write_text(made.enrolment_codes[0])
        command = ["fleet", "--server", url, "--code-file", str(code), "--clients", str(clients)]
        options = ["--journals", str(folder / "journals"), "--privacy-value", "1.0", "--device", "cpu", *LIMITS]
        log = (folder / "log").open("w")
        with subprocess.Popen([sys.executable, "-m", "qidpfl_client", *command, *options], stderr=log) as fleet:
            return watch(api, made.task.task_id, fleet, clients, rounds)


def watch(api: AdminApi, task_id: str, fleet: "subprocess.Popen[bytes]", clients: int, rounds: int) -> Result:
    """Measure the time from the announcement of the first round to the settlement of the last one."""
    threads, peak, started = 0, 0.0, 0.0
    while (task := api.task(task_id)).state in ("enrolling", "training"):
        if fleet.poll() is not None:
            raise RuntimeError(f"the fleet ended with {fleet.returncode} while the task was {task.state}")
        started = started or (time.perf_counter() if task.state == "training" else 0.0)
        threads, peak = max(threads, status(fleet.pid, "Threads")), max(peak, status(fleet.pid, "VmHWM") / 1024)
        time.sleep(0.02)
    elapsed = time.perf_counter() - started
    fleet.wait()
    return Result(elapsed / rounds, clients * rounds / elapsed, threads, peak)


def status(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


if __name__ == "__main__":
    main()
