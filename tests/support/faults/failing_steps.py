"""Coordinators with a step that fails, or that is paused, on purpose."""

import os
import signal
from typing import Any

from qidpfl_server.service import scheduler, settlement

# The functions to break are replaced in these modules.
_settlement: Any = settlement
_scheduler: Any = scheduler


class Unforeseen(Exception):
    """An unexpected error."""


def settle_never() -> None:
    """No round can be settled."""
    _settlement._payments = _fail


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


def _fail(*_: Any) -> Any:
    raise Unforeseen("with a detail for the log only")
