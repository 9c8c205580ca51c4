"""Computes what a round needs from measured slopes: the sizing table of docs/scaling.md. It measures nothing.

    python benchmarks/sizing.py

The slopes are those that the page states, from `coordinator.py`, `replicas.py`, `polls.py` and `rounds.py`. Put in
those of your machine to plan for it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slopes:
    """What one upload and one parameter cost a coordinator."""

    ms_per_upload: float
    ms_per_million_parameters: float


FOLDER = Slopes(ms_per_upload=3.0, ms_per_million_parameters=12.0)
OBJECT_STORE = Slopes(ms_per_upload=5.0, ms_per_million_parameters=31.0)
BASE_MIB = 165
# One cached model, and pieces of it while it is computed.
BYTES_PER_PARAMETER = 6.5
KB_PER_WAITING_CLIENT = 20
DATABASE_KB_PER_UPLOAD = 7.4

CASES = (
    *((clients, 7_850) for clients in (100, 1_000, 10_000, 100_000)),
    *((clients, 1_663_370) for clients in (100, 1_000)),
    *((clients, 11_000_000) for clients in (100, 1_000)),
    *((clients, 250_000_000) for clients in (10, 100)),
)
_TITLES = (
    "clients × parameters",
    "processor time, folder",
    "processor time, object store",
    "received",
    "written",
    "database, 100 rounds",
    "memory",
)


def row(clients: int, parameters: int) -> list[str]:
    """The cells of one row: what one round needs, if all clients deliver."""
    received = 4 * parameters * clients
    # The updates, the model and its momentum. Vectors of up to 64 KiB are rows of the database.
    written = received + 12 * parameters
    memory = BASE_MIB + (BYTES_PER_PARAMETER * parameters + 1e3 * KB_PER_WAITING_CLIENT * clients) / 2**20
    rows = DATABASE_KB_PER_UPLOAD * 1e3 * clients + (received if 4 * parameters <= 1 << 16 else 0)
    return [
        f"{clients:,} × {parameters:,}",
        _seconds(FOLDER, clients, parameters),
        _seconds(OBJECT_STORE, clients, parameters),
        _bytes(received),
        _bytes(written),
        _bytes(100 * rows),
        _bytes(memory * 2**20),
    ]


def _seconds(slopes: Slopes, clients: int, parameters: int) -> str:
    seconds = clients * (slopes.ms_per_upload + slopes.ms_per_million_parameters * parameters / 1e6) / 1e3
    return f"{seconds:,.1f} s" if seconds < 100 else f"{seconds / 60:,.0f} min"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:,.2g} {unit}" if count < 10 * size else f"{count / size:,.0f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def main() -> None:
    for cells in (list(_TITLES), ["---"] * len(_TITLES), *(row(*case) for case in CASES)):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
