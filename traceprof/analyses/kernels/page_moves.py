"""Pages of unified memory that move to the GPU because a kernel accesses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.idle_gaps import PREFETCH
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import CopyKind

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Intervals
    from traceprof.run.rank import Rank

_COPIES = 1  # in `Rank.launched_by`


def page_moves(rank: Rank) -> tuple[Int64, Int64]:
    """Return the moves of pages to the GPU that only a kernel can have caused, and all of them.

    Pages that a program prefetches move when the GPU comes to it: from its first call that
    prefetches on, the cause of a move is not known.

    Returns:
        Indices of copies, int64[n] and int64[m].
    """
    copies = rank.operations.copies
    moves = np.flatnonzero(copies.kind == CopyKind.UNIFIED_HOST_TO_DEVICE)
    moves = moves[rank.launched_by[_COPIES][moves] < 0]
    calls = rank.calls
    if not len(moves) or calls is None:
        return moves, moves
    names = [key for key, name in rank.trace.api_names.items() if PREFETCH.match(name)]
    prefetching = calls.start_ns[np.flatnonzero(is_in(calls.packed_name.values, np.array(names)))]
    if not len(prefetching):
        return moves, moves
    return moves[copies.start_ns[moves] < prefetching.min()], moves


def waits_for_pages(rank: Rank, moves: Int64) -> Intervals:
    """Return when kernels computed while these pages (indices of copies) moved."""
    copies = rank.operations.copies
    moving = intervals.union(copies.start_ns[moves], copies.ends(moves))
    return intervals.intersect(moving, rank.compute)
