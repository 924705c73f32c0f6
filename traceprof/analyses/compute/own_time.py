"""The part of compute that each kernel and each graph owns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traceprof.intervals import Int64


def own_time(
    start_ns: Int64, end_ns: Int64, which: Int64, window: tuple[int, int]
) -> tuple[Int64, Int64]:
    """Divide the union of spans among them: where several overlap, the one that began first has it.

    Of those that began together it is the one that ends first, then that of the lowest kind.

    Args:
        start_ns: int64[n], in any order.
        end_ns: int64[n], none before its start.
        which: int64[n], the kind of each.
        window: start and end of what counts.

    Returns:
        int64[n] ns that add up to the measure of the union in the window, and int64[n] kinds, both
        in the order of the spans' starts.
    """
    if _is_out_of_order(start_ns, end_ns, which):
        order = np.lexsort((which, end_ns, start_ns))
        start_ns, end_ns, which = start_ns[order], end_ns[order], which[order]
    end = np.clip(end_ns, *window)
    begin = np.clip(start_ns, *window)
    reached = np.maximum.accumulate(end)
    np.maximum(begin[1:], reached[:-1], out=begin[1:])
    end -= begin
    return np.maximum(end, 0, out=end), which


def _is_out_of_order(start_ns: Int64, end_ns: Int64, which: Int64) -> bool:
    is_later = start_ns[1:] > start_ns[:-1]
    if is_later.all():
        return False
    ties = np.flatnonzero(~is_later)
    before, after = (
        np.stack([column[ties + shift] for column in (start_ns, end_ns, which)]) for shift in (0, 1)
    )
    differ = before != after
    first = differ.argmax(axis=0)
    rows = np.arange(len(ties))
    return bool((differ.any(axis=0) & (before[first, rows] > after[first, rows])).any())
