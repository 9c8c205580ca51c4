"""Custom rules: reward policies and selection rules from files that the operator names with `--rules`.

A task refers to a file by its stem. The server runs only files that the operator has named, never code that a task
names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    """The functions of one file; None for a function that the file does not have."""

    path: Path
    reward: CustomReward | None
    select: CustomSelect | None


@dataclass(frozen=True)
class RuleRegistry:
    """The custom rules that a process has loaded, by name. Use cases that may need a rule take it as an argument."""

    files: Mapping[str, CustomRules] = field(default_factory=dict)

    def reward(self, spec: TaskSpec) -> CustomReward | None:
        """The reward function of a task; None under another policy, or if the file is not loaded."""
        rules = self.files.get(spec.game.own_rules or "")
        return None if rules is None else rules.reward

    def select(self, spec: TaskSpec) -> CustomSelect | None:
        """The selection function of a task; None under another rule, or if the file is not loaded."""
        rules = self.files.get(spec.selection.own_rules or "")
        return None if rules is None else rules.select

    def missing(self, spec: TaskSpec) -> dict[str, str]:
        """The functions that a task needs and this process does not have, each with the reason."""
        missing = {}
        for function, name in _needed(spec):
            rules = self.files.get(name)
            if rules is None:
                missing[function] = f"rules {name} are not loaded: --rules {name}.py is needed"
            elif (rules.reward if function == "reward" else rules.select) is None:
                missing[function] = f"{rules.path} has no function {function}"
        return missing

    def require(self, spec: TaskSpec) -> None:
        """Raise `RequestRefused` if a function that the task needs is missing."""
        for reason in self.missing(spec).values():
            raise RequestRefused(ErrorCode.RULES_NOT_LOADED, reason)

    def files_of(self, spec: TaskSpec) -> list[Path]:
        """The loaded files that a task needs."""
        return list(dict.fromkeys(self.files[name].path for _, name in _needed(spec) if name in self.files))


NO_RULES = RuleRegistry()


def load_rules(paths: Iterable[Path]) -> RuleRegistry:
    """Run these files and collect their functions.

    Raises `CoordinatorError` for a file that cannot be imported, has neither function, or has a name that no task can
    use; and for two files of one name.
    """
    found: dict[str, CustomRules] = {}
    for path in paths:
        name = _name_of(path)
        if name in found and found[name].path.resolve() != path.resolve():
            raise CoordinatorError(f"{found[name].path} and {path} have the same name: rename one of them")
        found[name] = _read(path)
    return RuleRegistry(found)


def _needed(spec: TaskSpec) -> Iterator[tuple[str, str]]:
    if spec.game.own_rules is not None:
        yield "reward", spec.game.own_rules
    if spec.selection.own_rules is not None:
        yield "select", spec.selection.own_rules


def _name_of(path: Path) -> str:
    try:
        return TypeAdapter[str](Name).validate_python(path.stem)
    except ValidationError:
        raise CoordinatorError(f"{path}: no task can use this name; use only letters, digits and . _ -") from None


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
        raise CoordinatorError(f"{path}: {name} is not a function")
    return found
