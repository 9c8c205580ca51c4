"""The admin and viewer tokens: created at first start, kept in files that only the operator can read."""

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import DamagedState
from .identifiers import new_secret


@dataclass(frozen=True)
class Secrets:
    """The tokens of the operator's two roles."""

    admin: str
    viewer: str
    created: tuple[Path, ...] = ()


def load_secrets(folder: Path) -> Secrets:
    """Read the tokens, creating those that are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    created = []
    values = {}
    for role in ("admin", "viewer"):
        path = folder / f"{role}.token"
        if create_private(path, new_secret()):
            created.append(path)
        values[role] = path.read_text().strip()
        if len(values[role]) < 16:
            raise DamagedState(f"{path} does not hold a token; remove it to have a new one made")
    return Secrets(admin=values["admin"], viewer=values["viewer"], created=tuple(created))


def create_private(path: Path, text: str) -> bool:
    """Write a file for the operator only, unless it is there; of two processes at once only one succeeds."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    return True
