"""Measures the evaluation of a model by the coordinator against a plain forward pass of torch on the same records.

The plain pass has all records as one float32 tensor and runs the network in inference mode, without accuracy and loss,
with the best of several batch sizes. The records are random bytes with the shapes of the data sets. Both take turns on
the same threads; the fastest of the repeats counts.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from qidpfl_server.service.scoring import HeldOut
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.workloads.networks import build_network
from qidpfl_shared.workloads.records import Records

BATCHES = (64, 256, 1024, 1 << 20)


class Setting(NamedTuple):
    """A preset, its network, labels, the shape of a record, and how many records are evaluated."""

    preset: str
    network: str
    labels: int
    record: tuple[int, ...]
    records: int


SETTINGS = {
    "linear, MNIST": Setting("mnist", "linear", 10, (784,), 10_000),
    "LeNet, EMNIST": Setting("emnist", "lenet", 62, (1, 28, 28), 30_000),
    "LeNet, CIFAR-10": Setting("cifar10", "lenet", 10, (3, 32, 32), 10_000),
}


@dataclass(frozen=True)
class RandomWorkload:
    """Random bytes as held-out records, and a built-in network."""

    setting: Setting
    convex: bool = False

    @property
    def labels(self) -> int:
        return self.setting.labels

    def training(self) -> Records:
        raise NotImplementedError

    def held_out(self) -> Records:
        random, count = np.random.default_rng(0), self.setting.records
        features = random.integers(0, 256, (count, *self.setting.record), dtype=np.uint8)
        return Records(features=features, labels=random.integers(0, self.labels, count), scale=1 / 255, shift=-0.5)

    def network(self) -> nn.Module:
        return build_network(self.setting.network, labels=self.labels, record_shape=self.setting.record)


class Measured(NamedTuple):
    seconds: float
    processor_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each measurement; the fastest counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, best of {options.repeats}")
    print(f"{'network':18s} {'records':>8s} {'plain ms':>9s} {'ours ms':>9s} {'ratio':>6s} {'by processor time':>18s}")
    for name, setting in SETTINGS.items():
        plain, ours = measure(setting, repeats=options.repeats)
        print(
            f"{name:18s} {setting.records:8,d} {1e3 * plain.seconds:9.1f} {1e3 * ours.seconds:9.1f}"
            f" {ours.seconds / plain.seconds:6.2f} {ours.processor_s / plain.processor_s:18.2f}",
            flush=True,
        )


def measure(setting: Setting, *, repeats: int) -> tuple[Measured, Measured]:
    """Measure a plain forward pass and our evaluation."""
    workload, spec = RandomWorkload(setting), preset(setting.preset)
    records = workload.held_out()
    model = 0.05 * np.random.default_rng(1).standard_normal(spec.dimension).astype(np.float32)
    held_out = HeldOut(workload, records)
    passes: dict[str, Callable[[], object]] = {
        str(batch): plain_pass(workload.network().eval(), torch.from_numpy(records.inputs()), batch)
        for batch in BATCHES
    }
    passes["ours"] = lambda: held_out.evaluate(spec, model)
    best: dict[str, Measured] = {}
    for repeat in range(repeats + 1):
        for name, run in passes.items():
            found = timed(run)
            # The first one prepares the records.
            if repeat:
                best[name] = Measured(*map(min, found, best.get(name, found)))
    ours = best.pop("ours")
    return Measured(*(min(times) for times in zip(*best.values(), strict=True))), ours


def plain_pass(network: nn.Module, inputs: torch.Tensor, batch: int) -> Callable[[], object]:
    def run() -> None:
        with torch.inference_mode():
            for start in range(0, len(inputs), batch):
                network(inputs[start : start + batch])

    return run


def timed(run: Callable[[], object]) -> Measured:
    start, spent = time.perf_counter(), time.process_time()
    run()
    return Measured(time.perf_counter() - start, time.process_time() - spent)


if __name__ == "__main__":
    main()
