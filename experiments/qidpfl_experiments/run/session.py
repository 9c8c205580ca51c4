"""The frame of every run: load the data, open an engine, show progress, audit at the end, and clean up."""

import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qidpfl_shared.protocol.task_spec import TaskSpec, WorkloadSpec
from qidpfl_shared.workloads.loading import load_workload

from ..results.folder import Config, ResultsFolder, opened, versions
from .engines.choice import engine_of
from .grid import GridBuilder
from .options import EngineName, Request
from .progress import RunProgress
from .runner import Runner


@contextmanager
def running(
    asked: Request, *, rules: tuple[Path, ...] = (), own_rules: Mapping[str, str] | None = None
) -> Iterator[tuple[ResultsFolder, Runner, GridBuilder]]:
    """Open the results folder and start a runner on an engine.

    The folder is created after the data are loaded. The state and the logs of the engine are removed at the end, except
    with `keep_work`, after a failed cell and after an interruption.
    """
    grid = GridBuilder(setup=asked.setup, reproducible=asked.reproducible)
    started = time.monotonic()
    with ExitStack() as stack:
        progress = stack.enter_context(RunProgress())
        progress.say(_what(asked))
        spec = _checked_spec(grid)
        if spec.privacy.mechanism.build().heuristic:
            progress.say(
                f"HEURISTIC noise, no privacy guarantee: {spec.privacy.mechanism.name} proves less than declared"
            )
        if asked.reproducible:
            progress.say("UNSAFE: the noise comes from the seed and protects nothing; use public data only")
        if asked.engine.name is EngineName.LOCAL:
            _check_device(asked.device)
        _fetch(spec.workload.whole, asked.data_dir)
        config = Config(
            setup=asked.setup,
            reproducible=asked.reproducible,
            specs=grid.whole_specs(),
            own_rules=dict(own_rules or {}),
            versions=[versions()],
        )
        folder = stack.enter_context(opened(asked.out, config))
        with engine_of(asked, folder, rules=rules, say=progress.say) as engine:
            runner = Runner(files=folder.cells, jobs=asked.jobs, progress=progress, engine=engine)
            yield folder, runner, grid
            audit = engine.audit()
        progress.say(f"audit of the coordinator: {audit}")
        folder.note_run(_command(), audit=audit, wall_s=time.monotonic() - started, versions=engine.versions)
        if runner.failures:
            progress.say(f"the logs of failed cells are in {folder.work}")
        elif not asked.keep_work:
            # On a shared disk a node may still write the last lines of a log.
            shutil.rmtree(folder.work, ignore_errors=True)


def _what(asked: Request) -> str:
    setup = asked.setup
    scale = f"scale {setup.scale}: {setup.about}"
    if not setup.is_full:
        scale = f"NOT the full experiment, {scale}; --scale full runs all of it"
    return f"{setup.dataset}, {scale}; results in {asked.out}"


def _check_device(name: str) -> None:
    """Reject a device that is not available before any cell runs."""
    if name not in ("auto", "cpu"):
        # The import of torch takes seconds, and a CPU needs no check.
        from qidpfl_client.training.devices import choose_device

        choose_device(name)


def _checked_spec(grid: GridBuilder) -> TaskSpec:
    """The specification of a cell. Building one for every partition checks the settings before anything starts."""
    setup = grid.setup
    cells = [grid.calibration_cell(partition=partition, reward=setup.rewards[0]) for partition in setup.partitions]
    specs = [cell.spec for cell in cells]
    return specs[0]


def _fetch(workload: WorkloadSpec, data_dir: Path | None) -> None:
    """Load the data once, so that they are downloaded before the coordinator needs them."""
    loaded = load_workload(workload, data_dir=data_dir)
    loaded.training()
    loaded.held_out()


def _command() -> str:
    return " ".join(["qidpfl-experiments", *(shlex.quote(part) for part in sys.argv[1:])])
