"""An independent reference for the steps of a run and its training, for tests only.

Shares no code with ``traceprof`` but the labels that `instrument` writes.

* Marked steps of a process: its NVTX ranges whose whole name the first of `STEP_PATTERNS` matches
  that matches any.
* Where none is marked: from the end of one optimizer step to the end of the next (a step is closed
  by its optimizer step), the first from the launch of the first kernel of the main compute. An
  optimizer step is a range `optimizer step` of `instrument`, else PyTorch's own range
  `Optimizer.step#NAME.step`; one inside another of them does not count.
* A step's window on a rank starts at the first operation launched inside the range and ends where
  the next step's starts; the last one ends with the last operation launched inside it. A step that
  launched nothing on the rank has none.
* Where no process of the report has either: periods, which are given; none are searched here.
* Leading steps that lie inside a range of warm-up are not training, nor are leading steps that the
  profiler distorts: rows of PROFILER_OVERHEAD of the process take over 10 % of their window. (Its
  flush at the end of a capture is of no such step.) If no step is left, all count.
* training: from the first step's start to the last one's end. Where no step is known: from the
  first kernel of the main compute to the end of the rank's window. Main compute is matrix
  multiplication, convolution and attention by kernel name, else the name that takes most time
  (of several the first in the alphabet); kernels launched inside a range of warm-up count only
  where there are no others. Without compute kernels it is the window.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tests.reference.breakdown import SERVING_STEPS, step_windows
from tests.reference.nsight_export import (
    COMPUTE,
    LOW_24_BITS,
    Call,
    Export,
    Operation,
    function_name,
)
from tests.reference.spans import NEVER, Span, clipped, length, union
from traceprof import labels

STEP_PATTERNS = (
    r"step (\d+)",
    r"ProfilerStep#(\d+)",
    r"(?i:iteration|iter|train(?:ing)?[_ ]step|global_step|step)[ _#:]*(\d+)",
    r"(?:\[pl\]\[profile\])?run_training_batch",
    r"train_step|training_step|train_batch",
    *SERVING_STEPS,
)
WARM_UP = re.compile(r"\bwarm[ _-]?up\b", re.IGNORECASE)
TORCH_OPTIMIZER = re.compile(r"Optimizer\.step#\w+\.step\b")
MAX_PROFILER_SHARE = 0.1
MAIN_COMPUTE = re.compile(
    r"gemm|gemv|mat(rix)?_?mul|cutlass|splitk|winograd|fprop|dgrad|wgrad|attention|attn|fmha"
    r"|flash_(fwd|bwd)|convol|(?<![a-z])conv([123]d|_depthwise)?(?![a-z])"
    r"|^nvjet_|cudnn_fp|scudnn|^cask_cudnn::|^cudnn::cnn::|im2col|flip_filter|^fft[12]d_[cr]2[cr]_",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Step:
    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Training:
    """The training of a rank.

    `basis` is `steps`, `optimizer`, `periods`, `main compute` or `window`.
    """

    start: int
    end: int
    before_ns: int
    after_ns: int
    basis: str
    steps: tuple[Step, ...]


@cache
def is_main_compute(name: str) -> bool:
    return MAIN_COMPUTE.search(function_name(name)) is not None


def host_steps(export: Export, process: int) -> tuple[str, list[tuple[int, int, int]]]:
    """How the steps of a process are known, and the number, start and end of each on its host."""
    ranges = export.ranges.get(process, [])
    for pattern in STEP_PATTERNS:
        steps = [(span, m) for span in ranges if (m := re.fullmatch(pattern, span.name))]
        if steps:
            texts = [m[1] if m.re.groups else "" for _, m in steps]
            numbered = all(text.isdecimal() for text in texts)
            return "steps", [
                (int(text) if numbered else place, span.start, span.end)
                for place, ((span, _), text) in enumerate(zip(steps, texts, strict=True))
            ]
    optimizers = [s for s in ranges if labels.parse(s.name).operation == labels.OPTIMIZER_STEP]
    optimizers = optimizers or [span for span in ranges if TORCH_OPTIMIZER.match(span.name)]
    ends: list[int] = []
    for span in optimizers:
        if span.end < NEVER and (not ends or span.end > ends[-1]):
            ends.append(span.end)
    launches = [
        op.call.start
        for (owner, _), operations in export.ranks.items()
        for op in (main_compute(export, process, operations) if owner == process else ())
        if op.call is not None
    ]
    start = min(launches, default=-NEVER)
    starts = [start, *ends[:-1]]
    return "optimizer", [
        (place, low, high)
        for place, (low, high) in enumerate(zip(starts, ends, strict=False))
        if low < high
    ]


def main_compute(export: Export, process: int, operations: list[Operation]) -> list[Operation]:
    kernels = [op for op in operations if op.kind == COMPUTE]
    main = [op for op in kernels if op.name is not None and is_main_compute(op.name)]
    if not main:
        time: Counter[str] = Counter()
        for op in kernels:
            time[op.name or ""] += op.end - op.start
        longest = sorted(time, key=lambda name: (-time[name], name))[:1]
        main = [op for op in kernels if (op.name or "") in longest]
    warm_up = _warm_up(export, process)
    cold = [op for op in main if op.call and not clipped(warm_up, op.call.start, op.call.start + 1)]
    return cold or main


def training(export: Export, process: int, device: int, periods: Sequence[Span] = ()) -> Training:
    operations = export.ranks[process, device]
    low, high = min(op.start for op in operations), max(op.end for op in operations)
    basis, ranges = host_steps(export, process)
    warm_up = _warm_up(export, process)
    cold = [r for r in ranges if length(clipped(warm_up, r[1], r[2])) < r[2] - r[1]]
    steps = [Step(*window) for window in step_windows(operations, cold or ranges)]
    main = main_compute(export, process, operations)
    if main and not marks_steps(export):
        basis = "periods"
        steps = [Step(number, *span) for number, span in enumerate(periods)]
    own = [(s.start, s.end) for s in export.profiler if s.thread & ~LOW_24_BITS == process]
    overhead = union(own)
    first = 0
    while first < len(steps) and _is_distorted(steps[first], overhead):
        first += 1
    steps = steps[first:] or steps
    if steps:
        start, end = steps[0].start, max(step.end for step in steps)
    else:
        basis = "main compute" if main else "window"
        start, end = min((op.start for op in main), default=low), high
    return Training(start, end, start - low, high - end, basis, tuple(steps))


def marks_steps(export: Export) -> bool:
    """Whether any process of an export marks steps, or runs optimizer steps."""
    return any(
        basis == "steps" or steps
        for basis, steps in (host_steps(export, process) for process in export.ranges)
    )


def _is_distorted(step: Step, overhead: list[Span]) -> bool:
    spent = length(clipped(overhead, step.start, step.end))
    return spent > MAX_PROFILER_SHARE * (step.end - step.start)


def _warm_up(export: Export, process: int) -> list[Span]:
    ranges = export.ranges.get(process, [])
    return union((span.start, span.end) for span in ranges if WARM_UP.search(span.name))


class StepBoundaries:
    """Where steps begin and end on the host, between the launches of compute kernels."""

    def __init__(self, export: Export, process: int, operations: list[Operation]) -> None:
        _, steps = host_steps(export, process)
        self.times = sorted(time for _, low, high in steps for time in (low, high))
        kernels = (op.call for op in operations if op.kind == COMPUTE)
        self.launches = sorted(call.start for call in kernels if call is not None)

    def is_at_boundary(self, call: Call) -> bool:
        """Does a step begin or end between the compute launched before and after a call?"""
        before = bisect_left(self.launches, call.start)
        after = bisect_right(self.launches, call.start)
        low = self.launches[before - 1] if before else -2 * NEVER
        high = self.launches[after] if after < len(self.launches) else 2 * NEVER
        return bisect_right(self.times, high) > bisect_right(self.times, low)
