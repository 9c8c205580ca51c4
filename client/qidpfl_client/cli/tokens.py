"""The command `rotate-token`: a new token for a client that is not running."""

from typing import Annotated

import typer

from ..api import TaskApi, connect
from ..errors import Misconfigured
from ..journal.journal import DEFAULT_PATH, Journal, Membership
from ..participant.token_rotation import rotate_token, settle_token
from . import options
from .options import guarded


@guarded
def rotate_command(
    journal: options.JournalPath = DEFAULT_PATH,
    task: Annotated[str | None, typer.Option(help="id of the task  [default: the latest task of the journal]")] = None,
    server: Annotated[
        str | None,
        typer.Option(envvar="QIDPFL_SERVER", help="address of the coordinator  [default: that of the journal]"),
    ] = None,
    client_cert: options.ClientCert = None,
    client_key: options.ClientKey = None,
    server_ca: options.ServerCa = None,
    moved: options.Moved = False,
    insecure: options.Insecure = False,
) -> None:
    """Replace the token with which a client takes part in a task.

    The journal keeps the new token before the client uses it, so that a kill at any point is harmless. A client that
    runs uses its journal alone: it replaces its token itself with run --rotate-token-every.
    """
    tls = options.tls_files(client_cert, client_key, server_ca)
    with Journal(journal) as opened:
        known = _membership(opened, task)
        address = (server or known.server).rstrip("/")
        if address != known.server and not moved:
            raise Misconfigured(
                f"the journal knows this task at {known.server}: add --moved if the coordinator has a new address"
            )
        with connect(address, insecure=insecure, tls=tls) as http:
            api = TaskApi(http, task_id=known.task_id, token=known.token)
            # An earlier rotation may have been interrupted.
            settle_token(api, opened)
            if not rotate_token(api, opened):
                raise Misconfigured("the coordinator refused the new token; the old one is still valid: try again")
    print(f"client {known.client_id} of task {known.task_id} has a new token; the old one is revoked")


def _membership(journal: Journal, task_id: str | None) -> Membership:
    found = [known for known in journal.memberships() if known.task_id == task_id or task_id is None]
    enrolled = [known for known in found if known.token is not None]
    if not enrolled:
        raise Misconfigured(f"{journal.path} has no client of {'any task' if task_id is None else f'task {task_id}'}")
    return enrolled[-1]
