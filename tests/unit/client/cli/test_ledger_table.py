"""The ledger of a journal: whole on a terminal of 80 columns, one row per release in a pipe."""

from io import StringIO

import pytest
from rich.console import Console

from qidpfl_client.cli.ledger_table import print_entries
from qidpfl_client.journal.entries import Entry
from qidpfl_client.journal.ledger import JournalLedger
from qidpfl_shared.protocol.ledger import SpendState

TASKS = ("5f1d7a84db00d2fce00b31a7", "ed079eea4eea8bc51e3c8e34")


@pytest.fixture
def ledger() -> JournalLedger:
    entries = [
        Entry(
            task_id=task,
            release=release,
            mechanism=mechanism,
            rho=0.07123,
            proven_rho=0.07123,
            state=SpendState.SPENT_UNPAID,
            payment_micro=1_234_567_890,
        )
        for task in TASKS
        for release, mechanism in (("histogram", "gaussian histogram"), ("round/1000", "gradient_once"))
    ]
    return JournalLedger(
        memberships=(),
        entries=tuple(entries),
        limits=(),
        spent_rho=0.2,
        reserved_rho=0.0,
        lifetime_rho=1.0,
        remaining_rho=0.8,
        earned_micro=0,
        delta=1e-5,
    )


def printed(ledger: JournalLedger, *, terminal: bool) -> list[str]:
    console = Console(file=StringIO(), width=80 if terminal else 10_000, force_terminal=terminal, color_system=None)
    print_entries(ledger, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_80_columns_show_every_header_and_digit(ledger: JournalLedger) -> None:
    lines = printed(ledger, terminal=True)
    assert all(len(line) <= 80 and "…" not in line for line in lines)
    assert [line for line in lines if line.startswith("task")] == [f"task {task}, budgets in rho" for task in TASKS]
    assert lines[1].split() == ["release", "mechanism", "state", "declared", "proven", "paid"]
    assert lines[3].split() == ["round/1000", "gradient_once", "spent_unpaid", "0.07123", "0.07123", "1234.567890"]
    assert len(lines) == 2 * 4 + 1


def test_every_row_of_a_pipe_names_its_task(ledger: JournalLedger) -> None:
    header, *rows = printed(ledger, terminal=False)
    assert header.split()[:2] == ["task", "release"]
    assert [row.split()[0] for row in rows] == [TASKS[0]] * 2 + [TASKS[1]] * 2
