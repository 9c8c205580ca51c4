"""Coordinators that are hindered on purpose: a step that fails, or that is stopped in the middle."""

import os
import signal
from typing import Any

from qidpfl_server.service import scheduler, settlement

# What is hindered is replaced in these modules, whatever its type.
_settlement: Any = settlement
_scheduler: Any = scheduler


class Unforeseen(Exception):
    """What nobody has thought of."""


def settle_never() -> None:
    """No round can be settled."""
    _settlement._payments = _fail


def settle_never_and_hurry() -> None:
    """No round can be settled, and the tries follow each other fast."""
    _hurry()
    settle_never()


def settle_at_the_fourth_try() -> None:
    """The first three settlements fail, whatever the reason."""
    _hurry()
    payments, tries = settlement._payments, iter(range(3))

    def at_last(*arguments: Any) -> Any:
        return payments(*arguments) if next(tries, None) is None else _fail()

    _settlement._payments = at_last


def settle_with_a_sick_disk() -> None:
    """Twenty times in a row the disk does not answer: more often than anything unforeseen is tried."""
    audit_updates, tries = _settlement.audit_updates, iter(range(20))

    def in_the_end(*arguments: Any) -> Any:
        if next(tries, None) is not None:
            raise OSError(5, "Input/output error")
        return audit_updates(*arguments)

    _settlement.audit_updates = in_the_end


def select_never() -> None:
    """No selection can be made."""
    _hurry()
    _scheduler.select_clients = _fail


def stop_holding_the_round() -> None:
    """Stopped, as by a debugger, within the transaction that closes the first round."""
    rest = iter([signal.SIGSTOP])

    def stop(name: str) -> None:
        if name == "settle.before_commit" and (sent := next(rest, None)) is not None:
            os.kill(os.getpid(), sent)

    _settlement.failpoint = stop


def _hurry() -> None:
    scheduler._FIRST_PAUSE_S = 0.02


def _fail(*_: Any) -> Any:
    raise Unforeseen("with a detail for the log only")
