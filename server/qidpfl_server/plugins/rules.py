"""Rules of the operator's own: reward policies and selection rules, from files that `--rules` names.

A task refers to them by the stem of the file. What it says is never imported: only what the operator has named at the
start, once for the whole process, can be asked.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qidpfl_shared.core.custom_rules import CustomReward, CustomSelect
from qidpfl_shared.plugin_loader import CannotImport, module_of_file
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.fields import Name
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import CoordinatorError, RequestRefused


@dataclass(frozen=True)
class CustomRules:
    """The functions of one file."""

    path: Path
    reward: CustomReward | None
    select: CustomSelect | None


# Rules by name. Who decides (a request, the scheduler, a command) is many calls away from who knows the command line.
_loaded: dict[str, CustomRules] = {}


def load_rules(paths: Iterable[Path]) -> None:
    """Run these files and remember their functions, in the place of whatever was loaded before."""
    found: dict[str, CustomRules] = {}
    for path in paths:
        name = _name_of(path)
        if name in found and found[name].path.resolve() != path.resolve():
            raise CoordinatorError(f"{found[name].path} and {path} have one name: tasks could not tell them apart")
        found[name] = _read(path)
    _loaded.clear()
    _loaded.update(found)


def custom_reward(spec: TaskSpec) -> CustomReward | None:
    """The function that chooses the rewards of a task; None under another policy, and where it is not loaded."""
    rules = _loaded.get(spec.game.own_rules or "")
    return None if rules is None else rules.reward


def custom_select(spec: TaskSpec) -> CustomSelect | None:
    """The function that chooses the clients of a task; None under another rule, and where it is not loaded."""
    rules = _loaded.get(spec.selection.own_rules or "")
    return None if rules is None else rules.select


def missing_rules(spec: TaskSpec) -> dict[str, str]:
    """The functions that a task needs and this process does not have, each with the reason."""
    missing = {}
    for function, name in _needed(spec):
        rules = _loaded.get(name)
        if rules is None:
            missing[function] = f"rules {name} are not loaded: --rules {name}.py is needed"
        elif getattr(rules, function) is None:
            missing[function] = f"{rules.path} has no function {function}"
    return missing


def require_rules(spec: TaskSpec) -> None:
    """Refuse a task whose rules are not here."""
    for reason in missing_rules(spec).values():
        raise RequestRefused(ErrorCode.RULES_NOT_LOADED, reason)


def rules_of(spec: TaskSpec) -> list[Path]:
    """The files that a task needs, of those that are loaded."""
    return list(dict.fromkeys(_loaded[name].path for _, name in _needed(spec) if name in _loaded))


def _needed(spec: TaskSpec) -> Iterator[tuple[str, str]]:
    if spec.game.own_rules is not None:
        yield "reward", spec.game.own_rules
    if spec.selection.own_rules is not None:
        yield "select", spec.selection.own_rules


def _name_of(path: Path) -> str:
    try:
        return TypeAdapter[str](Name).validate_python(path.stem)
    except ValidationError:
        raise CoordinatorError(f"{path}: no task could name it; letters, digits and . _ - only") from None


def _read(path: Path) -> CustomRules:
    try:
        module = module_of_file(path, kind="rules")
    except CannotImport as error:
        raise CoordinatorError(str(error)) from error
    reward, select = _function(path, module, "reward"), _function(path, module, "select")
    if reward is None and select is None:
        raise CoordinatorError(f"{path} has neither a function reward nor a function select")
    return CustomRules(path, reward, select)


def _function(path: Path, module: ModuleType, name: str) -> Callable[[Any], Any] | None:
    found: Callable[[Any], Any] | None = getattr(module, name, None)
    if found is not None and not callable(found):
        raise CoordinatorError(f"{path}: {name} is no function")
    return found
