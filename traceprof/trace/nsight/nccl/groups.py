"""NCCL's calls in their groups: NCCL launches at the end of the outermost one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask


_NEVER = int(np.iinfo(np.int64).min)


class Grouped(NamedTuple):
    """Calls and launch ranges of a process.

    Attributes:
        call: int64[n], the ranges that are calls, ascending.
        launch: int64[m], the ranges that launch operations, ascending.
        launch_of_call: int64[n], index into `launch`; -1 if the capture ended before.
    """

    call: Int64
    launch: Int64
    launch_of_call: Int64


def grouped(
    start_ns: Int64, end_ns: Int64, thread: Int64, is_call: Mask, begins: Mask, closes: Mask
) -> Grouped:
    """Find the calls and the launch range of each: its own, or the end of its group.

    Args:
        start_ns: int64[k], ranges by thread, start and nesting.
        end_ns: int64[k].
        thread: int64[k].
        is_call: bool[k].
        begins: bool[k], whether it is an ncclGroupStart.
        closes: bool[k], whether it is an ncclGroupEnd.
    """
    calls, launches, launch_of_call = [_NOTHING], [_NOTHING], [_NOTHING]
    num_launches = 0
    _, edges = np.unique(thread, return_index=True)
    for first, stop in zip(edges, [*edges[1:], len(thread)], strict=False):
        of_thread = slice(first, stop)
        # A call inside a call is a part of it.
        reach = np.maximum.accumulate(np.where(is_call[of_thread], end_ns[of_thread], _NEVER))
        outer = np.append(True, start_ns[of_thread][1:] >= reach[:-1])
        row = first + np.flatnonzero(outer)
        change = begins[row].astype(np.int64) - closes[row]
        # A group may have begun before the capture: its end cannot lead below depth 0.
        level = np.cumsum(change)
        depth = level - np.minimum.accumulate(np.minimum(level, 0))
        launches_here = (is_call[row] | closes[row]) & (depth == 0)
        launch = row[launches_here]
        # The launch range of a call in a group is the next one.
        of_row = np.cumsum(launches_here) - launches_here
        of_call = of_row[is_call[row]]
        calls.append(row[is_call[row]])
        launches.append(launch)
        launch_of_call.append(np.where(of_call < len(launch), of_call + num_launches, -1))
        num_launches += len(launch)
    return Grouped(*map(np.concatenate, (calls, launches, launch_of_call)))


_NOTHING = np.empty(0, np.int64)
