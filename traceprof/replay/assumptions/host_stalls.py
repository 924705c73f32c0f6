"""Stalled calls of the host that take their usual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.host.stalls import host_stalls

if TYPE_CHECKING:
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations


def without_stalls(process: Process, durations: Durations) -> Durations:
    """Let no call, operator or silence take longer than usual by a stall."""
    rank = process.ranks[0][1]
    columns, stalls = rank.calls, host_stalls(rank)
    if columns is None or not len(stalls):
        return durations
    before, inside = durations.before_call_ns.copy(), durations.in_call_ns.copy()
    outer = np.flatnonzero(process.calls.is_outer)
    index = process.calls.index[outer]
    start, end = columns.start_ns[index], columns.ends(index)
    threads = columns.packed_thread.at(index)
    for thread in np.unique(stalls.thread).tolist():
        stalled, rows = stalls.of_thread(thread), np.flatnonzero(threads == thread)
        inside[outer[rows]] += intervals.covered_within(stalled, start[rows], end[rows])
        since, until = end[rows][:-1], start[rows][1:]
        between = intervals.covered_within(stalled, np.minimum(since, until), until)
        before[outer[rows[1:]]] += between
    return replace(durations, before_call_ns=before, in_call_ns=inside)
