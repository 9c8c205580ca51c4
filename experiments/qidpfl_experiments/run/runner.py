"""Runs cells on an engine, several at the same time, and skips cells that already have a result."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..methods import BY_NAME, QI_DPFL, Method
from ..results.calibration import Calibration
from ..results.cells import Cell, CellFiles, CellResult, failure_of
from ..results.tables import TuningRow
from .calibration import fit_calibration
from .engines.engine import CellEngine
from .execute import failed
from .grid import GridBuilder, MissingPrerequisite
from .progress import RunProgress

# By method, partition and seed.
Leaders = dict[tuple[str, str, int], CellResult]


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs the cells that have no result yet and stores their results."""

    files: CellFiles
    jobs: int
    progress: RunProgress
    engine: CellEngine
    # The names of the cells that failed.
    failures: list[str] = field(default_factory=list)

    def results(self, phase: str, cells: Sequence[Cell]) -> list[CellResult]:
        """The results of these cells, in their order. An interruption ends the cells that are running."""
        self.progress.begin(phase, len(cells))
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._result, cell) for cell in cells]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self.engine.stop()
                pool.shutdown(cancel_futures=True)
                raise

    def _result(self, cell: Cell) -> CellResult:
        known = self.files.read(cell)
        if known is not None:
            self.progress.ended(cell, known, started=None)
            return known
        started = time.monotonic()
        result = self.engine.run(cell)
        # The result of an interrupted cell is not stored.
        return result if self.engine.stopping else self.keep(cell, result, started=started)

    def keep(self, cell: Cell, result: CellResult, *, started: float | None = None) -> CellResult:
        """Store a result and report it."""
        self.files.write(cell, result)
        if not result.finished:
            self.failures.append(cell.name)
        self.progress.ended(cell, result, started=started)
        return result


def run_calibrations(runner: Runner, grid: GridBuilder) -> dict[str, Calibration]:
    """Calibrate every partition."""
    setup = grid.setup
    cells = {
        partition: [
            grid.calibration_cell(partition=partition, reward=reward, draw=draw)
            for reward in setup.rewards
            for draw in range(setup.draws)
        ]
        for partition in setup.partitions
    }
    results = iter(runner.results("calibrating", [cell for sweep in cells.values() for cell in sweep]))
    return {
        partition: fit_calibration(
            setup,
            partition=partition,
            results=[next(results) for _ in sweep],
            privacy_weight=sweep[0].spec.game.privacy_weight,
        )
        for partition, sweep in cells.items()
    }


def run_tuning(runner: Runner, grid: GridBuilder, methods: Sequence[Method] = (QI_DPFL,)) -> list[TuningRow]:
    """Measure the validation accuracy of every learning rate on every partition, for each of these methods."""
    setup = grid.setup
    rates = [
        (one, partition, rate) for one in methods for partition in setup.partitions for rate in setup.learning_rates
    ]
    cells = [
        grid.tuning_cell(partition=partition, learning_rate=rate, method=method) for method, partition, rate in rates
    ]
    return [
        TuningRow(
            dataset=setup.dataset,
            partition=partition,
            method=method.name,
            learning_rate=rate,
            accuracy=None if failure_of(result) else result.cell.accuracy,
            failure=failure_of(result),
        )
        for (method, partition, rate), result in zip(rates, runner.results("tuning", cells), strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class MethodComparison:
    """All methods on all partitions with all seeds."""

    runner: Runner
    grid: GridBuilder
    methods: Sequence[Method]
    seeds: Sequence[int]
    calibrations: Mapping[str, Calibration]

    def run(self) -> list[CellResult]:
        """Run all cells. Methods whose rewards others copy, such as QI-DPFL, run first."""
        conditions = [(partition, seed) for seed in self.seeds for partition in self.grid.setup.partitions]
        leaders: Leaders = {}
        leading = list(
            dict.fromkeys(BY_NAME[method.leader] for method in self.methods if method.follows or method == QI_DPFL)
        )
        if leading:
            first = [(method, *condition) for condition in conditions for method in leading]
            results = self._run(", ".join(method.title for method in leading), first, {})
            leaders = {(result.cell.method, result.cell.partition, result.cell.seed): result for result in results}
        others = [method for method in self.methods if method not in leading]
        wanted = [(method, *condition) for condition in conditions for method in others]
        return [*leaders.values(), *self._run("the other methods", wanted, leaders)]

    def _run(self, phase: str, wanted: Sequence[tuple[Method, str, int]], leaders: Leaders) -> list[CellResult]:
        """Run the cells. A cell with a missing prerequisite fails without being run."""
        cells: list[Cell] = []
        failures: list[CellResult] = []
        for method, partition, seed in wanted:
            try:
                cells.append(self._build_cell(method, partition, seed, leaders))
            except MissingPrerequisite as error:
                cell = self.grid.placeholder(method, partition=partition, seed=seed)
                failures.append(self.runner.keep(cell, failed(cell, str(error))))
        return [*self.runner.results(phase, cells), *failures]

    def _build_cell(self, method: Method, partition: str, seed: int, leaders: Leaders) -> Cell:
        calibration = self.calibrations.get(partition)
        if calibration is not None and method.noise and calibration.compared is None:
            raise MissingPrerequisite(f"the calibration that gives its reward range failed: {calibration.statement}")
        return self.grid.cell(
            method,
            partition=partition,
            seed=seed,
            rewards=calibration.compared if calibration else None,
            leader=leaders.get((method.leader, partition, seed)),
        )
