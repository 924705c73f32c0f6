"""Measures of a simulated run, taken on its model.

The analyzer measures unions of intervals. Here nothing overlaps by construction: a rank's kernels,
copies and memory sets follow each other on one stream and its all-reduces on another, so that sums
of durations and of pairwise overlaps are enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sample_traces.simulator.large_ddp.timeline import StepTimeline
    from traceprof.intervals import Int64

_SUMS = (
    "compute_ns", "communication_ns", "overlapped_communication_ns", "exposed_communication_ns",
    "copy_ns", "exposed_copy_ns",
)  # fmt: skip
_COUNTS = ("num_kernels", "num_communication", "num_copies")


class Truth:
    """Collects the measures of a run, step by step."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Int64]] = []
        self._numbers: list[int] = []
        self._end = np.zeros(0, np.int64)

    def add(self, step: StepTimeline) -> None:
        """Measure one step on all ranks; the steps come in order."""
        program = step.program
        computes, all_reduces, copies = program.computes, program.all_reduces, program.copies
        overlapped = _overlap(step, all_reduces, computes)
        communication = _busy(step, all_reduces)
        copy = _busy(step, copies)
        num_ranks = len(step.range_start_ns)
        self._numbers.append(step.number)
        self._steps.append(
            {
                "start_ns": step.start_ns[:, program.compute_stream[0]],
                "compute_ns": _busy(step, computes),
                "communication_ns": communication,
                "overlapped_communication_ns": overlapped,
                "exposed_communication_ns": communication - overlapped,
                "copy_ns": copy,
                "exposed_copy_ns": copy - _overlap(step, all_reduces, copies),
                "num_kernels": np.full(num_ranks, len(computes)),
                "num_communication": np.full(num_ranks, len(all_reduces)),
                "num_copies": np.full(num_ranks, len(copies)),
            }
        )
        self._end = step.end_ns[:, program.compute_stream[-1]]

    def to_json(self) -> dict[str, Any]:
        """Return `breakdown` and `steps` as `traceprof analyze --format json` writes them.

        All of a step's work is done before the next one begins, so a step's window holds its own
        operations and no others, and the windows fill the whole one.
        """
        steps, breakdown = [], []
        for rank, end in enumerate(self._end.tolist()):
            rows = [
                {name: int(values[rank]) for name, values in step.items()} for step in self._steps
            ]
            starts = [row.pop("start_ns") for row in rows]
            for number, start, stop, row in zip(
                self._numbers, starts, [*starts[1:], end], rows, strict=True
            ):
                window = {"start_ns": start, "end_ns": stop}
                steps.append({"rank": rank, "step": number, **window, **_row(row, stop - start)})
            total = {name: sum(row[name] for row in rows) for name in rows[0]}
            window = {"window_start_ns": starts[0]}
            breakdown.append({"rank": rank, **window, **_row(total, end - starts[0])})
        return {"breakdown": breakdown, "steps": steps}


def _row(row: dict[str, int], window: int) -> dict[str, int]:
    busy = row["compute_ns"] + row["exposed_communication_ns"] + row["exposed_copy_ns"]
    return {
        "window_ns": window,
        **{name: row[name] for name in _SUMS},
        "idle_ns": window - busy,
        **{name: row[name] for name in _COUNTS},
    }


def _busy(step: StepTimeline, operations: Int64) -> Int64:
    """Return the time each rank spent in operations that do not overlap each other."""
    busy: Int64 = (step.end_ns[:, operations] - step.start_ns[:, operations]).sum(axis=1)
    return busy


def _overlap(step: StepTimeline, left: Int64, right: Int64) -> Int64:
    """Return the time each rank spent in both of two sets, neither of which overlaps itself."""
    start = np.maximum(step.start_ns[:, left, np.newaxis], step.start_ns[:, np.newaxis, right])
    end = np.minimum(step.end_ns[:, left, np.newaxis], step.end_ns[:, np.newaxis, right])
    shared: Int64 = np.maximum(end - start, 0).sum(axis=(1, 2))
    return shared
