"""The commands of the client."""

import math
import os
import random
import sys
from pathlib import Path
from typing import Annotated

import stamina.instrumentation
import typer
from rich.console import Console

from qidpfl_shared.command_line import Stopped, output_width, show_version, stopped_by_signals
from qidpfl_shared.core import arguments
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION
from qidpfl_shared.workloads.own_data.reading import OwnFiles

from ..api import TaskApi, connect
from ..errors import Misconfigured
from ..fleet.behaviours import UNDERSTATED, Behaviour
from ..fleet.fleet import Fleet
from ..fleet.ordinals import fleet_range
from ..fleet.plan import FleetPlan
from ..fleet.room import check_room
from ..fleet.turn import Turn
from ..journal.journal import DEFAULT_PATH, Journal
from ..journal.ledger import as_json, limit_lines, read_ledger
from ..owner import Owner, Prices, draw_privacy_value, in_words, limits_in_words
from ..participant.data_source import OpenData
from ..participant.runner import SHORT_RETRIES, run_until_finished
from ..participant.session import ClientContext, Enrolment
from . import data as own_data
from . import options
from .conform import conform_command
from .doctor import doctor_command
from .ledger_table import print_entries
from .options import guarded
from .progress import ProgressDisplay
from .quote import quote_command
from .tokens import rotate_command
from .verify import verify_command

# How many members a fleet steps for each one that trains: the others wait for answers of the coordinator.
_WORKERS_PER_TRAINING = 4
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The QI-DPFL client.")
ledger_app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.add_typer(ledger_app, name="ledger")
app.command("rotate-token")(rotate_command)
app.command("conform")(conform_command)
app.command("doctor")(doctor_command)
app.command("verify")(verify_command)
app.command("quote")(quote_command)


@app.callback()
def main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version("qidpfl-client", PROTOCOL_VERSION),
            help="print the version",
        ),
    ] = False,
) -> None:
    """The QI-DPFL client."""


