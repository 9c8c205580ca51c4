"""A sound store, and copies of it in which a row was changed."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from qidpfl_server.audit import Report, audit
from support.fakes import FakeClock
from support.fast_stores import fast_store
from support.use_cases import ServedClient, ServedTask, UseCases

Tamper = Callable[..., Report]
_VALUES = (1.0, 1.1, 1.2)


@pytest.fixture(scope="session")
def sound(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with a finished task and one in its first round, where one client has delivered."""
    folder = tmp_path_factory.mktemp("sound")
    with fast_store(folder / "coordinator.db", folder / "blobs", template=migrated_database) as store:
        cases = UseCases(store, FakeClock())
        finished, clients = _training(cases, "finished")
        for number in (1, 2):
            finished.play(clients, number)
        _, clients = _training(cases, "open")
        clients[0].play()
    return folder


def _training(cases: UseCases, name: str) -> tuple[ServedTask, list[ServedClient]]:
    rounds = {"expected_clients": len(_VALUES), "min_clients": 2, "min_updates": 2}
    bounds = {"privacy_value_min": 0.01, "privacy_value_max": 100.0}
    # The shares of these privacy values differ more than a defence allows.
    task = cases.task(name=name, game={"horizon": 2}, rounds=rounds, bounds=bounds, defence=None)
    return task, [task.client(limits={"privacy_value": value}) for value in _VALUES]


@pytest.fixture
def tampered(sound: Path, tmp_path: Path) -> Tamper:
    """A function that runs statements on a copy of the database, and audits the copy with the same blobs."""

    def run(*statements: str) -> Report:
        shutil.copyfile(sound / "coordinator.db", tmp_path / "coordinator.db")
        connection = sqlite3.connect(tmp_path / "coordinator.db")
        # The database does not stop a manipulation.
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            assert connection.execute(statement).rowcount > 0
        connection.commit()
        connection.close()
        with fast_store(tmp_path / "coordinator.db", sound / "blobs") as store:
            return audit(store)

    return run
