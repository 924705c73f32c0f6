"""The common answer of communication analyses for a rank that did not communicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals

if TYPE_CHECKING:
    from traceprof.run.rank import Spans, Window

NO_COMMUNICATION = (
    "no communication kernel and no peer copy ran in the time judged",
    "where kernels of another name communicate, give it with --communication-kernel REGEX",
)
"""The reason why nothing can be judged, and how to collect it."""


def num_inside(spans: Spans, window: Window) -> int:
    """Count the operations that lie at least partly inside a window.

    Args:
        spans: starts and ends of operations, int64[n] each, in groups.
        window: the time that is judged.
    """
    start, end = np.array([window.start_ns]), np.array([window.end_ns])
    closed = np.array([window.is_whole])
    return sum(int(intervals.num_inside(*span, start, end, closed)[0]) for span in spans)
