"""The global model: version 0, the next version from a round's accepted updates, and how versions are stored.

Parameters are stored as they go over the wire, momentum in full precision. Settlement and the audit compute the next
version with the same function.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt

from qidpfl_shared.core.aggregation import Parameters, ServerState, server_step
from qidpfl_shared.core.noise_audit import alignment
from qidpfl_shared.failpoints import failpoint
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.wire import BYTES_PER_PARAMETER, decode, encode, flatten

from ...domain import Model
from ...errors import DamagedState, StoreBusy
from ...store.blobs import Blobs, StagedBlob
from ...store.transaction import Transaction
from .update_blocks import LARGEST_BLOCK, UpdateMoments, mean_blocks
from .weights import WeightedUpload

# Threads of a settlement: they read, hash and write. Other settlements may run at the same time.
_THREADS = 2
# Pieces of a file that wait to be hashed and written, while the next ones are computed.
_PIECES_AHEAD = 4


def next_state(blobs: Blobs, spec: TaskSpec, base: Model, parts: Sequence[WeightedUpload]) -> ServerState:
    """The state after the server's step along the mean of the accepted updates, in the order of `parts`."""
    whole = ServerState(parameters=np.empty(spec.dimension, dtype=np.float32), momentum=np.empty(spec.dimension))
    for start, block in _next_blocks(blobs, spec, base, parts):
        end = start + block.parameters.size
        whole.parameters[start:end], whole.momentum[start:end] = block.parameters, block.momentum
    return whole


@dataclass(frozen=True, kw_only=True)
class NextModel:
    """The next version, in files that are fsynced but not yet renamed into place.

    `alignments` say how well each update agrees with the sum of the others, as a score that is N(0, 1) for random
    directions; empty if that was not asked for. `parameters` is None unless they were asked for.
    """

    model: Model
    files: tuple[StagedBlob, ...]
    alignments: list[float]
    parameters: Parameters | None


@contextmanager
def staged_next_model(
    blobs: Blobs,
    spec: TaskSpec,
    base: Model,
    parts: Sequence[WeightedUpload],
    *,
    version: int,
    compare: bool,
    keep_parameters: bool,
) -> Iterator[NextModel]:
    """Compute the next version and stage its files; they are removed at the end unless they were published.

    One pass over the updates, in bounded memory, which also compares the updates with each other.
    """
    moments = UpdateMoments(len(parts)) if compare else None
    kept = np.empty(spec.dimension, dtype=np.float32) if keep_parameters else None
    has_momentum = False
    with blobs.stage(read_again=True) as parameters, blobs.stage() as momentum, ExitStack() as pools:
        # A pool starts no thread before it gets work. A small model is faster without.
        threads, *of_files = (
            pools.enter_context(ThreadPoolExecutor(count)) if spec.dimension > LARGEST_BLOCK else None
            for count in (_THREADS, 1, 1)
        )
        writers = [_PieceWriter(*one) for one in zip((parameters, momentum), of_files, strict=True)]
        for start, block in _next_blocks(blobs, spec, base, parts, threads, moments):
            if kept is not None:
                kept[start : start + block.parameters.size] = block.parameters
            has_momentum = has_momentum or bool(block.momentum.any())
            writers[0].write(_bytes_of(block.parameters, "<f4"))
            writers[1].write(_bytes_of(block.momentum, "<f8"))
        for writer in writers:
            writer.finish()
        failpoint("settle.aggregate_computed")
        files = (parameters, momentum) if has_momentum else (parameters,)
        sync = methodcaller("sync")
        list(threads.map(sync, files) if threads else map(sync, files))
        model = Model(
            version=version, digest=parameters.digest, momentum_digest=momentum.digest if has_momentum else None
        )
        scores = [] if moments is None else alignment(moments=moments.result(), dimension=spec.dimension).tolist()
        yield NextModel(model=model, files=files, alignments=scores, parameters=kept)


class _PieceWriter:
    """Writes pieces to a staged blob in their order: in a thread of its own, or at once without one."""

    def __init__(self, file: StagedBlob, thread: Executor | None) -> None:
        self._file = file
        self._thread = thread
        self._waiting: deque[Future[None]] = deque()

    def write(self, piece: memoryview) -> None:
        """Write a piece. Waits if too many pieces wait already."""
        if self._thread is None:
            self._file.write(piece)
            return
        if len(self._waiting) >= _PIECES_AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._file.write, piece))

    def finish(self) -> None:
        """Wait until all pieces are written."""
        while self._waiting:
            self._waiting.popleft().result()


