"""Runs the migrations of the schema with Alembic.

`database.migrate` imports this module only if a store does not have the newest schema yet: Alembic takes as long to
import as the rest of the store, and most starts find a store that needs no migration.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection

_MIGRATIONS = Path(__file__).parent / "migrations"


class NoPath(Exception):
    """The store has a version that this program does not know: it is newer, or of another program."""


def upgrade(connection: Connection) -> None:
    """Bring the tables to the newest version, inside the transaction of this connection. Raises `NoPath`."""
    config = _config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise NoPath(str(error)) from error


def head() -> str | None:
    """The newest version, as Alembic finds it in the migrations."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
