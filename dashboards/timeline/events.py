"""A rank's events by number, from the columns of the analysis: their names and starts.

Operations are counted through the rank's kernels, copies, memory sets and graphs. Nothing is kept
for each event here: a rank has millions of them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from dashboards.time_axis import OWN
from dashboards.timeline.kinds import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST,
    MARKS,
    NVTX,
    OPERATORS,
    STALLS,
    STEPS,
)
from dashboards.timeline.message_labels import message_labels
from dashboards.timeline.names import NameTable
from traceprof.trace.columns import pack
from traceprof.trace.model.kinds import CopyKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dashboards.time_axis import RankClock
    from dashboards.timeline.message_labels import MessageLabels
    from dashboards.timeline.query import Query
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.host.rank_stalls import RankStalls
    from traceprof.intervals import Int64, Mask
    from traceprof.run.opening import Rank
    from traceprof.trace.columns import Column
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.host_code import HostCode
    from traceprof.trace.model.marks import Marks
    from traceprof.trace.model.operations import RankOperations
    from traceprof.trace.model.ranges import RangeTable


@dataclass(frozen=True, eq=False)
class EventPart:
    """Events from one place in the columns of the analysis.

    Attributes:
        key: n keys, which stand for names.
        ids: int64[m], the keys that there may be, ascending.
        number: int64[m], the number of the name that each key stands for.
        starts: when each event began: a column, or int64[n].
        clock: of the rank: starts are on its report's clock, what is asked for on the run's.
        is_ordered: whether they stand in the order of their start.
        kind: of the rows in which they stand.
        lengths: returns how long some of them took, int64[k]; None for no length.
        streams: on which each ran; None for no stream.
        communicates: returns which of them stand in rows of communication, bool[n].
        labels: returns what else can be searched for of them.
    """

    key: Column
    ids: Int64
    number: Int64
    starts: Column | Int64
    clock: RankClock = OWN
    is_ordered: bool = True
    kind: str = COMPUTE
    lengths: Callable[[Int64], Int64] | None = None
    streams: Column | None = None
    communicates: Callable[[], Mask] | None = None
    labels: Callable[[], MessageLabels] | None = None

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
        """Return the number of events that began before a time; they must be in order."""
        return bisect_left(range(len(self)), time_ns, key=self.start)

    @cached_property
    def counted(self) -> tuple[Int64, Int64]:
        """The numbers of the names that there are, and how many events each has, int64[k] each."""
        ids, count = self.key.counted()
        return self.number[np.searchsorted(self.ids, ids)], count

    @cached_property
    def known_labels(self) -> MessageLabels | None:
        """Further texts by which the events can be searched; None if there are none."""
        return None if self.labels is None else self.labels()

    def fulfilling(self, query: Query, places: Int64) -> Int64:
        """Return the events, among some, that fulfil a query's conditions, int64[k]."""
        if query.streams:
            of = None if self.streams is None else self.streams.at(places)
            places = places[:0] if of is None else places[np.isin(of, [*query.streams])]
        if query.kinds:
            communicates = False if self.communicates is None else self.communicates()[places]
            kept = np.where(communicates, COMMUNICATION in query.kinds, self.kind in query.kinds)
            places = places[np.broadcast_to(kept, len(places))]
        if query.longer_ns is not None or query.shorter_ns is not None:
            length = np.zeros(len(places)) if self.lengths is None else self.lengths(places)
            over = -1.0 if query.longer_ns is None else query.longer_ns
            under = np.inf if query.shorter_ns is None else query.shorter_ns
            places = places[(length > over) & (length < under)]
        return places

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
    parts: tuple[EventPart, ...]

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

    def by_name(self, index: Int64, length: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Return the k names of n events: numbers, counts, times together and longest times.

        Args:
            index: int64[n], the events.
            length: int64[n], the time of each that counts.
        """
        numbers, which, count = np.unique(
            self.numbers(index), return_inverse=True, return_counts=True
        )
        total, longest = np.zeros((2, len(numbers)), np.int64)
        np.add.at(total, which, length)
        np.maximum.at(longest, which, length)
        return numbers, count, total, longest

    def name_of(self, index: int) -> str:
        """Return the full name of an event."""
        return self.names.names[int(self.numbers(np.array([index]))[0])]

    def label_of(self, index: int) -> str:
        """Return the short name of an event."""
        return self.names.label(int(self.numbers(np.array([index]))[0]))


def operation_events(rank: Rank, clock: RankClock = OWN) -> Events:
    """Return the GPU operations of a rank, on the run's clock."""
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
            EventPart(
                operations.kernels.packed_signature,
                signatures,
                of_signature.reshape(-1),
                kernels.starts,
                clock,
                lengths=kernels.packed_length.at,
                streams=kernels.packed_stream,
                communicates=lambda: rank.is_communication_kernel,
                labels=partial(message_labels, rank) if rank.device is not None else None,
            ),
            EventPart(
                pack(operations.copies.kind),
                copy_kinds,
                first + np.arange(len(copy_kinds)),
                copies.starts,
                clock,
                kind=COPY,
                lengths=copies.packed_length.at,
                streams=copies.packed_stream,
                communicates=lambda: rank.is_peer_copy,
            ),
            *(
                EventPart(
                    pack(np.zeros(len(group), np.int64)),
                    zero,
                    zero + number,
                    group.starts,
                    clock,
                    kind=kind,
                    lengths=group.packed_length.at,
                    streams=group.packed_stream,
                )
                for group, number, kind in ((memsets, memset, COPY), (graphs, memset + 1, COMPUTE))
            ),
        ),
    )


