"""Two coordinators on one PostgreSQL and one blob folder serve one task, also when one of them dies."""

import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from support.commands import server_command
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient
from support.task_checks import violations

pytestmark = pytest.mark.live

HORIZON = 3
CLIENTS = 6
PATIENCE_S = 150.0


@pytest.fixture
def pair(postgres_url: str, tmp_path: Path) -> Iterator[list[Coordinator]]:
    """Two coordinators that start at the same time on an empty database."""
    coordinators = [Coordinator(tmp_path / name, store_url=postgres_url, blob_dir=tmp_path / "blobs") for name in "ab"]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(Coordinator.start, coordinators))
    with coordinators[0], coordinators[1]:
        yield coordinators


@pytest.fixture
def clients(pair: list[Coordinator]) -> Iterator[list[ScriptedClient]]:
    """Clients spread over both; a client that loses its coordinator goes to a live one."""
    rounds = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}
    task_id, code = pair[0].create_task(game={"horizon": HORIZON}, rounds=rounds)

    def alternate() -> Callable[[], str]:
        turns = itertools.cycle(pair)
        return lambda: next((url for one in itertools.islice(turns, 3) if (url := one.url)), "")

    with ExitStack() as connections:
        spread = [
            ScriptedClient(pair[n % 2].url, task_id, code, f"the-key-of-client-{n}", locate=alternate())
            for n in range(CLIENTS)
        ]
        for client in spread:
            connections.enter_context(client.http)
        yield spread


def test_two_coordinators_serve_one_task_and_settle_each_round_once(
    pair: list[Coordinator], clients: list[ScriptedClient]
) -> None:
    with ThreadPoolExecutor(CLIENTS) as threads:
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
    for coordinator in pair:
        assert violations(coordinator, clients[0].task_id, clients) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_one_coordinator_continues_when_the_other_is_killed(
    pair: list[Coordinator], clients: list[ScriptedClient], victim: int
) -> None:
    with ThreadPoolExecutor(CLIENTS) as threads:
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        deadline = time.monotonic() + PATIENCE_S
        while not any(2 in client.receipts for client in clients) and time.monotonic() < deadline:
            time.sleep(0.005)
        pair[victim].kill()
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
    assert violations(pair[1 - victim], clients[0].task_id, clients) == []


def test_both_coordinators_continue_when_their_database_connections_are_cut(
    pair: list[Coordinator], clients: list[ScriptedClient], postgres_url: str
) -> None:
    url = make_url(postgres_url).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    cut = text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with ThreadPoolExecutor(CLIENTS) as threads, engine.connect() as connection:
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        severed = 0
        for _ in range(8):
            time.sleep(0.25)
            severed += connection.execute(cut).scalar_one()
        assert severed > 0
        assert [run.result()["task_state"] for run in runs] == ["finished"] * CLIENTS
    assert violations(pair[0], clients[0].task_id, clients) == []


@pytest.mark.parametrize("place", ["settle.model_written", "settle.before_commit"])
def test_one_coordinator_settles_a_round_that_the_other_died_with(
    postgres_url: str, tmp_path: Path, place: str
) -> None:
    """All clients use the coordinator that dies: it is the first to know that a round is complete."""
    blobs = tmp_path / "blobs"
    first = Coordinator(tmp_path / "a", store_url=postgres_url, blob_dir=blobs)
    first.environment = {"QIDPFL_FAILPOINT": f"{place}:1"}
    second = Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=blobs)
    with first.start(), second.start(), ExitStack() as connections, ThreadPoolExecutor(CLIENTS) as threads:
        rounds = NO_TIMEOUTS | {"expected_clients": 4, "min_clients": 4, "min_updates": 4}
        task_id, code = first.create_task(game={"horizon": HORIZON}, rounds=rounds)
        clients = [
            ScriptedClient(first.url, task_id, code, f"the-key-of-client-{n}", locate=lambda: second.url)
            for n in range(4)
        ]
        for client in clients:
            connections.enter_context(client.http)
        runs = [threads.submit(client.run, patience_s=PATIENCE_S) for client in clients]
        assert first.died_of() == signal.SIGKILL
        assert [run.result()["task_state"] for run in runs] == ["finished"] * 4
        assert violations(second, task_id, clients) == []


def test_a_coordinator_does_not_start_on_another_blob_folder_than_the_first_one(
    postgres_url: str, tmp_path: Path
) -> None:
    """Also before there is any task, whose model would be missing."""
    with Coordinator(tmp_path / "a", store_url=postgres_url, blob_dir=tmp_path / "blobs"):
        words = ("serve", "--port", "0", "--state-dir", tmp_path / "b", "--store-url", postgres_url)
        for _ in range(2):
            refused = server_command(*words, "--blob-dir", tmp_path / "others")
            assert refused.returncode == 1
            assert f"{tmp_path / 'others'} does not have the blobs that the other coordinators" in refused.stderr
            assert "Traceback" not in refused.stderr
        with Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=tmp_path / "blobs") as second:
            second.create_task()
    restored = tmp_path / "restored"
    shutil.copytree(tmp_path / "blobs" / "objects", restored / "objects")
    with Coordinator(tmp_path / "b", store_url=postgres_url, blob_dir=restored) as second:
        assert (restored / "folder.id").read_text() == (tmp_path / "blobs" / "folder.id").read_text()
        assert "0 violated" in second.audit()
