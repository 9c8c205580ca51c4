"""The command of the integration: a Flower client takes part in a task until it ends."""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import stamina.instrumentation
import typer

from qidpfl_client.api import TaskApi, connect
from qidpfl_client.cli import data as own_data
from qidpfl_client.cli import options
from qidpfl_client.cli.progress import ProgressDisplay
from qidpfl_client.errors import ClientError, Misconfigured
from qidpfl_client.journal.journal import DEFAULT_PATH, Journal
from qidpfl_client.journal.ledger import read_ledger
from qidpfl_client.owner import Owner, Prices, draw_privacy_value, limits_in_words
from qidpfl_client.participant.program import ProgramRecords
from qidpfl_client.participant.runner import SHORT_RETRIES, run_until_finished
from qidpfl_client.participant.session import ClientContext, Enrolment
from qidpfl_shared.command_line import Stopped, one_line_errors, show_version, stopped_by_signals
from qidpfl_shared.core.arguments import ImpossibleArgument
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.core.privacy.account import ReleaseRefused
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.workloads.own_data.reading import OwnFiles
from qidpfl_shared.workloads.workload import WorkloadError

from .app_loading import Config, FlowerProject, config_of, loaded
from .bridge import AppData
from .records import asked_labels, records_of_files, records_of_labels

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Flower clients in QI-DPFL tasks.")
guarded = one_line_errors("qidpfl-flower", ClientError, WorkloadError, ImpossibleArgument, ReleaseRefused)

App = Annotated[
    str,
    typer.Option(
        "--app", help="the Flower app: its folder with a pyproject.toml, or module:object (a ClientApp or NumPyClient)"
    ),
]
Folder = Annotated[
    Path | None, typer.Option("--folder", help="with --app module:object: where the module is  [default: here]")
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        help="module:function of the app's folder that returns the labels of the records it trains on, one whole number"
        " per record; it may take Flower's context",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="QIDPFL_DATA",
        help="instead of --labels: the files that the app trains on, in one of the forms of qidpfl-client run --data;"
        " the app finds the path as data-path in its node configuration",
    ),
]
NodeConfig = Annotated[
    list[str] | None,
    typer.Option("--node-config", help="NAME=VALUE of the node, such as partition-id=0; repeatable, as in Flower"),
]
RunConfig = Annotated[
    list[str] | None, typer.Option("--run-config", help="NAME=VALUE that replaces one of the app's run configuration")
]
TrainConfig = Annotated[
    list[str] | None,
    typer.Option("--train-config", help="NAME=VALUE that a Flower server would send with every model, such as lr=0.1"),
]
PrivacyInside = Annotated[
    bool,
    typer.Option(
        "--privacy-inside",
        help="the app clips and adds noise by itself: its guarantee is only claimed, so this needs --accept-unproven",
    ),
]
NoRehearsal = Annotated[
    bool, typer.Option("--no-rehearsal", help="do not let the app train once on a made-up model before enrolment")
]


@app.callback()
def main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version("qidpfl-flower", PROTOCOL_VERSION),
            help="print the version",
        ),
    ] = False,
) -> None:
    """Flower clients in QI-DPFL tasks."""


