"""Measures the rounds of a live coordinator without training, beside a bare FastAPI server and Flower's simulation.

    python benchmarks/coordinator.py                                  # the table of docs/benchmarks.md without Flower
    python benchmarks/coordinator.py --flower ENVIRONMENT/bin/python  # an environment with flwr[simulation]
    python benchmarks/coordinator.py --sizes 10x7850 --postgres       # also a coordinator on PostgreSQL

The coordinator runs the preset for MNIST with its defence; every client plays the whole protocol (long poll, budget,
model, upload). `floor.py` plays the same requests without disk and checks. All servers are measured in turn, several
times, so that the load of the machine weighs the same on each of them. The table shows medians and ratios. The
processor time is that of the server process and hardly depends on the load of the machine; the seconds do.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from load import Measured, Plan, enrol, play, task_body
from servers import Connection, empty_database, ended, peak_memory_mib, running_coordinator, running_postgres

__all__ = ["Connection", "Size", "enrol", "measure_coordinator", "measure_floor", "peak_memory_mib", "task_body"]

_FOLDER = Path(__file__).parent
# The coordinator imports scipy a second after its start. A round that has to wait for that is not measured.
_WARM_UP_S = 3.0


@dataclass(frozen=True)
class Size:
    """A row of the table."""

    clients: int
    dimension: int

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Read `10x7850`."""
        clients, dimension = text.split("x")
        return cls(int(clients), int(dimension))

    @property
    def usual_rounds(self) -> int:
        """Enough rounds for about a second, at least three."""
        return max(3, min(20, 10_000_000 // (self.clients * self.dimension)))

    def __str__(self) -> str:
        return f"{self.clients} × {self.dimension:,}"


SIZES = (
    *(Size(clients, 7_850) for clients in (2, 10, 50)),
    *(Size(clients, 1_663_370) for clients in (2, 10)),
    Size(10, 11_000_000),
)

Measurement = Callable[[Size, int], Measured]
# The names of the columns. Every other column is compared with the floor.
HERE, FLOOR, POSTGRES, FLOWER = "coordinator", "floor", "on PostgreSQL", "Flower"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=Size.parse, default=SIZES, help="clients x parameters, as 10x7850")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each server; the table shows their medians")
    parser.add_argument("--rounds", type=int, help="measured rounds of each run; else it depends on the size")
    parser.add_argument(
        "--store-url", help="also measure on this PostgreSQL server; each run gets a database of its own"
    )
    parser.add_argument("--postgres", action="store_true", help="also measure on a PostgreSQL server started here")
    parser.add_argument("--flower", metavar="PYTHON", help="also measure Flower; an interpreter with flwr[simulation]")
    options = parser.parse_args()
    with ExitStack() as stack:
        servers: dict[str, Measurement] = {HERE: measure_coordinator, FLOOR: measure_floor}
        if store_url := options.store_url or (options.postgres and stack.enter_context(temporary_postgres())):
            servers[POSTGRES] = partial(measure_coordinator, store_url=store_url)
        if options.flower:
            servers[FLOWER] = partial(measure_flower, options.flower)
        print("\n".join(header(list(servers))))
        for size in options.sizes:
            print(row(size, measure(size, servers, options.repeats, options.rounds)), flush=True)


def measure(
    size: Size, servers: Mapping[str, Measurement], repeats: int, rounds: int | None = None
) -> dict[str, list[Measured]]:
    """Measure all servers in turn, several times."""
    results: dict[str, list[Measured]] = {name: [] for name in servers}
    for _ in range(repeats):
        for name, measurement in servers.items():
            results[name].append(measurement(size, rounds or size.usual_rounds))
    return results


def header(names: Sequence[str]) -> list[str]:
    """The first two lines of the table."""
    titles = ["clients × parameters", *(f"{name}, s" for name in names)]
    titles += [f"{name} / floor" for name in names if name != FLOOR]
    titles += ["spread", "processor ms per round / floor", "load, ms", *(f"{name}, MiB" for name in names)]
    return [_line(titles), _line(["---"] * len(titles))]


def row(size: Size, results: Mapping[str, Sequence[Measured]]) -> str:
    """Medians of one size, in the order of `header`. The spread is that of the coordinator's seconds."""
    seconds = {name: statistics.median(one.seconds for one in runs) for name, runs in results.items()}
    here = results[HERE]
    processor = statistics.median(one.processor_ms for one in here)
    floor_processor = statistics.median(one.processor_ms for one in results[FLOOR])
    cells = [str(size), *(_seconds(value) for value in seconds.values())]
    cells += [f"{value / seconds[FLOOR]:.1f}" for name, value in seconds.items() if name != FLOOR]
    cells += [
        f"{_seconds(min(one.seconds for one in here))}–{_seconds(max(one.seconds for one in here))}",
        f"{processor:.1f} / {floor_processor:.1f}",
        f"{statistics.median(one.load_processor_ms for one in here):.1f}",
    ]
    cells += [f"{statistics.median(one.peak_mib for one in runs):.0f}" for runs in results.values()]
    return _line(cells)


def _seconds(value: float) -> str:
    """Two significant digits, at most four decimals, without an exponent."""
    decimals = 1 if value >= 1 else 2 if value >= 0.1 else 3 if value >= 0.01 else 4
    return f"{value:.{decimals}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def measure_coordinator(size: Size, rounds: int, store_url: str | None = None) -> Measured:
    """Measure a new coordinator on SQLite, or on a new database of the PostgreSQL server."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = store_url and stack.enter_context(empty_database(store_url))
        server = stack.enter_context(running_coordinator(folder / "state", database))
        time.sleep(_WARM_UP_S)
        return play(Plan(server.port, server.pid, size.clients, size.dimension, rounds, server.admin_token))


def measure_floor(size: Size, rounds: int) -> Measured:
    """Measure the bare server."""
    command = [sys.executable, str(_FOLDER / "floor.py"), str(size.clients), str(size.dimension)]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        return play(Plan(int(process.stdout.readline()), process.pid, size.clients, size.dimension, rounds))


def measure_flower(interpreter: str, size: Size, rounds: int) -> Measured:
    """Measure Flower's simulation. Its memory is that of all its processes; its processor time is not measured."""
    command = [interpreter, str(_FOLDER / "flower.py"), str(size.clients), str(size.dimension), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Flower failed:\n{done.stderr}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return Measured(answer["seconds"], processor_ms=0.0, load_processor_ms=0.0, peak_mib=answer["memory_mib"])


@contextmanager
def temporary_postgres() -> Iterator[str]:
    # Started as root it changes to another user: the folder must not be inside one of this user.
    with running_postgres(Path(tempfile.mkdtemp(prefix="qidpfl-pg-"))) as url:
        yield url


if __name__ == "__main__":
    main()
