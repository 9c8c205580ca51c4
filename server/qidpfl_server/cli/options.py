"""Options that all commands share, and their one-line errors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from qidpfl_shared.command_line import one_line_errors, sharing_options

from ..errors import CoordinatorError
from ..settings import Settings

StateDir = Annotated[
    Path | None,
    typer.Option(
        help="folder of database, blobs, tokens and enrolment codes  [env: QIDPFL_STATE_DIR; default: qidpfl-state]"
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(help="sqlite:///file or postgresql://…  [env: QIDPFL_STORE_URL; default: SQLite in the state folder]"),
]
BlobDir = Annotated[
    Path | None,
    typer.Option(help="folder of models and updates  [env: QIDPFL_BLOB_DIR; default: blobs in the state folder]"),
]
BlobBucket = Annotated[
    str | None,
    typer.Option(
        "--blobs",
        help="s3://bucket/prefix, gs://… or az://…: models and updates there  [env: QIDPFL_BLOBS; default: a folder]",
    ),
]
Rules = Annotated[
    list[Path] | None,
    typer.Option(help="FILE.py with a custom reward policy or selection rule, which tasks name; repeatable"),
]


@dataclass(frozen=True)
class Where:
    """The options that all commands share: the place of the state."""

    state_dir: Path | None
    store_url: str | None
    blob_dir: Path | None
    blobs: str | None

    def settings(self, **given: Any) -> Settings:
        """The settings of the environment, overridden by the command line."""
        said = {name: value for name, value in (vars(self) | given).items() if value is not None}
        return Settings(**said)


guarded = one_line_errors("qidpfl-server", CoordinatorError)


def where(
    *, state_dir: StateDir = None, store_url: StoreUrl = None, blob_dir: BlobDir = None, blobs: BlobBucket = None
) -> Where:
    """The place of the state that the options name."""
    return Where(state_dir, store_url, blob_dir, blobs)


located = sharing_options(where)
