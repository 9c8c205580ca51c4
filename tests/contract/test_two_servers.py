"""Two servers on one store: each notices what the other has recorded, also where it keeps rows in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qidpfl_server.errors import RequestRefused
from qidpfl_server.store.blobs import FolderBlobs
from qidpfl_server.store.database import migrate, open_engine
from qidpfl_server.store.store import Store
from support.fakes import FakeClock
from support.use_cases import ServedClient, UseCases


@pytest.fixture
def servers(store_url: str, tmp_path: Path) -> Iterator[tuple[UseCases, UseCases]]:
    clock, stores = FakeClock(), []
    for _ in range(2):
        engine = open_engine(store_url)
        migrate(engine)
        stores.append(Store(engine, FolderBlobs(tmp_path / "blobs")))
    yield UseCases(stores[0], clock), UseCases(stores[1], clock)
    for store in stores:
        store.close()


def through(cases: UseCases, client: ServedClient) -> ServedClient:
    """The same client, whose requests another server answers."""
    task = type(client.task)(cases, client.task.task_id, client.task.codes)
    return ServedClient(task, code=client.code, key=client.key, client_id=client.client_id, token=client.token)


def test_a_server_notices_answers_that_another_one_has_recorded(servers: tuple[UseCases, UseCases]) -> None:
    one, other = servers
    task, clients = one.training(3)
    first, second, third = clients
    first.declare()
    through(other, second).declare()
    second.upload()
    with pytest.raises(RequestRefused, match="another update"):
        through(other, second).deliver(second.noise(0.04))
    assert through(other, first).declare() == first.declare()
    through(other, third).decline()
    with pytest.raises(RequestRefused, match="already declined"):
        third.declare()
    through(other, first).upload()
    assert task.updates() == 2
    assert one.violations() == []
