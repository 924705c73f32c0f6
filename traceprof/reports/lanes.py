"""Lanes in which overlapping events of one thread are drawn.

Events are given in order of their start, longer ones first. A lane is the number of a row from the
top, 0 upward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traceprof.intervals import Int64


def order(start_ns: Int64, end_ns: Int64) -> Int64 | None:
    """Return the order in which events nest: by start, longest first of several.

    None if they are in that order already, as calls of a thread nearly always are.
    """
    starts_after = start_ns[1:] > start_ns[:-1]
    is_tie = (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] <= end_ns[:-1])
    if bool((starts_after | is_tie).all()):
        return None
    return np.lexsort((-end_ns, start_ns))


def nested(start_ns: Int64, end_ns: Int64, most: int) -> Int64:
    """Return the nesting depth of each event: int64[n].

    Starts ascend; of events that start together the longest is first. Deeper ones go into the last
    of `most` lanes.
    """
    lasts = end_ns > start_ns
    begun: Int64 = np.cumsum(lasts) - lasts
    ended = np.searchsorted(np.sort(end_ns[lasts]), start_ns, side="right")
    depth: Int64 = np.minimum(begun - ended, most - 1)
    return depth


def packed(start_ns: Int64, end_ns: Int64, most: int) -> Int64:
    """Return lanes in which no two events overlap, as few as possible: int64[n].

    Starts ascend; events that do not fit into the others go into the last of `most` lanes.
    """
    lane = np.full(len(start_ns), most - 1, np.int64)
    left = np.arange(len(start_ns))
    for number in range(most - 1):
        if len(left) == 0:
            break
        chosen = _chain(start_ns[left], end_ns[left])
        lane[left[chosen]] = number
        left = left[~chosen]
    return lane


def _chain(start_ns: Int64, end_ns: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the events reached by going from the first to the next that starts after its end."""
    num = len(start_ns)
    after = np.searchsorted(start_ns, end_ns)
    # One more entry after the last, which points to itself.
    step = np.append(np.maximum(after, np.arange(1, num + 1)), num)
    chosen = np.zeros(num + 1, bool)
    chosen[0] = True
    # Each iteration doubles the number of steps that are followed.
    while not chosen[num]:
        chosen[step[chosen]] = True
        step = step[step]
    return chosen[:num]
