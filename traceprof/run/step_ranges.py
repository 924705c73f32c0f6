"""Training steps: NVTX ranges on the host, and the windows they open on the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum

import numpy as np
import numpy.typing as npt

from traceprof import intervals, labels
from traceprof.errors import UsageError
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.operations import RankOperations
from traceprof.trace.model.ranges import NamedRanges
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.model.trace import Trace


class StepsSource(str, Enum):
    """The evidence that says where steps begin."""

    RANGES = "ranges"
    PERIOD = "period"
    NONE = "none"


# Frameworks' names of the range around one training step. The first group, if any, is the step's
# number. In order of preference: the first pattern with matching ranges defines a process's steps.
PATTERNS: tuple[re.Pattern[str], ...] = (
    # `instrument.step`, and names written by hand
    re.compile(r"\Astep (\d+)\Z"),
    # torch.profiler's step, when it is emitted as NVTX
    re.compile(r"\AProfilerStep#(\d+)\Z"),
    # iteration_12, Iteration 12, train_step 3, training_step_3, global_step 3, Step 3
    re.compile(
        r"\A(?:iteration|iter|train(?:ing)?[_ ]step|global_step|step)[ _#:]*(\d+)\Z", re.IGNORECASE
    ),
    # PyTorch Lightning's profiler (action `run_training_batch`)
    re.compile(r"\A(?:\[pl\]\[profile\])?run_training_batch\Z"),
    # Megatron-LM and scripts that open one unnumbered range per step
    re.compile(r"\A(?:train_step|training_step|train_batch)\Z"),
    # SGLang: step[DECODE bs=32 toks=32]; one of the next may be around it
    re.compile(r"\Astep\[[A-Z_]+ bs=\d+.*\]\Z"),
    # vLLM: execute_context_2(512)_generation_30(30), or execute_542_context_2(…)_generation_30(…)
    re.compile(r"\Aexecute_(?:\d+_)?context_\d+\(.*\)_generation_\d+\(.*\)\Z"),
)


OPTIMIZER_RANGES = re.compile(rf"\A(?:{labels.OPTIMIZER_STEP}(?: |\Z)|Optimizer\.step#)")
"""Steps of optimizers: ranges of `instrument`, and PyTorch's own."""
# A step ends with its optimizer step: a range of `instrument`, else PyTorch's own.
_OPTIMIZER_STEPS = (
    re.compile(rf"\A{labels.OPTIMIZER_STEP}(?: |\Z)"),
    re.compile(r"\AOptimizer\.step#\w+\.step\b"),
)
_CUT = re.compile(rf"\A{labels.CUT} step \d+\Z")
"""The label which says that an exception ended a step: see `labels.cut`."""
_WARM_UP = re.compile(r"\bwarm[ _-]?up\b", re.IGNORECASE)


class StepRanges(Record, frozen=True):
    """The steps of one process on the host, ordered by start."""

    number: Int64  # int64[n], from the names, else 0, 1, 2, …
    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    # bool[n], whether an exception or the capture's end cut it; None if none
    is_cut: npt.NDArray[np.bool_] | None = None
    num_nested: int = 0  # how many more ranges with such names lie inside of these, or around all


class TrainingRanges(Record, frozen=True):
    """The ranges of one process that concern its training."""

    steps: StepRanges | None  # its marked steps, None without any
    optimizer_ends_ns: Int64  # int64[n], ascending, when each optimizer step was over
    warm_up: Intervals  # when it warmed up

    @property
    def marks_steps(self) -> bool:
        """Whether they say where steps begin."""
        return self.steps is not None or len(self.optimizer_ends_ns) > 0


NO_TRAINING_RANGES = TrainingRanges(None, np.empty(0, np.int64), intervals.empty())


class StepWindows(Rows, frozen=True):
    """The steps of one rank on its GPU, ordered by start."""

    number: Int64  # int64[n]
    start_ns: Int64  # int64[n], when the first operation launched inside the step started
    end_ns: Int64  # int64[n], where the next step starts; the last ends with its last operation
    source: Int64  # int64[n], indices into the process's `StepRanges`
    found_by: StepsSource = StepsSource.RANGES  # the evidence for all of them
    phase: Int64 | None = None  # int64[n], phase of the program; None if it has one

    @property
    def phases(self) -> Int64:
        """The phase of each, int64[n]; 0 if there is one."""
        return np.zeros(len(self), np.int64) if self.phase is None else self.phase