@app.command("run")
@guarded
def run_command(
    server: options.Server,
    code: options.Code = None,
    code_file: options.CodeFile = None,
    task: options.TaskId = None,
    client_cert: options.ClientCert = None,
    client_key: options.ClientKey = None,
    server_ca: options.ServerCa = None,
    journal: options.JournalPath = DEFAULT_PATH,
    ordinal: Annotated[int | None, typer.Option(min=0, help="wanted place (shard) in a testbed")] = None,
    moved: options.Moved = False,
    workload: options.CustomWorkload = None,
    data_dir: options.DataDir = None,
    all_records: options.AllRecords = False,
    testbed_shard: options.TestbedShard = False,
    data: own_data.Data = None,
    model: own_data.Model = None,
    column: own_data.Columns = None,
    label_name: own_data.LabelNames = None,
    check_only: own_data.CheckOnly = False,
    device: options.Device = "auto",
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
    rotate_token_every: options.RotateTokenEvery = None,
    insecure: options.Insecure = False,
    patience: options.Patience = 600.0,
    first_contact: options.FirstContact = 10.0,
    unsafe_seed: options.UnsafeSeed = None,
) -> None:
    """Take part in a task until it ends, within the owner's limits.

    SIGTERM or Ctrl-C stops the client cleanly. After a stop or a kill, start it again with the same journal: it
    continues, and spends no budget twice. A client that is not selected waits for the end of the task.
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
    tls = options.tls_files(client_cert, client_key, server_ca)
    files = own_data.files_of(data, column, label_name, model=model, workload=workload, testbed_shard=testbed_shard)
    with (
        ProgressDisplay() as progress,
        connect(server, insecure=insecure, tls=tls) as http,
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
        local = _local_data(
            device,
            data_dir,
            workload,
            all_records=all_records or (workload is not None and not testbed_shard),
            threads=os.cpu_count() or 1,
            files=files,
            model=model,
        )
        enrolment = Enrolment(
            context=context,
            codes=codes,
            open_data=own_data.PreviewedData(local, owner, progress.say),
            check_only=check_only,
            ordinal=ordinal,
            moved=moved,
        )
        end = run_until_finished(
            enrolment,
            patience_s=patience,
            first_contact_s=first_contact,
            slots=not no_slots,
            rotation=options.rotation(rotate_token_every, progress.say),
        )
        progress.say(f"the task is {end.task_state}: {end.reason}")
        ledger = read_ledger(opened)
        progress.say(f"earned {from_micro(ledger.earned_micro):.6f}; {ledger.statement}")


@app.command("fleet")
@guarded
def fleet_command(
    server: options.Server,
    clients: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="number of participants; with --ordinals that of all parts")
    ] = None,
    ordinals: Annotated[
        str | None,
        typer.Option(metavar="A-B", help="run only these members, with their shards; other fleets run the others"),
    ] = None,
    code: options.Code = None,
    code_file: options.CodeFile = None,
    client_cert: options.ClientCert = None,
    client_key: options.ClientKey = None,
    server_ca: options.ServerCa = None,
    journals: Annotated[Path, typer.Option(help="folder for the journals of the members")] = Path("qidpfl-fleet"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="members that train at the same time  [default: number of cores]")
    ] = None,
    workload: options.CustomWorkload = None,
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    privacy_value: options.PrivacyValue = "0.95:1.05",
    public_data: options.PublicData = False,
    rho_cap: options.RhoCap = None,
    lifetime_rho: options.LifetimeRho = None,
    histogram_rho: options.HistogramRho = None,
    exact_histogram: options.ExactHistogram = False,
    no_histogram: options.NoHistogram = False,
    accept_unproven: options.AcceptUnproven = False,
    dropout: Annotated[float, typer.Option(min=0, max=1, help="probability that a member misses a round")] = 0.0,
    silent_dropout: Annotated[
        bool,
        typer.Option("--silent-dropout", help="drop-outs do not withdraw: each such round lasts until its deadline"),
    ] = False,
    delay: Annotated[float, typer.Option(min=0, help="longest random delay before training, in seconds")] = 0.0,
    free_riders: Annotated[float, typer.Option(min=0, max=1, help="share of members that upload only noise")] = 0.0,
    over_noisers: Annotated[
        float, typer.Option(min=0, max=1, help="share of members that add more noise than declared")
    ] = 0.0,
    misreporters: Annotated[
        float, typer.Option(min=0, max=1, help="share of members that misreport their privacy value")
    ] = 0.0,
    misreport_factor: Annotated[float, typer.Option(help="what they multiply it with")] = UNDERSTATED,
    replayers: Annotated[
        float, typer.Option(min=0, max=1, help="share of members that send the same bytes in every round")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="seed of privacy values, behaviours, drop-outs, delays; not of noise")] = 0,
    insecure: options.Insecure = False,
    patience: options.Patience = 600.0,
    first_contact: options.FirstContact = 10.0,
    unsafe_seed: options.UnsafeSeed = None,
    common_noise: options.CommonDraw = None,
) -> None:
    """Run many participants in one process, as a testbed; some of them can misbehave.

    Every member has its own identity, journal and privacy value. All members share one data set.
    """
    shares = {
        Behaviour.FREE_RIDER: free_riders,
        Behaviour.OVER_NOISER: over_noisers,
        Behaviour.MISREPORTER: misreporters,
        Behaviour.REPLAYER: replayers,
    }
    size, played = fleet_range(clients, ordinals, has_shares=any(shares.values()))
    options.warn_if_unsafe(unsafe_seed, common_noise)
    codes = options.enrolment_codes(code, code_file)
    limits = options.ceilings(
        rho_cap=rho_cap,
        lifetime_rho=lifetime_rho,
        histogram_rho=histogram_rho,
        no_histogram=no_histogram,
        public_data=public_data,
    )
    owner = Owner(
        **limits,
        exact_histogram=exact_histogram,
        no_histogram=no_histogram,
        accept_unproven=accept_unproven,
    )
    plan = FleetPlan(
        clients=size,
        ordinals=None if ordinals is None else played,
        codes=codes,
        owner=owner,
        journals=journals,
        privacy_value=privacy_value,
        shares=shares,
        misreport=misreport_factor,
        dropout=dropout,
        silent_dropout=silent_dropout,
        delay_up_to_s=delay,
        seed=seed,
        unsafe_seed=unsafe_seed,
        common_draw=common_noise,
        patience_s=patience,
        first_contact_s=first_contact,
        trainings=workers or os.cpu_count() or 1,
    )
    # While some members train, others wait for answers: the coordinator then commits many of them together.
    workers, turn = min(len(played), _WORKERS_PER_TRAINING * plan.trainings), Turn()
    with (
        ProgressDisplay() as progress,
        connect(
            server,
            insecure=insecure,
            connections=workers + 2,
            tls=options.tls_files(client_cert, client_key, server_ca),
            waiting=turn.waiting,
        ) as http,
    ):
        check_room(plan, http, progress.say)
        # One torch thread per training: the results do not depend on the number of workers.
        data = _local_data(device, data_dir, workload, threads=1)
        with plan.members(http, data, progress.say, turn=turn) as members:
            highest = max(member.enrolment.context.lifetime_rho for member in members)
            progress.say(f"of every member, {limits_in_words(owner, highest)}")
            Fleet(members, workers=workers, watch=plan.api(http), turn=turn, report=progress.say).run()
            failed = [member for member in members if member.failure is not None]
            earned = sum(read_ledger(member.enrolment.context.journal).earned_micro for member in members)
            progress.say(
                f"{len(members) - len(failed)} of {len(members)} members ended well; earned {from_micro(earned):.6f}"
            )
    if failed:
        raise typer.Exit(1)


@ledger_app.callback(invoke_without_command=True)
@guarded
def ledger_command(
    command: typer.Context,
    journal: options.JournalPath = DEFAULT_PATH,
    delta: Annotated[
        float | None, typer.Option(help="the delta at which epsilon is shown  [default: that of the latest task]")
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show the spent budget, its guarantee, the earnings and the rest. The client may run at the same time."""
    if command.invoked_subcommand is not None:
        return
    with Journal(journal, read_only=True) as opened:
        ledger = read_ledger(opened, delta=delta)
    if as_json_:
        print(as_json(ledger))
        return
    print_entries(ledger, Console(width=output_width()))
    print(f"\nearned {from_micro(ledger.earned_micro):.6f}; {ledger.statement}")
    if math.isfinite(ledger.remaining_rho):
        print(f"left: rho {ledger.remaining_rho:.4g} of {ledger.lifetime_rho:.4g}")
    else:
        print("left: no lifetime limit in force")
    for line in limit_lines(ledger):
        print(f"limit: {line}")


