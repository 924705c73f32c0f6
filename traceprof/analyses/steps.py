"""Training steps: their lengths, and the means of the steady ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.analyses.breakdown import BreakdownResult, StepMeasures, times_within
from traceprof.analyses.results import RankResult
from traceprof.errors import one_line
from traceprof.findings import Count, Fraction, one_of, share
from traceprof.host.idle_causes import IdleCause, details, idle_causes, wait_idle
from traceprof.host.places import PlaceKind, kind_of, place_ranges, unnumbered
from traceprof.host.thread_evidence import calls_of_kind
from traceprof.intervals import NO_NUMBERS, Int64, Intervals
from traceprof.kernel_names import function_name
from traceprof.run.mean_change import halves, trend
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import (
    StepUse,
    kinds_of_steps,
    marked_number,
    number_of_idle,
    steady_steps,
)
from traceprof.run.step_ranges import StepWindows
from traceprof.run.windows import shown_window
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import distinct_values, is_in, median_of
from traceprof.trace.model.kinds import ApiCallKind

PARTS = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
SPOKEN = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_copy_ns": "exposed copies",
    "idle_ns": "idle",
    "lost_ns": "lost",
}
COLUMNS = ("window_ns", *PARTS)
"""The length of a step, and the parts that sum to it."""
CAUSE_WORDS = {
    "launch_bound_ns": "launching",
    "turnaround_ns": "the GPU's own turn-around",
    "queued_ns": "launched work that waits",
    "sync_ns": "waits for the GPU",
    "data_loading_ns": "data loading",
    "mpi_ns": "MPI",
    "setup_ns": "set-up",
    "allocation_ns": "allocation",
    "stalled_ns": "stalls of the host",
    "waiting_ns": "sleep",
    "host_code_ns": "code on the host",
    "unknown_ns": "unknown",
}
"""What a GPU waits for, by the metric of `gpu-idle`."""
CAUSES = tuple(CAUSE_WORDS)
"""Of idle time."""


def mean_step(totals: Sequence[StepTotals], *, has_steps: bool) -> dict[str, float]:
    """Return what the mean step takes on the mean rank, in ns, by column and cause."""
    counted = [rank for rank in totals if rank.num_steps or not has_steps]
    return {
        name: sum(getattr(rank, name) / max(rank.num_steps, 1) for rank in counted)
        / max(len(counted), 1)
        for name in (*COLUMNS, "lost_ns", *CAUSES)
    }


def in_whole_ns(mean: Mapping[str, float]) -> dict[str, int]:
    """Return a mean step in whole ns: parts and lost time sum to it, causes to idle time."""
    total = round(mean["window_ns"])
    parts = _rounded({name: mean[name] for name in (*PARTS, "lost_ns")}, total)
    causes = _rounded({name: mean[name] for name in CAUSES}, parts["idle_ns"])
    return {"window_ns": total, **parts, **causes}


def _rounded(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Round parts so that they sum to a total: what rounding leaves goes to the largest."""
    whole = {name: round(value) for name, value in parts.items()}
    largest = max(parts, key=lambda name: parts[name])
    whole[largest] += total - sum(whole.values())
    return whole


_MAX_STEPS_OF_A_BLOCK = 5  # neighbours are alike: noise is that between blocks of them
_MIN_BLOCKS = 6
_MAX_BLOCKS_OF_SUMS = 40


class StepTotals(Struct, frozen=True, forbid_unknown_fields=True):
    """The steady steps of a rank together; without steps, the time that findings judge.

    The four parts and lost_ns sum to window_ns, the causes of idle time (see `gpu-idle`) to
    idle_ns.
    """

    rank: Count
    num_steps: Annotated[Count, "Number of steps; 0 where no steps are known."]
    steps: Annotated[
        tuple[Count, ...],
        "Their indices among the rank's `steps`, from 0: the steps with `left_out` null.",
    ]
    window_ns: Count
    compute_ns: Count
    exposed_communication_ns: Count
    exposed_copy_ns: Count
    idle_ns: Count
    launch_bound_ns: Count
    turnaround_ns: Count
    sync_ns: Count
    data_loading_ns: Count
    mpi_ns: Count
    setup_ns: Count
    allocation_ns: Count
    waiting_ns: Count
    host_code_ns: Count
    unknown_ns: Count
    queued_ns: Count = 0
    stalled_ns: Count = 0
    lost_ns: Annotated[Count, "As in `breakdown`."] = 0


