"""The JSON document of a comparison, `traceprof.comparison/1`, as types.

Fields may be added, never renamed. Times are nanoseconds; a change is after less before, so that it
is negative where time was gained. Fractions and shares: 0.01 is 1 %.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.findings import Count, Fraction, Saving

SCHEMA: Literal["traceprof.comparison/1"] = "traceprof.comparison/1"
Verdict = Literal["faster", "slower", "same", "differs", "inconclusive", "not comparable"]
Kind = Literal[
    "gpu", "world-size", "recording", "recorded-parts", "clocks", "steps", "completeness"
]
Basis = Literal["steps", "captures", "training"]
Part = Literal["compute", "exposed communication", "exposed copy", "idle"]
Rung = Literal["name", "canonical name", "place in the step", "only before", "only after"]
Status = Literal["gone", "new", "better", "worse", "same", "unknown"]
Outcome = Literal["met", "not met", "inconclusive"]


class Side(Struct, forbid_unknown_fields=True):
    """One side of the comparison."""

    name: str
    reports: list[str]
    num_captures: Annotated[int, Meta(ge=1), "Number of recordings of the same program."]
    ranks: list[Count]
    gpus: list[str]
    num_steps: Annotated[Count, "Number of steps that are compared, over all captures."]
    num_left_out: Annotated[Count, "Number of other steps: warm-up, slow first ones, the last one."]
    left_out_reports: Annotated[list[str], "Reports that could not be read, with the reason."]


class Difference(Struct, forbid_unknown_fields=True):
    """Something in which the recordings differ, other than in time."""

    what: str
    before: str
    after: str


class Comparable(Struct, forbid_unknown_fields=True):
    """Comparability of the sides."""

    is_comparable: bool
    reasons: Annotated[list[str], "Why the sides are not comparable."]
    kinds: Annotated[
        list[Kind],
        "Kind of each reason, as `--allow-different` takes it; `recording`: both sides are the"
        " same recording.",
    ]
    allowed: Annotated[list[str], "Reasons that were allowed."]
    differences: Annotated[
        list[Difference], "Everything that differs, including what was changed on purpose."
    ]


class AtSameMix(Struct, forbid_unknown_fields=True):
    """The change that short and long steps have in common, as fractions of the values before."""

    change: float
    low: float
    high: float


class Spread(Struct, forbid_unknown_fields=True):
    """How much a part of the step varies between recordings of one program."""

    part: Annotated[str, "Part of the step, or cause of idle time."]
    deviation: Annotated[float, Meta(ge=0), "Standard deviation of the part's logarithm."]
    source: Annotated[
        Literal["table", "runs"], "The table of measured reruns, or the stored runs of `--runs`."
    ]


class UsualStep(Struct, forbid_unknown_fields=True):
    """The median step of the commonest kind."""

    before_ns: Count
    after_ns: Count
    num_longer_before: Annotated[Count, "Number of steps longer by a quarter or more, before."]
    num_longer_after: Count
    longer_cause: Annotated[
        str | None,
        "What made most of them longer, on the side that has more, as `slow_steps[].cause`; null"
        " if that is not known.",
    ]
    change: Annotated[float, "Change of the median, as a fraction of the value before."]
    low: Annotated[float, "Lower end of its interval over steps."]
    high: float
    p: Annotated[
        Fraction, "Mann and Whitney's test of all steps: the probability of such a difference."
    ]
    verdict: Annotated[Verdict, "As of the mean, beyond what steady parts vary between runs."]


class UnrecordedStep(Struct, forbid_unknown_fields=True):
    """The mean of the steps before the recording, which ran without the recorder."""

    before_ns: Count
    after_ns: Count
    num_before: Annotated[Count, "Number of such steps, over all recordings."]
    num_after: Count
    change: Annotated[float, "As a fraction of the value before."]
    low: Annotated[float | None, "Lower end of its interval; null if there is none."]
    high: float | None


class Step(Struct, forbid_unknown_fields=True):
    """The mean of the steady steps, on the rank where it is longest.

    For several captures it is their mean. Without steps, all that findings judge is one step.
    """

    before_ns: Count
    after_ns: Count
    median_before_ns: Annotated[Count | None, "Median of the same steps; null without steps."]
    median_after_ns: Count | None
    change: Annotated[float | None, "Change of the mean, as a fraction of the value before."]
    low: Annotated[float | None, "Lower end of the interval of the change; null if there is none."]
    high: float | None
    at_same_mix: Annotated[
        AtSameMix | None,
        "If both sides have the same shares of short and long steps, each kind is compared with"
        " its own, and the verdict and gates use this change.",
    ]
    verdict: Annotated[
        Verdict,
        "`faster` or `slower` if the interval excludes 0, and so does `between_low` to"
        " `between_high` with one recording a side; else `same` if it lies within 1 %, and"
        " `differs` or `inconclusive` if not. `not comparable` takes precedence.",
    ]
    basis: Annotated[Basis, "What the interval is computed from; `training`: there is no interval."]
    to_decide: Annotated[
        str | None, "What to record if the verdict is `inconclusive` or `differs`."
    ] = None
    between_low: Annotated[
        float | None,
        "Lower end of the change with the usual spread between recordings; null if several"
        " recordings on a side show it.",
    ] = None
    between_high: float | None = None
    varying: Annotated[
        str | None, "If the verdict is `differs`: the part that varies so between recordings."
    ] = None
    between: Annotated[list[Spread], "The spread that was assumed, by part."] = []
    usual: Annotated[UsualStep | None, "Beside the mean; null without enough steps."] = None
    unrecorded: Annotated[
        UnrecordedStep | None,
        "The same without the recorder, from `reports[].timed` of the analyses; null if a recording"
        " has none.",
    ] = None


class Parts(Struct, forbid_unknown_fields=True):
    """The mean step, or its change, and the five parts that sum to it."""

    mean_step_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int
    lost_ns: Annotated[int, "Time of lost records, as in the analysis."] = 0


class PartChange(Struct, forbid_unknown_fields=True):
    """A part of the mean step, before and after, with the interval of its change."""

    part: Part
    before_ns: Count
    after_ns: Count
    change_ns: Annotated[int | None, "Null if unknown."]
    low_ns: int | None
    high_ns: int | None
    unknown: Annotated[str | None, "Why the change is unknown."] = None


class IdleChange(Struct, forbid_unknown_fields=True):
    """Idle time of one cause in the mean step; the changes sum to that of idle time."""

    cause: Annotated[str, "Cause, as in the metrics of `gpu-idle`."]
    before_ns: int
    after_ns: int
    change_ns: int


class KernelChange(Struct, forbid_unknown_fields=True):
    """The compute kernels of a name in the mean step, matched with those of the other side."""

    before: Annotated[str | None, "Name before; null if no such kernel ran."]
    after: str | None
    rung: Annotated[Rung, "How the two were matched."]
    category: str
    before_ns: Count
    after_ns: Count
    change_ns: int
    p_adjusted: Annotated[
        Fraction | None,
        "Probability of such a change by chance, adjusted for the number of kernels; null if"
        " unknown.",
    ]
    is_significant: bool


class ModuleChange(Struct, forbid_unknown_fields=True):
    """Kernels that a module launched in the mean step, including those of modules inside it."""

    module: Annotated[str, "Path from the outermost module, with dots."]
    before_ns: Annotated[Count | None, "Time before; null if that side has no such module."]
    after_ns: Count | None
    change_ns: int
    p_adjusted: Annotated[Fraction | None, "As in `kernels`, adjusted for the number of modules."]
    is_significant: bool


class Matching(Struct, forbid_unknown_fields=True):
    """Share of the kernels' time that was matched at a rung."""

    rung: Rung
    before: Annotated[Fraction, "Share of all kernel time before."]
    after: Fraction


