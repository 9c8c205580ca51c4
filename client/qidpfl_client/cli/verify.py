"""The command `verify`: an export of the operator against the signed receipts of the journal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qidpfl_shared.command_line import output_width

from ..journal.export_check import check_export
from ..journal.export_files import read_export
from ..journal.journal import DEFAULT_PATH, Journal
from . import options
from .options import guarded


@guarded
def verify_command(
    export: Annotated[Path, typer.Option(help="folder of an export that the operator has given you")],
    journal: options.JournalPath = DEFAULT_PATH,
) -> None:
    """Check an export of a task against the signed receipts of the journal. The client may run at the same time.

    Prints what was compared, what could not be checked, then `verified`. Every difference is one line, and the exit
    code is then 1.
    """
    files = read_export(export)
    with Journal(journal, read_only=True) as opened:
        check = check_export(opened, files)
    table = Table("what", "compared", box=None)
    for kind, count in check.compared.items():
        table.add_row(kind, str(count))
    Console(width=output_width()).print(table)
    for unknown in check.not_checked:
        print(f"not checked: {unknown}")
    for difference in check.differences:
        print(f"differs: {difference}")
    if check.differences:
        raise typer.Exit(1)
    print("verified")
