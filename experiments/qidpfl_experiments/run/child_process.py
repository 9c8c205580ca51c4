"""Runs a module and ends it when whoever has started it is gone, however that ended: `leash MODULE ARGUMENT…`.

Standard input is the leash: it is a pipe that nobody writes to, and the system closes it when the other side dies.
Whatever ends the module ends this process in the same way.
"""

import os
import signal
import subprocess
import sys
import threading
from types import FrameType


def main() -> None:
    """Run what the arguments say."""
    # Its own standard input is nothing: the pipe stays ours.
    child = subprocess.Popen([sys.executable, "-m", *sys.argv[1:]], stdin=subprocess.DEVNULL)

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


def _end_with_parent(child: "subprocess.Popen[bytes]") -> None:
    os.read(sys.stdin.fileno(), 1)
    child.terminate()


if __name__ == "__main__":
    main()
