"""A rolling upgrade: a store of the last release, replicas of both releases side by side, then only the new one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from qidpfl_server.store.database import newest_version
from support.coordinators import NO_TIMEOUTS, Coordinator, ScriptedClient, play_to_the_end
from support.earlier_release import EarlierCoordinator, NoHistory, checked_out
from support.task_checks import violations

pytestmark = [pytest.mark.live, pytest.mark.long]

CLIENTS = 4
HORIZON = 12
FEW = NO_TIMEOUTS | {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS}


@pytest.fixture
def earlier_source(tmp_path: Path) -> Iterator[Path]:
    try:
        yield checked_out(tmp_path / "earlier")
    except NoHistory as reason:
        pytest.skip(str(reason))


def schema(url: str) -> str:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())


def play(clients: list[ScriptedClient], coordinators: list[Coordinator], rounds: int) -> int:
    """Play rounds, each client at the next coordinator in every one; the number of the last round."""
    number = 0
    for turn in range(rounds):
        for place, client in enumerate(clients):
            coordinator = coordinators[(turn + place) % len(coordinators)]
            client.http.base_url = f"{coordinator.url}/v1/tasks/{client.task_id}"
            offer = (client.poll(30.0) or {})["round"]
            client.play(offer)
            number = offer["round_number"]
    return number


def test_replicas_of_two_releases_serve_one_store_until_only_the_new_one_is_left(
    postgres_url: str, tmp_path: Path, earlier_source: Path
) -> None:
    blobs = tmp_path / "blobs"
    old = [
        EarlierCoordinator(tmp_path / name, store_url=postgres_url, blob_dir=blobs, source=earlier_source)
        for name in "ab"
    ]
    new = [Coordinator(tmp_path / name, store_url=postgres_url, blob_dir=blobs) for name in "cd"]
    with old[0].start(), old[1].start():
        task_id, code = old[0].create_task(game={"horizon": HORIZON}, rounds=FEW)
        clients = [ScriptedClient(old[0].url, task_id, code, f"the-key-of-client-{n}") for n in range(CLIENTS)]
        for client in clients:
            client.enrol()
            client.profile().raise_for_status()
        assert play(clients, [*old], 2) == 2
        before = schema(postgres_url)
        with new[0].start():
            assert before <= schema(postgres_url) == newest_version()
            assert play(clients, [new[0], *old], 3) == 5
            assert old[0].stop() == 0
            with new[1].start():
                assert play(clients, [*new, old[1]], 3) == 8
                assert old[1].stop() == 0
                for client in clients:
                    client.http.base_url = f"{new[1].url}/v1/tasks/{task_id}"
                play_to_the_end(clients)
                assert violations(new[0], task_id, clients) == []
                with new[1].admin as http:
                    task = http.get(f"/v1/tasks/{task_id}").raise_for_status().json()
                assert (task["state"], task["settled_rounds"]) == ("finished", HORIZON)
