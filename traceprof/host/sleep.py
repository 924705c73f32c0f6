"""Sleep of threads, by the system's thread switches or by the system calls they were in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.evidence_names import BLOCKING_SYSTEM_CALL
from traceprof.intervals import BEYOND_NS, Intervals
from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.trace.model.host_activity import HostActivity, ThreadSpans


class Sleep(Record, frozen=True):
    """The times in which a thread was asleep and awake; for the rest nothing is known."""

    asleep: Intervals
    awake: Intervals


def sleep_of(activity: HostActivity, thread: int) -> Sleep:
    """Return when a thread slept.

    If its switches were recorded, it is asleep while it is off the CPU; before the first switch it
    was awake if that one takes it off the CPU, else nothing is known. Without switches it is asleep
    in system calls that block, and awake otherwise. Without both, nothing is known.
    """
    switches = activity.switches
    rows = np.flatnonzero(switches.thread == thread)
    if len(rows) == 0:
        return _sleep_in_calls(activity.system_calls, thread)
    time, is_on = switches.time_ns[rows], switches.is_on[rows]
    changes = np.append(True, is_on[1:] != is_on[:-1])
    changes[0] = not is_on[0]  # when it went off the CPU is not known
    time, is_on = time[changes], is_on[changes]
    end = time[is_on]
    start = time[~is_on]
    if len(end) < len(start):
        end = np.append(end, BEYOND_NS)
    asleep = intervals.union(start, end)
    known_from = int(switches.time_ns[rows[0]]) if switches.is_on[rows[0]] else -BEYOND_NS
    return Sleep(asleep, _without(known_from, asleep))


def _sleep_in_calls(calls: ThreadSpans, thread: int) -> Sleep:
    rows = np.flatnonzero(calls.thread == thread)
    if len(rows) == 0:
        return Sleep(intervals.empty(), intervals.empty())
    blocks = np.array([bool(BLOCKING_SYSTEM_CALL.match(name)) for name in calls.names], np.bool_)
    rows = rows[blocks[calls.name[rows]]]
    asleep = intervals.union(calls.start_ns[rows], np.minimum(calls.end_ns[rows], BEYOND_NS))
    return Sleep(asleep, _without(-BEYOND_NS, asleep))


def _without(start_ns: int, asleep: Intervals) -> Intervals:
    """Return all time from a start on in which a thread was not asleep."""
    start, end = np.array([start_ns], np.int64), np.array([BEYOND_NS], np.int64)
    return intervals.subtract(Intervals(start, end), asleep)
