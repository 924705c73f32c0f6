"""Training steps: NVTX ranges on the host, and the windows they open on the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import Operations, RankOperations
    from traceprof.trace.model.ranges import NamedRanges
    from traceprof.trace.model.trace import Trace


@dataclass(frozen=True, slots=True)
class StepPattern:
    """How a framework names the range around one training step.

    Attributes:
        expression: matches the whole name; its first group, if any, is the step's number.
    """

    expression: re.Pattern[str]


# In order of preference: the first that a process has ranges for is its step.
PATTERNS: tuple[StepPattern, ...] = (
    # `instrument.step`, and what people write by hand
    StepPattern(re.compile(r"\Astep (\d+)\Z")),
    # torch.profiler's step, when it is emitted as NVTX
    StepPattern(re.compile(r"\AProfilerStep#(\d+)\Z")),
    # iteration_12, Iteration 12, train_step 3, training_step_3, global_step 3, Step 3
    StepPattern(
        re.compile(
            r"\A(?:iteration|iter|train(?:ing)?[_ ]step|global_step|step)[ _#:]*(\d+)\Z",
            re.IGNORECASE,
        )
    ),
    # PyTorch Lightning's profiler (action `run_training_batch`)
    StepPattern(re.compile(r"\A(?:\[pl\]\[profile\])?run_training_batch\Z")),
    # Megatron-LM and scripts that open one unnumbered range per step
    StepPattern(re.compile(r"\A(?:train_step|training_step|train_batch)\Z")),
)


@dataclass(frozen=True, slots=True)
class StepRanges:
    """The steps of one process, as its host saw them, ordered by start.

    Attributes:
        number: int64[n], as the names tell, else 0, 1, 2, …
        start_ns: int64[n].
        end_ns: int64[n].
    """

    number: Int64
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, slots=True)
class StepWindows:
    """The steps of one rank, as its GPU saw them, ordered by start.

    Attributes:
        number: int64[n].
        start_ns: int64[n], when the first operation launched inside the step started.
        end_ns: int64[n], where the next step starts; the last ends with its last operation.
    """

    number: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.number)

    def chosen(
        self, chosen: Int64 | np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    ) -> StepWindows:
        """Return the steps at these indices, or where this mask is true."""
        return StepWindows(self.number[chosen], self.start_ns[chosen], self.end_ns[chosen])


def user_pattern(text: str) -> re.Pattern[str]:
    """Compile a user's step pattern.

    Raises:
        UsageError: not a regular expression.
    """
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"cannot use the step pattern {text!r}",
            f"it is not a regular expression ({error})",
            r"write it as Python's re module reads it, such as 'epoch \d+ batch (\d+)'",
        ) from error


def find_steps(trace: Trace, user: re.Pattern[str] | None = None) -> dict[int, StepRanges]:
    """Return the step ranges of each process that has some.

    Args:
        trace: an open report.
        user: searched for in every range's name, instead of the built-in patterns. The group
            named `step`, else the first group, is the step's number.
    """
    if user is not None:
        return {process: _numbered(ranges, user) for process, ranges in trace.ranges(user).items()}
    any_of = re.compile(
        "|".join(f"(?:{pattern.expression.pattern})" for pattern in PATTERNS), re.IGNORECASE
    )
    candidates = trace.ranges(any_of)
    steps = {}
    for process, ranges in candidates.items():
        for pattern in PATTERNS:
            chosen = _matching(ranges, pattern.expression)
            if len(chosen.names):
                steps[process] = _numbered(chosen, pattern.expression)
                break
    return steps


def step_windows(
    operations: RankOperations, launched_by: Sequence[Int64], calls: ApiCalls, ranges: StepRanges
) -> StepWindows:
    """Return the windows that a process's steps open on one of its ranks.

    A step that launched nothing on this rank has no window. Steps follow each other in GPU time;
    of two that start at once (one range inside another), the outer comes first and is empty.

    Args:
        operations: of the rank.
        launched_by: for each group of operations the index of the call of each, -1 for none.
        calls: of the process.
        ranges: the steps of the process.
    """
    launched, start, end = _by_launch(operations.groups, launched_by, calls)
    first = np.searchsorted(launched, ranges.start_ns, side="left")
    stop = np.searchsorted(launched, ranges.end_ns, side="left")
    used = np.flatnonzero(stop > first)
    if len(used) == 0:
        nothing = np.empty(0, np.int64)
        return StepWindows(nothing, nothing, nothing)
    slices = np.stack((first[used], stop[used]), axis=1).ravel()
    # reduceat reduces between each index and the next: every other result is between two steps.
    begins = np.minimum.reduceat(np.append(start, 0), slices)[::2]
    finishes = np.maximum.reduceat(np.append(end, 0), slices)[::2]
    order = np.argsort(begins, kind="stable")
    begins = begins[order]
    ends = np.append(begins[1:], finishes[order[-1]])
    return StepWindows(ranges.number[used][order], begins, ends)


def host_step_windows(ranges: StepRanges, end_ns: int) -> StepWindows:
    """Return the windows of the steps of a process without GPU work.

    As on a GPU they follow each other without a gap, so that what happens between two ranges, such
    as loading data, belongs to the step before; the last ends with its range, or with the process.

    Args:
        ranges: the steps of the process.
        end_ns: when the last range of the process ended.
    """
    last = np.maximum(ranges.start_ns[-1:], np.minimum(ranges.end_ns[-1:], end_ns))
    return StepWindows(ranges.number, ranges.start_ns, np.concatenate((ranges.start_ns[1:], last)))


def _by_launch(
    groups: Sequence[Operations], launched_by: Sequence[Int64], calls: ApiCalls
) -> tuple[Int64, Int64, Int64]:
    """Return launch, start and end of all operations with a known launch, by launch."""
    known = [call >= 0 for call in launched_by]
    launched = calls.start_ns[
        np.concatenate([call[has] for call, has in zip(launched_by, known, strict=True)])
    ]
    start = np.concatenate([group.start_ns[has] for group, has in zip(groups, known, strict=True)])
    end = np.concatenate([group.end_ns[has] for group, has in zip(groups, known, strict=True)])
    order = np.argsort(launched, kind="stable")
    return launched[order], start[order], end[order]


def _matching(ranges: NamedRanges, expression: re.Pattern[str]) -> NamedRanges:
    chosen = [index for index, name in enumerate(ranges.names) if expression.search(name)]
    return type(ranges)(
        ranges.start_ns[chosen],
        ranges.end_ns[chosen],
        [ranges.names[index] for index in chosen],
        ranges.thread[chosen],
    )


def _numbered(ranges: NamedRanges, expression: re.Pattern[str]) -> StepRanges:
    texts = [_number_text(expression.search(name)) for name in ranges.names]
    usable = all(text is not None and text.isdecimal() and len(text) < 19 for text in texts)
    numbers = (
        np.array([int(text or 0) for text in texts], np.int64)
        if usable
        else np.arange(len(texts), dtype=np.int64)
    )
    return StepRanges(numbers, ranges.start_ns, ranges.end_ns)


def _number_text(match: re.Match[str] | None) -> str | None:
    if match is None or not match.re.groups:
        return None
    return match["step"] if "step" in match.re.groupindex else match[1]
