"""The public interface of the SDK: `TaskApi` for a client of one task, `AdminApi` for an admin or a viewer.

A separate module, because users import from it: the modules of `qidpfl_client.sdk` may change.

>>> import httpx
>>> def coordinator(request):  # stands for a real one; `connect(url)` makes the connection to it
...     return httpx.Response(204)
>>> http = httpx.Client(base_url="https://host", transport=httpx.MockTransport(coordinator))
>>> task_id, _ = split_code("digits1.s3cret")
>>> task = TaskApi(http, task_id=task_id, token="token-of-the-client", retries=Retries(attempts=2))
>>> task.announcement(wait_s=0) is None  # nothing to do now
True
"""

from .sdk.admin import AdminApi
from .sdk.client import LONGEST_WAIT_S, TaskApi
from .sdk.connection import connect
from .sdk.credentials import split_code
from .sdk.retries import Retries
from .sdk.tls import TlsFiles

__all__ = ["LONGEST_WAIT_S", "AdminApi", "Retries", "TaskApi", "TlsFiles", "connect", "split_code"]
