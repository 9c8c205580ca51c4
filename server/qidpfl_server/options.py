"""What all commands share: where the state is, and how they fail."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from qidpfl_shared.command_line import one_line_errors

from .errors import CoordinatorError
from .settings import Settings

Result = TypeVar("Result")

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
Rules = Annotated[
    list[Path] | None,
    typer.Option(help="FILE.py with a reward policy or a selection rule of your own, which tasks name; repeatable"),
]


@dataclass(frozen=True)
class Where:
    """The options that all commands share: where the state is."""

    state_dir: Path | None
    store_url: str | None
    blob_dir: Path | None

    def settings(self, **given: Any) -> Settings:
        """The settings of the environment, with what was said on the command line."""
        said = {name: value for name, value in (vars(self) | given).items() if value is not None}
        return Settings(**said)


guarded = one_line_errors("qidpfl-server", CoordinatorError)


def located(function: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command the options of `Where`, and hand it their values as its first argument."""

    @wraps(function)
    def wrapped(*, state_dir: Path | None, store_url: str | None, blob_dir: Path | None, **own: Any) -> Result:
        return function(Where(state_dir, store_url, blob_dir), **own)

    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("state_dir", StateDir), ("store_url", StoreUrl), ("blob_dir", BlobDir))
    ]
    signature = inspect.signature(function)
    own = list(signature.parameters.values())[1:]
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    wrapped.__signature__ = signature.replace(parameters=[*keyword_only, *shared])  # type: ignore[attr-defined]
    return wrapped
