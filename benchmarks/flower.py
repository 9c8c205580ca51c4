"""Seconds per round of Flower's simulation without training, for `coordinator.py --flower PYTHON`.

The interpreter of an environment with `flwr[simulation]` runs this file: `python flower.py CLIENTS DIMENSION ROUNDS`.
Every client returns the model that it gets, FedAvg averages, and nothing is evaluated. The first round is not measured.
One line of JSON has the seconds per round and the memory of the process and all its workers after the last round.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app = ClientApp()


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 3000})})
    return Message(content=content, reply_to=message)


class TimedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that notes when each round has ended."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.ends: list[float] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        if len(replies) < self.min_train_nodes or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"not all clients answered in round {server_round}")
        result = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        return result


def memory_mib() -> float:
    """The memory of this process and all that it started; pages that several of them share count once."""
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            children = Path(f"/proc/{pid}/task").glob("*/children")
            waiting += [int(child) for file in children for child in file.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1024
    return total


def main() -> None:
    clients, dimension, rounds = map(int, sys.argv[1:])
    strategy = TimedFedAvg(clients)
    used: list[float] = []
    server_app = ServerApp()

    @server_app.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord([np.zeros(dimension, dtype=np.float32)])
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds + 1, timeout=600)
        used.append(memory_mib())

    # One processor for each client: as many clients at once as the machine has processors.
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=clients, backend_config=resources)
    seconds = (strategy.ends[-1] - strategy.ends[0]) / rounds
    print(json.dumps({"seconds": seconds, "memory_mib": used[0], "version": version("flwr")}))


if __name__ == "__main__":
    main()
