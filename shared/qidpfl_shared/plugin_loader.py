"""Code of a user's own, from a file that the owner of this machine names on a command line.

Importing runs code, so that the name never comes from a coordinator, a client or a task.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


class CannotImport(Exception):
    """There is no such file, or running it failed; says which in one line."""


def module_of_file(path: Path, *, kind: str) -> ModuleType:
    """The file as a module, run now. `kind` keeps files of one name for different purposes apart."""
    if not path.is_file():
        raise CannotImport(f"there is no file {path}")
    name = f"qidpfl_own_{kind}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotImport(f"{path} is no Python file: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CannotImport(f"{path} cannot be imported: {described(error)}") from error
    return module


def described(error: BaseException) -> str:
    """What went wrong in somebody's code, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
