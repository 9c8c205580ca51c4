"""The admin and viewer tokens: created at first start, kept in files that only the operator can read."""

import os
import uuid
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
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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
    """Write a file for the operator only, unless it is there; of two processes at once only one succeeds.

    It appears under its name when it is complete and durable: a process that is killed leaves no half of it.
    """
    if path.exists():
        return False
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        _give_name(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def _give_name(partial: Path, path: Path) -> None:
    """Unlike a rename, a link never replaces what somebody else has put there meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems have no links.
        os.rename(partial, path)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
