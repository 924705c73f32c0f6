"""A rank's events by number, from the columns of the analysis: their names and starts.

Operations are counted through the rank's kernels, copies, memory sets and graphs. Nothing is kept
for each event here: a rank has millions of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from dashboards.clock import OWN, RankClock
from traceprof.analyses.breakdown import StepMeasures, step_times
from traceprof.communication.messages import Messages, messages
from traceprof.host.places import places, places_of_calls
from traceprof.host.rank_stalls import RankStalls
from traceprof.intervals import NO_NUMBERS, Int32, Int64, Mask
from traceprof.kernel_names import kernel_title
from traceprof.kernel_names.categories import kernel_kind
from traceprof.run.opening import Rank
from traceprof.trace.columns import Column, PackedSpans, pack
from traceprof.trace.grouping import numbered, numbered_rows, sums
from traceprof.trace.model.host import ThreadSpans
from traceprof.trace.model.kinds import CopyKind
from traceprof.units import size_text

COMPUTE, COMMUNICATION, COPY, HOST, NVTX = "compute", "communication", "copy", "host", "nvtx"
MARKS, STEPS, COUNTER, OPERATORS, STALLS = "marks", "step", "counter", "operators", "stalls"
"""The content of a row, which determines its colour."""

GPU_KINDS = (COMPUTE, COMMUNICATION, COPY)


OPERATION, CALL, RANGE, MARK, STEP, SAMPLE = "op", "call", "range", "mark", "step", "sample"
OPERATOR, STALL = "operator", "stall"
PLACE, PYTHON, STACK = "place", "python", "stack"
"""The sources of events; the last three are the content of their rows, too."""

SOURCES = (STEP, OPERATION, PLACE, CALL, RANGE, MARK, OPERATOR, PYTHON, STACK, STALL)
"""Of events, in the order in which their rows stand on the screen; samples of counters are none."""

_LABEL_CHARACTERS = 100


class NameTable:
    """Names by number; there can be a million. The first `num_kernels` are names of kernels."""

    def __init__(self, names: Sequence[str], num_kernels: int = 0) -> None:
        self.names = names
        self._num_kernels = num_kernels
        self._folded: list[str] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def label(self, number: int) -> str:
        """Return the short form of a name, as drawn in an event: of a kernel, its function."""
        return _label(self.names[number], is_kernel=number < self._num_kernels)

    def category(self, number: int) -> str | None:
        """Return the category of compute kernels of a name; None if it is no kernel's."""
        if number >= self._num_kernels:
            return None
        return str(kernel_kind(self.names[number], communicates=False).category)

    def matching(self, text: str) -> Int64:
        """Return the numbers of names that contain a text in either case, in full or in short."""
        if self._folded is None:
            self._folded = [
                _folded(f"{name} {self.label(number)}" if number < self._num_kernels else name)
                for number, name in enumerate(self.names)
            ]
        wanted = _folded(text)
        found = (number for number, name in enumerate(self._folded) if wanted in name)
        return np.fromiter(found, np.int64)


def _folded(text: str) -> str:
    return text.replace("\n", " ").lower()


_AFFIXES = re.compile(r"^CUDAFunctor(?:OnSelf|OnOther)?_|_kernel(?:_(?:cuda|impl)\w*)?$")


@lru_cache(maxsize=4096)
def _label(name: str, *, is_kernel: bool) -> str:
    """Return what a kernel computes, where its function does many things, before the function."""
    function, _, detail = kernel_title(name).partition(": ") if is_kernel else (name, "", "")
    shown = function
    if detail:
        shown = f"{_AFFIXES.sub('', detail)} · {function.removeprefix('at::native::')}"
    return shown if len(shown) <= _LABEL_CHARACTERS else f"{shown[: _LABEL_CHARACTERS - 1]}…"


_UNKNOWN = "Unknown"  # the kind of a kernel whose name does not show it


def label(records: Messages, place: int) -> str | None:
    """Return the label of a rank's message, such as `AllReduce 67 MB`; None if it is unknown."""
    operation = records.operations[int(records.operation[place])]
    if operation == _UNKNOWN:
        return None
    size = f" {size_text(int(records.bytes[place]))}" if records.bytes[place] >= 0 else ""
    return f"{operation}{records.peer_text(place)}{size}"


