"""The public interface of the SDK: `TaskApi` for a client of one task, `AdminApi` for admin and viewer."""

from .sdk.admin import AdminApi
from .sdk.client import LONGEST_WAIT_S, TaskApi
from .sdk.credentials import split_code
from .sdk.retries import Retries
from .sdk.transport import connect

__all__ = ["LONGEST_WAIT_S", "AdminApi", "Retries", "TaskApi", "connect", "split_code"]