class CommunicationChange(Struct, forbid_unknown_fields=True):
    """The operations of one kind on one communicator, on average per step and rank."""

    operation: str
    before: Annotated[str | None, "Communicator before; null if unknown."]
    after: str | None
    count_before: float
    count_after: float
    before_ns: Count
    after_ns: Count
    change_ns: int
    wait_before_ns: Annotated[
        Count | None, "Time before in which ranks waited for the last one; null if unknown."
    ]
    wait_after_ns: Count | None
    transfer_before_ns: Annotated[
        Count | None, "Time before in which all ranks were inside, of matched operations only."
    ]
    transfer_after_ns: Count | None


class FindingChange(Struct, forbid_unknown_fields=True):
    """A finding before and after, on the rank where it costs most."""

    id: str
    status: Status
    before_ns: Annotated[Count | None, "Its cost per step before; null if it was not there."]
    after_ns: Count | None
    severity_before: str | None
    severity_after: str | None
    predicted: Annotated[Saving | None, "The saving that it predicted before."]
    came_ns: Annotated[int | None, "How much its cost fell; null if it cannot be judged after."]
    title: str


class GateResult(Struct, forbid_unknown_fields=True):
    """A limit that the comparison must keep."""

    gate: Annotated[str, "The gate as it was given."]
    outcome: Outcome
    value: Annotated[float | None, "Value in the unit of the limit."]
    low: float | None
    high: float | None
    limit: float | None
    unit: Annotated[str, "Unit: %, pp, ns or empty."]
    reason: str


class Comparison(Struct, forbid_unknown_fields=True):
    """Output of `traceprof compare --format json`."""

    schema: Literal["traceprof.comparison/1"]
    traceprof_version: str
    before: Side
    after: Side
    comparable: Comparable
    step: Step
    headline: Annotated[str, "The verdict in words, with what would decide it."]
    parts: Annotated[Parts, "Changes: the five parts sum to mean_step_ns."]
    mean_before: Parts
    mean_after: Parts
    part_changes: list[PartChange]
    idle: list[IdleChange]
    kernels: Annotated[list[KernelChange], "Kernels with the largest change first."]
    kernel_matching: list[Matching]
    kernels_beside_ns: Annotated[
        int,
        "The rest of the change in compute time, which kernels do not add up to: kernels that"
        " overlap take less time than the sum of their durations, and those in CUDA graphs that"
        " were traced as a whole are in no row.",
    ]
    modules: Annotated[
        list[ModuleChange],
        "Outer modules first; among those inside the same module, the largest change first."
        " Empty if modules are unknown on one side.",
    ]
    communication: list[CommunicationChange]
    findings: list[FindingChange]
    gates: list[GateResult]
    notes: Annotated[list[str], "Notes on these numbers."]

    @property
    def is_met(self) -> bool:
        """Whether every gate is met."""
        return all(gate.outcome == "met" for gate in self.gates)