@dataclass(frozen=True, eq=False)
class MessageLabels:
    """The communication kernels of a rank with the texts by which they can be searched."""

    kernel: Int64  # int64[n], indices into the rank's kernels, ascending
    alike: Int64  # int64[n], the number of the text of each
    texts: tuple[str, ...]  # in lower case: the label, the group, the bytes

    def matching(self, text: str) -> Int64:
        """Return the kernels whose text contains this one, int64[k], ascending."""
        wanted = text.lower()
        hits = [number for number, known in enumerate(self.texts) if wanted in known]
        return self.kernel[np.isin(self.alike, hits)]


def message_labels(rank: Rank) -> MessageLabels:
    """Return the texts by which a rank's communication kernels can be searched."""
    records = messages(rank)
    alike = numbered_rows(
        *(records.operation, records.bytes, records.communicator, records.group),
        *(records.peer, records.peer_in_communicator, records.root, records.direction),
    )
    first = np.unique(alike, return_index=True)[1]
    texts = tuple(_searched(records, place) for place in first.tolist())
    order = np.argsort(records.kernel, kind="stable")
    return MessageLabels(records.kernel[order], alike[order], texts)


def _searched(records: Messages, place: int) -> str:
    size = int(records.bytes[place])
    parts = [
        label(records, place),
        records.communicator_name(place),
        records.description(place),
        f"group={records.groups[int(records.group[place])]}" if records.group[place] >= 0 else None,
        f"bytes={size} {size:,} bytes" if size >= 0 else None,
    ]
    return " · ".join(filter(None, parts)).lower()


_NONE = pack(NO_NUMBERS)


@dataclass(frozen=True, eq=False)
class EventPart:
    """Events from one place in the columns of the analysis."""

    spans: PackedSpans  # when n events ran, on the clock of their report; marks have no length
    name: Column  # the numbers of their n names
    kind: str  # of the rows in which they stand
    clock: RankClock = OWN  # of the rank: what is asked for is on the run's clock
    is_ordered: bool = True  # whether they stand in the order of their start
    threads: Column = _NONE  # on which each ran; empty for what is of no thread
    # bool[n], which were pushed and popped, so that they lie inside each other; None for all
    nests: Mask | None = None
    streams: Column | None = None  # on which each ran; None for no stream
    # returns which of them stand in rows of communication, bool[n]
    communicates: Callable[[], Mask] | None = None
    # returns what else can be searched for of them
    labels: Callable[[], MessageLabels] | None = None
    # returns how many bytes some of them moved, int64[k]; -1 where that is not known
    sizes: Callable[[Int64], Int64] | None = None
    # returns the places in the program of some of them, int32[k], and their names; -1 for none
    code: Callable[[Int64], tuple[Int32, Sequence[str]]] | None = None

    def __len__(self) -> int:
        return len(self.spans)

    def nesting(self, index: Int64 | Int32) -> Mask:
        """Return which of some events lie inside each other, bool[k]."""
        return np.ones(len(index), np.bool_) if self.nests is None else self.nests[index]

    def start_ns(self, index: Int64) -> Int64:
        """Return when some events began, int64[k]."""
        return self.clock.to_run(self.spans.starts.at(index))

    def start(self, index: int) -> int:
        """Return when one of them began."""
        return int(self.start_ns(np.array([index]))[0])

    def started_before(self, time_ns: int) -> int:
        """Return the number of events that began before a time; they must be in order."""
        return bisect_left(range(len(self)), time_ns, key=self.start)

    @cached_property
    def counted(self) -> tuple[Int64, Int64]:
        """The numbers of the names that there are, and how many events each has, int64[k] each."""
        return self.name.counted()

    @cached_property
    def known_labels(self) -> MessageLabels | None:
        """Further texts by which the events can be searched; None if there are none."""
        return None if self.labels is None else self.labels()

    def places(self, wanted: Int64) -> Int64:
        """Return the events with one of these names, ascending."""
        return np.flatnonzero(self.name.isin(wanted.tolist()))


