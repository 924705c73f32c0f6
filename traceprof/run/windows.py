"""The window of each rank that is analysed: its training, some steps, or a time range.

The training is the time that is judged, without what comes before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from traceprof import intervals
from traceprof.errors import UsageError
from traceprof.findings import Count
from traceprof.intervals import Mask
from traceprof.run.rank import CpuRank, Rank, Window, WindowKind
from traceprof.trace.model.trace import Trace

MAX_PROFILER_SHARE = 0.1
"""Share of a step's time: a leading step in which the profiler worked longer is not training."""


class TrainingBasis(str, Enum):
    """The evidence for where the training begins and ends."""

    STEPS = "steps"
    OPTIMIZER = "optimizer steps"
    PERIODS = "periods"
    MAIN_COMPUTE = "main compute"
    WINDOW = "window"


class Training(Struct, frozen=True):
    """Training part of a rank's window: findings are about it if nothing else is asked for."""

    start_ns: int
    end_ns: int
    before_ns: Annotated[Count, "Part of the rank's window that comes before: set-up, warm-up."]
    after_ns: Count
    basis: TrainingBasis  # the evidence for both limits
    num_warm_up: int = 0  # leading steps that are left out since they lie in a range of warm-up
    num_distorted: int = 0  # leading steps after these in which the profiler itself took too long

    @property
    def num_left_out(self) -> int:
        """Number of the rank's first steps that are not training."""
        return self.num_warm_up + self.num_distorted


def training_of(rank: Rank) -> Training:
    """Training of a rank: its steps, else everything after its first main compute, else its window.

    Leading steps that warm up, or that the profiler distorts, are left out, unless none remain.
    """
    return rank.cache.get(_training, rank)


def _training(rank: Rank) -> Training:
    steps = rank.steps
    if steps is None or len(steps) == 0:
        return _without_steps(rank)
    num_warm_up, basis = 0, TrainingBasis.PERIODS  # which are searched after the warm-up
    if rank.step_ranges is not None:
        is_marked = rank.training_ranges.steps is not None
        basis = TrainingBasis.STEPS if is_marked else TrainingBasis.OPTIMIZER
        ranges, warm_up = rank.step_ranges, rank.training_ranges.warm_up
        warm_ns = intervals.covered_within(warm_up, ranges.start_ns, ranges.end_ns)
        is_warm = (warm_ns == ranges.end_ns - ranges.start_ns) & (len(warm_up) > 0)
        num_warm_up = _num_leading(is_warm[steps.source])
    num_warm_up %= len(steps)  # if all are, they count
    spans = rank.trace.profiler_overhead(rank.process)
    is_over = spans.end_ns < intervals.BEYOND_NS
    overhead = intervals.union(spans.start_ns[is_over], spans.end_ns[is_over])
    spent = intervals.covered_within(overhead, steps.start_ns, steps.end_ns)
    is_distorted = spent > MAX_PROFILER_SHARE * (steps.end_ns - steps.start_ns)
    num_distorted = _num_leading(is_distorted[num_warm_up:]) % (len(steps) - num_warm_up)
    start_ns = int(steps.start_ns[num_warm_up + num_distorted])
    end_ns = int(steps.end_ns.max())
    if basis is TrainingBasis.PERIODS and rank.periods is not None and rank.periods.is_part:
        (start_ns, end_ns), num_distorted = rank.periods.span_ns, 0
    return Training(
        start_ns,
        end_ns,
        start_ns - rank.window.start_ns,
        rank.window.end_ns - end_ns,
        basis,
        num_warm_up,
        num_distorted,
    )


def _without_steps(rank: Rank) -> Training:
    whole = rank.window
    main = None if isinstance(rank, CpuRank) else rank.main_compute
    if main is None:
        return Training(whole.start_ns, whole.end_ns, 0, 0, TrainingBasis.WINDOW)
    before_ns = main.start_ns - whole.start_ns
    return Training(main.start_ns, whole.end_ns, before_ns, 0, TrainingBasis.MAIN_COMPUTE)


def _num_leading(mask: Mask) -> int:
    return len(mask) if mask.all() else int(mask.argmin())


Range = tuple["int | None", "int | None"]


def choose_window(
    rank: Rank, steps: Range | None = None, time_range: Range | None = None
) -> Window | None:
    """Window of a rank that findings are about, the training by default; None without the steps.

    `steps`: A up to but not including B. `time_range`: ns of the report's time. None leaves a side
    open.

    Raises UsageError: the report numbers several steps alike.
    """
    if steps is not None:
        return _step_window(rank, steps)
    if time_range is not None:
        return time_window(rank, time_range)
    return training_window(rank)


def training_window(rank: Rank) -> Window:
    """Return the training of a rank as a window."""
    training, whole = training_of(rank), rank.window
    is_whole = (training.start_ns, training.end_ns) == (whole.start_ns, whole.end_ns)
    return Window(training.start_ns, training.end_ns, is_whole, WindowKind.TRAINING)


