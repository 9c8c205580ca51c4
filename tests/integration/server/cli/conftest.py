"""A store with a finished task, for the tests of the commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.coordinators import play_to_the_end, running
from support.server_commands import create, join


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a task of two rounds that has finished. The tests share it."""
    state = tmp_path_factory.mktemp("finished") / "state"
    task_id, code = create(state, "done")
    with running(state) as coordinator:
        play_to_the_end(join(coordinator, task_id, code))
    yield state
