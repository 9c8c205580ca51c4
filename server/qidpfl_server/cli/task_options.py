"""What `serve --preset` and `tasks create` share: the size of a task, and its spec from preset, size and overrides."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.presets import OWN
from qidpfl_shared.protocol.task_spec import TaskSpec

from ..errors import CoordinatorError
from ..plugins.rules import RuleRegistry
from ..plugins.workloads import describe_workload
from ..service.tasks import task_spec

Clients = Annotated[
    int | None,
    typer.Option(min=2, max=100_000, help="number of clients: shards of a testbed, places, codes  [default: preset's]"),
]
Rounds = Annotated[int | None, typer.Option(min=1, max=1_000_000, help="number of rounds  [default: the preset's]")]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a command line asks for. `workload` names the custom workload of the task, if it has one."""

    preset: str
    overrides: Mapping[str, Any]
    clients: int | None = None
    rounds: int | None = None
    workload: str | None = None

    def task(self, rules: RuleRegistry, data_dir: Path | None) -> tuple[TaskSpec, Parameters | None]:
        """The spec of the task, and its first model; None: that of the built-in workload."""
        if self.workload is None:
            return self._spec(self.overrides, rules), None
        own = describe_workload(self.workload, data_dir)
        spec = self._spec(own.overrides(self.overrides, clients=self.clients), rules)
        return spec, own.start(spec)

    def _spec(self, overrides: Mapping[str, Any], rules: RuleRegistry) -> TaskSpec:
        return task_spec(self.preset, overrides, rules, clients=self.clients, rounds=self.rounds)


def workload_of(preset: str, named: list[str]) -> str | None:
    """The workload that `serve --preset own` makes a task of. Other presets have a data set of their own."""
    if preset != OWN:
        return None
    if len(named) != 1:
        raise CoordinatorError("serve --preset own needs one --workload, file.py:Class, of which it makes a task")
    return named[0]
