"""An independent reference for `late-allreduce`, for tests only: plain lists, one step at a time.

* step: a range; its kernels are those launched in it, and in no later one
* buckets: its AllReduce kernels, but for those 20 times shorter than the longest
* compute: of a stretch of time, how much of it compute kernels and whole graphs cover
* late bucket: starts when 90 % or more of the compute, from the step's first compute kernel to the
  end of its buckets, has run; late step: has one bucket, or only late ones
* tail: of a late step, from the end of the compute at or before the start of its first late bucket
  (of its last one where none is late) to the end of its buckets, without compute
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from tests.reference.breakdown import Numbered, step_ranges
from tests.reference.nsight_export import default_is_communication, export_of, function_name
from tests.reference.spans import Span, covered, union, without
from tests.reference.streams import read


class Kernel(NamedTuple):
    start: int
    end: int
    operation: str  # of a communication kernel, else empty
    step: int | None


class Step(NamedTuple):
    number: int
    num_buckets: int
    hideable: Fraction
    tail: Span
    is_late: bool


@dataclass(frozen=True)
class Rank:
    num_all_reduces: int
    num_in_steps: int
    num_reduce_scatters: int
    steps: list[Step]
    tail_ns: int
    exposed_ns: int
    free: list[Span]  # parts of tails without compute
    reduces: list[Span]


def operation_of(short: str | None, demangled: str | None) -> str:
    if not default_is_communication(short, demangled):
        return ""
    name = function_name(demangled or short or "").replace("_", "").lower()
    words = [word for word in ("allreduce", "reducescatter", "crossdevicereduce") if word in name]
    return {"crossdevicereduce": "allreduce"}.get(words[0], words[0]) if words else "other"


def reference(path: Path, window: Span | None = None) -> dict[tuple[int, int], Rank]:
    """What the analysis must find for each (process, device) of an export."""
    ranges = export_of(path).ranges
    ranks = {}
    for events in read(path):
        own = step_ranges(ranges.get(events.process, []), None)
        kernels = [
            Kernel(
                op.start,
                op.end,
                operation_of(op.short, op.demangled),
                step_of(op.call.start if op.call else None, own),
            )
            for op in events.operations
            if op.table == "KERNEL"
        ]
        graphs = [(op.start, op.end) for op in events.operations if op.table == "GRAPH_TRACE"]
        ranks[events.process, events.device] = rank(kernels, graphs, own, window or events.window)
    return ranks


def step_of(call: int | None, ranges: list[Numbered]) -> int | None:
    """The index of the last range that begins at or before the call, if the call is in it."""
    if call is None:
        return None
    index = bisect_right([range_.start for range_, _ in ranges], call) - 1
    return index if index >= 0 and call < ranges[index][0].end else None


def rank(kernels: list[Kernel], graphs: list[Span], ranges: list[Numbered], window: Span) -> Rank:
    low, high = window
    computing = union([kernel[:2] for kernel in kernels if not kernel.operation] + graphs)
    reduces = [kernel for kernel in kernels if kernel.operation == "allreduce"]
    inside = [reduce for reduce in reduces if low <= reduce.start < high]
    steps: list[Step] = []
    first = min((kernel.step for kernel in kernels if kernel.step is not None), default=None)
    own: dict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        own[kernel.step].append(kernel)
    for index, (_, number) in enumerate(ranges):
        verdict = judge(own[index], computing, window)
        if verdict is not None and index != first:
            steps.append(Step(number, *verdict))
    tails = union([step.tail for step in steps if step.is_late])
    free = [
        (max(start, low), min(end, high))
        for tail in tails
        for start, end in without([tail], computing)
    ]
    reducing = union([reduce[:2] for reduce in reduces])
    return Rank(
        num_all_reduces=len(inside),
        num_in_steps=sum(kernel.step is not None for kernel in inside),
        num_reduce_scatters=sum(
            kernel.operation == "reducescatter" and low <= kernel.start < high for kernel in kernels
        ),
        steps=steps,
        tail_ns=sum(max(end - start, 0) for start, end in free),
        exposed_ns=sum(covered(reducing, start, end) for start, end in free),
        free=free,
        reduces=[reduce[:2] for reduce in reduces],
    )


def moved_ns(ranks: list[Rank], number: int) -> int:
    """How long data moved in the tails of a rank, on one clock: once the last rank has come.

    Each AllReduce of a rank is the one of the others with the same number.
    """
    moving = []
    for same in zip(*(rank.reduces for rank in ranks), strict=True):
        end = same[number][1]
        moving.append((min(max(start for start, _ in same), end), end))
    moving = union(moving)
    return sum(covered(moving, start, end) for start, end in ranks[number].free)


def judge(
    kernels: list[Kernel], computing: list[Span], window: Span
) -> tuple[int, Fraction, Span, bool] | None:
    """The buckets of one step, what could hide them, their tail and whether they are late."""
    reduces = [kernel for kernel in kernels if kernel.operation == "allreduce"]
    if not reduces or any(not window[0] <= reduce.start < window[1] for reduce in reduces):
        return None
    longest = max(reduce.end - reduce.start for reduce in reduces)
    buckets = [reduce for reduce in reduces if 20 * (reduce.end - reduce.start) >= longest]
    computes = [kernel for kernel in kernels if not kernel.operation and kernel.end > kernel.start]
    if not computes or computes[0].start >= buckets[0].start:
        return None
    begin, end = computes[0].start, max(bucket.end for bucket in buckets)
    total = covered(computing, begin, end)
    late = [
        bucket for bucket in buckets if 10 * covered(computing, begin, bucket.start) >= 9 * total
    ]
    chosen = late[0] if late else buckets[-1]
    tail_start = computing[bisect_left(computing, (chosen.start, 0)) - 1][1]
    return (
        len(buckets),
        1 - Fraction(covered(computing, begin, buckets[0].start), total),
        (tail_start, max(end, tail_start)),
        len(buckets) in (1, len(late)),
    )
