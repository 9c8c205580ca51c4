"""What is wrong with a file of a results folder."""

from pathlib import Path

from pydantic import ValidationError


class DamagedResults(Exception):
    """A file of a results folder is not what was written there; says in one line which, and what can be done."""

    def __init__(self, path: Path, error: Exception, *, remedy: str = "") -> None:
        if isinstance(error, ValidationError):
            first = error.errors(include_input=False, include_url=False)[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        else:
            reason = f"{type(error).__name__}: {error}"
        super().__init__("; ".join(filter(None, (f"{path} is damaged: {reason}", remedy))))
