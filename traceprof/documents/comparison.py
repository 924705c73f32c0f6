"""The JSON document of a comparison, `traceprof.comparison/1`, as types.

Fields may be added, never renamed. Times are nanoseconds; a change is after less before, so that it
is negative where time was gained. Fractions and shares: 0.01 is 1 %.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.findings import Count, Fraction, Saving

SCHEMA: Literal["traceprof.comparison/1"] = "traceprof.comparison/1"
Verdict = Literal["faster", "slower", "same", "inconclusive", "not comparable"]
Kind = Literal["gpu", "world-size", "recording", "recorded-parts", "clocks", "steps"]
Basis = Literal["steps", "captures", "training"]
Part = Literal["compute", "exposed communication", "exposed copy", "idle"]
Rung = Literal["name", "canonical name", "place in the step", "only before", "only after"]
Status = Literal["gone", "new", "better", "worse", "same", "unknown"]
Outcome = Literal["met", "not met", "inconclusive"]


class Side(Struct, forbid_unknown_fields=True):
    """One side of the comparison."""

    name: str
    reports: list[str]
    num_captures: Annotated[int, Meta(ge=1, description="Recordings of the same program.")]
    ranks: list[Count]
    gpus: list[str]
    num_steps: Annotated[int, Meta(ge=0, description="That are compared, over all captures.")]
    num_left_out: Annotated[
        int, Meta(ge=0, description="Other steps: warm-up, slow first ones, the last one.")
    ]
    left_out_reports: Annotated[list[str], Meta(description="Why reports could not be read.")]


class Difference(Struct, forbid_unknown_fields=True):
    """Something in which the recordings differ, other than in time."""

    what: str
    before: str
    after: str


class Comparable(Struct, forbid_unknown_fields=True):
    """Comparability of the sides."""

    is_comparable: bool
    reasons: Annotated[list[str], Meta(description="Why not.")]
    kinds: Annotated[
        list[Kind],
        Meta(
            description="Of each reason; `recording`: the same one stands on both sides. What"
            " `--allow-different` takes."
        ),
    ]
    allowed: Annotated[
        list[str], Meta(description="What would be a reason, had it not been allowed.")
    ]
    differences: Annotated[
        list[Difference], Meta(description="All that differs, what was changed on purpose, too.")
    ]


class AtSameMix(Struct, forbid_unknown_fields=True):
    """The change that short and long steps have in common, as fractions of before."""

    change: float
    low: float
    high: float


class Step(Struct, forbid_unknown_fields=True):
    """The mean of the steady steps, on the rank where it is longest.

    Of several captures the mean of these. Without steps all that findings are about is one step.
    """

    before_ns: Count
    after_ns: Count
    median_before_ns: Annotated[Count | None, Meta(description="Null without steps.")]
    median_after_ns: Count | None
    change: Annotated[float | None, Meta(description="Of the mean, as a fraction of before.")]
    low: Annotated[float | None, Meta(description="The interval's ends; null if there is none.")]
    high: float | None
    at_same_mix: Annotated[
        AtSameMix | None,
        Meta(
            description="Where both sides have short and long steps in equal shares: each kind"
            " compared with its own. Then the verdict is made from this, and gates are."
        ),
    ]
    verdict: Annotated[
        Verdict,
        Meta(
            description="`faster` or `slower` where the interval excludes 0, else `same` where it"
            " lies within 1 %. `not comparable` goes before all."
        ),
    ]
    basis: Annotated[Basis, Meta(description="What the interval is over; `training`: none.")]


class Parts(Struct, forbid_unknown_fields=True):
    """The mean step, or its change, and the four parts that sum to it."""

    mean_step_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int


class PartChange(Struct, forbid_unknown_fields=True):
    """A part of the mean step, before and after, with the interval of its change."""

    part: Part
    before_ns: Count
    after_ns: Count
    change_ns: int
    low_ns: int | None
    high_ns: int | None


class IdleChange(Struct, forbid_unknown_fields=True):
    """Idle time of one cause in the mean step; the changes sum to that of idle time."""

    cause: Annotated[str, Meta(description="As in the metrics of `gpu-idle`.")]
    before_ns: int
    after_ns: int
    change_ns: int


class KernelChange(Struct, forbid_unknown_fields=True):
    """The compute kernels of a name in the mean step, matched with those of the other side."""

    before: Annotated[str | None, Meta(description="The name before; null where none runs.")]
    after: str | None
    rung: Annotated[Rung, Meta(description="By what the two were matched.")]
    category: str
    before_ns: Count
    after_ns: Count
    change_ns: int
    p_adjusted: Annotated[
        Fraction | None,
        Meta(
            description="How probable such a change is without cause, adjusted for the number of"
            " kernels; null if unknown."
        ),
    ]
    is_significant: bool


class ModuleChange(Struct, forbid_unknown_fields=True):
    """The kernels that a module launched in the mean step, with those of the modules inside it."""

    module: Annotated[str, Meta(description="Path from the outermost module, with dots.")]
    before_ns: Annotated[Count | None, Meta(description="Null on a side that has no such module.")]
    after_ns: Count | None
    change_ns: int
    p_adjusted: Annotated[Fraction | None, Meta(description="As in `kernels`, over all modules.")]
    is_significant: bool


class Matching(Struct, forbid_unknown_fields=True):
    """Share of the kernels' time that was matched at a rung."""

    rung: Rung
    before: Annotated[float, Meta(ge=0, le=1, description="As a share of all kernel time.")]
    after: Fraction


