"""An independent reference for `nccl-serialization` by readiness, for tests only.

* B: a communication kernel (not a peer copy); A: the communication kernel before it on its stream,
  in the order of (start, end)
* L: the end of B's launch call; without a launch row B is not judged
* input: the latest end of the operations that B's stream waited for before B was launched (all
  waits of that stream since the beginning: an older wait delays whatever comes later on a stream)
* what a wait waited for: the operation last put on the recorded stream before the record, in host
  order; not what that stream itself waited for before. A record on B's own stream is no wait, since
  the stream's order says the same. A wait whose event has no record before it waits for nothing.
* without event records or without stream waits of that rank: the operation other than
  communication last launched, before B's launch call, by the same thread (on any stream)
* ready: max(L, input). B may begin before its launch returns; then nothing is blocked.
* blocked spans: [ready, S) ∩ union of the communication kernels before B on its stream
* blocked: their length, counted only if A ended at most 20 µs before S, or after it
* queued: the same with L in place of ready, counted under the same condition
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.reference.communication import is_independent, kernels_of
from tests.reference.nsight_export import (
    COMMUNICATION,
    COMPUTE,
    LOW_24_BITS,
    Call,
    Key,
    Operation,
    StreamEvent,
)
from tests.reference.spans import Span, clipped, length, union, without
from tests.reference.streams import Rank, read, spans_of

FOLLOWS_NS = 20_000


class Line:
    """Operations in host order."""

    def __init__(self, operations: list[Operation]) -> None:
        self._operations = operations
        self._keys = [op.order[:3] for op in operations]

    def last_before(self, call: Call) -> Operation | None:
        """The last one that was launched before a call."""
        at = bisect_left(self._keys, call[:3])
        return self._operations[at - 1] if at else None


class Dependencies:
    """What the operations of a rank waited for on the GPU."""

    def __init__(self, rank: Rank) -> None:
        self.has_events = bool(rank.records and rank.waits)
        on_stream: dict[int, list[Operation]] = defaultdict(list)
        by_thread: dict[int, list[Operation]] = defaultdict(list)
        for op in sorted((op for op in rank.operations if op.call), key=lambda op: op.order):
            assert op.call is not None
            on_stream[op.stream].append(op)
            if op.kind != COMMUNICATION:
                by_thread[op.call.thread].append(op)
        self._on_stream = {stream: Line(operations) for stream, operations in on_stream.items()}
        self._by_thread = {thread: Line(operations) for thread, operations in by_thread.items()}
        records: dict[int, list[StreamEvent]] = defaultdict(list)
        for record in rank.records:
            records[record.event].append(record)
        self.resolved: list[tuple[StreamEvent, StreamEvent, Operation]] = []  # wait, record, last
        for wait in rank.waits if self.has_events else ():
            before = [record for record in records[wait.event] if record.call < wait.call]
            if before and before[-1].stream in self._on_stream:
                record = before[-1]
                awaited = self._on_stream[record.stream].last_before(record.call)
                if awaited is not None and record.stream != wait.stream:
                    self.resolved.append((wait, record, awaited))

    def input_of(self, op: Operation) -> Operation | None:
        """Of what an operation's stream waited for before its launch, what ended last."""
        if op.call is None:
            return None
        if not self.has_events:
            line = self._by_thread.get(op.call.thread)
            return line.last_before(op.call) if line else None
        awaited = [
            source
            for wait, _, source in self.resolved
            if wait.stream == op.stream and wait.call < op.call
        ]
        return max(awaited, key=lambda source: source.end, default=None)


@dataclass
class Readiness:
    """When a communication operation could have begun, and what it waited behind."""

    operation: Operation
    before: Operation | None  # the communication kernel before it on its stream
    input: Operation | None
    launch_ns: int | None
    ready_ns: int | None
    blocked: list[Span]  # from ready on, whether it counts or not
    queued: list[Span]  # from the launch on
    counts: bool  # the one before ended at most 20 µs before it began


def readiness_of(rank: Rank) -> list[Readiness]:
    """The communication operations of a rank in order of (start, end); peer copies block nobody."""
    dependencies = Dependencies(rank)
    before: dict[int, list[Operation]] = defaultdict(list)
    result = []
    for op in sorted(rank.of_kind(COMMUNICATION), key=lambda op: (op.start, op.end)):
        line = before[op.stream] if op.table == "KERNEL" else []
        previous = line[-1] if line else None
        source = dependencies.input_of(op)
        launch = op.call.end if op.call else None
        ready = None if launch is None else max(launch, source.end if source else launch)
        spans = union([(operation.start, operation.end) for operation in line])
        result.append(
            Readiness(
                op, previous, source, launch, ready,
                clipped(spans, ready, op.start) if ready is not None else [],
                clipped(spans, launch, op.start) if launch is not None else [],
                previous is not None and op.start - previous.end <= FOLLOWS_NS,
            )
        )  # fmt: skip
        if op.table == "KERNEL":
            line.append(op)
    return result


@dataclass
class Serialization:
    """The metrics of one rank; ns."""

    num_operations: int = 0
    num_judged: int = 0
    blocked_ns: int = 0
    num_blocked: int = 0
    max_blocked_ns: int = 0
    queued_ns: int = 0
    num_queued: int = 0
    independent_blocked_ns: int = 0
    known_blocked_ns: int = 0
    avoidable_ns: int = 0  # union of the waits not behind a dependent one, without compute


def reference(path: Path, window: Span | None = None) -> dict[Key, Serialization]:
    """What must be found for each (process, device) of an export.

    Operations count that start in the window [start, end), or in [start, end] where it is the
    rank's own.
    """
    facts = {
        (kernel["process"], key[1], kernel["stream"], kernel["start"], kernel["end"]): kernel
        for key, kernels in kernels_of(path).items()
        for kernel in kernels
    }
    return {(rank.process, rank.device): serialization(rank, window, facts) for rank in read(path)}


def serialization(
    rank: Rank, window: Span | None, facts: dict[tuple[int, int, int, int, int], dict[str, object]]
) -> Serialization:
    low, high = window or (rank.window[0], rank.window[1] + 1)
    result, avoidable = Serialization(), []

    def facts_of(op: Operation) -> dict[str, object]:
        return facts.get((rank.process, rank.device, op.stream, op.start, op.end), {})

    for readiness in readiness_of(rank):
        op = readiness.operation
        if op.table != "KERNEL" or not low <= op.start < high:
            continue
        result.num_operations += 1
        result.num_judged += op.call is not None
        blocked = length(readiness.blocked) if readiness.counts else 0
        queued = length(readiness.queued) if readiness.counts else 0
        result.queued_ns += queued
        result.num_queued += queued > 0
        if not blocked:
            continue
        assert readiness.before is not None
        independent = is_independent(facts_of(op), facts_of(readiness.before))
        result.blocked_ns += blocked
        result.num_blocked += 1
        result.max_blocked_ns = max(result.max_blocked_ns, blocked)
        result.independent_blocked_ns += blocked * (independent is True)
        result.known_blocked_ns += blocked * (independent is not None)
        if independent is not False:
            avoidable += readiness.blocked
    exposed = without(union(avoidable), spans_of(rank.of_kind(COMPUTE)))
    result.avoidable_ns = length(clipped(exposed, low, high))
    assert rank.process & LOW_24_BITS == 0
    return result
