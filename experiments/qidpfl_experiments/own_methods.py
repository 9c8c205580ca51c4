"""A user's own mechanism: a reward policy, a selection rule or both, in one Python file, as a further method."""

import ast
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from .methods import METHODS, SWEEPS, Kept, Method, Reward, Role

# Methods that differ in capitals only could not be told apart in a report.
_TAKEN = {name.lower() for method in METHODS for name in (method.name, method.title)} | {*SWEEPS, "all"}


class OwnMethodError(ValueError):
    """A file cannot be a method; the message is one line."""


def own_methods(paths: Iterable[Path]) -> tuple[Method, ...]:
    """The methods of several files."""
    methods: dict[str, Method] = {}
    for path in paths:
        method = own_method(path)
        if method.name.lower() in methods:
            raise OwnMethodError(f"there are two files of the name {path.stem}: give {path} another one")
        methods[method.name.lower()] = method
    return tuple(methods.values())


def own_method(path: Path) -> Method:
    """The method of a file that defines `reward(question)`, `select(question)` or both; see docs/own-rules.md.

    Its name is that of the file. What it does not define is as in QI-DPFL. The file is read here, not run: it runs in
    the coordinator.
    """
    text = path.read_bytes()
    try:
        module = ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise OwnMethodError(f"{path} is not Python: {error}") from error
    defined = {part.name for part in module.body if isinstance(part, ast.FunctionDef)}
    if not defined & {"reward", "select"}:
        raise OwnMethodError(f"{path} defines neither reward(question) nor select(question)")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", path.stem):
        raise OwnMethodError(f"{path.stem!r} cannot be the name of a method: letters, digits, _ and - only")
    if path.suffix != ".py":
        raise OwnMethodError(f"{path}: the name of a file with Python code ends in .py")
    if path.stem.lower() in _TAKEN:
        raise OwnMethodError(f"{path.stem} already means something else: give {path} another name")
    about = (ast.get_docstring(module) or "rules of your own").strip().splitlines()[0]
    return Method(
        name=path.stem,
        title=path.stem,
        kept=Kept.OWN if "select" in defined else Kept.THRESHOLD,
        reward=Reward.OWN if "reward" in defined else Reward.OPTIMAL,
        role=Role.OWN,
        about=about,
        rules_digest=hashlib.sha256(text).hexdigest(),
    )
