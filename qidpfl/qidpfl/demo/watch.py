"""Shows the task while it runs: the selection, then one row of a table per settled round."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from qidpfl_client.api import AdminApi
from qidpfl_experiments.testbed.process import ProcessEnded
from qidpfl_shared.core.money import from_micro
from qidpfl_shared.protocol.messages import RoundResult, TaskState

from ..record import TaskRecord, part_of
from .processes import DemoProcesses

_POLL_S = 0.3
# Spaces between the columns of the rounds.
_GAP = 1


class Watch:
    """Shows the task: live on a terminal, line by line in a pipe."""

    def __init__(self, *, api: AdminApi, processes: DemoProcesses, kill_in_round: int | None) -> None:
        self._api = api
        self._processes = processes
        self._kill_in_round = kill_in_round
        self._console = Console(highlight=False)
        self._began = time.monotonic()
        self._failed: list[ProcessEnded] = []

    def until_the_end(self) -> TaskRecord:
        """Show the task until it has ended."""
        task_id = self._api.tasks()[0].task_id
        record = TaskRecord(self._api.task(task_id))
        with Live(console=self._console, auto_refresh=False, transient=True) as live, self._restarting(live):
            while True:
                if self._failed:
                    raise self._failed[0]
                record.task = self._api.task(task_id)
                self._follow(record, live)
                if record.task.state.ended:
                    break
                time.sleep(_POLL_S)
        if self._console.is_terminal:
            self._console.print(rounds_table(record, width=self._console.width))
        self._console.print(f"\nThe task is {record.task.state}: {record.task.reason}, after {self._elapsed():.0f} s.")
        return record

    @contextmanager
    def _restarting(self, live: Live) -> Iterator[None]:
        """Restart killed processes, in a thread: the main thread may be waiting for a killed coordinator."""
        over = threading.Event()

        def restart() -> None:
            while not over.wait(_POLL_S) and not self._failed:
                try:
                    for name in self._processes.restart_killed():
                        live.console.print(f"{name} was killed; it was restarted and continues")
                except ProcessEnded as error:
                    self._failed.append(error)

        restarter = threading.Thread(target=restart, daemon=True)
        restarter.start()
        try:
            yield
        finally:
            over.set()
            restarter.join()

    def _follow(self, record: TaskRecord, live: Live) -> None:
        if record.task.state is TaskState.ENROLLING:
            live.update(
                Text(f"{record.task.clients} of {self._processes.scenario.clients} clients have enrolled"), refresh=True
            )
            return
        if not record.clients:
            record.clients = self._api.clients(record.task.task_id)
            live.console.print(_selection(record))
            if not self._console.is_terminal:
                self._print_rows([_head(record)])
        for number in range(len(record.rounds) + 1, record.task.settled_rounds + 1):
            record.rounds.append(self._api.round(record.task.task_id, number))
            if not self._console.is_terminal:
                self._print_rows([_row(record, record.rounds[-1])])
        if self._kill_in_round is not None and record.task.settled_rounds >= self._kill_in_round - 1:
            self._kill_in_round = None
            self._processes.coordinator.kill()
            self._processes.coordinator.process.wait()
        live.update(
            Group(rounds_table(record, width=self._console.width), Text(f"{self._elapsed():.0f} s")), refresh=True
        )

    def _print_rows(self, rows: Iterable[list[str]]) -> None:
        for row in rows:
            print(" ".join(f"{cell:>8}" for cell in row), flush=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def _selection(record: TaskRecord) -> Table:
    threshold = record.task.spec.selection.distance_threshold
    table = Table(title=f"Selection: label distance at most {threshold:g}", title_justify="left", box=None)
    for name in ("client", "records", "privacy value", "label distance", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for client in record.clients:
        table.add_row(
            str(client.ordinal),
            str(client.size),
            f"{client.privacy_value or 0:.2f}",
            f"{client.label_distance or 0:.2f}",
            client.state,
            style="dim" if client.state == "refused" else "",
        )
    return table


def rounds_table(record: TaskRecord, *, width: int) -> Table:
    """One row per settled round; as many clients as fit have a column, so that no header and no digit is cut."""
    rows = [_head(record), *(_row(record, result) for result in record.rounds)]
    sizes = [max(map(len, cells)) + _GAP for cells in zip(*rows, strict=True)]
    last = 2 + len(record.selected)
    kept = last
    while kept > 2 and sum(sizes[:kept]) + sum(sizes[last:]) > width:
        kept -= 1
    rows = [row[:kept] + row[last:] for row in rows]
    title = "Rounds: budgets of the clients (rho), reward and payments"
    if kept < last:
        title += f"\n({last - kept} more clients do not fit; the dashboard has them)"
    columns = [Column(name, justify="right", no_wrap=True) for name in rows[0]]
    table = Table(*columns, title=title, title_justify="left", box=None, padding=(0, _GAP, 0, 0))
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _head(record: TaskRecord) -> list[str]:
    clients = [f"#{client.ordinal}" for client in record.selected]
    return ["round", "reward", *clients, "paid", "accuracy", "epsilon"]


def _row(record: TaskRecord, result: RoundResult) -> list[str]:
    return [
        str(result.round_number),
        f"{from_micro(result.reward_micro):.2f}",
        *(_budget(result, client.ordinal) for client in record.selected),
        f"{from_micro(result.paid_micro):.2f}",
        "-" if result.accuracy is None else f"{result.accuracy:.3f}",
        f"{record.epsilon(rounds=result.round_number):.2f}",
    ]


def _budget(result: RoundResult, ordinal: int) -> str:
    part = part_of(result, ordinal)
    if part is None or part.standing != "invited":
        return "-"
    if part.declined or part.rho == 0:
        return "no"
    return f"{part.rho:.4f}".lstrip("0") if part.delivered else "late"
