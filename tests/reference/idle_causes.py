"""An independent reference for why a GPU idles, for tests only: plain lists, gap by gap.

Shares no code with ``traceprof``. `idle_causes` returns for each rank, a (globalPid, deviceId) with
at least one operation, its idle time and the causes, which sum to it. All in ns of the file.

Gaps. The rank's operations (kernels, copies, memory sets, whole graphs) leave gaps [s, e) between
the first start and the last end. Operations without length neither end nor split a gap; a gap that
only such ones end is `unknown_ns`. Of several operations that start at e the one launched first
ends the gap (by start, end and thread of the call, and stream; those without a call come last).
Let [a, b) be its launch call, T the thread that made it, X its stream.

1. No such call, or a after e: all is `unknown_ns`.
1'. But where a page of unified memory moves from the device to the host at e (copy kind 12, no
   call), a thread of the host accesses it. T is the thread of the process's last CUDA call that
   started before e, U does not exist. 3a to 3d' hold for [s, e); then, in any other CUDA call of T
   `unknown_ns`, asleep `waiting_ns`, known to be awake `host_code_ns`, else `unknown_ns`; no debt
   takes it. Where that last call prefetches (cu[da]MemPrefetch…, hipMemPrefetch…), or T is asleep
   in the last ns before e, all is `unknown_ns`.
2. b <= s: the operation had been launched before the gap began. The first 20 us are
   `turnaround_ns`, the rest is `queued_ns`: it waited for something else. A call still running at
   s had not launched yet.
   But from s + T to b + L, inside the gap, it is launching, which a debt may take:
   `launch_bound_ns`. A GPU that is asked for the operation at b hardly ever begins it before b + L,
   and one that was asked long before takes T, too. L and T are of the gaps that end with operations
   of one kind (kernel, copy, memory set, graph). L: of the at least 10 gaps with s < b and e at
   most 20 us after b, the values e - b are put in order; the one at a tenth of their number,
   counted from 0. T: the median of e - s, cut to whole ns, of the at least 10 gaps with
   b + L <= s, b <= s and e - s at most 20 us. With fewer of either there is no such part.
2'. b > s: from 20 us after b on the queue held the operation, too: set-up and allocation (3b, 3c)
   count, the rest is `queued_ns`, and no debt takes it.
3. Else every ns goes to the first of these that holds, for T or for its stand-in U. U made the last
   CUDA call of the process that started before a, is not T, and launches to X (at any time, on this
   rank); where another thread made that call, there is no stand-in.
   a. in MPI: `mpi_ns`
   b. in set-up: `setup_ns`
   c. in an allocation: `allocation_ns`
   d. in a data loading range: `data_loading_ns`
   d'. stalled (`tests.reference.stalls`): `stalled_ns`
   e. in any other CUDA call: `launch_bound_ns`
   f. asleep, with a stand-in both: `data_loading_ns` where the gap ends with the copy of a batch,
      else `waiting_ns`
   g. in [a, e), or between two markers less than 0.5 ms apart (calls and range ends of T and U
      taken together; the end of one to the start of the next): `launch_bound_ns`
   h. T or U is known to be awake, or in a place (`tests.reference.places`), or another thread of
      the process is in one that loads no data: `host_code_ns`
   i. `unknown_ns`: silent
   `tests.reference.host` says which calls, ranges and rows these are.
4. The copy of a batch goes from host to device (of copy kind HtoD or HtoA, between no two devices),
   and either a step begins or ends on the host between the last compute kernel launched before it
   and the first launched after it, or its thread launches nothing to the busiest compute stream
   (the largest sum of durations of compute; of equals the least number).
5. Waits take run-ahead. A synchronize call takes its length less 15 us. A copy that blocks
   (`cudaMemcpy` and `cuMemcpy` calls without Async, and of Async ones those over 20 us from or to
   pageable memory) takes what passed before the copy began, at most the call's length, less 15 us;
   one on another device takes the call's length less 15 us, for this device does not run meanwhile.
   The debt is incurred when the wait starts, on each stream of this rank to which its thread
   launches (at any time). Calls that allocate are no waits.
6. What a debt may take: (e), (g), and stretches of (h) and (i), both together, without anything
   else between them, of at most 10 ms inside their gap; of these not what lies in a step of an
   optimizer in which no call lies that launched an operation which ends a gap. This time is the
   debts' clock. On a stream a debt of D incurred at clock c lasts until c + D, and of two the one
   that lasts longer holds. What a debt may take is `sync_ns` while a debt on X lasts. So it is used
   up by all that it might have taken, also in gaps that end with another stream's operation: no
   wait brings more than it took.
7. A window clips the result; gaps, stretches and debts are those of the whole rank.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.reference.host import Evidence, RankReference, incurred_debts
from tests.reference.nsight_export import (
    COMMUNICATION,
    COMPUTE,
    HOST_TO_DEVICE,
    Call,
    Export,
    Operation,
    export_of,
)
from tests.reference.places import telling_places
from tests.reference.spans import Span, both, clipped, length, union, without
from tests.reference.stalls import ProcessStalls
from tests.reference.training import StepBoundaries

CAUSES = (
    "launch_bound_ns", "turnaround_ns", "queued_ns", "sync_ns", "data_loading_ns", "mpi_ns",
    "setup_ns", "allocation_ns", "stalled_ns", "waiting_ns", "host_code_ns", "unknown_ns",
)  # fmt: skip
PAGE_TO_HOST = 12  # copy kind
_OPTIMIZER = re.compile(r"optimizer step(?: |\Z)|Optimizer\.step#")
_PREFETCH = re.compile("cuMemPrefetch|cudaMemPrefetch|hipMemPrefetch")
BETWEEN_MARKERS_NS = 500_000
TURNAROUND_NS = 20_000
MIN_MEASURED = 10
MAX_STRETCH_NS = 10_000_000
STRETCHES = {"host_code_ns", "unknown_ns"}


class Piece(NamedTuple):
    """A part of a gap that has one cause."""

    start: int
    end: int
    cause: str
    stream: int  # of the operation that ends the gap
    threads: tuple[int, ...]  # the launching thread and its stand-in, where they decided
    may_be_sync: bool


@dataclass(frozen=True)
class IdleCauses:
    """Where the idle time of a rank went."""

    process: int
    device: int
    idle_ns: int
    causes: dict[str, int]
    pieces: list[Piece] = field(repr=False)


class RankIdle:
    """A rank of an export, whose gaps are explained."""

    def __init__(self, export: Export, evidence: Evidence, process: int, device: int) -> None:
        self.export, self.evidence = export, evidence
        self.process, self.device = process, device
        self.operations = export.ranks[process, device]
        self.calls = export.calls.get(process, [])
        self.streams: dict[int, set[int]] = defaultdict(set)  # to which a thread launches
        compute: Counter[int] = Counter()
        for op in self.operations:
            if op.call is not None:
                self.streams[op.call.thread].add(op.stream)
            if op.kind == COMPUTE:
                compute[op.stream] += op.end - op.start
        self.busiest = min(compute, key=lambda stream: (-compute[stream], stream), default=None)
        self.boundaries = StepBoundaries(export, process, self.operations)
        self._launching: dict[tuple[int, ...], list[Span]] = {}
        self._placed: dict[tuple[int, ...], list[Span]] = {}

    @cached_property
    def pages_to_host(self) -> set[int]:
        """When pages of unified memory begin to move to the host."""
        pages = (op for op in self.operations if op.copy_kind == PAGE_TO_HOST)
        return {op.start for op in pages if op.end > op.start and op.call is None}

    @cached_property
    def stalls(self) -> ProcessStalls:
        return ProcessStalls(self.evidence, self.process)

    @cached_property
    def whole(self) -> list[Piece]:
        """The pieces of all gaps, whatever the window."""
        return self.with_debts(self.pieces())

    @cached_property
    def optimizers_on_host(self) -> list[Span]:
        """Steps of optimizers that launched no operation which ends a gap."""
        calls = [(low, op.call) for low, _, op in self.gaps() if op is not None]
        launched = [call.start for low, call in calls if call is not None and call.end > low]
        return union(
            (span.start, span.end)
            for span in self.export.ranges.get(self.process, [])
            if _OPTIMIZER.match(span.name)
            and not any(span.start <= start < span.end for start in launched)
        )

    def answer(self, window: Span | None = None) -> IdleCauses:
        low, high = window or self.span()
        pieces = [
            piece._replace(start=max(piece.start, low), end=min(piece.end, high))
            for piece in self.whole
            if piece.start < high and piece.end > low
        ]
        causes = dict.fromkeys(CAUSES, 0)
        for piece in pieces:
            causes[piece.cause] += piece.end - piece.start
        return IdleCauses(self.process, self.device, sum(causes.values()), causes, pieces)

    def span(self) -> Span:
        starts, ends = zip(*((op.start, op.end) for op in self.operations), strict=True)
        return min(starts), max(ends)

    def gaps(self) -> list[tuple[int, int, Operation | None]]:
        starting: dict[int, list[Operation]] = defaultdict(list)
        for op in self.operations:
            if op.end > op.start:
                starting[op.start].append(op)
        busy = union((op.start, op.end) for op in self.operations)
        return [
            (low, high, min(starting[high], key=_launch_order) if high in starting else None)
            for low, high in without([self.span()], busy)
        ]

    def pieces(self) -> list[Piece]:
        """The pieces of all gaps, by time, before debts."""
        pieces: list[Piece] = []
        clocks_disagree = RankReference(self.export, self.process, self.device).clocks_disagree()
        for low, high, op in self.gaps():
            access = None if clocks_disagree else self.access_before(high, op)
            if access is not None:
                pieces += self.accessed(low, high, access)
            elif clocks_disagree or op is None or op.call is None or op.call.start > op.start:
                stream = -1 if op is None else op.stream
                pieces.append(Piece(low, high, "unknown_ns", stream, (), may_be_sync=False))
            elif op.call.end <= low:
                pieces += self.queued(low, high, op, op.call)
            else:
                threads = self.launching_threads(op.call, op.stream)
                cuts = self.cuts(low, high, op, op.call, threads)
                middle = min(op.call.end + TURNAROUND_NS, high)
                before = [cut for cut in cuts if cut[0] < middle]
                stretches = _with_stretches(before, op.stream, threads)
                pieces += _outside(stretches, self.optimizers_on_host)
                pieces += [
                    Piece(*cut[:2], cut[2], op.stream, (), may_be_sync=False)
                    for cut in cuts
                    if cut[0] >= middle
                ]
        return pieces

    def queued(self, low: int, high: int, op: Operation, call: Call) -> Iterator[Piece]:
        """The pieces of a gap before an operation that was launched before it."""
        usual, latency = self.usual.get(op.table, (0, 0))
        begin, end = low + usual, min(high, call.end + latency)
        cuts = {low, high, low + TURNAROUND_NS}
        if begin < end:
            cuts |= {begin, end}
        for start, stop in pairwise(sorted(cut for cut in cuts if cut <= high)):
            launches = begin <= start and stop <= end
            queued = "turnaround_ns" if start < low + TURNAROUND_NS else "queued_ns"
            cause = "launch_bound_ns" if launches else queued
            yield Piece(start, stop, cause, op.stream, (), may_be_sync=launches)

    @cached_property
    def usual(self) -> dict[str, tuple[int, int]]:
        """The turn-around and the shortest latency of launches, by kind of operation."""
        by_table: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for low, high, op in self.gaps():
            if op is not None and op.call is not None and op.call.start <= op.start:
                by_table[op.table].append((low, high, op.call.end))
        usual = {}
        for table, gaps in by_table.items():
            after = sorted(
                high - b for low, high, b in gaps if low < b and high - b <= TURNAROUND_NS
            )
            if len(after) < MIN_MEASURED:
                continue
            latency = after[len(after) // 10]
            ahead = [
                high - low
                for low, high, b in gaps
                if b <= low and b + latency <= low and high - low <= TURNAROUND_NS
            ]
            if len(ahead) >= MIN_MEASURED:
                usual[table] = int(median(ahead)), latency
        return usual

    def access_before(self, high: int, op: Operation | None) -> Call | None:
        """The process's last call before a page moves to the host that one of its threads reads."""
        if op is None or op.call is not None:
            return None
        index = bisect_left(self.calls, (high,))
        last = self.calls[index - 1] if index and high in self.pages_to_host else None
        return None if last is None or _PREFETCH.match(last.name) else last

    def accessed(self, low: int, high: int, last: Call) -> list[Piece]:
        """The pieces of a gap that ends with such a page."""
        thread = self.evidence.thread(last.thread)
        if any(start < high <= end for start, end in thread.asleep):
            return [Piece(low, high, "unknown_ns", -1, (), may_be_sync=False)]
        layers = [
            ("mpi_ns", thread.mpi), ("setup_ns", thread.setup),
            ("allocation_ns", thread.allocation), ("data_loading_ns", thread.loading),
            ("stalled_ns", self.stalls.of_thread(last.thread)),
            ("unknown_ns", thread.calls), ("waiting_ns", thread.asleep),
            ("host_code_ns", without(thread.known, thread.asleep)),
            ("host_code_ns", self.placed((last.thread,))), ("unknown_ns", [(low, high)]),
        ]  # fmt: skip
        left, pieces = [(low, high)], list[Piece]()
        for cause, spans in layers:
            some = union(clipped(spans, low, high))
            for start, end in both(left, some):
                pieces.append(Piece(start, end, cause, -1, (), may_be_sync=False))
            left = without(left, some)
        return sorted(pieces)

    def launching_threads(self, call: Call, stream: int) -> tuple[int, ...]:
        index = bisect_left(self.calls, (call.start,))
        before = self.calls[index - 1].thread if index else call.thread
        if before != call.thread and stream in self.streams.get(before, ()):
            return call.thread, before
        return (call.thread,)

    def launching(self, numbers: tuple[int, ...]) -> list[Span]:
        """When the calls and range ends of threads lie close to each other."""
        if numbers not in self._launching:
            threads = [self.evidence.thread(number) for number in numbers]
            markers = sorted(marker for thread in threads for marker in thread.markers)
            spans: list[Span] = []
            last = None  # the latest end so far
            for start, end in markers:
                if last is not None and 0 < start - last < BETWEEN_MARKERS_NS:
                    spans.append((last, start))
                last = end if last is None else max(last, end)
            self._launching[numbers] = union(spans)
        return self._launching[numbers]

    def placed(self, numbers: tuple[int, ...]) -> list[Span]:
        """When threads were in places, or others for them."""
        if numbers not in self._placed:
            self._placed[numbers] = union(
                (place.start, place.end)
                for place in telling_places(self.export, self.process)
                if place.thread in numbers or not place.loads_data
            )
        return self._placed[numbers]

    def cuts(
        self, low: int, high: int, op: Operation, call: Call, numbers: tuple[int, ...]
    ) -> list[tuple[int, int, str]]:
        """A gap cut at all boundaries, each cut with the first cause that holds in it."""
        threads = [self.evidence.thread(number) for number in numbers]

        def of_any(field: str) -> list[Span]:
            return union(span for t in threads for span in clipped(getattr(t, field), low, high))

        asleep = [(low, high)]
        awake: list[Span] = []
        for thread in threads:
            asleep = both(asleep, thread.asleep)
            awake += without(clipped(thread.known, low, high), thread.asleep)
        awake += clipped(self.placed(numbers), low, high)
        stalled = union(span for number in numbers for span in self.stalls.of_thread(number))
        launching = clipped(self.launching(numbers), low, high)
        launching += clipped([(call.start, op.start)], low, high)
        layers = [
            ("mpi_ns", of_any("mpi")),
            ("setup_ns", of_any("setup")),
            ("allocation_ns", of_any("allocation")),
            ("data_loading_ns", of_any("loading")),
            ("stalled_ns", clipped(stalled, low, high)),
            ("launch_bound_ns", of_any("calls")),
            ("data_loading_ns" if self.is_batch(op, call) else "waiting_ns", asleep),
            ("launch_bound_ns", union(launching)),
            ("host_code_ns", union(awake)),
        ]
        middle = min(call.end + TURNAROUND_NS, high)
        times = {
            low,
            middle,
            high,
            *(time for _, spans in layers for span in spans for time in span),
        }
        places = [0] * len(layers)
        cuts = []
        for start, end in pairwise(sorted(times)):
            cause = "queued_ns" if start >= middle else "unknown_ns"
            for number, (name, spans) in enumerate(layers):
                if start >= middle and name not in _OF_THE_DRIVER:
                    continue
                while places[number] < len(spans) and spans[places[number]][1] <= start:
                    places[number] += 1
                if places[number] < len(spans) and spans[places[number]][0] <= start:
                    cause = name
                    break
            cuts.append((start, end, cause))
        return cuts

    def is_batch(self, op: Operation, call: Call) -> bool:
        """Is it the copy of a batch, for which a sleeping thread may have waited?"""
        if op.copy_kind not in HOST_TO_DEVICE or op.kind == COMMUNICATION:
            return False
        if self.busiest is not None and self.busiest not in self.streams[call.thread]:
            return True
        return self.boundaries.is_at_boundary(call)

    def with_debts(self, pieces: list[Piece]) -> list[Piece]:
        """Let debts take what they may."""
        debts = incurred_debts(self.export, self.process, self.device)
        lasts: dict[int, int] = defaultdict(int)  # until when debts last on a stream, by the clock
        clock = place = 0
        result: list[Piece] = []
        for piece in pieces:
            start = piece.start
            while start < piece.end:
                while place < len(debts) and debts[place].start <= start:
                    for stream in self.streams.get(debts[place].thread, ()):
                        lasts[stream] = max(lasts[stream], clock + debts[place].taken_ns)
                    place += 1
                end = min(piece.end, debts[place].start) if place < len(debts) else piece.end
                if piece.may_be_sync:
                    middle = start + min(end - start, max(0, lasts[piece.stream] - clock))
                    clock += end - start
                    sync = piece._replace(start=start, end=middle, cause="sync_ns")
                    result += [sync, piece._replace(start=middle, end=end)]
                else:
                    result.append(piece._replace(start=start, end=end))
                start = end
        return [piece for piece in result if piece.start < piece.end]


