"""An independent reference for `exposed-communication` and its reasons, for tests only.

Each exposed nanosecond (communication runs, compute does not) belongs to one operation B: of those
that run, the one that began first; of those that began together, the one that ends first. What B
owns is clipped to the window. Reasons take from what is left of B, in this order:

* waiting: B's own exposed time before the last start of the operations matched with B; 0 for an
  operation that is not matched, None for a rank none of whose operations is
* (all the rest is unknown if B has no launch row, or if more than 1 % of the rank's operations with
  a launch row start before that call begins, or more than 1 % of its copies to pageable memory end
  over 1 ms after theirs)
* late launch: min(left, compute in [max(input's end, end of the operation before B on its stream),
  L)), where the input is without the launch (with it nothing could ever lie between); 0 if neither
  is known. The operation before B is of any kind, the last on its stream by (start, end). Then all
  that is left if the next compute has a launch row whose call ended after B's end.
* queued: min(left, compute in the blocked spans of `readiness`), whether or not the operation
  before B ended at most 20 µs before it: the spans say themselves that B was in line
* same stream: all, if the next compute runs on B's stream
* needed at once: all, if a stream that computes waits for B (event record on B's stream with B last
  on it), no compute was launched between B's launch and that wait, and no other communication was
  outstanding: launched before that wait, not ended on the GPU when B's launch call began, and not
  waited for by a stream that computes before B's launch
* late input, if B began at most 20 µs after ready (input or launch, whichever came last), or the
  first of its line, which has a launch, did. A line: kernels of one stream, each of which begins at
  most 20 µs after the communication kernel before it ended. What the line's operations leave goes
  to late input, in order of start, until it reaches the compute in [end of the communication kernel
  before the line, input's end of its first], without an input until its first began; for peer
  copies, which make no lines and have none before them, all compute until then
* transfer: what such a line leaves then
* unknown: what is left

Next compute: the compute operation with the earliest start at or after B's end; of several that
start at once, one on B's stream if there is one.

Matched are kernels of one report, whose ranks share a clock, of at least two ranks (and as many as
the communicator has, where that is known): by NCCL's communicator where payloads tell it of all
communication kernels of the report, and by kind, the k-th with the k-th. Where ranks have different
numbers, the shorter list must fit into the longer one at exactly one place such that all matched
operations run at one time. Only what no member can leave before the last has come is matched, which
therefore must run at one time; and SendRecv of two ranks, where one that had ended before the other
began did not wait. Peer copies are matched with nothing.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.reference.communication import kernels_of, kind
from tests.reference.nsight_export import COMMUNICATION, COMPUTE, Key, Operation
from tests.reference.readiness import FOLLOWS_NS, Dependencies, Readiness, readiness_of
from tests.reference.spans import Span, both, clipped, covered, length, without
from tests.reference.streams import Rank, owned, read, spans_of

LEAVE_TOGETHER = {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll"}
MAX_LATE_SHARE = 0.01  # of operations that start before their launch
PAGEABLE, READ_NS = 0, 1_000_000
REASONS = ("waiting_ns", "late_launch_ns", "queued_ns", "same_stream_ns", "needed_at_once_ns",
           "late_input_ns", "transfer_ns", "unknown_ns")  # fmt: skip


class Place(NamedTuple):
    """What names a kernel in both readings of the file."""

    process: int
    device: int
    stream: int
    start: int
    end: int


@dataclass
class ExposedCommunication:
    """What the finding says of one rank; ns."""

    communication_ns: int
    exposed_ns: int
    reasons: dict[str, int | None]
    by_operation: list[tuple[Operation, dict[str, int]]]  # those with exposed time

    @property
    def fraction(self) -> float:
        return self.exposed_ns / self.communication_ns if self.communication_ns else 0.0


def reference(path: Path, window: Span | None = None) -> dict[Key, ExposedCommunication]:
    """What must be found for each (process, device) of an export."""
    ranks = read(path)
    together = last_starts(kernels_of(path))
    return {(rank.process, rank.device): measured(rank, window, together) for rank in ranks}


def measured(rank: Rank, window: Span | None, together: dict[Place, int]) -> ExposedCommunication:
    low, high = window or rank.window
    computing = spans_of(rank.of_kind(COMPUTE))
    communicating = clipped(spans_of(rank.of_kind(COMMUNICATION)), low, high)
    exposed = length(without(communicating, computing))
    judge = Judge(rank, computing)
    total = dict.fromkeys(REASONS, 0)
    by_operation = []
    readiness = {id(ready.operation): ready for ready in readiness_of(rank)}
    is_matched = False
    for op, spans in owned(rank.of_kind(COMMUNICATION), low, high):
        place = Place(rank.process, rank.device, op.stream, op.start, op.end)
        is_matched |= place in together
        own = without(spans, computing)
        if not own:
            continue
        waiting = length(clipped(own, op.start, max(together.get(place, op.start), op.start)))
        reasons = judge.reasons(readiness[id(op)], readiness, length(own) - waiting)
        reasons["waiting_ns"] = waiting
        for name, ns in reasons.items():
            total[name] += ns
        by_operation.append((op, reasons))
    assert sum(total.values()) == exposed
    assert all(ns >= 0 for ns in total.values())
    metrics: dict[str, int | None] = {**total}
    if not is_matched:
        assert total["waiting_ns"] == 0
        metrics["waiting_ns"] = None
    return ExposedCommunication(length(communicating), exposed, metrics, by_operation)


class Judge:
    """Gives what is left of an operation's exposed time to the reasons other than waiting."""

    def __init__(self, rank: Rank, computing: list[Span]) -> None:
        self._computing = computing
        self._compute = rank.of_kind(COMPUTE)
        self._starts = [op.start for op in self._compute]
        self._communication = rank.of_kind(COMMUNICATION)
        streams = {op.stream for op in self._compute}
        self._waits = [  # of streams that compute, for what
            (wait.call, awaited)
            for wait, _, awaited in Dependencies(rank).resolved
            if wait.stream in streams
        ]
        self._first: dict[int, tuple[Operation, int]] = {}  # of its line, and the end before that
        last_kernel: dict[int, Operation] = {}
        for op in self._communication:
            self._first[id(op)] = (op, -1)
            if op.table == "KERNEL":
                before = last_kernel.get(op.stream)
                if before is not None and op.start - before.end <= FOLLOWS_NS:
                    self._first[id(op)] = self._first[id(before)]
                elif before is not None:
                    self._first[id(op)] = (op, before.end)
                last_kernel[op.stream] = op
        self._left: dict[int, int] = {}  # of the compute before a line
        self._before: dict[int, Operation | None] = {}
        last: dict[int, Operation] = {}
        for op in rank.operations:
            self._before[id(op)] = last.get(op.stream)
            last[op.stream] = op
        launched = [op for op in rank.operations if op.call]
        late = sum(op.call is not None and op.start < op.call.start for op in launched)
        reads = [op for op in launched if op.memory and op.memory[1] == PAGEABLE]
        unread = sum(op.call is not None and op.end > op.call.end + READ_NS for op in reads)
        parts = (late, launched), (unread, reads)
        self._clocks_agree = all(num <= MAX_LATE_SHARE * len(of) for num, of in parts)

    def reasons(self, ready: Readiness, others: dict[int, Readiness], left: int) -> dict[str, int]:
        parts = dict.fromkeys(REASONS, 0)
        op = ready.operation
        if ready.launch_ns is None or ready.ready_ns is None or not self._clocks_agree:
            parts["unknown_ns"] = left
            return parts
        following = self._next_compute(op)
        before = self._before[id(op)]
        known = [operation.end for operation in (ready.input, before) if operation is not None]
        late = covered(self._computing, max(known), ready.launch_ns) if known else 0
        parts["late_launch_ns"] = min(left, late)
        left -= parts["late_launch_ns"]
        if any(
            operation.call is not None and operation.call.end > op.end for operation in following
        ):
            parts["late_launch_ns"] += left
            return parts
        parts["queued_ns"] = min(left, length(both(ready.blocked, self._computing)))
        left -= parts["queued_ns"]
        if any(operation.stream == op.stream for operation in following):
            name = "same_stream_ns"
        elif self._is_needed_at_once(op):
            name = "needed_at_once_ns"
        elif begins_ready(ready) or begins_ready(others[id(self._first[id(op)][0])]):
            first, end_before = self._first[id(op)]
            if id(first) not in self._left:
                input_ = others[id(first)].input
                until = min(first.start, input_.end) if input_ else first.start
                self._left[id(first)] = covered(self._computing, end_before, until)
            parts["late_input_ns"] = min(left, self._left[id(first)])
            self._left[id(first)] -= parts["late_input_ns"]
            left -= parts["late_input_ns"]
            name = "transfer_ns"
        else:
            name = "unknown_ns"
        parts[name] += left
        return parts

    def _next_compute(self, op: Operation) -> list[Operation]:
        """The next compute, as a list of none or one."""
        at = bisect_left(self._starts, op.end)
        together = [
            operation for operation in self._compute[at:] if operation.start == self._starts[at]
        ]
        on_stream = [operation for operation in together if operation.stream == op.stream]
        return (on_stream or together)[:1]

    def _is_needed_at_once(self, op: Operation) -> bool:
        assert op.call is not None
        waits = [call for call, awaited in self._waits if awaited is op and op.call < call]
        if not waits:
            return False
        wait = waits[0]
        for operation in self._compute:
            if operation.call is not None and op.call < operation.call < wait:
                return False
        for other in self._communication:
            if other is op or other.call is None or not other.call < wait:
                continue
            is_over = other.end <= op.call.start or any(
                call < op.call
                and awaited.stream == other.stream
                and not awaited.order < other.order
                for call, awaited in self._waits
            )
            if not is_over:
                return False
        return True


