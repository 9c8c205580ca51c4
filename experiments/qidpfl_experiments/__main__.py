"""The commands run, cell, calibrate, tune, report, view and list."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import stamina.instrumentation
import typer
from rich.console import Console
from rich.table import Table

from qidpfl_shared.command_line import Stopped, output_width, show_version, stopped_by_signals
from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION

from .analysis.evaluate import resolution_in_words
from .methods import INCENTIVES, METHODS, QI_DPFL, custom_methods, methods_named
from .report.about import about
from .report.report import write_report
from .results.calibration import Calibration
from .results.cells import failure_of, write_result
from .results.folder import NotOurFolder, gathered, read_config
from .results.tables import DamagedResults, Tables, write_tables
from .run import options
from .run.cell_job import read_job, run_job
from .run.options import asking, guarded, names
from .run.runner import MethodComparison, run_calibrations, run_tuning
from .run.session import running
from .settings import SETTINGS, SettingsError, read_settings
from .view.content import as_json, page_content
from .view.server import PageServer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run the paper's experiments on live services: a coordinator and fleets of clients over HTTP.",
)


@app.callback()
def main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=show_version("qidpfl-experiments", PROTOCOL_VERSION),
            help="print the version",
        ),
    ] = False,
) -> None:
    """Run the paper's experiments on live services: a coordinator and fleets of clients over HTTP."""


@app.command("run")
@guarded
@asking
def run_command(
    asked: options.Request,
    methods: Annotated[str, typer.Option(help="all, or names separated by commas (see list)")] = "all",
    own: Annotated[
        list[Path] | None, typer.Option(help="Python file with a custom method to compare as well; repeatable")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="how many repetitions (5: the seeds 0 to 4), or which seeds: 3,5 or 4-6 or 7-7")
    ] = "5",
) -> None:
    """Run methods on partitions of a data set and write tables, figures, claims and a report.

    After an interruption, run the same command again: it skips finished cells. The exit status is 1 if a cell failed.
    """
    custom = custom_methods(own or ())
    chosen, repeated = (*methods_named(names(methods)), *custom), options.seeds_in(seeds)
    digests = {method.name: method.rules_digest for method in custom}
    rules = tuple(path for path, method in zip(own or (), custom, strict=True) if method.has_rules)
    with running(asked, rules=rules, own_rules=digests) as (folder, runner, grid):
        for method in (method for method in chosen if not grid.can_run(method)):
            runner.progress.say(f"{method.name} is left out: the network of {asked.setup.dataset} has no image rows")
        chosen = tuple(method for method in chosen if grid.can_run(method))
        calibrations: dict[str, Calibration] = {}
        if any(method.noise for method in chosen):
            calibrations = run_calibrations(runner, grid)
            folder.write(calibrations.values())
        comparison = MethodComparison(
            runner=runner, grid=grid, methods=chosen, seeds=repeated, calibrations=calibrations
        )
        ran = len(comparison.run()) + sum(len(calibration.runs) for calibration in calibrations.values())
        # Written before the audit, which ends the command if it finds a violation.
        folder.write()
    _report(asked.out)
    if runner.failures:
        raise options.CellsFailed(f"{len(runner.failures)} of {ran} cells failed; the report lists them")


@app.command("cell")
@guarded
def cell_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="cell.json of a run on a cluster, in OUT/work/CELL")],
    out: Annotated[Path, typer.Option(help="file for the result; in OUT/cells a later run finds it")],
    work: Annotated[
        Path | None, typer.Option(help="new folder for state and logs, which is kept  [default: a temporary one]")
    ] = None,
) -> None:
    """Run one cell with a coordinator and a fleet of its own, as a job on a cluster does."""
    if work is not None and work.exists() and any(work.iterdir()):
        raise SettingsError(f"{work} is not empty; name a new folder with --work")
    outcome = run_job(read_job(file), work)
    write_result(out, outcome.result)
    cell = outcome.result.cell
    if not outcome.result.finished:
        for name, content in outcome.logs.items():
            print(f"--- {name}\n{content.strip()}", file=sys.stderr)
        raise options.CellsFailed(f"{file}: {failure_of(outcome.result)}")
    accuracy = "unevaluated" if cell.accuracy is None else f"accuracy {cell.accuracy:.4f}"
    print(f"{accuracy}; audit of the coordinator: {outcome.audit}; result in {out}")


