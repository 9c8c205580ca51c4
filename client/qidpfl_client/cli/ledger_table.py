"""The entries of a journal's ledger as tables that fit into a terminal of 80 columns."""

from itertools import groupby

from rich.console import Console
from rich.table import Column, Table

from ..journal.ledger import JournalLedger, lines


def print_entries(ledger: JournalLedger, console: Console) -> None:
    """On a terminal one table for each task; in a pipe one table, in which every row names its task."""
    rows = lines(ledger)
    if not console.is_terminal:
        table = Table("task", "release", "mechanism", "state", "rho declared", "rho proven", "paid", box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    for number, (task, entries) in enumerate(groupby(rows, key=lambda row: row[0])):
        console.print(f"{'' if number == 0 else chr(10)}task {task}, budgets in rho", highlight=False)
        console.print(_table([entry[1:] for entry in entries]))


def _table(rows: list[tuple[str, ...]]) -> Table:
    texts = [Column(name, no_wrap=True) for name in ("release", "mechanism", "state")]
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("declared", "proven", "paid")]
    table = Table(*texts, *numbers, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table