@dataclass(frozen=True, eq=False)
class Events:
    """All events of one source: a rank's operations, its calls, its ranges or its steps."""

    names: NameTable  # by number
    parts: tuple[EventPart, ...]  # the events, one part after the other

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def numbers(self, index: Int64) -> Int64:
        """Return the number of the name of each of some events, int64[k]."""
        if len(self.parts) == 1:
            return self.parts[0].name.at(index)
        number, first = np.empty(len(index), np.int64), 0
        for part in self.parts:
            chosen = (index >= first) & (index < first + len(part))
            number[chosen] = part.name.at(index[chosen] - first)
            first += len(part)
        return number

    def by_name(self, index: Int64, length: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Return the names of some events by number, with their counts, total and longest times.

        `length` is the time of each event that counts, in ns; all arrays are int64.
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


def gpu_events(
    rank: Rank, steps: Sequence[StepMeasures], clock: RankClock = OWN
) -> dict[str, Events]:
    """Return the GPU operations of a rank, and its training steps if it has some, by source."""
    events = {OPERATION: _operations(rank, clock)}
    if steps:
        names = [f"step {step.number}" for step in steps]
        spans = PackedSpans(*map(pack, step_times(steps)))
        events[STEP] = _events(names, EventPart(spans, pack(np.arange(len(steps))), STEPS, clock))
    return events


def _events(names: Sequence[str], part: EventPart) -> Events:
    return Events(NameTable(names), (part,))


def _operations(rank: Rank, clock: RankClock) -> Events:
    operations = rank.operations
    kernels, copies, memsets = operations.kernels, operations.copies, operations.memsets
    ids, of_signature = numbered(kernels.name_of_signature)
    copy_kinds, of_copy = numbered(copies.kind)
    first, memset = len(ids), len(ids) + len(copy_kinds)
    names = (
        pack(of_signature[kernels.packed_signature.values]),
        pack(first + of_copy),
        pack(np.full(len(memsets), memset)),
        pack(np.full(len(operations.groups[3]), memset + 1)),
    )
    sent = partial(_message_sizes, rank) if rank.device is not None else None
    sizes = (sent, copies.bytes.take, memsets.bytes.take, None)
    communicates = (lambda: rank.is_communication_kernel, lambda: rank.is_peer_copy, None, None)
    kinds = {int(kind): f"{kind.label} copy" for kind in CopyKind}
    all_names = [
        *_named(ids, dict(rank.kernel_names), "(unnamed kernel)"),
        *_named(copy_kinds, kinds, "unknown copy"),
        "memset",
        "CUDA graph",
    ]
    parts = (
        EventPart(
            group,
            names[number],
            (COMPUTE, COPY, COPY, COMPUTE)[number],
            clock,
            streams=group.packed_stream,
            communicates=communicates[number],
            labels=None if sent is None or number else partial(message_labels, rank),
            sizes=sizes[number],
            code=partial(_code, rank, number),
        )
        for number, group in enumerate(operations.groups)
    )
    return Events(NameTable(all_names, num_kernels=first), tuple(parts))


def _message_sizes(rank: Rank, kernel: Int64) -> Int64:
    sizes = np.full(len(rank.operations.kernels), -1, np.int64)
    sizes[messages(rank).kernel] = messages(rank).bytes
    return sizes[kernel]


def _code(rank: Rank, group: int | None, index: Int64) -> tuple[Int32, Sequence[str]]:
    """Return the places of operations of a group, or of calls, and the names of places."""
    call = index if group is None else rank.launched_by[group][index]
    return places_of_calls(rank, call), places(rank).names


def host_events(rank: Rank, clock: RankClock, stalls: RankStalls | None) -> dict[str, Events]:
    """Return the events of a rank's host, by source, in the order of their rows on a thread."""
    events, trace, process = {}, rank.trace, rank.process
    marks, ranges, calls = trace.marks(process), trace.range_table(process), rank.calls
    if len(marks):
        spans = PackedSpans(pack(marks.time_ns), pack(np.zeros(len(marks), np.int64)))
        part = EventPart(spans, pack(marks.name), MARKS, clock, threads=pack(marks.thread))
        events[MARK] = _events(marks.names, part)
    if len(ranges):
        spans, threads = _packed(ranges.start_ns, ranges.end_ns), pack(ranges.thread)
        name, nests = pack(ranges.name), ranges.nests
        part = EventPart(spans, name, NVTX, clock, threads=threads, nests=nests)
        events[RANGE] = _events(ranges.names, part)
    for source, named in ((PLACE, place_spans(rank)), (STACK, stack_spans(rank))):
        if len(named):
            spans, threads = _packed(named.start_ns, named.end_ns), pack(named.thread)
            part = EventPart(spans, pack(named.name), source, clock, threads=threads)
            events[source] = _events(named.names, part)
    if calls is not None:
        ids, threads = calls.packed_name.distinct, calls.packed_thread
        name, code = pack(calls.packed_name.places_in(ids)), partial(_code, rank, None)
        part = EventPart(calls, name, HOST, clock, is_ordered=False, threads=threads, code=code)
        events[CALL] = _events(_named(ids, trace.api_names, "(unnamed call)"), part)
    for source, kind, ran in (
        (OPERATOR, OPERATORS, trace.operators(process)),
        (PYTHON, PYTHON, trace.python_functions(process)),
    ):
        if ran is not None:
            part = EventPart(ran, ran.packed_name, kind, clock, threads=ran.packed_thread)
            events[source] = _events(ran.names, part)
    if stalls is not None and len(stalls.start_ns):
        spans = _packed(stalls.start_ns, stalls.end_ns)
        name = pack(np.zeros(len(spans), np.int64))
        events[STALL] = _events(
            ["stalled"], EventPart(spans, name, STALLS, clock, is_ordered=False)
        )
    return events


def _packed(start_ns: Int64, end_ns: Int64) -> PackedSpans:
    return PackedSpans(pack(start_ns), pack(end_ns - start_ns))


def place_spans(rank: Rank) -> ThreadSpans:
    """Return the places in the program whose work a GPU did, on the stream with most compute.

    Operations of one place that follow each other are one span.
    """
    kernels, _, _, graphs = rank.operations.groups
    computes, all_graphs = np.flatnonzero(~rank.is_communication_kernel), np.arange(len(graphs))
    start, length, stream, call = np.concatenate(
        [
            (
                group.starts.at(rows),
                group.packed_length.at(rows),
                group.packed_stream.at(rows),
                rank.launched_by[number][rows],
            )
            for group, rows, number in ((kernels, computes, 0), (graphs, all_graphs, 3))
        ],
        axis=1,
    )
    streams, busy_ns = sums(stream, length)
    busiest = streams[busy_ns.argmax()] if len(streams) else 0
    rows = np.flatnonzero(stream == busiest)
    rows = rows[np.argsort(start[rows], kind="stable")]
    place = places_of_calls(rank, call[rows]).astype(np.int64)
    starts_anew = np.zeros(len(rows), np.bool_)
    end = start[rows] + length[rows]
    return _merged(start[rows], end, stream[rows], place, (*places(rank).names,), starts_anew)


def stack_spans(rank: Rank) -> ThreadSpans:
    """Return the functions in which the threads of a rank were sampled.

    A sample stands for the time until the thread's next one, at most for 1.5 usual distances.
    """
    samples = rank.trace.samples(rank.process)
    order = np.lexsort((samples.time_ns, samples.thread))
    start, thread = samples.time_ns[order], samples.thread[order]
    gap, is_same = np.diff(start), np.diff(thread) == 0
    most = int(1.5 * np.median(gap[is_same])) if is_same.any() else 0
    is_near = is_same & (gap <= most)
    end = start + np.append(np.where(is_near, gap, most), np.full(len(start[:1]), most))
    starts_anew = np.append(np.zeros(len(start[:1]), np.bool_), ~is_near)
    return _merged(start, end, thread, samples.function[order], samples.names, starts_anew)


def _merged(
    start: Int64, end: Int64, thread: Int64, name: Int64, names: tuple[str, ...], starts_anew: Mask
) -> ThreadSpans:
    """Return spans of one name that follow each other as one, without those of no name (-1)."""
    first = np.flatnonzero(starts_anew | (np.diff(name, prepend=-2) != 0))
    last = np.append(first[1:], len(start))[: len(first)] - 1
    is_named = name[first] >= 0
    first, last = first[is_named], last[is_named]
    order = np.argsort(start[first], kind="stable")
    first, last = first[order], last[order]
    return ThreadSpans(start[first], end[last], thread[first], name[first], names)


def _named(ids: Int64, names: Mapping[int, str], unknown: str) -> list[str]:
    return [names.get(identifier, unknown) for identifier in ids.tolist()]
