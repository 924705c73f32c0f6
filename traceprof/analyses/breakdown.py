"""The time of a rank before or after its training, which no finding is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.analyses.results import RankResult
from traceprof.findings import Count, Finding, FindingKind, NotApplicable, share
from traceprof.host.idle_causes import IdleCause, idle_causes
from traceprof.host.units import NO_UNIT, Unit, unit_of
from traceprof.intervals import Int64, Mask
from traceprof.run.periods import Period
from traceprof.run.program import is_trial
from traceprof.run.rank import Rank, Spans, Window, WindowKind
from traceprof.run.steady_steps import StepUse, phase_spans, steady_steps
from traceprof.run.step_ranges import StepsSource
from traceprof.run.windows import Training, TrainingBasis, shown_window, training_of
from traceprof.structs import Record
from traceprof.trace.model.kinds import CopyKind
from traceprof.trace.model.parts import Part
from traceprof.units import duration


class Surroundings(Record, frozen=True):
    """Copies and idle time before or after the training."""

    bytes_to_gpu: int  # what was copied to the GPU in it: the model, if it was uploaded
    idle_by_cause: Mapping[IdleCause, int]  # why the GPU idled, in ns; empty if that is unknown
    tries_algorithms: bool  # whether a library tried several algorithms of one operation


def surroundings(rank: Rank, start_ns: int, end_ns: int) -> Surroundings | None:
    """Return the surroundings of a rank's training; None without any time, and without a GPU."""
    if end_ns <= start_ns or rank.device is None:
        return None
    copies = rank.operations.copies
    inside = (copies.start_ns >= start_ns) & (copies.start_ns < end_ns)
    to_gpu = inside & (copies.kind == CopyKind.HOST_TO_DEVICE)
    causes: dict[IdleCause, int] = {}
    if rank.trace.holds(Part.API_CALLS):
        within = idle_causes(rank).within(Window(start_ns, end_ns))
        causes = {cause: idle_ns for cause, idle_ns in within.items() if idle_ns}
    trials = [key for key, name in rank.kernel_names.items() if is_trial(name)]
    tried_ns = rank.operations.kernels.start_ns[rank.operations.kernels.are_named(trials)]
    tries = bool(((tried_ns >= start_ns) & (tried_ns < end_ns)).any())
    return Surroundings(intervals.total(np.maximum(copies.bytes[to_gpu], 0)), causes, tries)


MIN_LEAD = 0.03
"""The share of what is judged from which on the host's time before the first launch is named."""

FINDINGS: dict[str, FindingKind] = {}
PAGE: dict[str, str] = {}


class Measures(Struct, frozen=True):
    """The breakdown of one window of one rank: parts of its time, and counts.

    Operations count that are inside the window at all.
    """

    window_start_ns: int
    window_ns: Count
    compute_ns: Count
    communication_ns: Count
    overlapped_communication_ns: Count
    exposed_communication_ns: Count
    copy_ns: Count
    exposed_copy_ns: Count
    idle_ns: Count
    num_kernels: Annotated[Count, "Kernels that do not communicate."]
    num_communication: Annotated[Count, "Communication kernels and peer copies."]
    num_copies: Annotated[Count, "Every other memory copy, and memory sets."]
    lost_ns: Annotated[
        Count,
        "Time in which nothing is recorded, and an operation that the recording lacks may have run:"
        " see `completeness`. 0 in a complete recording.",
    ] = 0

    @property
    def hidden_fraction(self) -> float | None:
        """Share of the communication that compute hides, 0 to 1; None without communication."""
        if not self.communication_ns:
            return None
        return self.overlapped_communication_ns / self.communication_ns

    @property
    def busy_ns(self) -> int:
        """Time in which the rank did anything that is recorded."""
        return self.compute_ns + self.exposed_communication_ns + self.exposed_copy_ns

    def fraction(self, part_ns: str) -> float:
        """Return the share of the window, 0 to 1, that a part takes: a field such as `idle_ns`."""
        return share(getattr(self, part_ns), self.window_ns)

    @property
    def window_end_ns(self) -> int:
        """The end of the window."""
        return self.window_start_ns + self.window_ns


