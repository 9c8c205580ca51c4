"""`serve --exit-when-finished`: when the server stops by itself."""

import asyncio
from typing import Any

import pytest

from qidpfl_server.cli.serve import _stop_when_finished
from support.use_cases import UseCases


class StoppableServer:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


def test_a_server_stops_also_when_its_tasks_could_not_be_read_for_a_while(
    cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, server, slept = cases.task(), StoppableServer(), []

    def change(state: str) -> None:
        with cases.store.engine.begin() as connection:
            assert connection.exec_driver_sql(f"update tasks set state = '{state}'").rowcount == 1

    async def sleep(duration_s: float) -> None:
        """Let the task be enrolling, then unreadable, then ended."""
        slept.append(duration_s)
        if len(slept) == 2:
            change("unheard-of")
        if len(slept) == 3:
            change("enrolling")
            task.stop()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    stopping: Any = _stop_when_finished(server, cases.store)  # type: ignore[arg-type]
    asyncio.run(stopping)
    # It looks once a second, then gives the clients five seconds.
    assert slept == [1, 1, 1, 5] and server.stopped
