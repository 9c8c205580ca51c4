"""Says who holds the interpreter lock of the coordinator while rounds are played.

    python benchmarks/lock_profile.py --size 10x7850 --rounds 100

py-spy (`pip install py-spy`) samples the coordinator and counts only samples of threads that hold the lock. A part that
waits for the disk or computes inside numpy without the lock is not in the profile; `--all` counts these parts too.
py-spy needs the right to trace other processes of the same user.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from load import Measured, Plan, play
from servers import running_coordinator

# Every sample stops the process for a moment: a high rate would measure itself.
_RATE = 200
# Frames below which everything happens say nothing.
_OUTER = (
    "runpy",
    "typer/",
    "asyncio/",
    "threading.py",
    "anyio/",
    "concurrent/",
    "/__main__.py",
    "/cli/",
    "command_line",
)
# Inner frames of threads that wait. py-spy takes some of them for busy.
_WAITING = ("wait (threading.py", "select (selectors.py", "_worker (concurrent", "_run_writer (qidpfl_server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="10x7850", help="clients x parameters")
    parser.add_argument("--rounds", type=int, default=100, help="rounds that are played")
    parser.add_argument("--top", type=int, default=25, help="lines of each list")
    parser.add_argument("--all", action="store_true", help="count every busy thread, also without the lock")
    parser.add_argument("--store-url", help="measure on this store instead of SQLite")
    options = parser.parse_args()
    if shutil.which("py-spy") is None:
        sys.exit("py-spy is not installed: pip install py-spy")
    clients, dimension = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        measured, samples = record(Path(folder), clients, dimension, options.rounds, options.store_url, options.all)
    total = sum(samples.values())
    counted = "samples of busy threads" if options.all else "samples with the lock"
    print(f"{clients} x {dimension:,}: {measured.processor_ms:.1f} processor ms and {measured.seconds:.3f} s per round")
    for title, counts in (
        ("thread", by_thread(samples)),
        ("module, self", by_module(samples)),
        ("function, self", by_function(samples, own=True)),
        ("function, with what it calls", by_function(samples, own=False)),
    ):
        print(f"\nshare of the {counted}, by {title}")
        for name, count in counts.most_common(options.top):
            print(f"  {count / total:6.1%}  {name}")


def record(
    folder: Path, clients: int, dimension: int, rounds: int, store_url: str | None, every_thread: bool
) -> tuple[Measured, Counter[str]]:
    """Play rounds while py-spy samples; return the cost of a round and the counted stacks."""
    raw = folder / "profile.raw"
    with running_coordinator(folder / "state", store_url) as coordinator:
        plan = Plan(coordinator.port, coordinator.pid, clients, dimension, rounds, coordinator.admin_token)
        # The first task imports what the coordinator imports late, and fills its caches.
        play(replace(plan, rounds=1))
        watched = ["--pid", str(coordinator.pid), "--output", str(raw)]
        how = [
            *([] if every_thread else ["--gil"]),
            "--threads",
            "--format",
            "raw",
            "--rate",
            str(_RATE),
            "--duration",
            "unlimited",
        ]
        profiler = subprocess.Popen(
            ["py-spy", "record", *how, *watched], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            measured = play(plan)
        finally:
            # py-spy writes its file when it is interrupted.
            profiler.send_signal(signal.SIGINT)
            profiler.wait()
    return measured, stacks(raw.read_text().splitlines())


def stacks(lines: Iterable[str]) -> Counter[str]:
    """Count the samples of each stack of py-spy's raw format: frames separated by semicolons, then the number."""
    counted: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if any(frame in stack.rsplit(";", 1)[-1] for frame in _WAITING):
            continue
        counted[stack] += int(count)
    return counted


def by_thread(samples: Counter[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for stack, count in samples.items():
        # Threads of one pool count as one: their names differ in the last number.
        counted[stack.split(";")[0].split(": ")[-1].rstrip("0123456789_- ")] += count
    return counted


def by_module(samples: Counter[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for stack, count in samples.items():
        counted[_module(stack.rsplit(";", 1)[-1])] += count
    return counted


def by_function(samples: Counter[str], *, own: bool) -> Counter[str]:
    """Count the last frame of each stack, or all frames of a stack once."""
    counted: Counter[str] = Counter()
    for stack, count in samples.items():
        _, *frames = (f"{frame.rsplit(':', 1)[0].rstrip(')')})" for frame in stack.split(";"))
        inner = [frame for frame in frames if not any(part in frame for part in _OUTER)]
        for frame in set(frames[-1:] if own else inner):
            counted[frame] += count
    return counted


def _module(frame: str) -> str:
    """The distribution or the package of ours: `qidpfl_server/api`, `sqlalchemy`, `fastapi`."""
    path = frame.partition("(")[2].partition(":")[0].rstrip(")")
    parts = path.split("/")
    if parts[0].startswith("qidpfl_"):
        return "/".join(parts[:2])
    return parts[0].removesuffix(".py")


if __name__ == "__main__":
    main()
