"""Measures the speed of clipped per-record gradients and compares it with plain gradients and Opacus.

Every method computes the sum over the same records, in chunks. Plain gradients and Opacus get the fastest of several
chunk sizes, ours the one that the client takes. Then the methods take turns. A row is one method on one network:
records per second of the fastest and of the median turn, their speed relative to plain gradients, and the memory of
one pass. The benchmark prints results and checks nothing.
"""

import argparse
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from qidpfl_client.training.data_loader import DataLoader
from qidpfl_client.training.devices import use_full_precision
from qidpfl_client.training.objective import CheckedNetwork, check_network, make_objective
from qidpfl_client.training.per_sample.functional import gradients_by_vmap
from qidpfl_shared.workloads.networks import build_network, layout_of
from qidpfl_shared.workloads.records import Records

CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BOUND = 1.0
PLAIN = "plain, not private"
OURS = "ours"
# A turn repeats its pass at least for so long: the shortest pass takes milliseconds.
TURN_SECONDS = 0.2
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
# One pass over some records, in chunks of inputs and labels.
Chunks = Iterable[tuple[Tensor, Tensor]]
Pass = Callable[[Chunks], object]
# A method makes ready whatever it keeps from pass to pass, for these records and this chunk size.
Method = Callable[[Tensor, Tensor, int], Callable[[], object]]


class Setting(NamedTuple):
    """A built-in network, its labels, the shape of one record, and how many records are measured."""

    network: str
    labels: int
    record: tuple[int, ...]
    records: int


SETTINGS = {
    "linear 64": Setting("linear", 10, (64,), 16384),
    "linear 784": Setting("linear", 10, (784,), 8192),
    "LeNet 1x28x28": Setting("lenet", 62, (1, 28, 28), 1024),
    "LeNet 3x32x32": Setting("lenet", 10, (3, 32, 32), 1024),
    "McMahan 3x24x24": Setting("mcmahan", 10, (3, 24, 24), 256),
}


class Measured(NamedTuple):
    """Seconds of the passes of one method on one network, one per turn, and the memory of a pass."""

    seconds: list[float]
    chunk: int
    megabytes: float


class Options(NamedTuple):
    """How to measure."""

    repeats: int
    threads: int
    clock: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="turns of each method")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for one thread on a busy machine")
    parser.add_argument("--only", choices=SETTINGS, action="append", help="measure only this network; repeatable")
    given = parser.parse_args()
    options = Options(given.repeats, given.threads, given.clock)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.repeats} turns, {options.clock} time")
    print(f"{'':43s} {'records/s':>21s} {'speed / plain':>15s}")
    print(f"{'network':16s} {'method':26s} {'best':>10s} {'median':>10s} {'best':>7s} {'median':>7s}  chunk    memory")
    for name in given.only or SETTINGS:
        report(name, measure(SETTINGS[name], options))


def report(name: str, found: dict[str, Measured]) -> None:
    """Print the rows of one network, and a line with both ratios."""
    plain, records = found[PLAIN], SETTINGS[name].records
    for method, result in found.items():
        best, median = records / least(result), records / statistics.median(result.seconds)
        print(
            f"{name:16s} {method:26s} {best:10,.0f} {median:10,.0f} {least(plain) / least(result):7.2f}"
            f" {ratio(plain, result):7.2f} {result.chunk:6d} {result.megabytes:6.0f} MB"
        )
    fastest = min((result for method, result in found.items() if method.startswith("Opacus")), key=least)
    ours = found[OURS]
    print(
        f"{name:16s} ours / plain {least(plain) / least(ours):.2f} (median {ratio(plain, ours):.2f}),"
        f" ours / Opacus {least(fastest) / least(ours):.2f} (median {ratio(fastest, ours):.2f})",
        flush=True,
    )


def least(result: Measured) -> float:
    """The seconds of the fastest turn."""
    return min(result.seconds)


