"""What was read last of the exports that no test changes: plain Python takes long to read them."""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, TypeVar

from tests.support.traces import REAL_TRACES, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_UNCHANGED = frozenset((*REAL_TRACES, *SAMPLES))
_MAX_KEPT = 2  # tests of one export run one after the other
Read = TypeVar("Read")


def kept(read: Callable[[Path], Read]) -> Callable[[Path], Read]:
    """Return a function that reads an export, which no test may change, once for neighbours."""
    known = lru_cache(maxsize=_MAX_KEPT)(read)

    @wraps(read)
    def of(path: Path) -> Read:
        return known(path) if path in _UNCHANGED else read(path)

    return of
