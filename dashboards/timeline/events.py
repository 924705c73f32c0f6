"""A rank's events by number, where the analysis keeps them: their names and when they began.

Operations are counted through the rank's kernels, copies, memory sets and graphs. Nothing is kept
for each event here: a rank has millions of them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dashboards.time_axis import OWN
from dashboards.timeline.names import NameTable
from traceprof.trace.columns import pack
from traceprof.trace.model.kinds import CopyKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dashboards.time_axis import RankClock
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.intervals import Int64
    from traceprof.run.opening import Rank
    from traceprof.trace.columns import Column
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.marks import Marks
    from traceprof.trace.model.operations import RankOperations
    from traceprof.trace.model.ranges import RangeTable


@dataclass(frozen=True, eq=False)
class Part:
    """Events that the analysis keeps in one place.

    Attributes:
        key: n keys, which stand for names.
        ids: int64[m], the keys that there may be, ascending.
        number: int64[m], the number of the name that each key stands for.
        starts: when each event began: a column, or int64[n].
        clock: of the rank: starts are on its report's clock, what is asked for on the run's.
        is_ordered: whether they stand in the order of their start.
    """

    key: Column
    ids: Int64
    number: Int64
    starts: Column | Int64
    clock: RankClock = OWN
    is_ordered: bool = True

    def __len__(self) -> int:
        return len(self.key)

    def numbers(self, index: Int64) -> Int64:
        """Return the numbers of the names of some events, int64[k]."""
        return self.number[np.searchsorted(self.ids, self.key.at(index))]

    def start_ns(self, index: Int64) -> Int64:
        """Return when some events began, int64[k]."""
        own = self.starts[index] if isinstance(self.starts, np.ndarray) else self.starts.at(index)
        return self.clock.to_run(own)

    def start(self, index: int) -> int:
        """Return when one of them began."""
        return int(self.start_ns(np.array([index]))[0])

    def started_before(self, time_ns: int) -> int:
        """Return how many began before a time; they have to be in order."""
        return bisect_left(range(len(self)), time_ns, key=self.start)

    @cached_property
    def counted(self) -> tuple[Int64, Int64]:
        """The numbers of the names that there are, and how many events each has, int64[k] each."""
        ids, count = self.key.counted()
        return self.number[np.searchsorted(self.ids, ids)], count

    def places(self, wanted: Int64, begin: int = 0, end: int | None = None) -> Int64:
        """Return which events have one of these names, int64[k], ascending.

        Args:
            wanted: numbers of names.
            begin: the first event that is looked at.
            end: one past the last, where not all are.
        """
        chosen = self.ids[np.isin(self.number, wanted)]
        if begin == 0 and end in {None, len(self)}:
            return np.flatnonzero(self.key.isin(chosen.tolist()))
        return begin + np.flatnonzero(np.isin(self.key.at(slice(begin, end)), chosen))


@dataclass(frozen=True, eq=False)
class Events:
    """All events of one source: a rank's operations, its calls, its ranges or its steps.

    Attributes:
        names: by number.
        parts: the events, one part after the other.
    """

    names: NameTable
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def numbers(self, index: Int64) -> Int64:
        """Return the number of the name of each of some events, int64[k]."""
        if len(self.parts) == 1:
            return self.parts[0].numbers(index)
        number, first = np.empty(len(index), np.int64), 0
        for part in self.parts:
            chosen = (index >= first) & (index < first + len(part))
            number[chosen] = part.numbers(index[chosen] - first)
            first += len(part)
        return number

    def name_of(self, index: int) -> str:
        """Return the full name of an event."""
        return self.names.names[int(self.numbers(np.array([index]))[0])]

    def label_of(self, index: int) -> str:
        """Return the short name of an event."""
        return self.names.label(int(self.numbers(np.array([index]))[0]))


def operation_events(rank: Rank, clock: RankClock = OWN) -> Events:
    """Return what the GPU did for a rank, on the run's clock."""
    operations: RankOperations = rank.operations
    kernels, copies, memsets, graphs = operations.groups
    names = dict(rank.kernel_names)
    ids, of_signature = np.unique(operations.kernels.name_of_signature, return_inverse=True)
    kinds = {int(kind): f"{kind.label} copy" for kind in CopyKind}
    copy_kinds = np.unique(operations.copies.kind)
    kernel_names = _named(ids, names, "(unnamed kernel)")
    copy_names = _named(copy_kinds, kinds, "unknown copy")
    first, memset = len(ids), len(ids) + len(copy_kinds)
    signatures = np.arange(len(operations.kernels.name_of_signature))
    zero = np.zeros(1, np.int64)
    return Events(
        NameTable([*kernel_names, *copy_names, "memset", "CUDA graph"], num_kernels=first),
        (
            Part(
                operations.kernels.packed_signature,
                signatures,
                of_signature.reshape(-1),
                kernels.starts,
                clock,
            ),
            Part(
                pack(operations.copies.kind),
                copy_kinds,
                first + np.arange(len(copy_kinds)),
                copies.starts,
                clock,
            ),
            Part(
                pack(np.zeros(len(memsets), np.int64)), zero, zero + memset, memsets.starts, clock
            ),
            Part(
                pack(np.zeros(len(graphs), np.int64)), zero, zero + memset + 1, graphs.starts, clock
            ),
        ),
    )


def call_events(calls: ApiCalls, api_names: Mapping[int, str], clock: RankClock = OWN) -> Events:
    """Return the API calls of a process, which stand in the order of their ids."""
    ids = calls.packed_name.distinct
    names = NameTable(_named(ids, api_names, "(unnamed call)"))
    part = Part(calls.packed_name, ids, np.arange(len(ids)), calls.starts, clock, is_ordered=False)
    return Events(names, (part,))


def range_events(ranges: RangeTable, names: NameTable, clock: RankClock = OWN) -> Events:
    """Return the NVTX ranges of a process, under the names of the report."""
    numbers = np.arange(len(names))
    return Events(names, (Part(pack(ranges.name), numbers, numbers, ranges.start_ns, clock),))


def mark_events(marks: Marks, names: NameTable, clock: RankClock = OWN) -> Events:
    """Return the marks of a process, under the names of the report."""
    numbers = np.arange(len(names))
    return Events(names, (Part(pack(marks.name), numbers, numbers, marks.time_ns, clock),))


def step_events(steps: Sequence[StepMeasures], clock: RankClock = OWN) -> Events:
    """Return the training steps of a rank."""
    start = np.array([step.measures.window_start_ns for step in steps], np.int64)
    numbers = np.arange(len(steps))
    names = NameTable([f"step {step.number}" for step in steps])
    return Events(names, (Part(pack(numbers), numbers, numbers, start, clock),))


def _named(ids: Int64, names: Mapping[int, str], unknown: str) -> list[str]:
    return [names.get(identifier, unknown) for identifier in ids.tolist()]