@ledger_app.command("raise")
@guarded
def raise_command(
    command: typer.Context,
    lifetime_rho: Annotated[float, typer.Option(help="the new, higher lifetime limit")],
    journal: Annotated[
        Path | None, typer.Option(help="the journal of this data set  [default: that of the ledger command]")
    ] = None,
) -> None:
    """Raise the lifetime limit of a journal. The journal records it; no coordinator is asked or told."""
    arguments.positive("lifetime_rho", lifetime_rho)
    assert command.parent is not None
    path: Path = journal or command.parent.params["journal"]
    with Journal(path) as opened:
        before = opened.limits.raise_to(lifetime_rho)
    print(f"the lifetime limit of {path} was rho {before:g}, {in_words(before)}")
    print(f"from now on it is rho {lifetime_rho:g}, {in_words(lifetime_rho)}")


def main() -> None:
    """Run the command line."""
    # Do not log each retry: the client reports an outage once.
    stamina.instrumentation.set_on_retry_hooks([])
    try:
        with stopped_by_signals():
            options.trace_if_wanted()
            app()
    except Stopped:
        # The journal makes it safe to stop at any point.
        print("qidpfl-client: stopped; start it again with the same journal to continue", file=sys.stderr)
        sys.exit(0)


def _local_data(
    device: str,
    data_dir: Path | None,
    workload: str | None,
    *,
    threads: int,
    all_records: bool = False,
    files: OwnFiles | None = None,
    model: str | None = None,
) -> OpenData:
    if data_dir is not None and not data_dir.is_dir():
        raise Misconfigured(f"there is no folder {data_dir}: create it, or correct --data-dir")
    # Torch takes seconds to load: --help and the ledger do not need it.
    try:
        import torch
    except ImportError:
        raise Misconfigured("torch is not installed: pip install 'qidpfl-client[train]'") from None

    from ..participant.local_data import LocalData
    from ..training.devices import choose_device

    torch.set_num_threads(threads)
    return LocalData(
        device=choose_device(device),
        data_dir=data_dir,
        custom_workload=workload,
        all_records=all_records,
        files=files,
        model=model,
    )