def user_pattern(text: str) -> re.Pattern[str]:
    """Compile a user's step pattern; a `UsageError` if it is no regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"cannot use the step pattern {text!r}",
            f"it is not a regular expression ({error})",
            r"write it in the syntax of Python's re module, such as 'epoch \d+ batch (\d+)'",
        ) from error


def find_training_ranges(
    trace: Trace, user: re.Pattern[str] | None = None
) -> dict[int, TrainingRanges]:
    """Training ranges of each process that has any; `user`: a pattern instead of the built-in ones.

    Its group named `step`, else its first group, is the step's number.
    """
    expressions = [*_OPTIMIZER_STEPS, _WARM_UP, _CUT]
    if user is None:
        expressions += PATTERNS
    any_of = re.compile("|".join(f"(?:{part.pattern})" for part in expressions), re.IGNORECASE)
    candidates = trace.ranges(any_of)
    by_user = {} if user is None else trace.ranges(user)
    found = {}
    for process in candidates.keys() | by_user.keys():
        steps = _numbered(by_user[process], user) if user and process in by_user else None
        ends_ns, warm_up = NO_TRAINING_RANGES.optimizer_ends_ns, intervals.empty()
        if process in candidates:
            ranges = candidates[process]
            steps = steps if user else _marked_steps(ranges)
            ends_ns, warm = _optimizer_ends(ranges), ranges.named(_WARM_UP.search)
            warm_up = intervals.union(warm.start_ns, warm.end_ns)
        found[process] = TrainingRanges(steps, ends_ns, warm_up)
    return found


def steps_by_optimizer(begin_ns: int, ends_ns: Int64) -> StepRanges | None:
    """Steps from each optimizer step's end to the next, the first from `begin_ns`."""
    if len(ends_ns) == 0:
        return None
    start = np.concatenate((np.array([begin_ns], np.int64), ends_ns[:-1]))
    kept = np.flatnonzero(start < ends_ns)
    return StepRanges(kept, start[kept], ends_ns[kept])


def step_windows(
    operations: RankOperations, launched_by: Sequence[Int64], calls: ApiCalls, ranges: StepRanges
) -> StepWindows:
    """Windows that a process's steps open on one of its ranks.

    They follow each other in GPU time; a step that launched nothing has none. Of two that start at
    once, the outer comes first and is empty. A copy on a stream without kernels begins none while
    earlier work still runs: copies may run ever further ahead. `launched_by`: by group.
    """
    launched, start, end, is_beside = _by_launch(operations, launched_by, calls)
    first = np.searchsorted(launched, ranges.start_ns, side="left")
    stop = np.searchsorted(launched, ranges.end_ns, side="left")
    used = np.flatnonzero(stop > first)
    if len(used) == 0:
        nothing = np.empty(0, np.int64)
        return StepWindows(nothing, nothing, nothing, nothing)
    slices = np.stack((first[used], stop[used]), axis=1).ravel()
    # reduceat reduces between each index and the next: every other result is between two steps.
    begins = np.minimum.reduceat(np.append(start, 0), slices)[::2]
    of_kernels = np.minimum.reduceat(np.append(np.where(is_beside, OPEN_END, start), 0), slices)[
        ::2
    ]
    working = np.maximum.accumulate(np.insert(np.where(is_beside, 0, end), 0, 0))[first[used]]
    runs_ahead = (begins < working) & (of_kernels < OPEN_END)
    begins = np.where(runs_ahead, of_kernels, begins)
    finishes = np.maximum.reduceat(np.append(end, 0), slices)[::2]
    order = np.argsort(begins, kind="stable")
    begins = begins[order]
    ends = np.append(begins[1:], finishes[order[-1]])
    used = used[order]
    return StepWindows(ranges.number[used], begins, ends, used)


def host_step_windows(ranges: StepRanges, end_ns: int) -> StepWindows:
    """Windows of the steps of a process without GPU work: each ends where the next begins."""
    last = np.maximum(ranges.start_ns[-1:], np.minimum(ranges.end_ns[-1:], end_ns))
    end = np.concatenate((ranges.start_ns[1:], last))
    return StepWindows(ranges.number, ranges.start_ns, end, np.arange(len(end)))