def ratio(slow: Measured, fast: Measured) -> float:
    """The median ratio of seconds in the same turn: load that lasts longer than a turn affects both."""
    return statistics.median(above / below for above, below in zip(slow.seconds, fast.seconds, strict=True))


def measure(setting: Setting, options: Options) -> dict[str, Measured]:
    """Measure all methods on one network in turns, so that other load of the machine affects all of them."""
    # A separate process: running torch threads do not survive the forks that measure memory.
    found: dict[str, Measured] = apart(_measure, setting, options)
    return found


def _measure(setting: Setting, options: Options) -> dict[str, Measured]:
    torch.manual_seed(1)
    inputs, labels = torch.randn(setting.records, *setting.record), torch.randint(setting.labels, (setting.records,))
    methods = methods_for(setting)
    chunks = {
        name: sizes[0] if len(sizes) == 1 else apart(_best_chunk, method, inputs, labels, sizes, options)
        for name, (method, sizes) in methods.items()
    }
    memory = {
        name: apart(_peak_megabytes, method, inputs, labels, chunks[name]) for name, (method, _) in methods.items()
    }
    torch.set_num_threads(options.threads)
    runs = {name: method(inputs, labels, chunks[name]) for name, (method, _) in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(1 + options.repeats):
        for name, run in runs.items():
            found = timed(run, options.clock)
            # The first turn warms up.
            if turn:
                seconds[name].append(found)
    return {name: Measured(seconds[name], chunks[name], memory[name]) for name in methods}


def _best_chunk(method: Method, inputs: Tensor, labels: Tensor, sizes: tuple[int, ...], options: Options) -> int:
    """The chunk size with the fastest turn: the best ones of the first look get two more."""
    torch.set_num_threads(options.threads)
    runs = {size: method(inputs, labels, size) for size in sizes}
    times = {size: [timed(run, options.clock)] for size, run in runs.items()}
    for _ in range(2):
        for size in near(min(times, key=lambda size: min(times[size])), sizes):
            times[size].append(timed(runs[size], options.clock))
    return min(times, key=lambda size: min(times[size]))


def near(size: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """This size and its neighbours among the sizes."""
    place = sizes.index(size)
    return sizes[max(0, place - 1) : place + 2]


def methods_for(setting: Setting) -> dict[str, tuple[Method, tuple[int, ...]]]:
    """All methods by name, each with the chunk sizes to try."""

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return build_network(setting.network, labels=setting.labels, record_shape=setting.record).eval()

    use_full_precision()
    torch.set_num_threads(1)
    network = fresh()
    examples = Records(features=np.ones((1, *setting.record), np.float32), labels=np.zeros(1, np.int64))
    checked = check_network(network=network, records=examples, layout=layout_of(network), device=torch.device("cpu"))
    by_vmap = replace(checked, clipping=replace(checked.clipping, method=gradients_by_vmap))
    chunks = tuple(chunk for chunk in CHUNKS if chunk <= setting.records)
    small = tuple(chunk for chunk in chunks if chunk <= 256)
    methods: dict[str, tuple[Method, tuple[int, ...]]] = {
        PLAIN: (by_chunk(plain(fresh())), chunks),
        OURS: (clipping(checked), (min(checked.clipping.advised_chunk, setting.records),)),
        "torch.func (our fallback)": (clipping(by_vmap), small),
        "Opacus, rows": (by_chunk(opacus_rows(fresh().train())), small),
        "Opacus, ghost clipping": (by_chunk(opacus_ghost(fresh().train())), chunks),
    }
    if len(setting.record) == 3 and setting.record[0] > 1:
        methods["plain, channels last"] = (by_chunk(channels_last(plain(fresh()))), chunks)
        methods["Opacus, channels last"] = (by_chunk(channels_last(opacus_ghost(fresh().train()))), chunks)
    return methods


def plain(network: nn.Module) -> Pass:
    """An ordinary training step without its last line, the optimizer's: torch adds the gradients of the chunks."""

    def run(chunks: Chunks) -> object:
        network.zero_grad()
        for inputs, labels in chunks:
            functional.cross_entropy(network(inputs), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        return [tensor.grad for tensor in network.parameters()]

    return run


def channels_last(run: Pass) -> Pass:
    """The same pass on images that are stored by place."""
    return lambda chunks: run(
        (inputs.contiguous(memory_format=torch.channels_last), labels) for inputs, labels in chunks
    )


def clipping(checked: CheckedNetwork) -> Method:
    """What a client does in a round: it keeps its records as tensors, and the norms of vectors, from round to round."""

    def prepare(inputs: Tensor, labels: Tensor, chunk: int) -> Callable[[], object]:
        records = Records(features=inputs.numpy(), labels=labels.numpy())
        objective = make_objective(checked=checked, loader=DataLoader(records, torch.device("cpu")), chunk=chunk)
        return partial(objective.clipped_mean, bound=BOUND)

    return prepare


def by_chunk(run: Pass) -> Method:
    """A method that keeps nothing but the records."""

    def prepare(inputs: Tensor, labels: Tensor, chunk: int) -> Callable[[], object]:
        starts = range(0, len(inputs), chunk)
        return lambda: run((inputs[start : start + chunk], labels[start : start + chunk]) for start in starts)

    return prepare


def each(step: Callable[[Tensor, Tensor], list[Tensor]]) -> Pass:
    """A pass that adds up what a step finds for each chunk."""

    def run(chunks: Chunks) -> object:
        total: list[Tensor] | None = None
        for inputs, labels in chunks:
            found = step(inputs, labels)
            total = found if total is None else [above.add_(part) for above, part in zip(total, found, strict=True)]
        return total

    return run


def opacus_rows(network: nn.Module) -> Pass:
    """Opacus with the gradients of all records in memory, clipped like in its optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        wrapped = GradSampleModule(network, loss_reduction="sum")
    tensors = list(wrapped.parameters())

    def step(inputs: Tensor, labels: Tensor) -> list[Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            functional.cross_entropy(wrapped(inputs), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        rows = [tensor.grad_sample.flatten(1) for tensor in tensors]
        norms = torch.stack([part.norm(2, dim=1) for part in rows], dim=1).norm(2, dim=1)
        factors = (BOUND / (norms + 1e-6)).clamp(max=1)
        sums = [(factors @ part).reshape(tensor.shape) for part, tensor in zip(rows, tensors, strict=True)]
        wrapped.zero_grad()
        return sums

    return each(step)


def opacus_ghost(network: nn.Module) -> Pass:
    """Opacus with gradient norms only and a second backward pass of the weighted loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        wrapped = GradSampleModuleFastGradientClipping(
            network, loss_reduction="sum", max_grad_norm=BOUND, use_ghost_clipping=True
        )

    def step(inputs: Tensor, labels: Tensor) -> list[Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = functional.cross_entropy(wrapped(inputs), labels, reduction="none")
            losses.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
            factors = wrapped.get_clipping_coef()
            wrapped.zero_grad()
            wrapped.disable_hooks()
            (factors * losses).sum().backward()
            wrapped.enable_hooks()
        sums = [tensor.grad for tensor in wrapped.parameters() if tensor.grad is not None]
        wrapped.zero_grad()
        return sums

    return each(step)


def timed(run: Callable[[], object], clock: str) -> float:
    """The seconds of one pass, from as many passes as a turn takes."""
    now = CLOCKS[clock]
    start, passes = now(), 0
    while passes == 0 or now() - start < TURN_SECONDS:
        run()
        passes += 1
    return (now() - start) / passes


def _peak_megabytes(method: Method, inputs: Tensor, labels: Tensor, chunk: int) -> float:
    """The growth of the peak memory of this process over two chunks."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method(inputs[: 2 * chunk], labels[: 2 * chunk], chunk)()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a forked process and return its result."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run(connection: Connection) -> None:
        connection.send(function(*arguments))

    process = context.Process(target=run, args=(there,))
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


if __name__ == "__main__":
    main()
