"""Opens the trackers that an operator has named, and says what is missing."""

import contextlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import CoordinatorError
from ..settings import Settings
from ..store.store import Store
from .follower import Follower
from .tracker import TaskWriter, Tracker


def tensorboard(folder: Path) -> Tracker:
    """A folder of event files."""
    tracker: Tracker = _loaded("tensorboard").TensorBoard(folder)
    return tracker


def mlflow(uri: str) -> Tracker:
    """A tracking store of MLflow."""
    tracker: Tracker = _loaded("mlflow").Mlflow(uri)
    return tracker


@contextlib.contextmanager
def tracked(settings: Settings, store: Store) -> Iterator[None]:
    """Write every settled round to the trackers of the settings, as long as the server runs."""
    trackers = [] if settings.tensorboard is None else [tensorboard(settings.tensorboard)]
    trackers += [] if settings.mlflow is None else [mlflow(settings.mlflow)]
    followers = [Follower(store, tracker) for tracker in trackers]
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        for follower in followers:
            follower.stop()


def write_task(store: Store, task_id: str, tracker: Tracker) -> int:
    """Write one task as it is now; returns how many points the tracker did not have yet."""
    writer = TaskWriter(tracker, task_id)
    try:
        return writer.write_new(store)[0]
    finally:
        writer.close()


def _loaded(name: str) -> Any:
    """The module of a tracker. Its library is imported only if it is used."""
    try:
        return import_module(f".{name}", __package__)
    except ImportError as error:
        if error.name is None or error.name.startswith("qidpfl"):
            raise
        raise CoordinatorError(f"--{name} needs a library: pip install 'qidpfl-server[{name}]'") from None
