"""What is wrong with a file of a results folder."""

from pathlib import Path

from pydantic import ValidationError

from qidpfl_shared.command_line import first_fault
from qidpfl_shared.plugin_loader import described


class DamagedResults(Exception):
    """A file of a results folder is not what was written there; says in one line which, and what can be done."""

    def __init__(self, path: Path, error: Exception, *, remedy: str = "") -> None:
        reason = first_fault(error) if isinstance(error, ValidationError) else described(error)
        super().__init__("; ".join(filter(None, (f"{path} is damaged: {reason}", remedy))))
