"""How long `qidpfl-server serve` takes from its start until it is ready, against a bare FastAPI application.

All servers are started in turn, so that the load of the machine weighs the same on each of them:

    python benchmarks/startup.py --runs 7
    python benchmarks/startup.py --before ../earlier    # also a checkout of an earlier version

Ready means that `/readyz` answers 200: the store is open and has the schema of the program.
"""

import argparse
import http.client
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_DISTRIBUTIONS = ("shared", "server", "client")
_LONGEST_S = 60.0
_BARE = """
import sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/readyz")
async def ready() -> dict[str, str]:
    return {"status": "ok"}
uvicorn.run(app, port=int(sys.argv[1]), log_level="critical")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@dataclass(frozen=True)
class Start:
    """The seconds until a server was ready, and the processor time that it had used by then."""

    wall_s: float
    processor_s: float


def processor_s(process: int) -> float:
    """The processor time of all threads so far; nan where the system does not tell."""
    threads = list(Path(f"/proc/{process}/task").glob("*/schedstat"))
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9 if threads else math.nan


def start_until_ready(command: list[str], port: int, environment: dict[str, str]) -> Start:
    """Start a server, wait until it is ready, and stop it."""
    start = time.perf_counter()
    server = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not is_ready(port):
            if server.poll() is not None or time.perf_counter() - start > _LONGEST_S:
                raise SystemExit(f"{' '.join(command[:4])} … did not become ready")
            time.sleep(0.002)
        return Start(time.perf_counter() - start, processor_s(server.pid))
    finally:
        server.terminate()
        server.wait()


def bare() -> Start:
    port = free_port()
    return start_until_ready([sys.executable, "-c", _BARE, str(port)], port, {})


def coordinator(tree: Path | None, known: Path | None) -> Start:
    """The coordinator of this environment or of another checkout, on a known state folder or on a new one."""
    port = free_port()
    folder = known or Path(tempfile.mkdtemp(prefix="qidpfl-startup-new-"))
    command = [sys.executable, "-m", "qidpfl_server", "serve", "--port", str(port), "--state-dir", str(folder)]
    path = "" if tree is None else os.pathsep.join(str(tree / name) for name in _DISTRIBUTIONS)
    try:
        return start_until_ready(command, port, {"PYTHONPATH": path} if path else {})
    finally:
        if known is None:
            shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="starts of each server")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version, measured in the same run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qidpfl-startup-") as root:
        trees: dict[str, Path | None] = {"": None} | ({"before: ": options.before} if options.before else {})
        starts: dict[str, Callable[[], Start]] = {"bare uvicorn and FastAPI": bare}
        for name, tree in trees.items():
            known = Path(root) / f"known-{len(starts)}"
            coordinator(tree, known)
            starts[f"{name}coordinator, existing store"] = partial(coordinator, tree, known)
            starts[f"{name}coordinator, new store"] = partial(coordinator, tree, None)
        times: dict[str, list[Start]] = {name: [] for name in starts}
        for _ in range(options.runs):
            for name, start in starts.items():
                times[name].append(start())
    print(f"until /readyz answers, medians of {options.runs} starts: seconds, processor time, ratios to the bare one")
    floor = summary(times["bare uvicorn and FastAPI"])
    for name, found in times.items():
        wall, used = summary(found)
        print(f"{name:38} {wall:6.2f} s {used:6.2f} s   {wall / floor[0]:4.2f}   {used / floor[1]:4.2f}")


def summary(starts: list[Start]) -> tuple[float, float]:
    """The medians of seconds and processor time."""
    return statistics.median(one.wall_s for one in starts), statistics.median(one.processor_s for one in starts)


if __name__ == "__main__":
    main()