def call_events(calls: ApiCalls, api_names: Mapping[int, str], clock: RankClock = OWN) -> Events:
    """Return the API calls of a process, in the order of their ids."""
    ids = calls.packed_name.distinct
    names = NameTable(_named(ids, api_names, "(unnamed call)"))
    part = EventPart(
        calls.packed_name,
        ids,
        np.arange(len(ids)),
        calls.starts,
        clock,
        is_ordered=False,
        kind=HOST,
        lengths=calls.packed_length.at,
    )
    return Events(names, (part,))


def range_events(ranges: RangeTable, names: NameTable, clock: RankClock = OWN) -> Events:
    """Return the NVTX ranges of a process, under the names of the report."""
    numbers = np.arange(len(names))
    part = EventPart(
        pack(ranges.name),
        numbers,
        numbers,
        ranges.start_ns,
        clock,
        kind=NVTX,
        lengths=lambda index: ranges.end_ns[index] - ranges.start_ns[index],
    )
    return Events(names, (part,))


def mark_events(marks: Marks, names: NameTable, clock: RankClock = OWN) -> Events:
    """Return the marks of a process, under the names of the report."""
    numbers = np.arange(len(names))
    part = EventPart(pack(marks.name), numbers, numbers, marks.time_ns, clock, kind=MARKS)
    return Events(names, (part,))


def step_events(steps: Sequence[StepMeasures], clock: RankClock = OWN) -> Events:
    """Return the training steps of a rank."""
    start = np.array([step.measures.window_start_ns for step in steps], np.int64)
    length = np.array([step.measures.window_ns for step in steps], np.int64)
    numbers = np.arange(len(steps))
    names = NameTable([f"step {step.number}" for step in steps])
    part = EventPart(
        pack(numbers), numbers, numbers, start, clock, kind=STEPS, lengths=length.__getitem__
    )
    return Events(names, (part,))


def operator_events(operators: HostCode, clock: RankClock = OWN) -> Events:
    """Return the operators of a framework that a process ran, on the run's clock."""
    numbers = np.arange(len(operators.names))
    part = EventPart(
        operators.packed_name,
        numbers,
        numbers,
        operators.starts,
        clock,
        kind=OPERATORS,
        lengths=operators.packed_length.at,
    )
    return Events(NameTable(operators.names), (part,))


def stall_events(stalls: RankStalls, clock: RankClock = OWN) -> Events:
    """Return the stalls of the threads that launch a rank's work, on the run's clock."""
    start, length, zero = stalls.start_ns, stalls.end_ns - stalls.start_ns, np.zeros(1, np.int64)
    is_ordered = bool((np.diff(start) >= 0).all())
    part = EventPart(
        pack(np.zeros(len(start), np.int64)),
        zero,
        zero,
        start,
        clock,
        is_ordered=is_ordered,
        kind=STALLS,
        lengths=length.__getitem__,
    )
    return Events(NameTable(["stalled"]), (part,))


def _named(ids: Int64, names: Mapping[int, str], unknown: str) -> list[str]:
    return [names.get(identifier, unknown) for identifier in ids.tolist()]
