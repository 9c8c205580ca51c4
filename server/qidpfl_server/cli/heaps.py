"""Memory that stays bounded over days.

glibc gives every thread a heap of its own and keeps what is freed in each of them: with megabytes passing through many
threads, memory would grow from round to round though nothing is held.
"""

import ctypes

_M_ARENA_MAX = -8


def share_heaps(count: int = 2) -> None:
    """Let all threads share so many heaps; does nothing where the C library is another one."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count)
    except (AttributeError, OSError):
        return
