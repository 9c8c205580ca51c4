"""What `serve` says about its task: what to type next, what has changed, and how to begin anew after the end."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qidpfl_shared.protocol.presets import OWN
from qidpfl_shared.protocol.task_spec import TaskSpec

from ...domain import Task
from ...service.progress.results import task_results
from ...store.store import Store

# More differences than these do not fit into a line.
_MOST_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """The lines for one task. `begin_anew` is the command that starts a new task, where it is not `serve` itself."""

    task: Task
    asked: TaskSpec
    code_file: Path
    created: bool
    workload: str | None = None
    begin_anew: str | None = None

    def lines(self, url: str, store: Store) -> list[str]:
        """What to say once the coordinator listens at this address."""
        name = self.task.name
        if self.task.ended:
            results = store.read(lambda tx: task_results(tx, self.task))
            said = [
                f"task {name} has ended ({self.task.state.value}: {self.task.reason}): {results.in_words()}",
                f"  its results: {program('qidpfl-server')} tasks show {shlex.quote(name)}",
                f"  a new task:  {self.begin_anew or self._with_new_name(store)}",
            ]
        else:
            said = self._next_steps(url)
        if not self.created and (changed := differences(self.task.spec.current, self.asked)):
            shown = "; ".join(changed[:_MOST_SHOWN]) + ("; …" if len(changed) > _MOST_SHOWN else "")
            said.append(f"note: task {name} keeps its own settings: {shown}")
            if not self.task.ended:
                said.append(f"  a new task:  {self.begin_anew or self._with_new_name(store)}")
        return said

    def _next_steps(self, url: str) -> list[str]:
        given = f"--server {url} --code-file {shlex.quote(str(self.code_file))}"
        client, spec = program("qidpfl-client"), self.task.spec
        if self.workload is not None:
            given += f" --workload {shlex.quote(self.workload)}"
        if spec.workload.partition is None:
            return [f"next: {client} run {given}", "  with the records of each owner; give each its own code"]
        shards = spec.workload.partition.clients
        return [
            f"next: {client} fleet {given} --clients {shards} --public-data",
            f"  or several times: {client} run {given} --public-data --journal ANOTHER.sqlite",
        ]

    def _with_new_name(self, store: Store) -> str:
        """The command line of this process with the next free name."""
        taken = {task.name for task in store.read(lambda tx: tx.tasks.all())}
        number = next(n for n in range(2, len(taken) + 3) if f"{self.task.name}-{n}" not in taken)
        words, skip = [], False
        for word in sys.argv[1:]:
            if not skip and word != "--task" and not word.startswith("--task="):
                words.append(word)
            skip = word == "--task"
        return f"{program('qidpfl-server')} {shlex.join([*words, '--task', f'{self.task.name}-{number}'])}"


def program(name: str) -> str:
    """How to call a program of this installation from the current folder: by its name if the shell finds it."""
    beside = Path(sys.argv[0]).with_name(name)
    if not beside.is_file() or shutil.which(name) == str(beside):
        return name
    try:
        return shlex.quote(str(beside.resolve().relative_to(Path.cwd().resolve())))
    except ValueError:
        return shlex.quote(str(beside))


def differences(known: TaskSpec, asked: TaskSpec) -> list[str]:
    """In which settings two specs differ, as `game.horizon is 20, not 5`."""
    if known.digest == asked.digest or asked.workload.dataset == OWN:
        return []
    ours, theirs = _flat(known.facts()), _flat(asked.facts())
    return [
        f"{name} is {ours.get(name)}, not {theirs.get(name)}"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= _flat(inner, f"{prefix}{name}.") if isinstance(inner, Mapping) else {f"{prefix}{name}": inner}
    return found
