"""Opens the engine that a run asks for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...results.cells import Cell
from ...results.folder import ResultsFolder
from ...testbed.services import LocalServices, Placement
from ..cell_job import CellJob
from ..options import EngineName, Request
from .engine import CellEngine, LocalEngine
from .ray_cluster import RayCluster
from .remote import Cluster, RemoteEngine
from .slurm import SlurmCluster


@contextmanager
def engine_of(
    asked: Request, folder: ResultsFolder, *, rules: tuple[Path, ...], say: Callable[[str], None]
) -> Iterator[CellEngine]:
    """Open the engine of a run. If it does not start, remove a results folder that is new."""
    with ExitStack() as stack:
        try:
            engine = _opened(asked, folder, rules, say, stack)
        except BaseException:
            folder.undo()
            raise
        try:
            yield engine
        finally:
            engine.stop()


def _opened(
    asked: Request, folder: ResultsFolder, rules: tuple[Path, ...], say: Callable[[str], None], stack: ExitStack
) -> CellEngine:
    if asked.engine.name is EngineName.LOCAL:
        placement = Placement(
            work=folder.work,
            data_dir=asked.data_dir,
            device=asked.device,
            rules=rules,
            tensorboard=asked.tensorboard,
            mlflow=asked.mlflow,
        )
        return LocalEngine(stack.enter_context(LocalServices(placement)))
    return RemoteEngine(
        _cluster(asked, folder, say, stack), template=_template(asked, rules), work=folder.work, say=say
    )


def _cluster(asked: Request, folder: ResultsFolder, say: Callable[[str], None], stack: ExitStack) -> Cluster:
    engine = asked.engine
    if engine.name is EngineName.RAY:
        return stack.enter_context(RayCluster(engine.address, cpus=engine.cpus, gpus=engine.gpus, say=say))
    return SlurmCluster(
        results=folder.path,
        here=engine.address is not None,
        cpus=engine.cpus,
        gpus=engine.gpus,
        time_limit_min=engine.time_limit_min,
        options=engine.slurm,
    )


def _template(asked: Request, rules: tuple[Path, ...]) -> Callable[[Cell], CellJob]:
    """The job of a cell. Paths are absolute, because a job starts in another folder."""
    contents = {path.name: path.read_text() for path in rules}

    def job(cell: Cell) -> CellJob:
        return CellJob(
            cell=cell,
            device=asked.device,
            data_dir=None if asked.data_dir is None else asked.data_dir.absolute(),
            rules=contents,
            tensorboard=None if asked.tensorboard is None else asked.tensorboard.absolute(),
            mlflow=asked.mlflow,
            time_limit_min=asked.engine.time_limit_min,
            keep_logs=asked.keep_work,
        )

    return job
