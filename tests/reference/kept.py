"""What was read last of the exports that no test changes: plain Python takes long to read them."""

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

from tests.support.traces import OWN_CPU_TRACE, OWN_TRACES, REAL_TRACES, SAMPLES

_UNCHANGED = frozenset((*REAL_TRACES, *OWN_TRACES, OWN_CPU_TRACE, *SAMPLES))
_MAX_KEPT = 2  # tests of one export run one after the other
Read = TypeVar("Read")


def kept(read: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """Return a function that reads an export, which no test may change, once for neighbours."""
    known = lru_cache(maxsize=_MAX_KEPT)(read)

    @wraps(read)
    def of(path: Path) -> Read:
        return known(path) if path in _UNCHANGED else read(path)

    return of
