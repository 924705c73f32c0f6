"""What a replay answers: types of results, for those who show or keep them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.analyses.verdict.savings import Gate
from traceprof.findings import Count, NotApplicable
from traceprof.run.opening import RunSummary
from traceprof.run.summary import FailedReport
from traceprof.structs import Record
from traceprof.units import reports_text

PartKind = Literal["compute", "communication", "copy", "host", "delay"]


class PathPart(Struct, frozen=True, forbid_unknown_fields=True):
    """Time that the critical path of all steps spends on a rank."""

    rank: Count
    compute_ns: Count
    communication_ns: Count
    copy_ns: Count
    host_ns: Count
    delay_ns: Annotated[
        Count, "Time between the end of what an operation waited for and its start."
    ]


class StepPathPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a step's critical path: a call, an operation, or what passes between them."""

    rank: Count  # for host time, the first rank of the process
    kind: PartKind  # `delay`: from the end of what an operation waited for to its start
    start_ns: Annotated[int, "Start, on the clock of the rank's report."]
    end_ns: int
    name: str
    stream: Annotated[int | None, "Stream of an operation; null for parts on the host."] = None


class StepPath(Struct, frozen=True, forbid_unknown_fields=True):
    """The critical path of a step: the lengths of its parts sum to the step's."""

    step: int | None
    rank: Annotated[Count, "The rank where the step takes longest."]
    length_ns: Count
    parts: Annotated[tuple[StepPathPart, ...], "Parts in order of time."]


class Baseline(Record, frozen=True):
    """The step as it was, and as it is replayed."""

    step_ns: Count  # the mean of all steady steps of the rank where it is longest
    replayed_ns: int | None  # the mean of the replayed steps; None if no replay was possible
    num_steps: Annotated[
        int, Meta(ge=1), "Number of replayed steps; 1 is the whole training if no steps are known."
    ]
    num_measured: Annotated[
        int,
        Meta(ge=1),
        "Number of steps whose mean is `step_ns`: more than `num_steps` if only a sample of a"
        " long run was replayed.",
    ]
    gates: tuple[Gate, ...]  # the checks
    subject: str = "a step"  # a step of the longest phase, or the training if no steps are known

    @property
    def misfit(self) -> float | None:
        """Replayed over measured, less 1; None if that is unknown."""
        if self.replayed_ns is None or self.step_ns == 0:
            return None
        return self.replayed_ns / self.step_ns - 1


class Refusal(Record, frozen=True):
    """Why a run cannot be replayed, or why an assumption about it has no answer."""

    why: str  # in a few words
    how_to_collect: str | None = None  # what to record so that it can, if that is known
    baseline: Baseline | None = None  # the step as it is, where that much is known


class Answer(Record, frozen=True):
    """The length of a step under an assumption."""

    assume: str  # the assumption as it was written
    is_bound: bool  # whether the answer is a limit: no change of a program gains more
    step_ns: int | None = None  # None if it is refused
    low_ns: int | None = None  # the least that a step may take; as `step_ns` in bounds
    high_ns: int | None = None  # the most
    change_ns: int | None = None  # what a step gains, as a negative number
    is_too_small: bool = False  # whether the change is smaller than the error of the replay
    refused: str | None = None  # why nothing can be said
    how_to_collect: str | None = None  # what to record for an answer, None if nothing helps
    note: str = ""  # what the answer leaves out
    # distance of the interval below a step's least time, as a share of that
    below_floor: float = 0.0


class WhatIf(Record, frozen=True):
    """Everything that was asked of a run."""

    baseline: Baseline | None  # the step as it is
    answers: tuple[Answer, ...]  # one for each assumption
    critical_path: tuple[PathPart, ...]  # by rank, which parts the replayed steps run through
    refused: str | None  # why the run cannot be replayed at all, None if it can
    how_to_collect: str | None  # what to record for an answer, None if there is one


@dataclass(frozen=True, repr=False)
class Asked:
    """The answers to the questions about a run."""

    run: RunSummary  # the reports and their ranks
    whatif: WhatIf  # the step as it is, and what it would be
    failed: tuple[FailedReport, ...]  # reports that could not be read; the run has none of them
    paths: tuple[StepPath, ...] = ()  # the critical paths of the steps that were asked for
    missing: tuple[NotApplicable, ...] = ()  # findings and parts that failed

    def __repr__(self) -> str:
        names = reports_text([Path(report.path) for report in self.run.reports])
        return f"<Asked of {names}, answers: {len(self.whatif.answers)}>"
