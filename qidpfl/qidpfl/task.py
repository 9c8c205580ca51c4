"""`Task`: a preset with some of its values changed, checked as soon as it is written down."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError

from qidpfl_shared.command_line import first_fault
from qidpfl_shared.protocol.presets import PRESETS, UnknownPreset, merged, preset
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.protocol.task_spec.sizes import sized

from .errors import InvalidTask

# A defence may be absent, so that its fields are named with their section only.
_SECTIONS = ("workload", "selection", "game", "privacy", "aggregation", "rounds", "bounds")

_FEWEST_CLIENTS = 2


@dataclass(frozen=True)
class Task:
    """A task of a preset with overrides. It never changes; `with_` returns another one.

    >>> Task.from_preset("digits").with_(horizon=5, aggregation={"momentum": 0.5}).spec.game.horizon
    5
    >>> Task.from_preset("digits").with_(horizon=0)
    Traceback (most recent call last):
    ...
    qidpfl.errors.InvalidTask: game.horizon: Input should be greater than or equal to 1
    """

    preset: str
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # An impossible task is refused here, not after processes have been started.
        _ = self.spec

    @classmethod
    def from_preset(cls, name: str) -> "Task":
        """The ready-made task of this name. `Task.presets()` lists them."""
        return cls(name)

    @staticmethod
    def presets() -> dict[str, str]:
        """The names of all presets, each with what it is."""
        return {name: " ".join((make.__doc__ or "").split()) for name, make in PRESETS.items()}

    @cached_property
    def spec(self) -> TaskSpec:
        """Everything that defines the task."""
        try:
            return preset(self.preset, self.overrides)
        except UnknownPreset as error:
            raise InvalidTask(str(error)) from None
        except ValidationError as error:
            raise InvalidTask(first_fault(error)) from None

    def with_(self, **changes: Any) -> "Task":
        """The same task with other values.

        A keyword is a section of the spec with a mapping, such as `game={"policy": "fixed"}`, or a field that only one
        section has, such as `horizon=10` or `momentum=0.5`.
        """
        overrides: dict[str, Any] = dict(self.overrides)
        for name, value in changes.items():
            overrides = merged(overrides, self._located(name, value))
        return Task(self.preset, overrides)

    def for_clients(self, clients: int) -> "Task":
        """The same task for this number of clients: its partition has as many shards, and it waits for all of them."""
        if clients < _FEWEST_CLIENTS:
            raise InvalidTask(f"a task needs at least {_FEWEST_CLIENTS} clients, not {clients}")
        return self.with_(**sized(self.spec, clients=clients))

    def _located(self, name: str, value: Any) -> dict[str, Any]:
        if name in TaskSpec.model_fields:
            return {name: _plain(value)}
        sections = [one for one in _SECTIONS if name in type(getattr(self.spec, one)).model_fields]
        if len(sections) == 1:
            return {sections[0]: {name: _plain(value)}}
        if sections:
            forms = " or ".join(f"{one}={{{name!r}: …}}" for one in sections)
            raise InvalidTask(f"several sections have a field {name}; write {forms}")
        raise InvalidTask(f"a task has no field {name}; its sections are {', '.join(TaskSpec.model_fields)}")


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
