"""Runs a module as a child process and ends it when the parent dies: `child_process MODULE ARGUMENTS`.

Standard input is a pipe from the parent, which never writes to it. The operating system closes the pipe when the parent
dies, even after SIGKILL. This process ends with the exit status or the signal of the module. On Linux the module also
ends when this process is killed, as Ray does with the children of a worker that it ends.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the module that the arguments name."""
    # The module must not read from the pipe.
    child = subprocess.Popen(
        [sys.executable, "-m", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        preexec_fn=_end_when_parent_is_killed if sys.platform == "linux" else None,
    )

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    threading.Thread(target=_end_with_parent, args=[child], daemon=True).start()
    status = child.wait()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _end_when_parent_is_killed() -> None:
    """Runs in the child before it becomes the module: the kernel sends it SIGTERM when this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_with_parent(child: "subprocess.Popen[bytes]") -> None:
    os.read(sys.stdin.fileno(), 1)
    child.terminate()


if __name__ == "__main__":
    main()