def step_totals(rank: Rank, window: Window) -> StepTotals:
    """Add up the steady steps of a rank in a window."""
    steps = steady_steps(rank, window)
    times = times_within(rank, steps.start_ns, steps.end_ns)
    totals = {name: intervals.total(times[name]) for name in (*COLUMNS, "lost_ns")}
    by_cause = dict.fromkeys(IdleCause, 0)
    if rank.device is not None:
        idle = _idle_within(rank, steps.start_ns, steps.end_ns)
        by_cause = {cause: intervals.total(idle_ns) for cause, idle_ns in idle.items()}
    # Before its first operation and after its last one nothing is known of a rank.
    by_cause[IdleCause.UNKNOWN] += totals["idle_ns"] - sum(by_cause.values())
    return StepTotals(
        rank=rank.rank,
        num_steps=len(steps.step),
        steps=tuple((steps.step - first_shown(rank, window)).tolist()),
        **totals,
        **{f"{cause.value}_ns": ns for cause, ns in by_cause.items()},
    )


def _idle_within(rank: Rank, start_ns: Int64, end_ns: Int64) -> dict[IdleCause, Int64]:
    causes = idle_causes(rank)
    return {
        cause: intervals.covered_within(causes.of(cause), start_ns, end_ns) for cause in IdleCause
    }


def first_shown(rank: Rank, window: Window) -> int:
    """Return the index of the first of the rank's steps that is shown; 0 without any."""
    if rank.steps is None:
        return 0
    shown = shown_window(rank, window)
    is_shown = (rank.steps.start_ns >= shown.start_ns) & (rank.steps.end_ns <= shown.end_ns)
    return int(is_shown.argmax()) if is_shown.any() else 0