@app.command("run")
@guarded
def run_command(
    server: options.Server,
    flower_app: App,
    code: options.Code = None,
    code_file: options.CodeFile = None,
    task: options.TaskId = None,
    client_cert: options.ClientCert = None,
    client_key: options.ClientKey = None,
    server_ca: options.ServerCa = None,
    journal: options.JournalPath = DEFAULT_PATH,
    moved: options.Moved = False,
    folder: Folder = None,
    labels: Labels = None,
    data: Data = None,
    column: own_data.Columns = None,
    label_name: own_data.LabelNames = None,
    node_config: NodeConfig = None,
    run_config: RunConfig = None,
    train_config: TrainConfig = None,
    privacy_inside: PrivacyInside = False,
    no_rehearsal: NoRehearsal = False,
    check_only: own_data.CheckOnly = False,
    privacy_value: options.PrivacyValue = "1.0",
    public_data: options.PublicData = False,
    rho_cap: options.RhoCap = None,
    lifetime_rho: options.LifetimeRho = None,
    histogram_rho: options.HistogramRho = None,
    exact_histogram: options.ExactHistogram = False,
    no_histogram: options.NoHistogram = False,
    min_utility: options.MinUtility = 0.0,
    cost_per_record: options.CostPerRecord = 0.0,
    cost_per_second: options.CostPerSecond = 0.0,
    cost_per_mebibyte: options.CostPerMebibyte = 0.0,
    accept_unproven: options.AcceptUnproven = False,
    no_slots: options.NoSlots = False,
    insecure: options.Insecure = False,
    patience: options.Patience = 600.0,
    first_contact: options.FirstContact = 10.0,
    unsafe_seed: options.UnsafeSeed = None,
) -> None:
    """Let a Flower client take part in a task until it ends, within the owner's limits.

    The app is called in this process and does not change. It gets the model and returns the one that it has trained;
    the client clips the difference and adds the noise (update_clip). Start it again with the same journal after a stop.
    """
    limits = options.ceilings(
        rho_cap=rho_cap,
        lifetime_rho=lifetime_rho,
        histogram_rho=histogram_rho,
        no_histogram=no_histogram,
        public_data=public_data,
    )
    owner = Owner(
        privacy_value=draw_privacy_value(privacy_value, random.SystemRandom()),
        **limits,
        exact_histogram=exact_histogram,
        no_histogram=no_histogram,
        min_utility=min_utility,
        accept_unproven=accept_unproven,
        prices=Prices(per_record=cost_per_record, per_second=cost_per_second, per_mebibyte=cost_per_mebibyte),
    )
    options.warn_if_unsafe(unsafe_seed)
    task_id, codes = options.task_and_codes(code, code_file, task, client_cert)
    files = own_data.files_of(data, column, label_name, model=None, workload=None, testbed_shard=False)
    project = FlowerProject.named(flower_app, folder=folder)
    node = config_of(node_config or []) | ({} if data is None else {"data-path": str(data)})
    run = project.run_config | config_of(run_config or [])
    with (
        ProgressDisplay() as progress,
        connect(server, insecure=insecure, tls=options.tls_files(client_cert, client_key, server_ca)) as http,
        Journal(journal) as opened,
    ):
        context = ClientContext(
            api=TaskApi(http, task_id=task_id, retries=SHORT_RETRIES),
            journal=opened,
            owner=owner,
            noise=options.noise_source(unsafe_seed),
            report=progress.say,
            countdown=progress.count_down,
        )
        progress.say(limits_in_words(owner, context.lifetime_rho))
        known = opened.membership(task_id)
        opens = _app_data(
            project,
            node=node,
            run=run,
            train=config_of(train_config or []),
            labels=labels,
            files=files,
            claimed=privacy_inside,
            # A client that has its profile has trained in this task, or is about to.
            rehearsed=no_rehearsal or (known is not None and known.profile is not None),
            report=progress.say,
        )
        enrolment = Enrolment(
            context=context,
            codes=codes,
            open_data=own_data.PreviewedData(opens, owner, progress.say),
            check_only=check_only,
            moved=moved,
        )
        end = run_until_finished(enrolment, patience_s=patience, first_contact_s=first_contact, slots=not no_slots)
        progress.say(f"the task is {end.task_state}: {end.reason}")
        ledger = read_ledger(opened)
        progress.say(f"earned {from_micro(ledger.earned_micro):.6f}; {ledger.statement}")


def main() -> None:
    """Run the command line."""
    # Do not log each retry: the client reports an outage once.
    stamina.instrumentation.set_on_retry_hooks([])
    # The owner has agreed to what the task says, and to nothing else.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        with stopped_by_signals():
            options.trace_if_wanted()
            app()
    except Stopped:
        print("qidpfl-flower: stopped; start it again with the same journal to continue", file=sys.stderr)
        sys.exit(0)


def _app_data(
    project: FlowerProject,
    *,
    node: Config,
    run: Config,
    train: Config,
    labels: str | None,
    files: OwnFiles | None,
    claimed: bool,
    rehearsed: bool,
    report: Callable[[str], None],
) -> AppData:
    """The app of a project and the labels of its records. Raises `Misconfigured` if one of them is missing."""
    if (labels is None) == (files is None):
        raise Misconfigured("give exactly one of --labels module:function and --data FOLDER|FILE")
    try:
        from .local_app import LocalApp, as_client_app, new_context
    except ImportError as error:
        raise Misconfigured(f"Flower is not installed, or another version of it ({error}): pip install flwr") from None
    client_app = as_client_app(project.load())

    def local_app() -> LocalApp:
        return LocalApp(app=client_app, context=new_context(node, run), train_config=train)

    def records(spec: TaskSpec) -> ProgramRecords:
        if files is not None:
            return records_of_files(spec, files)
        assert labels is not None
        function = loaded(labels, folder=project.folder)
        return records_of_labels(asked_labels(function, new_context(node, run)), wanted=spec.workload.labels)

    return AppData(
        app=local_app(), records=records, claimed=claimed, rehearsal=None if rehearsed else local_app, report=report
    )
