"""The admin and viewer tokens: created at the first start, in files that only the operator can read."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from qidpfl_shared.durable_files import fsync_dir, write_synced

from ..errors import DamagedState
from ..identifiers import new_secret


@dataclass
class Secrets:
    """The two static tokens of the operator. They change when the server reads their files again."""

    admin: str
    viewer: str
    created: tuple[Path, ...] = ()

    def replace(self, other: "Secrets") -> list[str]:
        """Take over the tokens of another reading; the roles whose tokens have changed."""
        changed = [role for role in ("admin", "viewer") if getattr(self, role) != getattr(other, role)]
        self.admin, self.viewer, self.created = other.admin, other.viewer, other.created
        return changed


def load_secrets(folder: Path) -> Secrets:
    """Read the tokens; create those that are missing."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    created = []
    values = {}
    for role in ("admin", "viewer"):
        path = folder / f"{role}.token"
        if create_private(path, new_secret()):
            created.append(path)
        values[role] = path.read_text().strip()
        if len(values[role]) < 16:
            raise DamagedState(f"{path} does not hold a token: remove the file, then the server creates a new one")
    return Secrets(admin=values["admin"], viewer=values["viewer"], created=tuple(created))


def create_private(path: Path, text: str) -> bool:
    """Write a file that only the operator can read, unless it exists; of two processes at once only one succeeds.

    The file gets its name when it is complete and durable, so that a killed process leaves no partial file.
    """
    if path.exists():
        return False
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_synced(partial, f"{text}\n".encode(), exclusive=True, mode=0o600)
        _link_or_rename(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    fsync_dir(path.parent)
    return True


def _link_or_rename(partial: Path, path: Path) -> None:
    """Give a file its name. Unlike a rename, a link never replaces a file that another process wrote meanwhile."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems have no links.
        os.rename(partial, path)
