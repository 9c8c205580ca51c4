"""The model of the open round, downloaded once for all who share it."""

import threading

from qidpfl_shared.protocol.wire import Vector32

from .client import TaskApi


class ModelCache:
    """Keeps the latest model: a client needs no other, and a fleet needs it once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: tuple[str, Vector32] | None = None

    def get(self, api: TaskApi, version: int, *, digest: str, dimension: int) -> Vector32:
        """The parameters of this digest, which nobody may change."""
        with self._lock:
            if self._latest is None or self._latest[0] != digest:
                self._latest = digest, api.model(version, digest=digest, dimension=dimension)
            return self._latest[1]
