"""Checks whether a rank communicates, perhaps under another name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.patterns import lazy

if TYPE_CHECKING:
    from traceprof.run.rank import Spans, Window

_LIKE_COMMUNICATION = lazy(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|bcast|send|recv|receive"
    r"|exchange|halo|shmem|symm_?mem|peer|remote|p2p|nccl|rccl",
    re.IGNORECASE,
)


def looks_like_communication(name: str) -> bool:
    """Return whether a kernel's name, which no pattern knows, may mean communication."""
    return _LIKE_COMMUNICATION.search(name) is not None


def num_inside(spans: Spans, window: Window) -> int:
    """Count the operations that lie at least partly inside a window.

    Args:
        spans: starts and ends of operations, int64[n] each, in groups.
        window: the time that is judged.
    """
    start, end = np.array([window.start_ns]), np.array([window.end_ns])
    closed = np.array([window.is_whole])
    return sum(int(intervals.num_inside(*span, start, end, closed)[0]) for span in spans)