_OF_THE_DRIVER = ("setup_ns", "allocation_ns")  # they hold up what was launched, too


def _launch_order(op: Operation) -> tuple[bool, tuple[int, ...]]:
    call = op.call
    return call is None, () if call is None else (call.start, call.end, call.thread, op.stream)


def _with_stretches(
    cuts: list[tuple[int, int, str]], stream: int, threads: tuple[int, ...]
) -> list[Piece]:
    """Mark what a debt may take: launching, and short stretches without any other sign."""
    pieces: list[Piece] = []
    first = 0
    while first < len(cuts):
        last = first
        while (
            cuts[first][2] in STRETCHES and last + 1 < len(cuts) and cuts[last + 1][2] in STRETCHES
        ):
            last += 1
        is_short = cuts[last][1] - cuts[first][0] <= MAX_STRETCH_NS
        may = is_short if cuts[first][2] in STRETCHES else cuts[first][2] == "launch_bound_ns"
        pieces += [Piece(*cut, stream, threads, may) for cut in cuts[first : last + 1]]
        first = last + 1
    return pieces


def _outside(pieces: list[Piece], spans: list[Span]) -> Iterator[Piece]:
    """Let debts take no stretch of the host's own inside some spans."""
    for piece in pieces:
        if piece.may_be_sync and piece.cause in STRETCHES:
            whole = [(piece.start, piece.end)]
            for may_be_sync, parts in ((True, without(whole, spans)), (False, both(whole, spans))):
                for start, end in parts:
                    yield piece._replace(start=start, end=end, may_be_sync=may_be_sync)
        else:
            yield piece


