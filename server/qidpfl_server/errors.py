"""The errors of the server, each with the error code of the API.

CoordinatorError
  RequestRefused      the server refuses the request; nothing was changed
  StoreBusy           the database is locked or not reachable; try again
    DiskFailure       the disk reports an error, which may pass
      SuspectedDamage the database file looks damaged; only a check of the whole file can tell
    ObjectStoreFailure  the object store is away, or answers with an error; try again
  StorageFull         no space left; nothing was acknowledged
  DamagedState        stored data is missing or inconsistent; the text says what and where
    UnreadableBlob    a blob is missing or does not match its digest, at least as this process sees the folder
      UnreliableBlob  the same of an object store, which may return the right bytes later; try again
"""

from qidpfl_shared.protocol.errors import ErrorCode


class CoordinatorError(Exception):
    """The base of all errors that the server raises on purpose."""

    code = ErrorCode.INTERNAL_ERROR
    retry_after_s: int | None = None

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return self.detail or self.code.summary


class RequestRefused(CoordinatorError):
    """The server refuses a request. Its transaction changes nothing."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(detail)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code.value}: {self.detail or self.code.summary}"


class StoreBusy(CoordinatorError):
    """The database did not answer in time."""

    code = ErrorCode.STORE_BUSY
    retry_after_s = 2


class DiskFailure(StoreBusy):
    """The disk of the database or of the blobs reports an error."""


class SuspectedDamage(DiskFailure):
    """The database file looks damaged. A disk that returns wrong bytes once looks the same."""


class ObjectStoreFailure(StoreBusy):
    """The object store cannot be reached, is too slow, refuses this coordinator, or answers with an error."""

    def __init__(self, detail: str, reason: str = "") -> None:
        """`reason` is for the operator only: it may name the server."""
        super().__init__(detail)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.detail}: {self.reason}" if self.reason else self.detail


class StorageFull(CoordinatorError):
    """There is no space left for data that must be durable."""

    code = ErrorCode.STORAGE_FULL
    retry_after_s = 10


class DamagedState(CoordinatorError):
    """Stored data cannot be read or is inconsistent."""


class UnreadableBlob(DamagedState):
    """A blob is missing or does not match its digest. Another process, or a later read, may find it sound."""


class UnreliableBlob(UnreadableBlob):
    """The object store has no blob of this digest, or returns other bytes, although the blob was stored."""

    code = ErrorCode.STORE_BUSY
    retry_after_s = 5


def is_transient(error: Exception) -> bool:
    """Whether an error may pass by itself: the store is not reachable, the disk is full or unreadable."""
    return isinstance(error, (StoreBusy, StorageFull, OSError, MemoryError))
