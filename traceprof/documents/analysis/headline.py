"""The headline of a run in the document of an analysis."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from traceprof.analyses.steps.step_lengths import LeftOutSteps, StepKind
from traceprof.analyses.verdict.savings import Savings
from traceprof.documents.analysis.rows import record
from traceprof.findings import Count
from traceprof.run.steps.period_steps import Period
from traceprof.run.steps.step_ranges import StepsSource


@record(
    "step_ns", "median_step_ns", "step_kinds", "left_out", "steps_source", ..., "findings",
    "periods",
)  # fmt: skip
class Headline(Savings, frozen=True, kw_only=True):
    """The run in short."""

    step_ns: Annotated[
        Count | None,
        Meta(
            description="The mean of the steady steps of the rank where that is longest; without"
            " steps all that findings are about is one step. Null without a rank.",
        ),
    ]
    median_step_ns: Annotated[
        Count | None, Meta(description="The median of the same; null without steps.")
    ]
    step_kinds: Annotated[
        list[StepKind],
        Meta(
            description="Of the same: two where some take much longer than the others, the shorter"
            " first; where steps are periods of a program with phases, one for each phase. Empty"
            " without steps."
        ),
    ]
    left_out: Annotated[
        list[LeftOutSteps],
        Meta(description="Steps of the training on that rank that do not count."),
    ]
    steps_source: Annotated[
        StepsSource,
        Meta(
            description="`ranges`: marked, or by the optimizer. `period`: no range marks steps; a"
            " step is from one return of a kernel to the next, which is an iteration or a layer of"
            " one. `none`: no step is known.",
            extra_json_schema={"enum": [source.value for source in StepsSource]},
        ),
    ]
    findings: Annotated[
        list[str],
        Meta(description="The ids to act on first, at most three, in the order of `findings`."),
    ]
    periods: Annotated[
        list[Period],
        Meta(
            description="Where `steps_source` is `period`: one for each phase of the program, in"
            " order of time. Else empty."
        ),
    ] = field(default_factory=list)
