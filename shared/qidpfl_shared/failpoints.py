"""Named places where a test may end the process, as a power cut would.

`QIDPFL_FAILPOINT=settle.before_commit:3` kills this process at the third time it gets to that place.
"""

import os
import signal
from collections import Counter

_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Die here if the environment says so."""
    wanted = os.environ.get("QIDPFL_FAILPOINT")
    if wanted is None:
        return
    target, _, count = wanted.partition(":")
    if name == target:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
