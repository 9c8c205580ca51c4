"""Attacks on a live coordinator, and what they cost it: processor time, memory, and the time of honest answers."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from qidpfl_server.cli.http import http_protocol
from support.coordinators import Coordinator, ScriptedClient


def check_speed_often() -> None:
    """For `sabotage`: the coordinator checks the speed of uploads and downloads every two seconds, not every ten."""
    http_protocol._RATE_PERIOD_S = 2.0


def memory_mb(coordinator: Coordinator) -> float:
    """The largest memory of the process so far."""
    return _status(coordinator, "VmHWM") / 1024


def processor_s(coordinator: Coordinator) -> float:
    """The processor time of all threads of the process so far."""
    assert coordinator.process is not None
    threads = Path(f"/proc/{coordinator.process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def open_files(coordinator: Coordinator) -> int:
    assert coordinator.process is not None
    return len(list(Path(f"/proc/{coordinator.process.pid}/fd").iterdir()))


def health_s(coordinator: Coordinator) -> float:
    """The seconds until the coordinator says that it is alive, on a new connection."""
    start = time.monotonic()
    httpx.get(f"{coordinator.url}/healthz", timeout=30).raise_for_status()
    return time.monotonic() - start


@contextmanager
def repeated(attack: Callable[[], None], *, threads: int = 1) -> Iterator[None]:
    """Repeat an attack in threads of its own during the `with` block. Errors of the attacker do not count."""
    over = threading.Event()

    def attack_again() -> None:
        while not over.is_set():
            try:
                attack()
            except (OSError, httpx.HTTPError):
                time.sleep(0.01)

    attackers = [threading.Thread(target=attack_again, daemon=True) for _ in range(threads)]
    for attacker in attackers:
        attacker.start()
    try:
        yield
    finally:
        over.set()
        for attacker in attackers:
            attacker.join(timeout=60)


def honest_task_s(coordinator: Coordinator, name: str, *, clients: int = 10, horizon: int = 3) -> float:
    """The seconds in which honest clients finish a task of their own."""
    task_id, code = coordinator.create_task(name, game={"horizon": horizon}, rounds={"expected_clients": clients})
    fleet = [ScriptedClient(coordinator.url, task_id, code, f"key-of-honest-{name}-{n}") for n in range(clients)]
    ends: list[str] = []
    start = time.monotonic()
    threads = [threading.Thread(target=lambda c=client: ends.append(c.run()["task_state"])) for client in fleet]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert ends == ["finished"] * clients
    return time.monotonic() - start


def _status(coordinator: Coordinator, field: str) -> int:
    assert coordinator.process is not None
    status = Path(f"/proc/{coordinator.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(f"{field}:")).split()[1])