def shown_window(rank: Rank, window: Window) -> Window:
    """Return the window to show: if findings are about the training, all of the rank."""
    return rank.window if window.kind is WindowKind.TRAINING else window


def time_window(rank: Rank, time_range: Range) -> Window:
    """Return the range, an open side being the rank's own; empty if it misses the rank."""
    start, end = time_range
    whole = rank.window
    if start is None and end is None:
        return replace(whole, kind=WindowKind.TIME_RANGE)
    low = whole.start_ns if start is None else start
    high = max(low, whole.end_ns if end is None else end)
    return Window(low, high, kind=WindowKind.TIME_RANGE)


def check_choice(steps: Range | None, time_range: Range | None) -> None:
    """Reject a choice that no report could fulfil with a `UsageError`."""
    if steps is not None and time_range is not None:
        raise UsageError(
            "cannot choose a window", "both steps and a time range are given", "give one of them"
        )
    if steps is not None:
        if any(limit is not None and limit < 0 for limit in steps):
            why = "steps are numbered from 0, never from the end"
            what = f"cannot analyse the steps {_written(steps)}"
            raise UsageError(what, why, "write A:B, such as 5:10")
        _check_order("steps", steps, "step B is not part of A:B")
    if time_range is None:
        return
    _check_order("time range", time_range, "its end is not part of it")
    if any(limit is not None and abs(limit) >= intervals.BEYOND_NS for limit in time_range):
        raise UsageError(
            f"cannot analyse the time range {_written(time_range)}",
            "it is beyond the range of any clock",
            "write times in ns, or with a unit, such as 1.5s:1.7s",
        )


def captured_span(trace: Trace, ranks: Sequence[Rank]) -> tuple[int, int]:
    """Return when the capture of a report began and ended, ns of the report's own time."""
    session = trace.session
    begin = session.start_utc_ns if session.is_utc else 0
    windows = [rank.window for rank in ranks]
    start_ns = min(window.start_ns for window in windows)
    end_ns = max(window.end_ns for window in windows)
    if session.end_ns is not None:
        end_ns = max(end_ns, session.end_ns)
    else:
        ends = [int(rank.calls.end_ns.max()) for rank in ranks if rank.calls]
        end_ns = max([end_ns, *ends])
    return start_ns if begin is None else min(begin, start_ns), end_ns


def check_is_captured(time_range: Range, spans: Sequence[tuple[int, int]]) -> None:
    """Raise a `UsageError` if a time range overlaps no capture, given by begin and end."""
    start, end = time_range
    for begin_ns, end_ns in spans:
        if (start is None or start < end_ns) and (end is None or end > begin_ns):
            return
    begin_ns, end_ns = min(begin for begin, _ in spans), max(end for _, end in spans)
    raise UsageError(
        f"cannot analyse the time range {_written(time_range)}",
        f"nothing was captured in it: the capture lasts from {begin_ns} to {end_ns} ns",
        "choose a range within it",
    )


def no_such_steps(steps: Range, known: Iterable[tuple[int, int]]) -> UsageError:
    """Return the error for steps that no rank has; `known` are first and last step of each rank."""
    ends = list(known)
    return UsageError(
        f"cannot analyse the steps {_written(steps)}",
        f"the steps found are {min(first for first, _ in ends)} to {max(last for _, last in ends)}"
        if ends
        else "no training step was found",
        "choose among them"
        if ends
        else "name the range around a step with --step-pattern, or use --time-range",
    )


def _step_window(rank: Rank, steps: Range) -> Window | None:
    if rank.steps is None:
        return None
    first, stop = steps
    numbers = rank.steps.number
    chosen = numbers >= (numbers.min(initial=0) if first is None else first)
    if stop is not None:
        chosen &= numbers < stop
    indices = chosen.nonzero()[0]
    if len(indices) == 0:
        return None
    if indices[-1] - indices[0] + 1 != len(indices):
        raise UsageError(
            f"cannot analyse the steps {_written(steps)}",
            "these numbers occur more than once in the report",
            "choose by --time-range",
        )
    start_ns, end_ns = int(rank.steps.start_ns[indices[0]]), int(rank.steps.end_ns[indices[-1]])
    return Window(start_ns, end_ns, kind=WindowKind.STEPS)


def _check_order(what: str, limits: Range, why_empty: str) -> None:
    start, end = limits
    if start is None or end is None or start < end:
        return
    raise UsageError(
        f"cannot analyse the {what} {_written(limits)}",
        f"it is empty: {why_empty}" if start == end else "it ends before it starts",
        "write A:B with A below B",
    )


def _written(limits: Range) -> str:
    return ":".join("" if limit is None else str(limit) for limit in limits)
