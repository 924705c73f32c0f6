"""Memory settings for the process of a command."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache

# mallopt's parameters and their values, of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_NEVER, _SOME, _LARGE = 1 << 30, 1 << 20, 1 << 25  # the last is the most that it takes
_DEFAULT_PAD = 1 << 17
_AHEAD = 1 << 26  # addresses that the heap takes at once; no memory as long as nothing is there
_HUGE_PAGE = 1 << 21

_has_settings = False  # of `keep_freed_memory`


def keep_freed_memory() -> None:
    """Have the C library keep freed memory, since arrays of a few MB come and go all the time.

    By itself glibc gives much of it back to the system, which then clears it anew, page by page:
    a tenth of the time of an analysis. Where the C library is another one nothing happens.
    """
    global _has_settings  # noqa: PLW0603  (they are the process's)
    library = _library()
    if library is not None:
        _has_settings = True
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_ARENA_MAX, 1)  # what one thread frees another one takes
        library.mallopt(_TOP_PAD, _AHEAD)
        _take_huge_pages(library)


def drop_freed_memory() -> None:
    """Have the C library give back what it kept so far: between stages that need other memory."""
    library = _library()
    if library is not None:
        library.malloc_trim(0)
        if _has_settings:
            _take_huge_pages(library)


def give_freed_memory_back() -> None:
    """Have the C library give back memory, and keep less from now on: for long-lived processes."""
    global _has_settings  # noqa: PLW0603  (they are the process's)
    library = _library()
    if library is not None:
        _has_settings = False
        library.mallopt(_TRIM_THRESHOLD, _SOME)
        library.mallopt(_TOP_PAD, _DEFAULT_PAD)
        library.malloc_trim(0)


def _take_huge_pages(library: ctypes.CDLL) -> None:
    """Ask for pages of 2 MB where the heap will grow: fewer faults, fewer misses of the TLB."""
    begin = library.sbrk(0)
    library.free(library.malloc(_LARGE // 2))  # the heap grows by `_AHEAD`, unless it has room
    begin += -begin % _HUGE_PAGE
    if sys.platform == "linux" and (size := library.sbrk(0) - begin) > 0:
        library.madvise(begin, size, mmap.MADV_HUGEPAGE)


@cache
def _library() -> ctypes.CDLL | None:
    """Return the C library if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim  # noqa: B018  (looked up, else an AttributeError)
    except (AttributeError, OSError, TypeError):
        return None
    library.sbrk.restype = library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
