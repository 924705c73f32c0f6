"""The headline of a run and the replay behind it, in the document of an analysis."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from traceprof.analyses.steps.step_lengths import LeftOutSteps, StepKind
from traceprof.analyses.verdict.savings import Gain, Gate
from traceprof.findings import Count
from traceprof.run.steps.step_ranges import StepsSource


class Replay(Struct, forbid_unknown_fields=True):
    """The replay of steps from which savings come."""

    num_steps: Annotated[
        Count, Meta(description="That were replayed; of a long run not all. 0: none was.")
    ]
    gates: list[Gate]
    refused: Annotated[str | None, Meta(description="Why nothing could be replayed, else null.")]
    how_to_collect: str | None


class Headline(Struct, forbid_unknown_fields=True):
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
            " first. Empty without steps."
        ),
    ]
    left_out: Annotated[
        list[LeftOutSteps],
        Meta(description="Steps of the training on that rank that do not count."),
    ]
    steps_source: Annotated[
        StepsSource,
        Meta(
            description="`ranges`: marked, or by the optimizer. `none`: no step is known.",
            extra_json_schema={"enum": [source.value for source in StepsSource]},
        ),
    ]
    possible_step_ns: Annotated[
        Count | None,
        Meta(
            description="Without the findings of `gains`, all together: `step_ns` less their gains."
            " Null where nothing could be replayed."
        ),
    ]
    possible_low_ns: Annotated[Count | None, Meta(description="The least that it may be.")]
    possible_high_ns: Annotated[Count | None, Meta(description="The most.")]
    gains: Annotated[
        list[Gain],
        Meta(
            description="What counts, the largest first: nothing twice, and no bounds. Empty where"
            " no finding's absence would make a step shorter."
        ),
    ]
    replay: Annotated[Replay | None, Meta(description="Null where none was tried.")]
    findings: Annotated[
        list[str], Meta(description="The ids that cost most, each once, the costliest first.")
    ]