def idle_causes(path: Path) -> list[IdleCauses]:
    """The causes of every rank of an export, ordered by (process, device)."""
    export = export_of(path)
    evidence = Evidence(export)
    return [RankIdle(export, evidence, *key).answer() for key in sorted(export.ranks)]


PAGE_TO_GPU = 11  # copy kind


class UnifiedMemory(NamedTuple):
    moving_ns: int
    kernel_ns: int
    num_kernels: int
    num_moves: int


def unified_memory(path: Path) -> dict[tuple[int, int], UnifiedMemory]:
    """Return the same as the analysis of each rank of an export, over its whole window."""
    export = Export(path)
    answers = {}
    for (process, device), operations in export.ranks.items():
        calls = export.calls.get(process, [])
        first = min((call.start for call in calls if _PREFETCH.match(call.name)), default=None)
        moves: list[Span] = [
            (op.start, op.end)
            for op in operations
            if op.copy_kind == PAGE_TO_GPU
            and op.call is None
            and (first is None or op.start < first)
        ]
        computing = [op for op in operations if op.kind == COMPUTE]
        spans = union((op.start, op.end) for op in computing)
        waits = both(union(moves), spans)
        kernels: list[Span] = [
            (op.start, op.end)
            for op in computing
            if op.name is not None and both([(op.start, op.end)], waits)
        ]
        beside = [move for move in moves if both([move], waits)]
        answers[process, device] = UnifiedMemory(
            length(waits), length(union(kernels)), len(kernels), len(beside)
        )
    return answers
