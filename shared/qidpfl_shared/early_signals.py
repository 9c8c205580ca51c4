"""Ctrl-C while a command still imports its modules: one line instead of a traceback from the middle of an import.

This module imports nothing that takes time, so that a command can use it first.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_INTERRUPTED = 130


def _exit_at_once(program: str) -> Callable[[int, FrameType | None], None]:
    def stop(number: int, frame: FrameType | None) -> None:
        # An exception could be swallowed by a module that is being imported. Nothing is open yet that must be closed.
        os.write(2, f"{program}: stopped\n".encode())
        os._exit(_INTERRUPTED)

    return stop


@contextmanager
def while_importing(program: str) -> Iterator[None]:
    """Exit at once at Ctrl-C inside this block; afterwards Python's own handler is back."""
    before = signal.signal(signal.SIGINT, _exit_at_once(program))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