def _by_launch(
    operations: RankOperations, launched_by: Sequence[Int64], calls: ApiCalls
) -> tuple[Int64, Int64, Int64, npt.NDArray[np.bool_]]:
    """Launch, start and end of all operations with a known launch, by launch.

    A fourth array says whether each is a copy on a stream without kernels.
    """
    groups = operations.groups
    kernels = [operations.kernels, operations.graphs]
    with_kernels = np.concatenate([group.packed_stream.distinct for group in kernels])
    known = [call >= 0 for call in launched_by]
    launched = calls.start_ns.take(np.concatenate(_where(known, launched_by)))
    start = np.concatenate(_where(known, [group.start_ns for group in groups]))
    end = np.concatenate(_where(known, [group.end_ns for group in groups]))
    is_beside = np.concatenate(
        [
            ~is_in(group.stream[has], with_kernels)
            if group is operations.copies or group is operations.memsets
            else np.zeros(np.count_nonzero(has), np.bool_)
            for group, has in zip(groups, known, strict=True)
        ]
    )
    order = np.argsort(launched, kind="stable")
    return launched.take(order), start.take(order), end.take(order), is_beside.take(order)


def _where(masks: Iterable[Mask], columns: Iterable[Int64]) -> list[Int64]:
    return [column.compress(mask) for mask, column in zip(masks, columns, strict=True)]


def _marked_steps(candidates: NamedRanges) -> StepRanges | None:
    for pattern in PATTERNS:
        chosen = candidates.named(pattern.search)
        if len(chosen):
            cuts = candidates.named(_CUT.search).texts
            cut = {name.removeprefix(f"{labels.CUT} ") for name in cuts}
            return _numbered(chosen, pattern, cut)
    return None


def _optimizer_ends(candidates: NamedRanges) -> Int64:
    """Ends of optimizer steps; one inside another does not count."""
    for expression in _OPTIMIZER_STEPS:
        end = candidates.named(expression.search).end_ns
        if len(end):
            end = end[end < OPEN_END]
            reached = np.maximum.accumulate(np.insert(end, 0, np.iinfo(np.int64).min))
            return end[end > reached[:-1]]
    return NO_TRAINING_RANGES.optimizer_ends_ns


def _numbered(
    ranges: NamedRanges, expression: re.Pattern[str], cut: AbstractSet[str] = frozenset()
) -> StepRanges:
    """Steps by the numbers in their names; exceptions cut those with names in `cut`."""
    num_named, ranges = len(ranges), _outer(ranges)
    numbers, names = np.arange(len(ranges), dtype=np.int64), ranges.texts
    if expression.groups:
        group: str | int = "step" if "step" in expression.groupindex else 1
        matches = [expression.search(name) for name in names]
        texts = [match[group] or "" for match in matches if match]
        if all(text.isdecimal() and len(text) < 19 for text in texts):
            numbers = np.array([*map(int, texts)], np.int64)
    is_cut = np.array([name in cut for name in names], np.bool_)
    is_cut[-1:] |= ranges.end_ns[-1:] == OPEN_END
    return StepRanges(
        numbers,
        ranges.start_ns,
        ranges.end_ns,
        is_cut if bool(is_cut.any()) else None,
        num_named - len(ranges),
    )


def _outer(ranges: NamedRanges) -> NamedRanges:
    """Ranges that lie in no other one of their thread; one around all others is no step.

    A library may number steps of its own inside. A range that never ended holds none.
    """
    chosen = []
    for thread in distinct_values(ranges.thread):
        at = np.flatnonzero(ranges.thread == thread)
        at = at[np.lexsort((-ranges.end_ns[at], ranges.start_ns[at]))]
        end = ranges.end_ns[at]
        latest = np.maximum.accumulate(end[::-1])[::-1]
        holds_all = (end[:-2] < OPEN_END) & (end[:-2] >= latest[1:-1])
        num_around = int(np.append(holds_all, False).argmin())
        at, end = at[num_around:], end[num_around:]
        reached = np.maximum.accumulate(np.where(end < OPEN_END, end, 0))
        chosen.append(at[end > np.insert(reached[:-1], 0, -1)])
    return ranges.chosen(np.sort(np.concatenate(chosen)))
