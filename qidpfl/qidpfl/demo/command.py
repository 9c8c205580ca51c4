"""`qidpfl demo`: the whole system on this machine, live."""

import signal
import sys
import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qidpfl_client.api import AdminApi, Retries, connect
from qidpfl_client.errors import ClientError
from qidpfl_client.owner import LIFETIME_RHO, in_words
from qidpfl_experiments.testbed.process import AuditFailed, ProcessEnded
from qidpfl_shared.command_line import one_line_errors

from ..chart import draw
from .processes import DemoProcesses
from .scenarios import SCENARIOS
from .summary import print_summary
from .watch import Watch

RETRIES = Retries(attempts=20, timeout_s=60.0, wait_initial_s=0.2, wait_max_s=2.0, jitter_s=0.2)


class DemoDataset(StrEnum):
    """The data sets of the demo."""

    DIGITS = "digits"
    MNIST = "mnist"


@one_line_errors("qidpfl", ClientError, ProcessEnded, AuditFailed)
def demo_command(
    dataset: Annotated[DemoDataset, typer.Option(help="the data set")] = DemoDataset.DIGITS,
    rounds: Annotated[int | None, typer.Option(min=1, help="number of rounds  [default: that of the preset]")] = None,
    chart: Annotated[Path | None, typer.Option(help="file for the chart  [default: results/demo-DATASET.png]")] = None,
    keep: Annotated[Path | None, typer.Option(help="keep state, journals and logs in this folder")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="keep the coordinator and its dashboard after the task")] = False,
    kill_coordinator_in_round: Annotated[
        int | None,
        typer.Option(metavar="T", help="kill the coordinator in this round, to show that nothing is lost"),
    ] = None,
    unsafe_seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="UNSAFE: repeat a run exactly; noise from a seed protects nothing"),
    ] = None,
) -> None:
    """Run a coordinator and ten clients on this machine, each in its own process, over HTTP.

    Three clients hold only two labels and are refused. The others sell privacy in every round, at a price that depends
    on their privacy values. A coordinator or client that is killed is restarted and continues.
    """
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qidpfl-demo-")))
        scenario = SCENARIOS[dataset]
        print(f"{scenario.title}. Starting a coordinator and {scenario.clients} clients ...", flush=True)
        print(
            f"Each client runs with {' '.join(scenario.limit_options)}: more than its defaults (lifetime"
            f" {LIFETIME_RHO:g}).\nOver its lifetime that is {in_words(scenario.lifetime_rho)}.",
            flush=True,
        )
        processes = stack.enter_context(DemoProcesses(folder, scenario, rounds=rounds, unsafe_seed=unsafe_seed))
        print(f"Dashboard: {processes.dashboard(with_token=sys.stdout.isatty())}", flush=True)
        http = stack.enter_context(connect(processes.url))
        api = AdminApi(http, token=processes.admin_token(), retries=RETRIES)
        record = Watch(api=api, processes=processes, kill_in_round=kill_coordinator_in_round).until_the_end()
        processes.wait_for_clients()
        print_summary(record, processes)
        path = chart or Path("results") / f"demo-{dataset}.png"
        draw(record).save(path)
        print(f"\nChart: {path}")
        if keep:
            print(f"State, journals and logs: {folder}")
        if hold:
            print("\nThe coordinator goes on for the dashboard. Ctrl-C ends it.", flush=True)
            signal.pause()