@app.command("calibrate")
@guarded
@asking
def calibrate_command(asked: options.Request) -> None:
    """Sweep rewards, fit accuracy against the total budget, and derive the admissible rewards.

    Writes calibrated-PARTITION.json for qidpfl-server tasks create --overrides @FILE.
    """
    with running(asked) as (folder, runner, grid):
        calibrations = run_calibrations(runner, grid)
        folder.write(calibrations.values())
    for partition, calibration in calibrations.items():
        print(f"{partition}: {calibration.statement}")
        if calibration.admissible is not None:
            print(f"{partition}: overrides in {folder.overrides_file(partition)}")
    _report(asked.out)
    if runner.failures:
        raise options.CellsFailed(f"{len(runner.failures)} runs failed; the report lists them")
    if any(calibration.admissible is None for calibration in calibrations.values()):
        raise options.CellsFailed("at least one partition has no admissible rewards; see the report")


@app.command("tune")
@guarded
@asking
def tune_command(
    asked: options.Request,
    methods: Annotated[str, typer.Option(help="names of methods, separated by commas (see list)")] = QI_DPFL.name,
) -> None:
    """Try the learning rates of the settings with methods on validation records. The test set is not used."""
    tuned = methods_named(names(methods))
    with running(asked) as (folder, runner, grid):
        rows = run_tuning(runner, grid, tuned)
        folder.write(tuning=rows)
    table = Table("method", "partition", "learning rate", "validation accuracy", box=None)
    for row in rows:
        table.add_row(
            row.method, row.partition, f"{row.learning_rate:g}", "" if row.accuracy is None else f"{row.accuracy:.4f}"
        )
    Console(width=output_width()).print(table)
    _report(asked.out)
    if any(row.failure for row in rows):
        raise options.CellsFailed("at least one run failed; the report lists it")


@app.command("report")
@guarded
def report_command(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="a results folder")],
) -> None:
    """Write tables, figures, claims and report again from a results folder, which may be incomplete."""
    _report(out)


@app.command("view")
@guarded
def view_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a results folder, which may be incomplete")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port on the loopback address 127.0.0.1; 0: a free one")
    ] = 0,
) -> None:
    """Show a results folder in the browser: methods side by side, intervals, claims and their verdicts.

    Prints the address and serves the page until Ctrl-C. Every visit reads the folder again. Nothing is written.
    """
    # Here, so that a damaged folder is an error of the command and not of the page.
    as_json(page_content(folder))
    server = PageServer(port, lambda: as_json(page_content(folder)), (NotOurFolder, DamagedResults, OSError))
    with suppress(Stopped), server:
        print(f"{folder}: {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()


@app.command("list")
@guarded
def list_command(
    settings: options.SettingsFile = SETTINGS,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the data sets with their scales, the partitions, the variants and the methods."""
    known = read_settings(settings)
    rows: list[tuple[str, str, str]] = []
    for dataset, values in known.datasets.items():
        for scale, size in values.scales.items():
            mark = " (default)" if scale == values.default_scale else ""
            rows.append(("--dataset --scale", f"{dataset} {scale}{mark}", size.about))
    rows += [("--partition", name, partition.about) for name, partition in known.partitions.items()]
    rows += [("--variant", name, variant.about) for name, variant in known.variants.items()]
    rows += [("--methods", method.name, method.about) for method in METHODS]
    rows += [("--methods incentives", method.name, method.about) for method in INCENTIVES]
    if as_json:
        print(json.dumps([{"option": option, "name": name, "about": about} for option, name, about in rows], indent=2))
        return
    table = Table("what", "name", "about", box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=output_width()).print(table)


def main() -> None:
    """Run the command line."""
    # Retries are expected here and need no log line.
    stamina.instrumentation.set_on_retry_hooks([])
    try:
        with stopped_by_signals():
            app()
    except Stopped:
        sys.exit("qidpfl-experiments: stopped; run the same command again to continue")


def _report(out: Path) -> None:
    config = read_config(out)
    tables = gathered(out)
    if tables == Tables():
        raise NotOurFolder(f"{out} has no finished cells yet; run some first")
    write_tables(out, tables)
    resolution = resolution_in_words(write_report(out, tables, about(config)))
    if resolution:
        print(f"resolution: {resolution}")
    print(f"report: {out / 'report.html'}")


if __name__ == "__main__":
    main()
