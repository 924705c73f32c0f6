"""What a replay answers: types of results, for those who show or keep them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct

from traceprof.findings import Count
from traceprof.structs import Record
from traceprof.units import reports_text

if TYPE_CHECKING:
    from traceprof.analyses.verdict.savings import Gate
    from traceprof.findings import NotApplicable
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import FailedReport


_DIRECTIONS = {1: "send to", 2: "receive from", 3: "exchange with"}


class SendName(Record, frozen=True, order=True):
    """A send or receive that recurs in every step.

    Attributes:
        direction: 1 sends, 2 receives, 3 both.
        peer: the other rank.
        micro_batch: how many of the same direction and peer precede it in the step.
    """

    direction: int
    peer: int
    micro_batch: int

    @property
    def way(self) -> str:
        """The direction and the peer: `send to 1`."""
        return f"{_DIRECTIONS.get(self.direction, 'exchange with')} {self.peer}"

    def __str__(self) -> str:
        """Return it as text."""
        return f"{self.way} (micro-batch {self.micro_batch})"


class StreamOrder(Record, frozen=True):
    """The order in which a stream runs its sends in a step.

    Attributes:
        rank: the rank's number.
        sends: of the stream.
    """

    rank: int
    sends: tuple[SendName, ...]


class BlockedSend(Record, frozen=True):
    """A send that waited behind another one of its stream although both sides were ready.

    Attributes:
        rank: whose stream.
        blocked: the send.
        behind: what it waited for.
        stage: the rank that received its data that much later.
        blocked_ns: in the median step.
    """

    rank: int
    blocked: SendName
    behind: SendName
    stage: int
    blocked_ns: int


class ScheduleTime(Record, frozen=True):
    """Time of a step with its passes in an order.

    Attributes:
        order: `1f1b`, `gpipe` or `interleaved`.
        step_ns: from the first pass to the last, None if the stages would wait for ever.
        naive_ns: the same if communication slowed nothing down.
    """

    order: str
    step_ns: int | None
    naive_ns: int | None


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

    @property
    def total_ns(self) -> int:
        """All of it."""
        return self.compute_ns + self.communication_ns + self.copy_ns + self.host_ns + self.delay_ns


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
    """The step as it was, and as it is replayed.

    Attributes:
        step_ns: the mean of all steady steps of the rank where it is longest.
        replayed_ns: of the replayed ones; None if no replay was possible.
        num_steps: how many steady ones were replayed; 1 is the whole training where no steps are
            known.
        num_measured: of how many `step_ns` is the mean: more, where a sample was replayed.
        gates: the checks.
        subject: `a step`, or the training if no steps are known.
    """

    step_ns: int
    replayed_ns: int | None
    num_steps: int
    num_measured: int
    gates: tuple[Gate, ...]
    subject: str = "a step"

    @property
    def misfit(self) -> float | None:
        """Replayed over measured, less 1."""
        return None if self.replayed_ns is None else self.replayed_ns / self.step_ns - 1


class Refusal(Record, frozen=True):
    """The reason for which a run cannot be replayed.

    Attributes:
        why: in a few words.
        how_to_collect: what to record so that it can, if that is known.
        baseline: the step as it is, where that much is known.
    """

    why: str
    how_to_collect: str | None
    baseline: Baseline | None = None


class Answer(Record, frozen=True):
    """The length of a step under an assumption.

    Attributes:
        assume: the assumption as it was written.
        is_bound: whether that is a limit: no change of a program gains more.
        step_ns: None if it is refused.
        low_ns: the least that a step may take; as `step_ns` in bounds.
        high_ns: the most.
        change_ns: what a step gains, as a negative number.
        is_too_small: whether the change is smaller than the error of the replay.
        refused: why nothing can be said.
        how_to_collect: what to record for an answer, None if no recording of it would help.
        note: what the answer leaves out.
        orders: in which order streams run their sends then, where that is another one.
        below_floor: by which share of what a step takes at least it lies below that, all of its
            interval.
    """

    assume: str
    is_bound: bool
    step_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    change_ns: int | None = None
    is_too_small: bool = False
    refused: str | None = None
    how_to_collect: str | None = None
    note: str = ""
    orders: tuple[StreamOrder, ...] = ()
    below_floor: float = 0.0


class WhatIf(Record, frozen=True):
    """Everything that was asked of a run.

    Attributes:
        baseline: the step as it is.
        answers: one for each assumption.
        critical_path: by rank, which parts the replayed steps run through.
        refused: why nothing can be said of the run at all, None if it can.
        how_to_collect: what to record for an answer, None if there is one.
        blocked_sends: which sends waited behind others of their stream, worst first.
        unknown_sends: why that is not known, None if it is.
        schedules: what the stages of a pipeline would take in other orders of their passes.
    """

    baseline: Baseline | None
    answers: tuple[Answer, ...]
    critical_path: tuple[PathPart, ...]
    refused: str | None
    how_to_collect: str | None
    blocked_sends: tuple[BlockedSend, ...] = ()
    unknown_sends: str | None = None
    schedules: tuple[ScheduleTime, ...] = ()


@dataclass(frozen=True, repr=False)
class Asked:
    """The answers to the questions about a run.

    Attributes:
        run: the reports and their ranks.
        whatif: the step as it is, and what it would be.
        failed: reports that could not be read; the run has none of them.
        paths: the critical paths of the steps that were asked for.
        missing: what could not be analysed because a part of traceprof failed.
    """

    run: RunSummary
    whatif: WhatIf
    failed: tuple[FailedReport, ...]
    paths: tuple[StepPath, ...] = ()
    missing: tuple[NotApplicable, ...] = ()

    def __repr__(self) -> str:
        """Return the reports and the number of answers in one line."""
        names = reports_text([Path(report.path) for report in self.run.reports])
        return f"<Asked of {names}, answers: {len(self.whatif.answers)}>"