def begins_ready(ready: Readiness) -> bool:
    if ready.launch_ns is None or ready.ready_ns is None:
        return False
    return ready.operation.start - ready.ready_ns <= FOLLOWS_NS


def last_starts(kernels: dict[tuple[int, int], list[dict[str, Any]]]) -> dict[Place, int]:
    """When the last of the operations matched with each one began, where they are known."""
    communicating = {
        (pid, device): [kernel for kernel in of_rank if kernel["communicates"]]
        for (pid, device), of_rank in kernels.items()
    }
    members = [kernel for of_rank in communicating.values() for kernel in of_rank]
    told = all(kernel.get("communicator") is not None for kernel in members)
    groups: dict[tuple[Any, str], dict[tuple[int, int], list[dict[str, Any]]]] = defaultdict(dict)
    for rank, of_rank in communicating.items():
        for kernel in of_rank:
            name = (kernel["communicator"] if told else None, kind(kernel["operation"]))
            groups[name].setdefault(rank, []).append({**kernel, "device": rank[1]})
    starts: dict[Place, int] = {}
    for (_, operation), lists in groups.items():
        pairs = operation == "SendRecv" and len(lists) == 2
        sizes = {kernel.get("size") for of_rank in lists.values() for kernel in of_rank} - {None}
        if not (pairs or operation in LEAVE_TOGETHER) or len(lists) < 2:
            continue
        if told and sizes and sizes != {len(lists)}:
            continue
        rows = lined_up([*lists.values()], must_meet=not pairs)
        for row in rows:
            last = max(kernel["start"] for kernel in row)
            for kernel in row:
                # A send or receive that had ended when the other began did not wait for it.
                place = Place(
                    kernel["process"],
                    kernel["device"],
                    kernel["stream"],
                    kernel["start"],
                    kernel["end"],
                )
                starts[place] = kernel["start"] if last >= kernel["end"] else last
    return starts


def lined_up(
    lists: list[list[dict[str, Any]]], *, must_meet: bool
) -> list[list[dict[str, Any]]]:  # fmt: skip
    """The operations of several ranks, row by row; none if they cannot be lined up for sure."""
    shortest = min(lists, key=len)
    chosen = []
    for of_rank in lists:
        offsets = [*range(len(of_rank) - len(shortest) + 1)]
        if len(offsets) > 1 or must_meet:
            offsets = [
                offset
                for offset in offsets
                if all(
                    max(one["start"], other["start"]) <= min(one["end"], other["end"])
                    for one, other in zip(shortest, of_rank[offset:], strict=False)
                )
            ]
        if len(offsets) != 1:
            return []
        chosen.append(of_rank[offsets[0] : offsets[0] + len(shortest)])
    return [list(row) for row in zip(*chosen, strict=True)]