class StepMeasures(Record, frozen=True):
    """The breakdown of one training step of one rank."""

    number: int  # of the step
    measures: Measures  # where its time went
    is_training: bool = True  # whether it is neither warm-up nor distorted by the profiler
    # whether it counts for what a step takes, or why not; None outside what is judged
    use: StepUse | None = StepUse.STEADY
    phase: int = 0  # which of the program's phases it is of, where its steps are periods


def step_times(steps: Sequence[StepMeasures]) -> tuple[Int64, Int64]:
    """Return when steps begin on the GPU and how long each takes, int64[n] each, in ns."""
    return (
        np.array([step.measures.window_start_ns for step in steps], np.int64),
        np.array([step.measures.window_ns for step in steps], np.int64),
    )


class BreakdownResult(RankResult, frozen=True):
    """The breakdown of a rank's time."""

    whole: Measures  # the breakdown of what was asked for: of all that the rank did, if nothing was
    # the breakdown of each training step inside it, in order of time
    steps: tuple[StepMeasures, ...]
    # the breakdown of what findings are about: of the training, if nothing was asked for
    judged: Measures
    judged_kind: WindowKind  # what that is
    training: Training | None  # where the training is; None as long as that is not known
    steps_source: StepsSource = StepsSource.NONE  # the evidence for its steps
    unit: Unit = NO_UNIT  # what a step is
    # what returns, where they are periods: one for each phase of the program
    periods: tuple[Period, ...] = ()
    # when each phase began and ended in what is judged; empty if there is one
    phase_spans: tuple[tuple[int, int], ...] = ()
    num_periods: int = 0  # how often it returns, with or without a step for each
    num_period_steps: int = 0  # of so many periods each is a step
    # the breakdown of what comes before the training, None if that is nothing
    before: Measures | None = None
    after: Measures | None = None  # the breakdown of what comes after it
    seen_before: Surroundings | None = None  # other facts about the time before
    seen_after: Surroundings | None = None  # other facts about the time after
    has_gpu: bool = True  # whether the rank is a GPU's
    # of a rank with one step, from the start of its range on the host to its first launch: no
    # window has this time. With several steps it is in the one before
    lead_ns: int = 0

    @property
    def one_step(self) -> str:
        """The only step in words, with the time that it does not include."""
        one = f"one {self.unit.unit.word}"
        if self.lead_ns < MIN_LEAD * self.judged.window_ns:
            return one
        lead = duration(self.lead_ns)
        return f"{one}, without the {lead} on the host before its first launch"


def run(rank: Rank, window: Window) -> BreakdownResult:
    """Measure a window of a rank, and what is shown of the rank with each step in it."""
    shown = shown_window(rank, window)
    training = None if window.kind is WindowKind.WHOLE else training_of(rank)
    all_of_it, trained = rank.window, training or shown
    start = np.array(
        [shown.start_ns, window.start_ns, all_of_it.start_ns, trained.end_ns], np.int64
    )
    end = np.array([shown.end_ns, window.end_ns, trained.start_ns, all_of_it.end_ns], np.int64)
    end[2:] = np.maximum(end[2:], start[2:])
    numbers: list[int] = []
    are_training: list[bool] = []
    uses: list[StepUse | None] = []
    phases: list[int] = []
    if rank.steps is not None:
        inside = (rank.steps.start_ns >= shown.start_ns) & (rank.steps.end_ns <= shown.end_ns)
        steps = rank.steps.chosen(inside)
        start, end = np.append(start, steps.start_ns), np.append(end, steps.end_ns)
        numbers, phases = steps.number.tolist(), steps.phases.tolist()
        first_ns = shown.start_ns if training is None else training.start_ns
        are_training = (steps.start_ns >= first_ns).tolist()
        steady = steady_steps(rank, window)
        of_judged = dict(zip(steady.judged.tolist(), steady.uses.tolist(), strict=True))
        uses = [
            StepUse(of_judged[place]) if place in of_judged else None
            for place in np.flatnonzero(inside).tolist()
        ]
    closed = np.zeros(len(start), np.bool_)
    closed[:2] = shown.is_whole, window.is_whole
    whole, judged, before, after, *of_steps = _measure(rank, start, end, closed)
    unit = unit_of(rank, window)
    has_surroundings = training is not None and window.kind is WindowKind.TRAINING
    return BreakdownResult(
        rank=rank.rank,
        whole=whole,
        steps=tuple(map(StepMeasures, numbers, of_steps, are_training, uses, phases)),
        judged=judged,
        judged_kind=_kind(rank, window, training, unit),
        unit=unit,
        training=training,
        steps_source=rank.steps.found_by if rank.steps and numbers else StepsSource.NONE,
        periods=rank.periods.phases if rank.periods and numbers else (),
        phase_spans=phase_spans(rank, window),
        num_periods=rank.periods.num if rank.periods else 0,
        num_period_steps=len(rank.periods.windows) if rank.periods else 0,
        before=before if has_surroundings and before.window_ns else None,
        after=after if has_surroundings and after.window_ns else None,
        seen_before=surroundings(rank, int(start[2]), int(end[2])) if has_surroundings else None,
        seen_after=surroundings(rank, int(start[3]), int(end[3])) if has_surroundings else None,
        has_gpu=rank.device is not None,
        lead_ns=_lead_ns(rank),
    )


