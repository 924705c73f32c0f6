"""The host's time that goes with some of its calls: no step gains more of it.

Three rules differ on purpose:

* `with_operators` is the limit for calls that a program does without, such as waits and kernels
  that others replace: the code around their operators stays.
* `since_other_launches` is the larger limit for operations that go with all that prepares them,
  such as small messages: events, stream waits, and the code around.
* `launching_before`, of `replay.assumptions.one_process`, is no limit: a replay lets go only of
  time in which a thread is known to launch, or to run code between launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.synchronization import by_thread
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from traceprof.intervals import Intervals, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls


def with_operators(rank: Rank, calls: ApiCalls, chosen: Mask) -> Intervals:
    """Return the time of some calls, and of operators that launch no kernel but by these calls.

    Such an operator is `aten::item`. A call's time includes what it waits for.

    Args:
        rank: one of the process.
        calls: of the process.
        chosen: which of them go, bool[calls].
    """
    index, operators = np.flatnonzero(chosen), rank.trace.operators(rank.process)
    spans = [(calls.start_ns.take(index), calls.ends(index))]
    if operators is not None and len(index):
        kernels = rank.launched_by[0]
        launches = distinct_values(kernels[(kernels >= 0) & ~chosen[kernels]])
        of_operator = operators.packed_thread.at(np.arange(len(operators)))
        of_launch, of_call = (calls.packed_thread.at(rows) for rows in (launches, index))
        for thread in distinct_values(of_call).tolist():
            rows = np.flatnonzero(of_operator == thread)
            start, end = operators.start_ns[rows], operators.ends(rows)
            others, own = (
                np.sort(calls.start_ns[some[of_some == thread]])
                for some, of_some in ((launches, of_launch), (index, of_call))
            )
            num_others, num_own = (
                np.searchsorted(times, end) - np.searchsorted(times, start)
                for times in (others, own)
            )
            only = (num_others == 0) & (num_own > 0)
            spans.append((start[only], end[only]))
    return intervals.merge(*(intervals.union(start, end) for start, end in spans))


def since_other_launches(rank: Rank, calls: ApiCalls, chosen: Mask) -> Intervals:
    """Return the time from the launch of other work before each of some calls to its own return.

    That includes events that the thread records, stream waits, and the code around them.

    Args:
        rank: one of the process.
        calls: of the process.
        chosen: which of them go, bool[calls].
    """
    launched = distinct_values(np.concatenate(rank.launched_by))
    launched = launched[launched >= 0]
    others = np.zeros(len(calls), np.bool_)
    others[launched[~chosen[launched]]] = True
    before, spans = by_thread(calls, others), []
    for thread, own in by_thread(calls, chosen).items():
        since = own.start_ns
        if thread in before:
            returned = np.append(-intervals.BEYOND_NS, np.maximum.accumulate(before[thread].end_ns))
            last = returned[np.searchsorted(before[thread].start_ns, own.start_ns)]
            since = np.where(last > -intervals.BEYOND_NS, np.minimum(last, since), since)
        spans.append(intervals.union(since, own.end_ns))
    return intervals.merge(*spans)
