"""Memory settings for the process of a command."""

from __future__ import annotations

import ctypes

# mallopt's parameters and their values, of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER, _SOME, _LARGE = 1 << 30, 1 << 20, 1 << 25  # the last is the most that it takes


def keep_freed_memory() -> None:
    """Have the C library keep freed memory, since arrays of a few MB come and go all the time.

    By itself glibc gives much of it back to the system, which then clears it anew, page by page:
    a tenth of the time of an analysis. Where the C library is another one nothing happens.
    """
    library = _library()
    if library is not None:
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_ARENA_MAX, 1)  # what one thread frees another one takes


def drop_freed_memory() -> None:
    """Have the C library give back what it kept so far: between stages that need other memory."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)


def give_freed_memory_back() -> None:
    """Have the C library give back memory, and keep less from now on: for long-lived processes."""
    library = _library()
    if library is not None:
        library.mallopt(_TRIM_THRESHOLD, _SOME)
        library.malloc_trim(0)


def _library() -> ctypes.CDLL | None:
    """Return the C library if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim  # noqa: B018  (looked up, else an AttributeError)
    except (AttributeError, OSError, TypeError):
        return None
    return library
