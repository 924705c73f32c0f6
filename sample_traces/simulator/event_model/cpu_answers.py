"""Expected results of analyses of a simulated run without GPUs, from the model's own ranges.

Plain Python over lists, on purpose: nothing here is shared with the analyses that it checks.
Times and durations are in ns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sample_traces.simulator.event_model.answers import covered, union
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sample_traces.simulator.event_model.answers import Interval
    from sample_traces.simulator.event_model.engine import RangeRecord

_COMPUTE = (labels.FORWARD, labels.BACKWARD, labels.OPTIMIZER_STEP)
_COLLECTIVE = "all_reduce "
_LAST_BUCKET = re.compile(rf"{labels.BUCKET} .*last=1")
_STEP = re.compile(rf"{labels.STEP} (\d+)")


def breakdown(ranges: Sequence[Sequence[RangeRecord]]) -> dict[str, Any]:
    """Return `breakdown` and `steps` as `traceprof analyze --format json` writes them.

    Args:
        ranges: of each rank, in order of start.
    """
    rows, steps = [], []
    for rank, of_rank in enumerate(ranges):
        measured = _Measures(of_rank)
        start, end = of_rank[0].start_ns, max(range_.end_ns for range_ in of_rank)
        rows.append({"rank": rank, "window_start_ns": start, **measured.within(start, end)})
        matches = [(_STEP.fullmatch(range_.action.name), range_) for range_ in of_rank]
        numbered = [(int(match[1]), range_) for match, range_ in matches if match is not None]
        stops = [*(range_.start_ns for _, range_ in numbered[1:]), numbered[-1][1].end_ns]
        for (number, range_), stop in zip(numbered, stops, strict=True):
            row = {"rank": rank, "step": number, "start_ns": range_.start_ns, "end_ns": stop}
            steps.append({**row, **measured.within(range_.start_ns, stop)})
    return {"breakdown": rows, "steps": steps}


class _Measures:
    """Measures of the only thread of a rank, by the definitions of a rank without a GPU."""

    def __init__(self, ranges: Sequence[RangeRecord]) -> None:
        collectives = [range_ for range_ in ranges if range_.action.name.startswith(_COLLECTIVE)]
        self._called = [range_.start_ns for range_ in collectives if range_.nests]
        self._communication = union((range_.start_ns, range_.end_ns) for range_ in collectives)
        blocked = [(range_.start_ns, range_.end_ns) for range_ in collectives if range_.nests]
        flights = union(
            (range_.start_ns, range_.end_ns) for range_ in collectives if not range_.nests
        )
        backwards = [range_ for range_ in ranges if range_.action.name == labels.BACKWARD]
        # When the last bucket of a backward is ready, all gradients are there: then it waits.
        for bucket in ranges:
            if _LAST_BUCKET.fullmatch(bucket.action.name):
                ends = [range_.end_ns for range_ in backwards if range_.start_ns <= bucket.start_ns]
                blocked += _common(flights, bucket.start_ns, ends[-1])
        waits = union(blocked)
        self._compute = [
            piece
            for range_ in ranges
            if range_.action.name in _COMPUTE
            for piece in _without(range_.start_ns, range_.end_ns, waits)
        ]

    def within(self, start: int, end: int) -> dict[str, int]:
        """Return the measures of a window."""
        compute = covered(start, end, self._compute)
        communication = covered(start, end, self._communication)
        overlapped = sum(
            covered(max(start, first), min(end, stop), self._communication)
            for first, stop in self._compute
            if first < end and stop > start
        )
        return {
            "window_ns": end - start,
            "compute_ns": compute,
            "communication_ns": communication,
            "overlapped_communication_ns": overlapped,
            "exposed_communication_ns": communication - overlapped,
            "copy_ns": 0,
            "exposed_copy_ns": 0,
            "idle_ns": end - start - compute - (communication - overlapped),
            "num_kernels": 0,
            "num_communication": sum(start <= time < end for time in self._called),
            "num_copies": 0,
        }


def _common(intervals: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """Return the intersection of disjoint intervals with [start, end)."""
    pieces = [(max(first, start), min(stop, end)) for first, stop in intervals]
    return [(first, stop) for first, stop in pieces if first < stop]


def _without(start: int, end: int, waits: Sequence[Interval]) -> list[Interval]:
    """Return [start, end) without disjoint waits, which are in order."""
    edges = [start, *(edge for wait in _common(waits, start, end) for edge in wait), end]
    pieces = zip(edges[::2], edges[1::2], strict=True)
    return [(first, stop) for first, stop in pieces if first < stop]
