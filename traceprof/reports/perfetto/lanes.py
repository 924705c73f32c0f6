"""Lanes of events: tracks on which they follow each other or lie inside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask


def lanes(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return for each event the first track on which it follows all others, or lies inside one.

    Args:
        start_ns: int64[n], ascending.
        end_ns: int64[n].

    Returns:
        int64[n], from 0 on.
    """
    lane = np.zeros(len(start_ns), np.int64)
    is_crossing = ~_is_nested(start_ns, end_ns)
    if not is_crossing.any():
        return lane
    # What ended before others begin has nothing to do with them: few are looked at one by one.
    latest = np.maximum.accumulate(end_ns)
    island = np.cumsum(np.append(True, start_ns[1:] >= latest[:-1]))
    rows = np.flatnonzero(is_in(island, island[is_crossing]))
    open_ends: list[list[int]] = []
    chosen = []
    for start, end in zip(start_ns[rows].tolist(), end_ns[rows].tolist(), strict=True):
        number = 0
        for ends in open_ends:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                break
            number += 1
        else:
            ends = []
            open_ends.append(ends)
        ends.append(end)
        chosen.append(number)
    lane[rows] = chosen
    return lane


def nested_order(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the order of the begins and ends of events that lie inside each other.

    Args:
        start_ns: int64[n], ascending.
        end_ns: int64[n].

    Returns:
        int64[2 n]: i for where event i begins, ~i for where it ends.
    """
    begun, ending, before = _ends(start_ns, end_ns)
    order = np.empty(2 * len(start_ns), np.int64)
    number = np.arange(len(start_ns))
    order[number + before] = number
    order[begun[ending] + number] = ~ending
    return order


def _ends(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Return where events end among those that begin, if the last that began ends first.

    Returns:
        For each event, how many have begun when it ends; the events by when they end; and for each
        event, how many have ended when it begins.
    """
    number = np.arange(len(start_ns))
    if (end_ns[:-1] <= start_ns[1:]).all():  # one after the other: the most of a stream
        return number + 1, number, number
    begun = np.maximum(np.searchsorted(start_ns, end_ns), number + 1)
    ending = len(number) - 1 - np.argsort(begun[::-1], kind="stable")
    before = np.searchsorted(begun[ending], number, side="right")
    return begun, ending, before


def _is_nested(start_ns: Int64, end_ns: Int64) -> Mask:
    """Return whether the end of each event, by end, is that of the last one that began before."""
    begun, ending, before = _ends(start_ns, end_ns)
    number = np.arange(len(start_ns))
    # As deep as when it began, and no sooner than the end before it.
    depth = number - before
    is_nested = np.empty(len(number), np.bool_)
    is_nested[ending] = depth[ending] == begun[ending] - number - 1
    is_nested[ending[1:]] &= np.diff(end_ns[ending]) >= 0
    return is_nested
