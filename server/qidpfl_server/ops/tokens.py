"""The admin and viewer tokens: created at the first start, in files that only the operator can read."""

import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from qidpfl_shared.durable_files import fsync_dir, write_synced

from ..errors import CoordinatorError, DamagedState
from ..identifiers import new_id, new_secret
from ..settings import Settings

_ROLES = ("admin", "viewer")
_SHORTEST_TOKEN = 16
# An id as the server makes them, and a secret of at least 128 bits.
_CODE = re.compile(r"[0-9a-f]{24}\.[A-Za-z0-9_-]{22,300}")


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


def load_secrets(settings: Settings) -> Secrets:
    """Read the tokens. Those that are missing are created, but not in a folder that the operator provides."""
    if settings.secrets_dir is not None:
        return Secrets(admin=_provided(settings.secrets_dir, "admin"), viewer=_provided(settings.secrets_dir, "viewer"))
    folder = settings.state_dir
    created = create_tokens(folder)
    values = {}
    for role in _ROLES:
        path = folder / f"{role}.token"
        values[role] = path.read_text().strip()
        if len(values[role]) < _SHORTEST_TOKEN:
            raise DamagedState(f"{path} does not hold a token: remove the file, then the server creates a new one")
    return Secrets(admin=values["admin"], viewer=values["viewer"], created=created)


def create_tokens(folder: Path) -> tuple[Path, ...]:
    """Create the token files that are missing; the new ones."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths = [folder / f"{role}.token" for role in _ROLES]
    return tuple([path for path in paths if create_private(path, new_secret())])


def create_shared_code(path: Path) -> bool:
    """Write an enrolment code for a task that does not exist yet; False if the file exists."""
    return create_private(path, f"{new_id()}.{new_secret()}")


def read_shared_code(path: Path) -> str:
    """The enrolment code in a file that the operator provides: the id of the future task, and a secret."""
    try:
        code = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CoordinatorError(f"{path} cannot be read: {_reason(error)}") from error
    if not _CODE.fullmatch(code):
        raise CoordinatorError(f"{path} does not hold an enrolment code: `qidpfl-server keys new` makes one")
    return code


def _provided(folder: Path, role: str) -> str:
    path = folder / f"{role}.token"
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CoordinatorError(
            f"{path} cannot be read: {_reason(error)}; `qidpfl-server keys new` makes a folder for QIDPFL_SECRETS_DIR"
        ) from error
    if len(token) < _SHORTEST_TOKEN:
        raise CoordinatorError(f"{path} does not hold a token of at least {_SHORTEST_TOKEN} characters")
    return token


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not text"


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
