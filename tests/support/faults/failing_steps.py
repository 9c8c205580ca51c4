"""Coordinators with a step that fails, or that is paused, on purpose."""

import os
import signal
import time
from typing import Any

from qidpfl_server.service import scheduler
from qidpfl_server.service.rounds import settlement
from qidpfl_server.store import database

# The functions to break are replaced in these modules.
_settlement: Any = settlement
_scheduler: Any = scheduler
_database: Any = database
_time: Any = time


class Unforeseen(Exception):
    """An unexpected error."""


def settle_never() -> None:
    """No round can be settled."""
    _settlement.round_payments = _fail


def fail_soon() -> None:
    """No round can be settled, and the task fails after a second instead of half a minute."""
    settle_never()
    _scheduler._FIRST_PAUSE_S = 0.02


def sweep_all_the_time() -> None:
    """Sweep unused blobs again and again, so that a sweep meets every moment of an upload."""
    _scheduler._SWEEP_EVERY_S = 0.0


def stop_holding_the_round() -> None:
    """Pause the process, as a debugger would, in the transaction that closes the first round."""
    rest = iter([signal.SIGSTOP])

    def stop(name: str) -> None:
        if name == "settle.before_commit" and (sent := next(rest, None)) is not None:
            os.kill(os.getpid(), sent)

    _settlement.failpoint = stop


def stop_holding_the_round_for_ever() -> None:
    """The same in a coordinator that lets PostgreSQL wait for a paused transaction, as earlier versions did."""
    create_engine = _database.create_engine

    def patient(url: Any, *, connect_args: dict[str, Any], **options: Any) -> Any:
        words = connect_args["options"].replace("idle_in_transaction_session_timeout=4s", "lock_timeout=5s")
        assert words != connect_args["options"]
        return create_engine(url, connect_args=connect_args | {"options": words}, **options)

    _database.create_engine = patient
    stop_holding_the_round()


def stop_before_a_settlement() -> None:
    """Pause the process when it has computed the first model, before it opens the transaction that closes the round."""
    rest = iter([signal.SIGSTOP])

    def stop(name: str) -> None:
        if name == "settle.model_written" and (sent := next(rest, None)) is not None:
            os.kill(os.getpid(), sent)

    _settlement.failpoint = stop


def an_hour_ahead() -> None:
    """The clock of the machine is an hour fast."""
    _shift_machine(3600)


def an_hour_behind() -> None:
    """The clock of the machine is an hour slow."""
    _shift_machine(-3600)


def _shift_machine(ahead_s: int) -> None:
    read, read_ns = time.time, time.time_ns
    _time.time = lambda: read() + ahead_s
    _time.time_ns = lambda: read_ns() + ahead_s * 1_000_000_000


def _fail(*_: Any) -> Any:
    raise Unforeseen("with a detail for the log only")
