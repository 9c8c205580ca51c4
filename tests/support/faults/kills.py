"""Kills a process at any of its system calls, with the kernel's own means for debuggers."""

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

_TRACE_ME = 0
_CONTINUE_TO_SYSTEM_CALL = 24


def killed_at_stop(stop: int, work: Callable[[Path], None], path: Path) -> bool:
    """Run `work` in a forked process, and kill it at this stop: one before and one after each of its system calls.

    Returns False if the process reached its end before.
    """
    child = os.fork()
    if child == 0:
        _be_traced(work, path)
    os.waitpid(child, 0)
    for _ in range(stop):
        _ptrace(_CONTINUE_TO_SYSTEM_CALL, child)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _be_traced(work: Callable[[Path], None], path: Path) -> None:
    """Wait for the tracer, work, and end without any cleaning up."""
    code = 1
    try:
        _ptrace(_TRACE_ME)
        os.kill(os.getpid(), signal.SIGSTOP)
        work(path)
        code = 0
    finally:
        os._exit(code)


def _ptrace(request: int, process: int = 0) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long] * 4
    if library.ptrace(request, process, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "ptrace")
