"""What can go wrong, each with the error code that the API answers with.

CoordinatorError
  RequestRefused             the request cannot be granted; nothing was changed
  StoreBusy           the database is locked or away; try again
  StorageFull         no space left; nothing was acknowledged
  DamagedState        what is stored does not fit together; says what and where
"""

from qidpfl_shared.protocol.errors import ErrorCode


class CoordinatorError(Exception):
    """The base of all errors that the coordinator raises on purpose."""

    code = ErrorCode.INTERNAL_ERROR
    retry_after_s: int | None = None

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return self.detail or self.code.summary


class RequestRefused(CoordinatorError):
    """A request that cannot be granted. It leaves nothing behind."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(detail)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code.value}: {self.detail or self.code.summary}"


class StoreBusy(CoordinatorError):
    """The database did not answer in time."""

    code = ErrorCode.STORE_BUSY
    retry_after_s = 2


class StorageFull(CoordinatorError):
    """There is no space left for what must be durable."""

    code = ErrorCode.STORAGE_FULL
    retry_after_s = 10


class DamagedState(CoordinatorError):
    """What is stored cannot be read or does not fit together."""


def is_transient(error: Exception) -> bool:
    """Whether an error may pass without a change of the task: the store is away, the disk is full or unreadable."""
    return isinstance(error, (StoreBusy, StorageFull, OSError, MemoryError))
