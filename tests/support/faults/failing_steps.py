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


def stop_holding_the_round() -> None:
    """Stopped, as by a debugger, within the transaction that closes the first round."""
    rest = iter([signal.SIGSTOP])

    def stop(name: str) -> None:
        if name == "settle.before_commit" and (sent := next(rest, None)) is not None:
            os.kill(os.getpid(), sent)

    _settlement.failpoint = stop


def _fail(*_: Any) -> Any:
    raise Unforeseen("with a detail for the log only")
