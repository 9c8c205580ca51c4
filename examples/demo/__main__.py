"""The whole system on this machine: a coordinator and ten clients, each in its own process, over HTTP.

Three clients hold only two labels and are refused. The others sell privacy in every round, at a price that depends on
their privacy values. A coordinator or client that is killed is restarted and continues.
"""

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import stamina.instrumentation
from chart import draw
from processes import Testbed
from scenarios import SCENARIOS
from summary import print_summary
from watch import Watch

from qidpfl_client.api import AdminApi, Retries, connect
from qidpfl_client.errors import ClientError
from qidpfl_client.owner import LIFETIME_RHO, in_words
from qidpfl_experiments.run.process import AuditFailed, ProcessEnded

RETRIES = Retries(attempts=20, timeout_s=60.0, wait_initial_s=0.2, wait_max_s=2.0, jitter_s=0.2)


def main() -> None:
    options = parse()
    # Retries are expected here and need no log line: a killed process is reported once.
    stamina.instrumentation.set_on_retry_hooks([])
    signal.signal(signal.SIGTERM, stopped)
    try:
        with ExitStack() as stack:
            folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qidpfl-demo-")))
            run(options, folder, stack)
    except (ClientError, ProcessEnded, AuditFailed) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: stopped")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="examples/demo", description=__doc__)
    parser.add_argument("--dataset", choices=SCENARIOS, default="digits", help="the data set (default: digits)")
    parser.add_argument("--rounds", type=int, help="number of rounds (default: that of the preset)")
    parser.add_argument("--chart", type=Path, help="file for the chart (default: results/demo-DATASET.png)")
    parser.add_argument("--keep", type=Path, help="keep state, journals and logs in this folder")
    parser.add_argument("--hold", action="store_true", help="keep the coordinator and its dashboard after the task")
    parser.add_argument(
        "--kill-coordinator-in-round",
        type=int,
        metavar="T",
        help="kill the coordinator in this round, to show that nothing is lost",
    )
    parser.add_argument(
        "--unsafe-seed",
        type=int,
        metavar="N",
        help="UNSAFE: repeat a run exactly; noise from a seed protects nothing",
    )
    return parser.parse_args()


def run(options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    scenario = SCENARIOS[options.dataset]
    print(f"{scenario.title}. Starting a coordinator and {scenario.clients} clients ...", flush=True)
    print(
        f"Each client runs with {' '.join(scenario.limit_options)}: more than its defaults (lifetime {LIFETIME_RHO:g})."
        f"\nOver its lifetime that is {in_words(scenario.lifetime_rho)}.",
        flush=True,
    )
    testbed = stack.enter_context(Testbed(folder, scenario, rounds=options.rounds, unsafe_seed=options.unsafe_seed))
    print(f"Dashboard: {testbed.dashboard(with_token=sys.stdout.isatty())}", flush=True)
    http = stack.enter_context(connect(testbed.url))
    api = AdminApi(http, token=testbed.admin_token(), retries=RETRIES)
    watch = Watch(api=api, testbed=testbed, kill_in_round=options.kill_coordinator_in_round)
    record = watch.until_the_end()
    testbed.wait_for_clients()
    chart = options.chart or Path("results") / f"demo-{options.dataset}.png"
    print_summary(record, testbed)
    draw(record, chart)
    print(f"\nChart: {chart}")
    if options.keep:
        print(f"State, journals and logs: {folder}")
    if options.hold:
        print("\nThe coordinator goes on for the dashboard. Ctrl-C ends it.", flush=True)
        signal.pause()


def stopped(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