def _next_blocks(
    blobs: Blobs,
    spec: TaskSpec,
    base: Model,
    parts: Sequence[WeightedUpload],
    threads: Executor | None = None,
    moments: UpdateMoments | None = None,
) -> Iterator[tuple[int, ServerState]]:
    """The next state in blocks of coordinates, each with its start. They count only when all of them were read."""
    with ExitStack() as files:
        weights = files.enter_context(blobs.reader(base.digest, BYTES_PER_PARAMETER * spec.dimension))
        velocity = None
        if base.momentum_digest is not None:
            velocity = files.enter_context(blobs.reader(base.momentum_digest, 8 * spec.dimension))
        blocks = mean_blocks(blobs, spec, parts, threads=threads, moments=moments)
        means = ((block.start, block.mean) for block in blocks)
        step = spec.post_processing
        for start, mean in means if step is None else step(means):
            parameters = np.empty(mean.size, dtype="<f4")
            weights.read_into(parameters.data.cast("B"))
            momentum = np.zeros(mean.size, dtype="<f8")
            if velocity is not None:
                velocity.read_into(momentum.data.cast("B"))
            yield (
                start,
                server_step(
                    state=ServerState(parameters=parameters, momentum=momentum),
                    mean_update=mean,
                    learning_rate=spec.aggregation.learning_rate,
                    momentum=spec.aggregation.momentum,
                ),
            )
        weights.finish()
        if velocity is not None:
            velocity.finish()


def _bytes_of(values: npt.NDArray[Any], kind: str) -> memoryview:
    return np.ascontiguousarray(values, dtype=kind).data.cast("B")


def initial_parameters(spec: TaskSpec) -> Parameters:
    """Version 0: zero for convex models; otherwise each layer uniform in ±1/sqrt(fan-in).

    It depends on workload and layout only, so that tasks that differ in game or privacy start from the same model.
    """
    if spec.workload.convex:
        return np.zeros(spec.dimension, dtype=np.float32)
    what = f"{spec.workload.model_dump_json()}{spec.layout.model_dump_json()}"
    source = np.random.default_rng(list(hashlib.sha256(what.encode()).digest()))
    tensors, bound = {}, 1.0
    for tensor in spec.layout.tensors:
        if len(tensor.shape) > 1:
            bound = (tensor.size / tensor.shape[0]) ** -0.5
        tensors[tensor.name] = source.uniform(-bound, bound, tensor.shape)
    return flatten(tensors=tensors, layout=spec.layout)


def save_model(blobs: Blobs, version: int, state: ServerState) -> Model:
    """Write a model durably; momentum only if it is not zero."""
    digest = blobs.put(encode(state.parameters))
    momentum = blobs.put(state.momentum.astype("<f8").tobytes()) if state.momentum.any() else None
    return Model(version=version, digest=digest, momentum_digest=momentum)


def publish_model(tx: Transaction, model: NextModel) -> None:
    """Rename the files of a staged model into place. Raises `StoreBusy` if a sweep has removed them."""
    try:
        for file in model.files:
            tx.publish(file)
    except FileNotFoundError:
        raise StoreBusy("the model was swept before it was recorded; try again") from None


def require_stored(tx: Transaction, model: Model) -> None:
    """Raise `StoreBusy` if a sweep has removed the files of a model before its row was written.

    That happens to a process that was paused for longer than the grace period of the sweep.
    """
    for digest in filter(None, (model.digest, model.momentum_digest)):
        tx.require_unclaimed(digest)
        if not tx.blobs.has(digest):
            raise StoreBusy("the model was swept before it was recorded; try again")


def load_model(blobs: Blobs, model: Model, dimension: int) -> ServerState:
    """Read a model and check its digests. Raises `DamagedState`."""
    parameters = decode(blobs.get(model.digest), dimension=dimension)
    if model.momentum_digest is None:
        return ServerState.start(parameters)
    momentum = np.frombuffer(blobs.get(model.momentum_digest), dtype="<f8").astype(np.float64)
    if momentum.shape != (dimension,):
        raise DamagedState(f"the momentum of model version {model.version} has length {momentum.size}, not {dimension}")
    return ServerState(parameters=parameters, momentum=momentum)
