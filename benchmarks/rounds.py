"""Measures whether a round costs the same after thousands of rounds: five clients, a tiny model, no training.

    python benchmarks/rounds.py                    # 5,000 rounds on SQLite
    python benchmarks/rounds.py --rounds 600 --postgres

Each row is the mean of one tenth of the rounds, and what the coordinator holds at the end of that tenth. The last line
compares the last tenth with the first one. The coordinator runs in a process that also counts its SQL statements.
"""

import argparse
import asyncio
import mmap
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from coordinator import temporary_postgres
from load import Plan, Session, Update, announced, enrolled, quick_event_loop, run_round
from servers import Coordinator, empty_database, processor_ms, running_coordinator

CLIENTS = 5
DIMENSION = 650
TENTHS = 10
# Every round has the same reward, and no limit ends the task early. The discount of the preset ends after 1,000 rounds.
OVERRIDES: dict[str, dict[str, Any]] = {
    "game": {"policy": "fixed", "fixed_reward_micro": 400_000_000, "discount": 0.999},
    "bounds": {"reward_total_micro": 9_000_000_000_000},
    "privacy": {"lifetime_rho": 10.0},
}
# Names the file in which the coordinator process counts its statements.
COUNTER = "BENCHMARK_STATEMENTS_FILE"
_TITLES = (
    "rounds",
    "ms per round",
    "processor ms",
    "statements",
    "memory, MiB",
    "file handles",
    "threads",
    "database, MiB",
    "WAL, MiB",
)


@dataclass(frozen=True)
class Usage:
    """What the coordinator has used so far, and what it holds now."""

    time_s: float
    processor_ms: float
    statements: int
    memory_mib: float
    files: int
    threads: int
    database_mib: float
    wal_mib: float


@dataclass(frozen=True)
class Tenth:
    """The cost of a round, and what the coordinator held after the last one."""

    milliseconds: float
    processor_ms: float
    statements: float
    memory_mib: float
    files: int
    threads: int
    database_mib: float
    wal_mib: float

    @classmethod
    def between(cls, before: Usage, after: Usage, rounds: int) -> "Tenth":
        """The mean of the rounds between two readings."""
        return cls(
            1e3 * (after.time_s - before.time_s) / rounds,
            (after.processor_ms - before.processor_ms) / rounds,
            (after.statements - before.statements) / rounds,
            after.memory_mib,
            after.files,
            after.threads,
            after.database_mib,
            after.wal_mib,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5_000, help="rounds of the task, at least 20")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--parameters", type=int, default=DIMENSION)
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server started here, not on SQLite")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        counter = folder / "statements"
        counter.write_bytes(bytes(8))
        os.environ[COUNTER] = str(counter)
        url = None
        if options.postgres:
            url = stack.enter_context(empty_database(stack.enter_context(temporary_postgres())))
        server = stack.enter_context(running_coordinator(folder / "state", url, program=[__file__]))
        size, length = (options.clients, options.parameters), options.rounds // TENTHS
        plan = Plan(server.port, server.pid, *size, length, server.admin_token, OVERRIDES)
        print(_row(_TITLES), _row(["---"] * len(_TITLES)), sep="\n", flush=True)
        runner = stack.enter_context(quick_event_loop())

        def read() -> Usage:
            return usage(server, counter, sqlite_mib(folder / "state") if url is None else postgres_mib(url))

        runner.run(measure(plan, read))


async def measure(plan: Plan, read: Callable[[], Usage]) -> None:
    """Play ten times the rounds of the plan, after one that does not count, and print the cost of each tenth."""
    last = TENTHS * plan.rounds + 1
    updates = [Update(ordinal, plan.dimension, last) for ordinal in range(plan.clients)]
    base, sessions = await enrolled(plan, last + 1)
    await asyncio.gather(*(announced(base, session, 1) for session in sessions))

    async def client(session: Session, update: Update, first: int, count: int) -> None:
        for number in range(first, first + count):
            await run_round(base, session, update, number)

    async def rounds(first: int, count: int) -> None:
        await asyncio.gather(*(client(*one, first, count) for one in zip(sessions, updates, strict=True)))

    await rounds(1, 1)
    tenths, before = [], read()
    for first in range(2, last + 1, plan.rounds):
        await rounds(first, plan.rounds)
        after = read()
        tenths.append(Tenth.between(before, after, plan.rounds))
        # Reading takes time of its own, which no round should have.
        before = read()
        name = f"{first - 1:,}–{first + plan.rounds - 2:,}"
        print(_row([name, *(_number(value) for value in astuple(tenths[-1]))]), flush=True)
    ratios = [end / start if start else 1.0 for start, end in zip(*map(astuple, (tenths[0], tenths[-1])), strict=True)]
    print(_row(["last / first", *(f"{ratio:.2f}" for ratio in ratios)]))


def usage(server: Coordinator, counter: Path, sizes: tuple[float, float]) -> Usage:
    status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in status)
    return Usage(
        time.perf_counter(),
        processor_ms(server.pid),
        struct.unpack("<q", counter.read_bytes())[0],
        int(fields["VmRSS"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{server.pid}/fd")),
        int(fields["Threads"]),
        *sizes,
    )


def sqlite_mib(state: Path) -> tuple[float, float]:
    """The size of the database and of its write-ahead log."""
    files = {path.name: path.stat().st_size / 2**20 for path in state.iterdir() if path.is_file()}
    wal = sum(size for name, size in files.items() if name.endswith("-wal"))
    return sum(size for name, size in files.items() if ".db" in name or ".sqlite" in name) - wal, wal


def postgres_mib(url: str) -> tuple[float, float]:
    """The size of the database, and of all write-ahead logs that the server keeps."""
    from sqlalchemy import NullPool, create_engine, make_url, text

    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        database = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        wal = connection.execute(text("SELECT sum(size) FROM pg_ls_waldir()")).scalar_one()
    return float(database) / 2**20, float(wal) / 2**20


def serve_and_count() -> None:
    """Run the command line of the coordinator, and count every SQL statement in the file that `COUNTER` names."""
    from sqlalchemy import Engine, event

    from qidpfl_server.__main__ import main as run

    with open(os.environ[COUNTER], "r+b") as file:
        counter = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")

    def count(*_: object) -> None:
        counter[0] += 1

    event.listen(Engine, "before_cursor_execute", count)
    run()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _row(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_and_count()
    else:
        main()
