"""Named ranges of the host's threads, for a whole report; kept, since reading takes long.

Ranges belong to the thread that ended them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from traceprof import intervals
from traceprof.host.evidence_names import HOST_RANGE
from traceprof.structs import Record

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from traceprof.intervals import Int64, Intervals
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.ranges import NamedRanges
    from traceprof.trace.model.trace import Trace

MAX_BETWEEN_MARKERS_NS = 500_000
"""The markers of a thread are its calls and the ends of its ranges; so far apart, a run ends."""


class Runs(Record, frozen=True):
    """Runs of markers less than `MAX_BETWEEN_MARKERS_NS` apart, by start; their length may be 0.

    Attributes:
        start_ns: int64[n], the start of each run's first marker.
        end_ns: int64[n], the end of its last one.
    """

    start_ns: Int64
    end_ns: Int64


class HostRanges(Record, frozen=True):
    """The ranges of a report that say what its threads did.

    Attributes:
        named: ranges that name set-up, MPI or data loading, by process.
        ends: runs of the ends of ranges, by thread, for threads that call CUDA and ended a range.
    """

    named: Mapping[int, NamedRanges]
    ends: Mapping[int, Runs]

    def of_thread(self, process: int, thread: int, matching: re.Pattern[str]) -> Intervals:
        """Return when a thread was in a range whose name matches."""
        ranges = self.named.get(process)
        if ranges is None:
            return intervals.empty()
        rows = np.flatnonzero(ranges.end_thread == thread).tolist()
        rows = [row for row in rows if matching.search(ranges.names[row])]
        end = np.minimum(ranges.end_ns[rows], intervals.BEYOND_NS)
        return intervals.union(ranges.start_ns[rows], end)


# Several ranks share a report, and several analyses need its ranges: they are read once.
_RANGES: WeakKeyDictionary[Trace, HostRanges] = WeakKeyDictionary()


def host_ranges(trace: Trace) -> HostRanges:
    """Return the ranges of the threads of a report's processes with GPU work."""
    if trace not in _RANGES:
        processes = sorted({key.process for key in trace.operations})
        ends = {
            thread: run
            for process in processes
            for thread, run in _ends_in_process(trace, process).items()
        }
        _RANGES[trace] = HostRanges(trace.ranges(HOST_RANGE), ends)
    return _RANGES[trace]


def read_host_ranges(rank: Rank) -> None:
    """Read the host ranges while the report still holds all ranges."""
    host_ranges(rank.trace)


def runs_of(start_ns: Int64, end_ns: Int64) -> Runs:
    """Return the runs of markers, or of the runs of several threads.

    Args:
        start_ns: int64[n], in any order.
        end_ns: int64[n], none before its start.
    """
    runs = intervals.joined(start_ns, end_ns, MAX_BETWEEN_MARKERS_NS - 1)
    return Runs(runs.start_ns, runs.end_ns)


def runs_of_thread(ranges: HostRanges, calls: ApiCalls, thread: int) -> Runs:
    """Return the runs of markers of a thread.

    Args:
        ranges: the ranges of the report.
        calls: the calls of the thread's process.
        thread: a thread that made some of the calls.
    """
    chosen = np.flatnonzero(calls.packed_thread.isin([thread]))
    runs = runs_of(calls.start_ns.take(chosen), calls.ends(chosen))
    ends = ranges.ends.get(thread)
    if ends is None:
        return runs
    return runs_of(np.append(runs.start_ns, ends.start_ns), np.append(runs.end_ns, ends.end_ns))


def _ends_in_process(trace: Trace, process: int) -> dict[int, Runs]:
    """Return the runs of the ends of ranges, by thread: few, even if there are many ranges."""
    calls = trace.api_calls(process)
    if calls is None or not len(calls):
        return {}
    time, by = trace.range_ends(process)
    ended = {thread: time[by == thread] for thread in calls.packed_thread.distinct.tolist()}
    return {thread: runs_of(ends, ends) for thread, ends in ended.items() if len(ends)}
