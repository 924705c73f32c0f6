"""The headline of a run in the document of an analysis."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from traceprof.analyses.steps.step_means import LeftOutSteps, StepKind
from traceprof.analyses.verdict.savings import Savings
from traceprof.documents.analysis.rows import record
from traceprof.findings import Count, Fraction, one_of
from traceprof.run.period_steps import Period
from traceprof.run.step_ranges import StepsSource


@record(
    "step_ns",
    "median_step_ns",
    "step_kinds",
    "left_out",
    "steps_source",
    ...,
    "findings",
    "periods",
    "judged_fraction",
)
class Headline(Savings, frozen=True, kw_only=True):
    """Summary of the run."""

    step_ns: Annotated[
        Count | None,
        "Mean of the steady steps, on the rank where it is longest; without steps, the whole"
        " time that findings judge counts as one step. Null without a rank.",
    ]
    median_step_ns: Annotated[Count | None, "Median of the same steps; null without steps."]
    step_kinds: Annotated[
        list[StepKind],
        "Kinds of these steps: two if some take much longer than the others, the shorter kind"
        " first; if steps are periods of a program with phases, one for each phase. Empty"
        " without steps.",
    ]
    left_out: Annotated[
        list[LeftOutSteps], "Steps of the training on that rank that do not count toward the mean."
    ]
    steps_source: Annotated[
        StepsSource,
        one_of(*(source.value for source in StepsSource)),
        "`ranges`: marked by ranges, or found by optimizer steps. `period`: no range marks"
        " steps, and a step is one period of the kernels: an iteration, or a layer of one."
        " `none`: no step is known.",
    ]
    findings: Annotated[
        list[str], "Ids of the findings to act on first, at most three, in the order of `findings`."
    ]
    periods: Annotated[
        list[Period],
        "If `steps_source` is `period`: one period for each phase of the program, in order of"
        " time. Otherwise empty.",
    ] = field(default_factory=list)
    judged_fraction: Annotated[
        Fraction | None,
        "Share of the recorded GPU time, on all ranks, that lies in what findings judge; 1 if steps"
        " or a time range were chosen. Null without a GPU.",
    ] = None
