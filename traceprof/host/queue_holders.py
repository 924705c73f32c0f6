"""The operations that filled the launch queue: they ran while launches were blocked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Intervals
    from traceprof.run.opening import Rank


class Holder(Record, frozen=True):
    """A kernel or kind of copy that ran while launches were blocked.

    Attributes:
        name: a kernel's function or a kind of copy.
        held_ns: how long its operations ran during stalls; overlapping ones each count in full.
    """

    name: str
    held_ns: int


def queue_holders(rank: Rank, blocked: Intervals) -> tuple[Holder, ...]:
    """Return the operations that ran while launches were blocked, longest first."""
    held: Counter[str] = Counter()
    if len(blocked) == 0:
        return ()
    for index, group in enumerate(rank.operations.groups):
        stop = int(np.searchsorted(group.start_ns, blocked.end_ns[-1]))
        running = np.flatnonzero(group.end_ns[:stop] > blocked.start_ns[0])
        during = intervals.covered_within(blocked, group.start_ns[running], group.end_ns[running])
        running, during = running[during > 0], during[during > 0]
        name = getattr(group, ("name", "kind", "stream", "stream")[index])[running]
        if index >= 2:  # memory sets and graphs have no names
            name = np.zeros(len(running), np.int64)
        _, first, which = np.unique(name, return_index=True, return_inverse=True)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, which, during)
        for position, total in zip(running[first].tolist(), sums.tolist(), strict=True):
            held[rank.operation_name(index, position)] += total
    ranked = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Holder(name, held_ns) for name, held_ns in ranked)