def num_blocks(num_steps: int) -> int:
    """Return the number of blocks for sums over this number of steps; 0 if noise is unknown."""
    steps_of_a_block = min(max(num_steps // _MIN_BLOCKS, 1), _MAX_STEPS_OF_A_BLOCK)
    num = min(num_steps // steps_of_a_block, _MAX_BLOCKS_OF_SUMS)
    return num if num > 2 else 0


def block_of(num_steps: int) -> Int64:
    """Return the block of each step, int64[num_steps]; all are of one where there are too few."""
    return np.arange(num_steps, dtype=np.int64) * max(num_blocks(num_steps), 1) // max(num_steps, 1)


WhyLeftOut = Literal["cut", "opening", "rare", "phase"]
WHY_LEFT_OUT: dict[StepUse, WhyLeftOut] = {
    StepUse.CUT: "cut",
    StepUse.OPENING: "opening",
    StepUse.RARE: "rare",
    StepUse.PHASE: "phase",
}


class StepKind(Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of steady steps, of similar length."""

    num_steps: Count
    mean_ns: Count


class LeftOutSteps(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of the training that do not count toward the mean step."""

    why: Annotated[
        WhyLeftOut,
        "`cut`: the first or last step, with a part missing. `opening`: slow steps at the"
        " beginning. `rare`: far longer than others, since something else ran in them. `phase`:"
        " all those of phases of the program that are not the longest; see `headline.phases`.",
    ]
    num_steps: Count
    total_ns: Count


class ProgramPhase(Struct, frozen=True, forbid_unknown_fields=True):
    """A phase of the program on one rank: periods of the same kernels."""

    phase: Annotated[Count, "Its index, in order of time, as `steps[].phase`."]
    start_ns: Annotated[int, "Start of its first step, on the clock of the rank's report."]
    end_ns: Annotated[int, "End of its last step."]
    num_steps: Annotated[Count, "Number of its steady steps."]
    step_ns: Annotated[Count, "Their mean."]
    share: Annotated[Fraction, "The share of the time that findings judge, from start to end."]
    counts: Annotated[
        bool,
        "Whether its steps are the steps of the headline, of savings and of all costs per step:"
        " those of the longest phase are.",
    ]


class StepLengths(Record, frozen=True):
    """Lengths of the training steps of a rank."""

    num_steps: int  # the number of steady steps
    mean_ns: int  # their mean length: what a step takes
    median_ns: int  # their median length
    # the slowest of all that are judged, whether it counts or not, but of no other phase
    slowest: StepMeasures
    # of them, the shorter ones first; one where all are alike
    kinds: tuple[StepKind, ...]
    left_out: tuple[LeftOutSteps, ...]  # the other steps


def judged_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return the steps of a rank that findings are about."""
    return [step for step in result.steps if step.use is not None]


def counted_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return those of them that count for what a step takes."""
    return [step for step in result.steps if step.use is StepUse.STEADY]


def steady_spans(result: BreakdownResult) -> Intervals:
    """Return when these ran, in the time of the rank's report; empty without steps."""
    windows = [
        (step.measures.window_start_ns, step.measures.window_ns) for step in counted_steps(result)
    ]
    start_ns, length_ns = np.array(windows, np.int64).reshape(-1, 2).T
    return Intervals(start_ns, start_ns + length_ns)


def step_lengths(result: BreakdownResult) -> StepLengths | None:
    """Return how long the training steps of a rank take; None if it has none."""
    steps = counted_steps(result)
    if not steps:
        return None
    lengths = np.array([step.measures.window_ns for step in steps], np.int64)
    alike = [step for step in judged_steps(result) if step.phase == steps[0].phase]
    return StepLengths(
        num_steps=len(steps),
        mean_ns=_mean(lengths),
        median_ns=round(float(median_of(lengths))),
        slowest=max(alike, key=lambda step: step.measures.window_ns),
        kinds=tuple(
            StepKind(int(kind.sum()), _mean(lengths[kind])) for kind in kinds_of_steps(lengths)
        ),
        left_out=tuple(_left_out(result)),
    )


_MIN_TREND = 0.03  # by which share steps of one half must be longer for a sentence


class StepTrend(NamedTuple):
    """How the counted steps of the second half of a recording differ from those of the first."""

    share: float  # how much longer they are; below 0: shorter
    first_ns: int  # the mean of the first half
    second_ns: int
    part: str  # the field of a breakdown that changed most
    runs_as_many: bool  # whether both halves run as many kernels, within 1 %


def step_trend(result: BreakdownResult) -> StepTrend | None:
    """Return how the steps of a rank change within the recording; None if they do not, surely."""
    steps = counted_steps(result)
    lengths = np.array([step.measures.window_ns for step in steps], np.float64)
    changed, parts = trend(lengths), halves(lengths)
    if changed is None or parts is None or abs(changed) < _MIN_TREND:
        return None
    begin, end = parts

    def means(name: str) -> tuple[float, float]:
        values = np.array([getattr(step.measures, name) for step in steps], np.float64)
        return float(values[begin].mean()), float(values[end].mean())

    first, second = map(round, means("window_ns"))
    grown = {}
    for name in PARTS:
        before, after = means(name)
        grown[name] = (after - before) * float(np.sign(changed))
    before, after = means("num_kernels")
    return StepTrend(
        changed,
        first,
        second,
        max(PARTS, key=lambda name: grown[name]),
        abs(after - before) <= 0.01 * before,
    )


def phases(result: BreakdownResult) -> tuple[ProgramPhase, ...]:
    """Return the phases of a rank's program, in order of time; empty if it has one."""
    counted, numbers = _counted_phase(result), {step.phase for step in judged_steps(result)}
    if len(numbers) < 2:
        return ()
    return tuple(_phase(result, number, counts=number == counted) for number in sorted(numbers))


def _counted_phase(result: BreakdownResult) -> int | None:
    return next((step.phase for step in counted_steps(result)), None)


def _phase(result: BreakdownResult, number: int, *, counts: bool) -> ProgramPhase:
    start_ns, end_ns = result.phase_spans[number]
    steady = [
        step.measures.window_ns
        for step in result.steps
        if step.phase == number and step.use in {StepUse.STEADY, StepUse.PHASE}
    ]
    return ProgramPhase(
        phase=number,
        start_ns=start_ns,
        end_ns=end_ns,
        num_steps=len(steady),
        step_ns=_mean(np.array(steady, np.int64)) if steady else 0,
        share=share(end_ns - start_ns, result.judged.window_ns),
        counts=counts,
    )


def slowest_rank(results: Sequence[BreakdownResult]) -> BreakdownResult:
    """Return the rank whose step takes longest, else whose window that is judged is longest."""
    return max(results, key=lambda result: (step_ns(result), -result.rank))


def step_ns(result: BreakdownResult) -> int:
    """Return what a step of a rank takes; without steps all that is judged is one."""
    return round(mean_ns(result, "window_ns"))


def mean_ns(result: BreakdownResult, measure: str) -> float:
    """Return a field of `Measures` in the mean step of a rank; see `step_ns`."""
    steps = [step.measures for step in counted_steps(result)] or [result.judged]
    total: int = sum(getattr(step, measure) for step in steps)
    return total / len(steps)


def _mean(lengths_ns: Int64) -> int:
    return round(int(lengths_ns.sum()) / len(lengths_ns))


def _left_out(result: BreakdownResult) -> list[LeftOutSteps]:
    groups: dict[StepUse, list[int]] = {use: [] for use in WHY_LEFT_OUT}
    counted = _counted_phase(result)
    for step in judged_steps(result):
        use = step.use if step.phase == counted else StepUse.PHASE
        if use:
            groups[use].append(step.measures.window_ns)
    return [LeftOutSteps(WHY_LEFT_OUT[use], len(ns), sum(ns)) for use, ns in groups.items() if ns]


MIN_FACTOR = 1.5
"""A step is slow that takes so many times the median of its phase."""
_MIN_EXPLAINED = 0.5  # of what a slow step takes more
_MAX_ELSEWHERE = 0.1  # of the usual steps
_MIN_CANDIDATE = 0.1
_OTHERS = {"range", "operator"}
_MAX_CANDIDATES = 12
_MAX_EXPLAINED_STEPS = 100  # the costliest; of others the part is named
_FILE = re.compile(
    r"p?(?:read|write)v?(?:64|2|64v2)?\Z|f(?:read|write|sync|datasync|flush)\Z|sync_file"
)
_CAUSE_OF_KIND = {
    PlaceKind.CHECKPOINT: "checkpoint",
    PlaceKind.EVALUATION: "evaluation",
    PlaceKind.COLLECTION: "collection",
    PlaceKind.COMPILE: "compile",
    PlaceKind.LOADER: "data_loading",
    PlaceKind.CAPTURE: "setup",
}
RAN = ("checkpoint", "evaluation", "collection", "compile", "file", "range", "operator")
"""Causes that are something that ran in the step and nowhere else."""
_WAITING = "exposed_communication"
_PARTS = ("compute", _WAITING, "exposed_copy")
LATE_RETURN = "late_return"
SLOW_CAUSES = (*RAN, *_PARTS, LATE_RETURN, *(cause.value for cause in IdleCause))
_WORDS = {
    "checkpoint": "a checkpoint",
    "evaluation": "evaluation",
    "collection": "garbage collection",
    "compile": "compilation",
    "file": "access to files",
    "range": "a range",
    "operator": "an operator",
    "compute": "more compute",
    "exposed_communication": "communication that nothing hides",
    "exposed_copy": "copies that nothing hides",
    "late_return": "the GPU was done, but the host stayed in its wait",
    **{name.removesuffix("_ns"): words for name, words in CAUSE_WORDS.items()},
}
_MAX_NAME = 60


def cause_text(cause: str, label: str | None = None) -> str:
    """Return why a step is slow, in words: `a checkpoint (torch.save)`, `range eval`."""
    name = "" if label is None else one_line(label, _MAX_NAME)
    if name and cause in _OTHERS:
        return f"{cause} {name}"
    is_said = not name or _WORDS[cause].endswith(name)
    return _WORDS[cause] if is_said else f"{_WORDS[cause]} ({name})"


class SlowStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A step that took over 1.5 times the median, and why."""

    index: Annotated[Count, "Its index among the rank's `steps`."]
    number: Annotated[Count, "Its number, as `steps[].step`."]
    host_number: Annotated[
        Count | None,
        "Number on the host's mark in which that happened: the GPU may be at work on an earlier"
        " step. Null without marks.",
    ]
    step_ns: Count
    extra_ns: Annotated[Count, "What it takes more than the median of the steady steps."]
    counts: Annotated[bool, "Whether it counts in the mean step."]
    cause: Annotated[
        str,
        one_of(*SLOW_CAUSES),
        "What ran in it and nowhere else: `checkpoint`, `evaluation`, `collection` (of garbage),"
        " `compile`, `data_loading`, `file` (calls that read or write), `range` or `operator` of"
        " any other kind. Else the part of the step that grew most: a cause of idle time as in"
        " `gpu-idle`, or a part as in `steps`; `late_return`: most of `sync` was spent in a"
        " synchronize call that went on while the GPU was idle.",
    ]
    label: Annotated[
        str | None, "Name of the range, operator, call or kernel; null if nothing is known."
    ]
    cause_ns: Annotated[
        Count, "How long the GPU idled in it or worked for it, or how much it grew."
    ]


class SlowSteps(RankResult, frozen=True):
    """The slow steps of a rank, in order of time."""

    steps: tuple[SlowStep, ...]


def slow_for_themselves(
    slow: Iterable[SlowSteps], results: Iterable[BreakdownResult]
) -> Iterator[tuple[int, SlowStep]]:
    """Yield slow steps with their ranks, without those that other steps or ranks explain.

    Where steps become longer, one is slow that takes so many times those of the longer half. Where
    a rank waits for another one, that one is as slow for a reason of its own, in the same step or
    in the one before.
    """
    trends = {result.rank: step_trend(result) for result in results}
    usual_ns = {
        rank: max(found.first_ns, found.second_ns) for rank, found in trends.items() if found
    }
    found = [
        (of_rank.rank, step)
        for of_rank in slow
        for step in of_rank.steps
        if step.step_ns > MIN_FACTOR * usual_ns.get(of_rank.rank, 0)
    ]
    reasons: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for rank, step in found:
        if step.cause != _WAITING:
            reasons[step.number].append((rank, step.cause_ns))
            reasons[step.number + 1].append((rank, step.cause_ns))
    for rank, step in found:
        others = (ns for other, ns in reasons[step.number] if other != rank)
        if step.cause != _WAITING or max(others, default=0) < _MIN_EXPLAINED * step.extra_ns:
            yield rank, step


class _Candidate(NamedTuple):
    cause: str
    label: str
    when: Intervals
    spent: Int64  # how long the GPU of each step idled in it, or worked for it


def slow_steps(rank: Rank, judged: Window) -> SlowSteps:
    """Find the slow steps of a rank in what is judged."""
    nothing = SlowSteps(rank.rank, ())
    steady = steady_steps(rank, judged)
    if rank.steps is None or len(steady.step) < 2:
        return nothing
    steps, chosen = rank.steps.chosen(steady.judged), steady.judged
    length = steps.end_ns - steps.start_ns
    is_steady = is_in(steady.uses, np.array([StepUse.STEADY, StepUse.PHASE]))
    usual = np.zeros(len(chosen), np.float64)
    for phase in distinct_values(steps.phases).tolist():
        of_phase = steps.phases == phase
        counted = length[of_phase & is_steady]
        usual[of_phase] = np.inf if not len(counted) else float(median_of(counted))
    slow = np.flatnonzero(length > MIN_FACTOR * usual)
    if not len(slow):
        return nothing
    others = np.setdiff1d(np.flatnonzero(is_steady), slow)
    others = np.flatnonzero(is_steady) if not len(others) else others
    at = _Steps(rank, steps, others)
    extra = (length - usual).astype(np.int64)
    costliest = set(slow[np.argsort(-extra[slow], kind="stable")][:_MAX_EXPLAINED_STEPS].tolist())
    first = first_shown(rank, judged)
    candidates = [*_candidates(rank, at, slow, extra)]
    together = at.spent(intervals.merge(*(candidate.when for candidate in candidates)))
    found = []
    for step in slow.tolist():
        is_named = step in costliest
        explains = is_named and together[step] >= max(_MIN_EXPLAINED * int(extra[step]), 1)
        why = at.ran_in(step, candidates) if explains else at.grew(step, is_named=is_named)
        found.append(
            SlowStep(
                index=int(chosen[step]) - first,
                number=int(steps.number[step]),
                host_number=why.host_number,
                step_ns=int(length[step]),
                extra_ns=int(extra[step]),
                counts=bool(steady.uses[step] == StepUse.STEADY),
                cause=why.cause,
                label=why.label,
                cause_ns=why.ns,
            )
        )
    return SlowSteps(rank.rank, tuple(found))


class _Why(NamedTuple):
    cause: str
    label: str | None
    ns: int
    host_number: int | None  # on the host's mark in which it happened; None without marks


class _Steps:
    """The judged steps of a rank, some of which are usual."""

    def __init__(self, rank: Rank, steps: StepWindows, usual: Int64) -> None:
        self.rank, self.number, self.usual = rank, steps.number, usual
        self.start_ns, self.end_ns = start_ns, end_ns = steps.start_ns, steps.end_ns
        self.idle = intervals.complement(rank.not_idle, int(start_ns.min()), int(end_ns.max()))
        launched = []  # for kernels, copies, memsets and graphs
        for group, by in zip(rank.operations.groups, rank.launched_by, strict=True):
            step_of = intervals.holder(start_ns, end_ns, group.start_ns)
            rows = np.flatnonzero((by >= 0) & (step_of >= 0)) if rank.calls else NO_NUMBERS
            called_ns = rank.calls.start_ns[by[rows]] if rank.calls else NO_NUMBERS
            launched.append(
                (rows, step_of[rows], group.ends(rows) - group.start_ns[rows], called_ns)
            )
        self._kernels = launched[0][:3]
        _, self._step_of, self._length, self._launched_ns = map(
            np.concatenate, zip(*launched, strict=True)
        )
        times, idle = times_within(rank, start_ns, end_ns), _idle_within(rank, start_ns, end_ns)
        self._parts = {
            **{part: times[f"{part}_ns"] for part in _PARTS},
            **{cause.value: idle_ns for cause, idle_ns in idle.items()},
        }

    def spent(self, when: Intervals) -> Int64:
        """Return how long the GPU of each step idled in some time of the host, or worked for it."""
        idle = intervals.covered_within(
            intervals.intersect(self.idle, when), self.start_ns, self.end_ns
        )
        inside = intervals.holder(when.start_ns, when.end_ns, self._launched_ns) >= 0
        idle += np.bincount(
            self._step_of[inside], self._length[inside], minlength=len(self.start_ns)
        ).astype(np.int64)
        return np.minimum(idle, self.end_ns - self.start_ns)

    def ran_in(self, step: int, candidates: list[_Candidate]) -> _Why:
        """Return what took most time of a step, of what ran in slow steps only."""
        # Of ranges around each other that of a known kind.
        cause, label, when, spent = max(
            candidates, key=lambda one: one.spent[step] * (1.1 - 0.1 * (one.cause in _OTHERS))
        )
        place = int(np.searchsorted(when.end_ns, self.start_ns[step], side="right"))
        number = marked_number(self.rank, int(when.start_ns[min(place, len(when) - 1)]))
        return _Why(cause, label, int(spent[step]), number)

    def grew(self, step: int, *, is_named: bool) -> _Why:
        """Return the part of a step that grew most over the usual step."""
        growth = {
            name: int(ns[step]) - round(float(median_of(ns[self.usual])))
            for name, ns in self._parts.items()
        }
        part = max(growth, key=lambda name: growth[name])
        low, high = int(self.start_ns[step]), int(self.end_ns[step])
        label = None
        if is_named and part == "compute":
            label = self._kernel(step)
        elif is_named and part not in _PARTS:
            named = details(self.rank, Window(low, high), IdleCause(part))
            label = named[0].name if named else None
        grown = max(growth[part], 0)
        if is_named and part == IdleCause.SYNC.value:
            held_ns = self._held_in_waits(Window(low, high))
            if 2 * held_ns > grown:
                part, grown = LATE_RETURN, min(held_ns, grown)
        gaps = intervals.clip(self.idle, low, high)
        if part not in _PARTS and len(gaps):
            return _Why(part, label, grown, number_of_idle(self.rank, gaps))
        number = None if self.rank.step_ranges is None else int(self.number[step])
        return _Why(part, label, grown, number)

    def _held_in_waits(self, step: Window) -> int:
        calls = self.rank.calls
        if calls is None:
            return 0
        rows = wait_idle(self.rank, step).call
        rows = rows[calls_of_kind(self.rank, calls, ApiCallKind.SYNCHRONIZE)[rows]]
        within = intervals.union(calls.start_ns[rows], calls.ends(rows))
        idle = intervals.clip(self.idle, step.start_ns, step.end_ns)
        return intervals.intersect(idle, within).measure_ns

    def _kernel(self, step: int) -> str | None:
        """Return the kernel that grew most, of those that ran only then if they take a share."""
        rows, step_of, length = self._kernels
        kernels, names = self.rank.operations.kernels, self.rank.kernel_names
        if not len(rows):
            return None
        ids, which = np.unique(kernels.name[rows], return_inverse=True)
        here, elsewhere = (
            np.bincount(which[chosen], length[chosen], minlength=len(ids))
            for chosen in (step_of == step, np.isin(step_of, self.usual))
        )
        growth = here - elsewhere / max(len(self.usual), 1)
        own = np.where(elsewhere > 0, 0, here)
        is_share = own.sum() >= _MIN_CANDIDATE * growth.clip(0).sum() > 0
        return function_name(names[int(ids[np.argmax(own if is_share else growth)])])


def _candidates(rank: Rank, steps: _Steps, slow: Int64, extra: Int64) -> Iterator[_Candidate]:
    """What ran in slow steps, and hardly in the usual ones."""
    least_ns = int(extra[slow].min())  # there is a slow step
    low, high = steps.start_ns[slow], steps.end_ns[slow]
    scored = []
    for named in (*_ranges(rank), *_operators(rank, least_ns), *_files(rank)):
        share = intervals.covered_within(named[2], low, high) / np.maximum(extra[slow], 1)
        if share.max(initial=0) >= _MIN_CANDIDATE:
            scored.append((-float(share.sum()), named))
    scored.sort(key=lambda item: (item[0], item[1][:2]))
    for _, named in scored[:_MAX_CANDIDATES]:
        spent = steps.spent(named[2])
        if float((spent[steps.usual] > 0).mean()) <= _MAX_ELSEWHERE:
            yield _Candidate(*named, spent)


def _ranges(rank: Rank) -> Iterator[tuple[str, str, Intervals]]:
    ranges = place_ranges(rank)
    kinds = by_key(range(len(ranges.names)), lambda place: unnumbered(ranges.names[place]))
    for label, places in kinds.items():
        name = ranges.names[places[0]]
        when = ranges.intervals_of(np.flatnonzero(np.isin(ranges.name, places)))
        cause = _CAUSE_OF_KIND.get(kind_of(name), "range")
        yield cause, name if len(places) == 1 else label, when


def _operators(rank: Rank, least_ns: int) -> Iterator[tuple[str, str, Intervals]]:
    code = rank.trace.operators(rank.process)
    if code is None:
        return
    start, name = code.start_ns, code.packed_name.values
    end = code.ends(slice(None))
    is_long = end - start >= _MIN_CANDIDATE * least_ns
    for number in distinct_values(name[is_long]).tolist():
        rows = np.flatnonzero(name == number)
        yield "operator", code.names[number], intervals.union(start[rows], end[rows])


def _files(rank: Rank) -> Iterator[tuple[str, str, Intervals]]:
    calls = rank.trace.host_activity(rank.process).system_calls
    for number, name in enumerate(calls.names):
        if _FILE.match(name):
            rows = np.flatnonzero(calls.name == number)
            end = np.minimum(calls.end_ns[rows], intervals.BEYOND_NS)
            yield "file", name, intervals.union(calls.start_ns[rows], end)