class CommunicationChange(Struct, forbid_unknown_fields=True):
    """The operations of one kind on one communicator, per step and rank on average."""

    operation: str
    before: Annotated[str | None, Meta(description="The communicator before, as far as known.")]
    after: str | None
    count_before: float
    count_after: float
    before_ns: Count
    after_ns: Count
    change_ns: int
    wait_before_ns: Annotated[
        Count | None,
        Meta(description="Until the last rank came; null if unknown."),
    ]
    wait_after_ns: Count | None
    transfer_before_ns: Annotated[
        Count | None, Meta(description="With all ranks inside; of matched operations alone.")
    ]
    transfer_after_ns: Count | None


class FindingChange(Struct, forbid_unknown_fields=True):
    """A finding before and after, on the rank where it costs most."""

    id: str
    status: Status
    before_ns: Annotated[Count | None, Meta(description="What it costs per step; null: not there.")]
    after_ns: Count | None
    severity_before: str | None
    severity_after: str | None
    predicted: Annotated[Saving | None, Meta(description="What it said before.")]
    came_ns: Annotated[
        int | None,
        Meta(description="By how much its cost fell; null where it cannot be judged after."),
    ]
    title: str


class GateResult(Struct, forbid_unknown_fields=True):
    """A limit that the comparison must keep."""

    gate: Annotated[str, Meta(description="As it was given.")]
    outcome: Outcome
    value: Annotated[float | None, Meta(description="In the unit of the limit.")]
    low: float | None
    high: float | None
    limit: float | None
    unit: Annotated[str, Meta(description="%, pp, ns or nothing.")]
    reason: str


class Comparison(Struct, forbid_unknown_fields=True):
    """Output of `traceprof compare --format json`."""

    schema: Literal["traceprof.comparison/1"]
    traceprof_version: str
    before: Side
    after: Side
    comparable: Comparable
    step: Step
    parts: Annotated[Parts, Meta(description="Changes: the four parts sum to mean_step_ns.")]
    mean_before: Parts
    mean_after: Parts
    part_changes: list[PartChange]
    idle: list[IdleChange]
    kernels: Annotated[list[KernelChange], Meta(description="The largest change first.")]
    kernel_matching: list[Matching]
    kernels_beside_ns: Annotated[
        int,
        Meta(
            description="What is left of the change of compute: kernels that run beside each other"
            " take less time than the sum of their durations."
        ),
    ]
    modules: Annotated[
        list[ModuleChange],
        Meta(
            description="Outer ones first, and of those inside the same one the largest change"
            " first; empty where a side does not know them."
        ),
    ]
    communication: list[CommunicationChange]
    findings: list[FindingChange]
    gates: list[GateResult]
    notes: Annotated[list[str], Meta(description="What to know about these numbers.")]

    @property
    def is_met(self) -> bool:
        """Whether every gate is met."""
        return all(gate.outcome == "met" for gate in self.gates)
