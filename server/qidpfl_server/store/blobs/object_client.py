"""Requests to a bucket: S3, Google Cloud Storage or Azure, through `obstore`, with bounded retries.

Only the synchronous interface of obstore is used, in threads. It must not be used before a fork.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from ...clock import Micros
from ...errors import CoordinatorError, ObjectStoreFailure, StorageFull

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az")
FORMS = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
# A body up to this length is one request; a larger one is uploaded in parts of this length.
PART_BYTES = 8 << 20
# Parts of one body, and large bodies, that are uploaded at the same time: together 64 MiB of memory.
_PARTS_AT_ONCE = 2
_LARGE_AT_ONCE = 4
# Four tries within 15 seconds: a client waits for its upload meanwhile. Each request moves at most one part.
_RETRIES = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 3},
}
_TIMEOUTS = {"connect_timeout": timedelta(seconds=3), "timeout": timedelta(seconds=30)}
# Readiness is answered within five seconds.
_PROBE_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=3)}
_PROBE_TIMEOUTS = {"connect_timeout": timedelta(seconds=2), "timeout": timedelta(seconds=3)}

_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
# What S3 and its relatives answer when a disk or a quota is full.
_FULL_STATUS = "507"
_BEYOND_THE_END = "416"
_NOT_IMPLEMENTED = "501"
_FULL_CODES = {
    *("QuotaExceeded", "BucketQuotaExceeded", "StorageQuotaExceeded", "AccountStorageQuotaExceeded"),
    *("InsufficientStorage", "XMinioStorageFull", "EntityTooLargeForQuota", "AccountIsFull"),
}


def checked_url(url: str) -> SplitResult:
    """The parts of a URL of a bucket. Raises `CoordinatorError` for every other one, without showing it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in SCHEMES and bool(parts.netloc) and not parts.query and not parts.fragment
    except ValueError:
        usable = False
    if not usable:
        raise CoordinatorError(f"QIDPFL_BLOBS names no bucket: use {FORMS}")
    if "@" in parts.netloc or ":" in parts.netloc:
        raise CoordinatorError(f"QIDPFL_BLOBS has more than a bucket and a prefix: use {FORMS}; {_SECRETS}")
    return parts


_SECRETS = "credentials and the address of the server have variables of their own, such as AWS_ENDPOINT_URL"


class ObjectClient:
    """The objects below one prefix of a bucket. `probe` is a connection for checks, which does not retry."""

    def __init__(self, store: "ObjectStore", place: str, probe: "ObjectStore | None" = None) -> None:
        import obstore

        self._obstore = obstore
        self._store = store
        self._probe = store if probe is None else probe
        self._large = threading.BoundedSemaphore(_LARGE_AT_ONCE)
        self.place = place

    @classmethod
    def open(cls, url: str) -> "ObjectClient":
        """The objects of this URL, with credentials and address from the environment. Sends no request."""
        parts = checked_url(url)
        try:
            from obstore.exceptions import BaseError
        except ImportError:
            raise CoordinatorError(
                "QIDPFL_BLOBS needs the package obstore: pip install 'qidpfl-server[objectstore]'"
            ) from None
        try:
            store, probe = _opened(url, _TIMEOUTS, _RETRIES), _opened(url, _PROBE_TIMEOUTS, _PROBE_RETRIES)
        except (BaseError, ValueError) as error:
            raise CoordinatorError(f"the bucket of QIDPFL_BLOBS cannot be used: {_first_line(error)}") from None
        return cls(store, f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", probe)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object unless there is one of this name; whether this call has stored it."""
        from obstore.exceptions import AlreadyExistsError

        try:
            with self._errors():
                self._obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except (NotImplementedError, ObjectStoreFailure) as error:
            if isinstance(error, ObjectStoreFailure) and not error.reason.startswith(_NOT_IMPLEMENTED):
                raise
            # Not every object store has conditions, and the operator can switch them off.
            if self.length(name) is not None:
                return False
            self.put(name, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        """Store an object, also if there is one of this name."""
        with self._errors():
            self._obstore.put(self._store, name, data, use_multipart=False)

    def put_file(self, name: str, path: Path) -> None:
        """Store the bytes of a file in parts, also if there is an object of this name. It appears at once at the end.

        Readers never see a part of it. A process that is killed leaves parts, which a rule of the bucket removes.
        """
        with self._large, self._errors():
            self._obstore.put(
                self._store,
                name,
                path,
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def length(self, name: str) -> int | None:
        """The length of an object; None if there is none."""
        try:
            with self._errors():
                return int(self._obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def written_at(self, name: str) -> Micros:
        """When an object was written, by the clock of the object store, in whole seconds on most of them."""
        with self._errors():
            return _micros(self._obstore.head(self._store, name)["last_modified"])

    def read(self, name: str, start: int, end: int) -> tuple[Any, int]:
        """The bytes from `start` to before `end`, as a buffer, and the length of the whole object.

        Nothing, and the length 0, if the object ends before `start`. Raises `FileNotFoundError` if there is none.
        """
        try:
            with self._errors():
                found = self._obstore.get(self._store, name, options={"range": (start, end)})
                return found.bytes(), int(found.meta["size"])
        except ObjectStoreFailure as failure:
            if failure.reason.startswith(_BEYOND_THE_END):
                return b"", 0
            raise

    def list(self, folder: str) -> Iterator[tuple[str, Micros]]:
        """The names of the objects below a folder, without its own name, and when each was written."""
        with self._errors():
            for chunk in self._obstore.list(self._store, folder, chunk_size=1000):
                for one in chunk:
                    yield one["path"].removeprefix(f"{folder}/"), _micros(one["last_modified"])

    def has_any(self, folder: str) -> bool:
        """Whether there is an object below a folder."""
        return next(self.list(folder), None) is not None

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._errors():
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError:
                # Not every object store calls this a success.
                return

    def check(self, name: str) -> bool:
        """Whether there is an object of this name: one request, without retries."""
        try:
            with self._errors():
                self._obstore.head(self._probe, name)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of obstore as `CoordinatorError`. A missing or present object keeps its error."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except AlreadyExistsError:
            raise
        except BaseError as error:
            reason = _reason(error)
            if reason.startswith(_FULL_STATUS) or _FULL_CODES & set(_CODE.findall(str(error))):
                raise StorageFull("the object store has no space left") from error
            refused = isinstance(error, (PermissionDeniedError, UnauthenticatedError))
            said = "the object store refuses this coordinator" if refused else "the object store fails"
            raise ObjectStoreFailure(said, reason) from error


def _opened(url: str, timeouts: dict[str, Any], retries: dict[str, Any]) -> "ObjectStore":
    from obstore.store import from_url

    # An address that the operator has named with http:// is meant so: a store on the same machine or cluster.
    return from_url(url, client_options={"allow_http": True, **timeouts}, retry_config=retries)  # type: ignore[call-overload, no-any-return]


def _reason(error: Exception) -> str:
    """The status and the code of an answer, or the first line of the error. It may name the server: for logs only."""
    said = str(error)
    found = [*_STATUS.findall(said)[:1], *_CODE.findall(said)[:1]]
    return ", ".join(one.strip() for one in found) or _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _micros(moment: Any) -> Micros:
    return int(moment.timestamp() * 1_000_000)
