"""Files that are there as a whole, or not at all, whatever ends the process or the machine."""

import os
from pathlib import Path


def write_durably(path: Path, text: str) -> None:
    """Put a text in the place of what the file held."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
