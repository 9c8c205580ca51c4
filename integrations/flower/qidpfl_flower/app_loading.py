"""Find a Flower app on this machine: a project folder with a `pyproject.toml`, or `module:object`.

The owner names it on the command line. Importing it runs its code.
"""

import importlib
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qidpfl_client.errors import Misconfigured
from qidpfl_shared.plugin_loader import described

Config = dict[str, bool | int | float | str]


@dataclass(frozen=True, kw_only=True)
class FlowerProject:
    """Where the client of an app is, and the configuration that its project has for a run."""

    reference: str
    folder: Path
    run_config: Config = field(default_factory=dict)

    @classmethod
    def named(cls, app: str, *, folder: Path | None = None) -> "FlowerProject":
        """The project of an option: a folder whose `pyproject.toml` names the app, or module:object in `folder`.

        Raises `Misconfigured` if there is no such project.
        """
        if ":" in app and not Path(app).is_dir():
            where = folder or Path()
            if not where.is_dir():
                raise Misconfigured(f"there is no folder {where}")
            return cls(reference=app, folder=where, run_config=_run_config(_settings(where)))
        found = Path(app)
        if not found.is_dir():
            raise Misconfigured(f"{app} is neither a folder of a Flower app nor module:object")
        settings = _settings(found)
        reference = settings.get("components", {}).get("clientapp")
        if not isinstance(reference, str):
            raise Misconfigured(f"{found}/pyproject.toml names no clientapp in [tool.flwr.app.components]")
        return cls(reference=reference, folder=found, run_config=_run_config(settings))

    def load(self) -> Any:
        """Import the app; raises `Misconfigured` if that fails."""
        return loaded(self.reference, folder=self.folder)


def loaded(reference: str, *, folder: Path) -> Any:
    """The object module:name, with the modules of `folder` first. Raises `Misconfigured` if it cannot be imported."""
    module_name, colon, attributes = reference.partition(":")
    if not colon or not module_name or not attributes:
        raise Misconfigured(f"{reference!r} must be module:object")
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
        for name in attributes.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:
        raise Misconfigured(f"{reference} in {folder} cannot be imported: {described(error)}") from error
    return found


def config_of(texts: Iterable[str]) -> Config:
    """The values of options such as `partition-id=0 batch-size=32`, in Flower's own notation (TOML values).

    >>> config_of(["partition-id=0 num-partitions=3", "name='a b'", "path=/data/mine"])
    {'partition-id': 0, 'num-partitions': 3, 'name': 'a b', 'path': '/data/mine'}
    """
    values: Config = {}
    for text in texts:
        for pair in shlex.split(text):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise Misconfigured(f"{pair!r} must be NAME=VALUE")
            values[name] = _value(value)
    return values


def _value(text: str) -> bool | int | float | str:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _settings(folder: Path) -> dict[str, Any]:
    """The table [tool.flwr.app] of a project; empty if there is none."""
    file = folder / "pyproject.toml"
    try:
        text = file.read_text()
    except FileNotFoundError:
        return {}
    try:
        found = tomllib.loads(text).get("tool", {}).get("flwr", {}).get("app", {})
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise Misconfigured(f"{file} is not a project file: {described(error)}") from None
    return found if isinstance(found, dict) else {}


def _run_config(settings: Mapping[str, Any]) -> Config:
    return dict(_flattened(settings.get("config", {}), ""))


def _flattened(table: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, bool | int | float | str]]:
    """Nested tables as names with dots, as Flower has them in `context.run_config`."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{name}", value
