"""Places for blobs, of each kind: opened as often as wanted, as several processes would, and damaged on purpose."""

import os
from abc import ABC, abstractmethod
from pathlib import Path

from qidpfl_server.store.blobs import Blobs, FolderBlobs
from qidpfl_server.store.blobs.object_client import ObjectClient
from qidpfl_server.store.blobs.object_store import ObjectStoreBlobs
from qidpfl_server.store.small_blobs import SmallBlobs


class BlobPlace(ABC):
    """A place that is empty at first."""

    @abstractmethod
    def open(self, *, create: bool = True, small: SmallBlobs | None = None) -> Blobs:
        """The blobs of this place, as another process sees them."""

    @abstractmethod
    def overwrite(self, digest: str, data: bytes) -> None:
        """Store other bytes under the name of a blob."""

    @abstractmethod
    def staging(self) -> list[str]:
        """The names of the files that are being written."""

    @abstractmethod
    def make_old(self) -> None:
        """Let everything be older than any grace period, if the place has ages that a test can change."""


class FolderPlace(BlobPlace):
    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, *, create: bool = True, small: SmallBlobs | None = None) -> Blobs:
        return FolderBlobs(self.root, create=create, small=small)

    def overwrite(self, digest: str, data: bytes) -> None:
        (self.root / "objects" / digest).write_bytes(data)

    def staging(self) -> list[str]:
        return [path.name for path in (self.root / "staging").iterdir()]

    def make_old(self) -> None:
        for path in self.root.rglob("*"):
            os.utime(path, (0, 0))


class BucketPlace(BlobPlace):
    """A prefix of a bucket. Each process has a staging folder of its own; here all have the same."""

    def __init__(self, url: str, staging: Path) -> None:
        self.url = url
        self.folder = staging
        self.client = ObjectClient.open(url)

    def open(self, *, create: bool = True, small: SmallBlobs | None = None) -> Blobs:
        return ObjectStoreBlobs(ObjectClient.open(self.url), self.folder, create=create, small=small)

    def overwrite(self, digest: str, data: bytes) -> None:
        self.client.put(f"objects/{digest}", data)

    def staging(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def make_old(self) -> None:
        """The object store sets the times itself: tests sweep without a grace period instead."""
        for path in self.folder.iterdir():
            os.utime(path, (0, 0))