def _lead_ns(rank: Rank) -> int:
    marked, steps = rank.training_ranges.steps, rank.steps
    if rank.device is None or marked is None or steps is None or len(steps) != 1:
        return 0
    if rank.calls is None:
        return 0
    begin_ns = int(marked.start_ns[steps.source[0]])
    called_ns = np.concatenate([rank.calls.start_ns[by[by >= 0]] for by in rank.launched_by])
    # A step is there because its range launched something.
    return int(called_ns[called_ns >= begin_ns].min()) - begin_ns


def judged_kind(results: Sequence[BreakdownResult]) -> WindowKind:
    """Return the kind of time that findings of ranks are about: the training, where one trains."""
    kinds = [result.judged_kind for result in results]
    if WindowKind.SERVING in kinds:
        return WindowKind.SERVING
    return WindowKind.TRAINING if WindowKind.TRAINING in kinds else kinds[0]


def _kind(rank: Rank, window: Window, training: Training | None, unit: Unit) -> WindowKind:
    # If a GPU computes nothing, nothing is trained.
    is_all = training is not None and training.basis is TrainingBasis.WINDOW
    if window.kind is WindowKind.TRAINING and is_all and rank.device is not None:
        return WindowKind.WHOLE
    if window.kind is WindowKind.TRAINING and unit.served is not None:
        return WindowKind.SERVING
    return window.kind


def findings(result: BreakdownResult) -> list[Finding | NotApplicable]:
    """Return nothing: the findings about parts of the time state their cost."""
    del result
    return []


def _measure(rank: Rank, start_ns: Int64, end_ns: Int64, closed: Mask) -> list[Measures]:
    """Measure the windows [start_ns, end_ns] of a rank at once.

    `closed`: bool[m], whether an operation without length at the very end counts as inside.
    """

    def inside(spans: Spans) -> Int64:
        counts = [intervals.num_inside(*span, start_ns, end_ns, closed) for span in spans]
        return sum(counts, np.zeros(len(start_ns), np.int64))

    kernels, communication, copies = map(inside, rank.counted)
    columns = {
        "window_start_ns": start_ns,
        **times_within(rank, start_ns, end_ns),
        "num_kernels": kernels,
        "num_communication": communication,
        "num_copies": copies,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [Measures(**dict(zip(columns, row, strict=True))) for row in rows]


def times_within(rank: Rank, start_ns: Int64, end_ns: Int64) -> dict[str, Int64]:
    """Return where the time of a rank went in n spans, int64[n] by the fields of `Measures`."""
    compute, communication, overlapped, copy, busy, lost = (
        intervals.covered_within(covered, start_ns, end_ns)
        for covered in (
            *(rank.compute, rank.communication, rank.overlapped),
            *(rank.copy, rank.busy, rank.lost),
        )
    )
    exposed, length = communication - overlapped, end_ns - start_ns
    return {
        "window_ns": length,
        "compute_ns": compute,
        "communication_ns": communication,
        "overlapped_communication_ns": overlapped,
        "exposed_communication_ns": exposed,
        "copy_ns": copy,
        "exposed_copy_ns": busy - compute - exposed,
        "idle_ns": length - busy - lost,
        "lost_ns": lost,
    }
