"""Whether times of the host and of the GPU can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.model.kinds import MemoryKind

if TYPE_CHECKING:
    from traceprof.intervals import Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls

# Profilers align both clocks to some microseconds. If effects come before their causes by more than
# this, times of host and GPU cannot be compared (seen: 0.8 s).
_TOLERANCE_NS = 1_000_000
_FEW = 0.01  # of the operations may be matched with a wrong call, where correlation ids repeat


def clocks_disagree(rank: Rank, calls: ApiCalls) -> bool:
    """Return whether operations start before they are launched, or end after the host read them."""
    early = launched = 0
    for group, call in zip(rank.operations.groups, rank.launched_by, strict=True):
        known = call >= 0
        ahead = calls.start_ns[call[known]] - group.start_ns[known]
        early += int((ahead > _TOLERANCE_NS).sum())
        launched += len(ahead)
    copies, call = rank.operations.copies, rank.launched_by[1]
    reads = np.flatnonzero(copies_to_pageable(rank) & (call >= 0))
    unread = copies.ends(reads) - calls.ends(call[reads]) > _TOLERANCE_NS
    return early > _FEW * launched or int(unread.sum()) > _FEW * len(reads)


def copies_to_pageable(rank: Rank) -> Mask:
    """Return which copies of a rank are to pageable memory of the host, bool[copies]."""
    mask: Mask = rank.operations.copies.destination_memory == MemoryKind.PAGEABLE
    return mask
