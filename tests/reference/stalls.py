"""Stalls of the host's CUDA calls, for tests only: plain loops, call by call.

A call stalls by its own time, less calls inside it, if that is over 20 times the median of its name
(at least 5, and 1 us), and over 1 ms beyond that. `_is_excused` has the exceptions.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

from tests.reference.host import ALLOCATION_CALL, SETUP_CALL, Evidence
from tests.reference.nsight_export import Call, Operation
from tests.reference.spans import Span, covered, union, without
from tests.reference.training import host_steps

WAIT = re.compile(
    r"cuda(Device|Thread|Stream|Event)Synchronize\Z|cu(Ctx|Stream|Event)Synchronize\Z"
    r"|(?!.*Async|cu(da)?MemcpyPeer)(cu(da)?Memcpy|cuda(Malloc|Free|HostAlloc)"
    r"|cuMem(Alloc|Free|HostAlloc))"
)
DEVICE_TO_HOST = 2
MS = 1_000_000


class Stall(NamedTuple):
    """A stalled call: its excess, and the spans that are stalled."""

    call: Call
    excess_ns: int
    spans: list[Span]


class ProcessStalls:
    def __init__(self, evidence: Evidence, process: int) -> None:
        self.evidence, self.process = evidence, process
        export = evidence.export
        self.calls = export.calls.get(process, [])
        self.operations: list[tuple[int, Operation]] = [
            (device, op)
            for (owner, device), operations in export.ranks.items()
            for op in operations
            if owner == process
        ]
        self.launches = sorted(op.call.start for _, op in self.operations if op.call is not None)
        self.ends = sorted(op.end for _, op in self.operations if op.call is not None)
        first: dict[tuple[int, str], Call] = {}
        self.copies: dict[Call, list[Operation]] = defaultdict(list)
        for device, op in self.operations:
            if op.call is not None and op.name is not None:
                key = (device, op.name)
                first[key] = min(first.get(key, op.call), op.call)
            if op.call is not None and op.copy_kind is not None:
                self.copies[op.call].append(op)
        self.firsts = list(first.values())
        _, steps = host_steps(export, process)
        self.step_starts = sorted(low for _, low, _ in steps)
        self.stalls = self._found()

    def of_thread(self, thread: int) -> list[Span]:
        return union(span for s in self.stalls if s.call.thread == thread for span in s.spans)

    def _own(self) -> dict[Call, list[Span]]:
        """The spans of each call without those inside it."""
        inside: dict[Call, list[Call]] = {call: [] for call in self.calls}
        for thread in {call.thread for call in self.calls}:
            stack: list[Call] = []
            of_thread = [call for call in self.calls if call.thread == thread]
            for call in sorted(of_thread, key=lambda call: (call.start, -call.end)):
                while stack and max(stack[-1].end, stack[-1].start + 1) <= call.start:
                    stack.pop()
                if stack:
                    inside[stack[-1]].append(call)
                stack.append(call)
        return {
            call: without(
                [(call.start, call.end)],
                union((c.start, max(c.end, c.start + 1)) for c in children),
            )
            for call, children in inside.items()
        }

    def _found(self) -> list[Stall]:
        own = self._own()
        lengths: dict[str, list[int]] = defaultdict(list)
        for call, spans in own.items():
            lengths[call.name].append(sum(end - start for start, end in spans))
        stalls = list[Stall]()
        for call, spans in own.items():
            known = sorted(lengths[call.name])
            middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) // 2
            usual, ns = max(middle, 1000), sum(end - start for start, end in spans)
            if (
                len(known) >= 5
                and ns > 20 * usual
                and ns - usual > MS
                and not self._is_usual(call)
                and not self._is_excused(call)
            ):
                begin = call.start + usual
                parts = [(max(low, begin), high) for low, high in spans if high > begin]
                stalls.append(Stall(call, ns - usual, parts))
        return self._without_recurring(stalls)

    def _is_usual(self, call: Call) -> bool:
        """Whether the call waits, sets up, loads data, allocates, or is the first of its name."""
        thread, patterns = self.evidence.thread(call.thread), (WAIT, ALLOCATION_CALL, SETUP_CALL)
        work = union(thread.setup + thread.allocation + thread.loading + thread.mpi)
        return (
            any(pattern.match(call.name) for pattern in patterns)
            or call.start == min(other.start for other in self.calls if other.name == call.name)
            or 2 * covered(work, call.start, call.end) > call.end - call.start
        )

    def _is_excused(self, call: Call) -> bool:
        """Whether its copy, the queue, an operation, another thread or a record explains a call."""
        export, launched = self.evidence.export, bisect_right(self.launches, call.start)
        last, after = bisect_right(self.ends, call.end), bisect_left(self.ends, call.end - 30_000)
        late = [
            op
            for _, op in self.operations
            if op.call == call
            and op.name is not None  # a kernel
            and 2 * op.start > call.start + call.end
            and call.end - 30_000 <= op.end <= call.end
        ]
        waits = union(
            (other.start, other.end)
            for other in self.calls
            if other.thread != call.thread
            and (WAIT.match(other.name) or any(op.pageable for op in self.copies.get(other, [])))
        )
        return (
            any(
                op.pageable or op.copy_kind == DEVICE_TO_HOST or call.end >= op.end
                for op in self.copies.get(call, [])
            )
            or launched - bisect_left(self.ends, call.start) >= 200
            or last - after > len(late)
            or any(
                first.thread == call.thread and call.start <= first.start < call.end
                for first in self.firsts
            )
            or 2 * covered(waits, call.start, call.end) > call.end - call.start
            or any(
                max(work.start, call.start) < min(work.end, call.end)
                for work in (*export.overheads, *export.profiler)
                if work.thread >> 24 == self.process >> 24
            )
        )

    def _without_recurring(self, stalls: list[Stall]) -> list[Stall]:
        count = Counter(stall.call.name for stall in stalls)
        kept = list[Stall]()
        for stall in stalls:
            name = stall.call.name
            same = sorted(call.start for call in self.calls if call.name == name)
            if count[name] > max(0.05 * len(same), 1):
                continue
            at_place = [s for s in stalls if s.call.name == name]
            place = self._place(same, stall.call)
            steps = {
                step
                for step, nth in (self._place(same, s.call) for s in at_place)
                if nth == place[1]
            }
            if len(self.step_starts) >= 3 and 2 * len(steps) > len(self.step_starts):
                continue
            kept.append(stall)
        return kept

    def _place(self, same: list[int], call: Call) -> tuple[int, int]:
        """The step of a call, and its number among those of its name in the step."""
        step = bisect_right(self.step_starts, call.start)
        first = bisect_left(same, self.step_starts[step - 1]) if step else 0
        return step, bisect_left(same, call.start) - first
