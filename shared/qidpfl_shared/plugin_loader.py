"""Import a user's file as a module. The owner of this machine names it on a command line.

Importing runs code. The name therefore never comes from a server, a client or a task.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


class CannotImport(Exception):
    """There is no such file, or it failed. The message is one line that says which."""


def module_of_file(path: Path, *, kind: str) -> ModuleType:
    """Import the file and return the module. `kind` keeps files with the same name but different purposes apart.

    Raises `CannotImport` if the file is missing, is not a Python file, or fails.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "mine.py").write_text("ANSWER = 42")
    ...     module_of_file(Path(folder) / "mine.py", kind="example").ANSWER
    42
    """
    if not path.is_file():
        raise CannotImport(f"there is no file {path}")
    name = f"qidpfl_own_{kind}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotImport(f"{path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise CannotImport(f"{path} cannot be imported: {described(error)}") from error
    return module


def described(error: BaseException) -> str:
    """Return the type and the message of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
