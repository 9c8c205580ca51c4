"""The command `quote`: what would this owner earn, spend and risk in a task?"""

import json
import math
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qidpfl_shared.command_line import output_width
from qidpfl_shared.core.planner.quote import Quote

from ..api import TaskApi, connect
from ..errors import Misconfigured
from ..owner import LIFETIME_RHO, Owner
from ..participant.quoting import quotes_of_task
from ..participant.runner import SHORT_RETRIES
from . import options
from .options import guarded

_COLUMNS = ("reported value", "rounds", "earned", "rho", "epsilon", "cost of privacy", "utility")


@guarded
def quote_command(
    server: options.Server,
    size: Annotated[int, typer.Option(min=1, help="the number of your records")],
    code: options.Code = None,
    code_file: options.CodeFile = None,
    task: options.TaskId = None,
    client_cert: options.ClientCert = None,
    client_key: options.ClientKey = None,
    server_ca: options.ServerCa = None,
    privacy_value: Annotated[
        float, typer.Option(envvar="QIDPFL_PRIVACY_VALUE", help="worth of one unit of budget to you (ν)")
    ] = 1.0,
    clients: Annotated[int | None, typer.Option(min=2, help="number of clients  [default: the task's]")] = None,
    others: Annotated[
        str | None, typer.Option(help="LOW:HIGH, the privacy values of the others  [default: the task's bounds]")
    ] = None,
    public_data: options.PublicData = False,
    rho_cap: options.RhoCap = None,
    lifetime_rho: options.LifetimeRho = None,
    histogram_rho: options.HistogramRho = None,
    no_histogram: options.NoHistogram = False,
    insecure: options.Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say what you would earn, spend and risk in a task, before you enrol. It only reads the spec of the task.

    The table has your own privacy value and reports from 20 % below to 20 % above it, as far as the task accepts them.
    It assumes that the other clients have your number of records, privacy values that are spread evenly, and bid as
    planned. Cost and utility are at your own value. In the paper's contest a lower report often earns more.
    """
    limits = options.ceilings(
        rho_cap=rho_cap,
        lifetime_rho=lifetime_rho,
        histogram_rho=histogram_rho,
        no_histogram=no_histogram,
        public_data=public_data,
    )
    owner = Owner(privacy_value=privacy_value, **limits, no_histogram=no_histogram)
    task_id, codes = options.task_and_codes(code, code_file, task, client_cert)
    spread = None if others is None else _range(others)
    tls = options.tls_files(client_cert, client_key, server_ca)
    with connect(server, insecure=insecure, tls=tls) as http:
        api = TaskApi(http, task_id=task_id, retries=SHORT_RETRIES)
        spec = api.task(code=codes[0] if codes else None).spec
    lifetime = LIFETIME_RHO if owner.lifetime_rho is None else owner.lifetime_rho
    found = quotes_of_task(spec, owner, lifetime_rho=lifetime, size=size, clients=clients, others=spread)
    if as_json:
        print(json.dumps([asdict(quote) for quote in found], indent=2))
        return
    _print(found, privacy_value)


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        found = float(low), float(high or low)
    except ValueError:
        found = math.nan, math.nan
    if not (0 < found[0] <= found[1] < math.inf):
        raise Misconfigured(f"--others: {text} is not LOW:HIGH, two numbers above 0")
    return found


def _print(found: list[Quote], own: float) -> None:
    table = Table(*_COLUMNS, box=None)
    for quote in found:
        mark = "  yours" if math.isclose(quote.reported_value, own) else f"  {quote.reported_value / own - 1:+.0%}"
        table.add_row(
            f"{quote.reported_value:.4g}{mark}",
            str(quote.rounds),
            f"{quote.earned:.4f}",
            f"{quote.rho:.4g}",
            f"{quote.epsilon:.3g}",
            f"{quote.cost:.4f}",
            f"{quote.utility:+.4f}",
        )
    Console(width=output_width()).print(table)
