"""How the process of a command keeps its memory."""

from __future__ import annotations

import ctypes

# mallopt's parameters and their values, of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER, _LARGE = 1 << 30, 1 << 23


def keep_freed_memory() -> None:
    """Have the C library keep freed memory: arrays of a few MB come and go all the time.

    By itself glibc gives much of it back to the system, which then clears it anew, page by page:
    a tenth of the time of an analysis. Where the C library is another one nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_ARENA_MAX, 1)  # what one thread frees another one takes
