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
* Where no process of the report has either: the periods of the rank's kernels
  (`tests.reference.period_steps`) from its first main compute to the end of its window. Only if
  they hold 80 % of the compute time of all streams from the first main compute to the last, and 80
  % of the kernels that start then whose name is that of one that begins a period. Where no name
  says what main compute is, this is from the first to the last of those that take most time, by
  name, so many that they make half of it.
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
from tests.reference.period_steps import PeriodStep, period_steps
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

    `basis` is `steps`, `optimizer`, `periods`, `main compute` or `window`. `launches` is when the
    host launched each period, where periods are the steps.
    """

    start: int
    end: int
    before_ns: int
    after_ns: int
    basis: str
    steps: tuple[Step, ...]
    launches: tuple[int | None, ...] = ()


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
    main = _recognised(kernels)
    if not main:
        longest = _by_time(kernels)[:1]
        main = [op for op in kernels if (op.name or "") in longest]
    return _after_warm_up(export, process, main)


def _recognised(kernels: list[Operation]) -> list[Operation]:
    return [op for op in kernels if op.name is not None and is_main_compute(op.name)]


def _by_time(kernels: list[Operation]) -> list[str]:
    """The names of kernels, those that take most time first."""
    time: Counter[str] = Counter()
    for op in kernels:
        time[op.name or ""] += op.end - op.start
    return sorted(time, key=lambda name: (-time[name], name))


def _after_warm_up(export: Export, process: int, main: list[Operation]) -> list[Operation]:
    warm_up = _warm_up(export, process)
    cold = [op for op in main if op.call and not clipped(warm_up, op.call.start, op.call.start + 1)]
    return cold or main


def _standing_for_all(export: Export, process: int, operations: list[Operation]) -> Span:
    """From the first start to the last end of what stands for all of the program."""
    kernels = [op for op in operations if op.kind == COMPUTE]
    standing = _recognised(kernels)
    if not standing:
        taken, half = 0, sum(op.end - op.start for op in kernels) / 2
        for name in _by_time(kernels):
            of_name = [op for op in kernels if (op.name or "") == name]
            standing += of_name
            taken += sum(op.end - op.start for op in of_name)
            if taken >= half:
                break
    cold = _after_warm_up(export, process, standing)
    return min(op.start for op in cold), max(op.end for op in standing)


def _hold_most(periods: list[PeriodStep], operations: list[Operation], whole: Span) -> bool:
    low, high = whole
    judged = clipped(union((step.start, step.end) for step in periods), low, high)
    kernels = [op for op in operations if op.kind == COMPUTE]
    held = sum(length(clipped(judged, op.start, op.end)) for op in kernels)
    taken = sum(max(min(op.end, high) - max(op.start, low), 0) for op in kernels)
    names = {step.name for step in periods}
    begun = [op for op in kernels if op.name in names and low <= op.start < high]
    inside = [op for op in begun if clipped(judged, op.start, op.start + 1)]
    return held >= 0.8 * taken and len(inside) >= 0.8 * len(begun)


def training(export: Export, process: int, device: int) -> Training:
    operations = export.ranks[process, device]
    low, high = min(op.start for op in operations), max(op.end for op in operations)
    basis, ranges = host_steps(export, process)
    warm_up = _warm_up(export, process)
    cold = [r for r in ranges if length(clipped(warm_up, r[1], r[2])) < r[2] - r[1]]
    steps = [Step(*window) for window in step_windows(operations, cold or ranges)]
    main = main_compute(export, process, operations)
    launches: tuple[int | None, ...] = ()
    if main and not marks_steps(export):
        basis = "periods"
        periods = period_steps(operations, min(op.start for op in main), high)
        if not _hold_most(periods, operations, _standing_for_all(export, process, operations)):
            periods = []
        steps = [Step(number, step.start, step.end) for number, step in enumerate(periods)]
        launches = tuple(step.launch for step in periods)
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
    return Training(start, end, start - low, high - end, basis, tuple(steps), launches)


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
