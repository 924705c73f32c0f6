"""An independent reference for host-sync and pageable-copy, for tests only.

It walks over the plain lists of `tests.reference.nsight_export`. What the waits cost is in
`tests.reference.idle_causes`.
"""

from collections import defaultdict
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from tests.reference.breakdown import COPY, NEVER, Range, step_ranges
from tests.reference.nsight_export import PAGEABLE, Call, Export, Operation
from tests.reference.spans import Span, covered, union, without

TOLERANCE, LARGE = 1_000_000, 65_536
PINNED, UNKNOWN = 1, 7  # of Nsight's ENUM_CUDA_MEM_KIND, whose ids never changed
WAITING = {
    "cudaDeviceSynchronize", "cudaThreadSynchronize", "cudaStreamSynchronize",
    "cudaEventSynchronize", "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize",
}  # fmt: skip


class Answer(NamedTuple):
    """What the package must say of one rank; ns and counts."""

    idle: int
    num_syncs: int
    blocked: int
    api: str | None
    blocked_per_step: int | None
    copies: tuple[int, int, int | None, int]  # number, bytes, host blocked, cost


def is_waiting(name: str) -> bool:
    if "Async" in name:
        return False
    copies = name.startswith(("cudaMemcpy", "cuMemcpy")) and "emcpyPeer" not in name
    return name in WAITING or copies


def is_read(operation: Operation) -> bool:
    """Say whether it copies to pageable memory."""
    return operation.memory is not None and operation.memory[1] == PAGEABLE


class RankReference:
    """The answers for one rank."""

    def __init__(self, export: Export, process: int, device: int) -> None:
        self.has_calls = "CUPTI_ACTIVITY_KIND_RUNTIME" in export.tables
        self.operations = export.ranks[process, device]
        calls = [call for call in export.calls.get(process, []) if call.correlation is not None]
        self.calls = sorted(calls, key=lambda call: (call.correlation or 0, call))
        self.busy = union((operation.start, operation.end) for operation in self.operations)
        reads = {operation.call for operation in self.operations if is_read(operation)}
        self.waits = [call for call in self.calls if is_waiting(call.name) or call in reads]
        named = [Range(start, end, name) for start, end, _, name in export.ranges.get(process, [])]
        self.steps = [(step.start, step.end) for step, _ in step_ranges(sorted(named), None)]

    def window(self) -> Span:
        first = min(operation.start for operation in self.operations)
        return first, max(operation.end for operation in self.operations)

    def clocks_disagree(self) -> bool:
        launched = [(op, op.call) for op in self.operations if op.call]
        early = [op for op, call in launched if call.start - op.start > TOLERANCE]
        reads = [(op, call) for op, call in launched if is_read(op)]
        late = [read for read, call in reads if read.end - call.end > TOLERANCE]
        return len(early) > 0.01 * len(launched) or len(late) > 0.01 * len(reads)

    def answer(self, steady: list[Span], part: Span | None = None) -> Answer:
        """Answer of a part of the recording, by default of all of it, with its steady steps."""
        window = part or self.window()
        idle = window[1] - window[0] - covered(self.busy, *window)
        copies = self.copies(window, is_all=part is None)
        if not self.has_calls or self.clocks_disagree():
            return Answer(idle, 0, 0, None, None, copies)
        return Answer(idle, *self.syncs(window), self.per_step(window, steady), copies)

    def chosen(self, window: Span) -> set[Call]:
        """The synchronizing calls that host-sync judges."""
        threads = {operation.call.thread for operation in self.operations if operation.call}
        waits = [
            call
            for call in self.waits
            if window[0] <= call.start < window[1]
            and call.thread in threads
            and (not self.steps or any(low <= call.start < high for low, high in self.steps))
        ]
        # What lies within another one of its thread is a part of that call.
        outer: set[Call] = set()
        reach: dict[int, int] = {}
        order = {call: place for place, call in enumerate(self.calls)}
        for call in sorted(waits, key=lambda call: (call.start, -call.end, order[call])):
            if call.end > reach.get(call.thread, -NEVER):
                outer.add(call)
                reach[call.thread] = call.end
        return outer

    def syncs(self, window: Span) -> tuple[int, int, str | None]:
        chosen = self.chosen(window)
        spans: dict[int, list[Span]] = defaultdict(list)
        spent: dict[str, int] = defaultdict(int)
        number = 0
        for call in self.calls:
            if call in chosen:
                number += 1
                spans[call.thread].append((call.start, call.end))
                spent[call.name or "unnamed call"] += call.end - call.start
        for thread in spans:
            made = [call for call in self.calls if call.thread == thread]
            place = {call: index for index, call in enumerate(made)}
            calls = sorted(call for call in made if call in chosen)
            for call, after in pairwise(calls):
                between = made[place[call] + 1 : place[after]]
                at_once = place[after] > place[call] and len(between) <= 2
                at_once = at_once and all(inner.end <= call.end for inner in between)
                number -= at_once and "emcpy" in call.name and after.name.endswith("Synchronize")
        blocked = sum(end - start for span in spans.values() for start, end in union(span))
        api = min(spent, key=lambda name: (-spent[name], name), default=None)
        return number, blocked, api

    def per_step(self, window: Span, steady: list[Span]) -> int | None:
        judged = self.chosen(window)
        chosen = [call for call in self.calls if call in judged]
        times = [
            sum(call.end - call.start for call in chosen if low <= call.start < high)
            for low, high in steady
        ]
        return round(mean(times)) if times else None

    def copies(self, window: Span, *, is_all: bool) -> tuple[int, int, int | None, int]:
        chosen = []
        # An operation without length may end the recording.
        limit = window[1] + 1 if is_all else window[1]
        for op in self.operations:
            ends = op.memory
            if ends is None or op.kind != COPY or not window[0] <= op.start < limit:
                continue
            hosts = [end for end in ends if end in (PAGEABLE, PINNED)]
            known = not {None, UNKNOWN} & set(ends)
            if op.bytes > LARGE and known and hosts == [PAGEABLE]:
                chosen.append(op)
        calls = {copy.call for copy in chosen if copy.call}
        blocked = sum(call.end - call.start for call in calls) if calls or not chosen else None
        kernels = [
            (operation.start, operation.end)
            for operation in self.operations
            if operation.kind != COPY
        ]
        cost = without(union((copy.start, copy.end) for copy in chosen), union(kernels))
        if self.has_calls and not self.clocks_disagree():
            own = [(window[0], window[1])]
            idle = without(own, self.busy)
            inside = union((call.start, call.end) for call in calls)
            cost = union([*cost, *without(idle, without(own, inside))])
        return (
            len(chosen),
            sum(copy.bytes for copy in chosen),
            blocked if self.has_calls else None,
            covered(cost, *window),
        )
