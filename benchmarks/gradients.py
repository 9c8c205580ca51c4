"""Measures the speed of clipped per-record gradients and compares it with plain gradients and Opacus.

A row is one method on one network: records per second with the best of several chunk sizes (ours: the advised one), its
time relative to plain gradients, and its memory at that chunk size. The benchmark prints results and checks nothing.
"""

import argparse
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from qidpfl_client.training.flat_parameters import FlatParameters, random_models
from qidpfl_client.training.per_sample.clipping import Clipper, fastest_method
from qidpfl_client.training.per_sample.functional import gradients_by_vmap
from qidpfl_shared.workloads.networks import build_network, layout_of

CHUNKS = (16, 64, 256, 1024)
BOUND = 1.0
# One pass over some records, in chunks of inputs and labels.
Chunks = Iterable[tuple[Tensor, Tensor]]
Pass = Callable[[Chunks], object]


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
    """Time and memory of one method on one network."""

    seconds: float
    chunk: int
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each measurement; the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--only", choices=SETTINGS, action="append", help="measure only this network; repeatable")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.threads} threads, best of {options.repeats}")
    print(f"{'network':16s} {'method':26s} {'records/s':>11s} {'time/plain':>10s} {'chunk':>6s} {'memory':>9s}")
    for name in options.only or SETTINGS:
        found = measure(SETTINGS[name], repeats=options.repeats, threads=options.threads)
        for method, result in found.items():
            speed, ratio = SETTINGS[name].records / result.seconds, result.seconds / found["plain, not private"].seconds
            print(
                f"{name:16s} {method:26s} {speed:11,.0f} {ratio:10.2f} {result.chunk:6d} {result.megabytes:6.0f} MB",
                flush=True,
            )


def measure(setting: Setting, *, repeats: int, threads: int) -> dict[str, Measured]:
    """Measure all methods on one network in turns, so that other load of the machine affects all of them."""
    # A separate process: running torch threads do not survive the forks that measure memory.
    found: dict[str, Measured] = apart(_measure, setting, repeats, threads)
    return found


def _measure(setting: Setting, repeats: int, threads: int) -> dict[str, Measured]:
    methods = methods_for(setting)
    inputs, labels = torch.randn(setting.records, *setting.record), torch.zeros(setting.records, dtype=torch.int64)
    memory = {
        (name, chunk): apart(_peak_megabytes, step, inputs, labels, chunk)
        for name, (step, chunks) in methods.items()
        for chunk in chunks
    }
    torch.set_num_threads(threads)
    times: dict[tuple[str, int], float] = {}
    for _ in range(repeats):
        for name, (step, chunks) in methods.items():
            for chunk in chunks:
                seconds = timed(step, inputs, labels, chunk)
                times[name, chunk] = min(seconds, times.get((name, chunk), seconds))
    found = {}
    for name, (_, chunks) in methods.items():
        seconds, chunk = min((times[name, chunk], chunk) for chunk in chunks)
        found[name] = Measured(seconds, chunk, memory[name, chunk])
    return found


def methods_for(setting: Setting) -> dict[str, tuple[Pass, tuple[int, ...]]]:
    """All methods by name, each with the chunk sizes to try."""

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return build_network(setting.network, labels=setting.labels, record_shape=setting.record).eval()

    network = fresh()
    parameters = FlatParameters(network, layout_of(network), torch.device("cpu"))
    examples = torch.randn(3, *setting.record), torch.zeros(3, dtype=torch.int64)
    torch.set_num_threads(1)
    ours = fastest_method(network, parameters, *examples, models=random_models(parameters))
    clippers = {
        method: Clipper(network=network, parameters=parameters, method=method, substitute=examples[0][0])
        for method in (ours.method, gradients_by_vmap)
    }
    chunks = tuple(chunk for chunk in CHUNKS if chunk <= setting.records)
    return {
        "plain, not private": (plain(network), (*chunks, min(ours.advised_chunk, setting.records))),
        "ours": (clipping(clippers[ours.method]), (min(ours.advised_chunk, setting.records),)),
        "torch.func (our fallback)": (clipping(clippers[gradients_by_vmap]), chunks[:3]),
        "Opacus, rows": (opacus_rows(fresh().train()), chunks[:3]),
        "Opacus, ghost clipping": (opacus_ghost(fresh().train()), chunks),
    }


def plain(network: nn.Module) -> Pass:
    tensors = list(network.parameters())
    return each(
        lambda inputs, labels: torch.autograd.grad(
            functional.cross_entropy(network(inputs), labels, reduction="sum"), tensors
        )
    )


def clipping(clipper: Clipper) -> Pass:
    return lambda chunks: clipper.clipped_sum(chunks, bound=BOUND)


def each(step: Callable[[Tensor, Tensor], object]) -> Pass:
    """A pass that computes each chunk by itself, without adding up what it finds."""

    def run(chunks: Chunks) -> None:
        for inputs, labels in chunks:
            step(inputs, labels)

    return run


def opacus_rows(network: nn.Module) -> Pass:
    """Opacus with the gradients of all records in memory, clipped like in its optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        wrapped = GradSampleModule(network, loss_reduction="sum")
    tensors = list(wrapped.parameters())

    def step(inputs: Tensor, labels: Tensor) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            functional.cross_entropy(wrapped(inputs), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
        rows = [tensor.grad_sample.flatten(1) for tensor in tensors]
        norms = torch.stack([part.norm(2, dim=1) for part in rows], dim=1).norm(2, dim=1)
        factors = (BOUND / (norms + 1e-6)).clamp(max=1)
        sums = [factors @ part for part in rows]
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

    def step(inputs: Tensor, labels: Tensor) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = functional.cross_entropy(wrapped(inputs), labels, reduction="none")
            losses.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
            factors = wrapped.get_clipping_coef()
            wrapped.zero_grad()
            wrapped.disable_hooks()
            (factors * losses).sum().backward()
            wrapped.enable_hooks()
        sums = [tensor.grad for tensor in wrapped.parameters()]
        wrapped.zero_grad()
        return sums

    return each(step)


def timed(step: Pass, inputs: Tensor, labels: Tensor, chunk: int) -> float:
    start = time.perf_counter()
    step(divided(inputs, labels, chunk))
    return time.perf_counter() - start


def divided(inputs: Tensor, labels: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    starts = range(0, len(inputs), chunk)
    return ((inputs[start : start + chunk], labels[start : start + chunk]) for start in starts)


def _peak_megabytes(step: Pass, inputs: Tensor, labels: Tensor, chunk: int) -> float:
    """The growth of the peak memory of this process over two chunks."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(divided(inputs[: 2 * chunk], labels[: 2 * chunk], chunk))
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
