"""What the numbers mean, in the JSON document: findings, their savings, who owns time."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.findings import Basis, Count, Fraction, Text, one_of

FindingId = str  # the schema names them all
Severity = Annotated[str, one_of("info", "low", "medium", "high")]


class Evidence(Struct, forbid_unknown_fields=True):
    """Where in time a finding can be seen."""

    start_ns: int
    end_ns: int
    label: str


class Saving(Struct, forbid_unknown_fields=True):
    """What a step would gain if a finding were gone, on all ranks that have it."""

    step_ns: Annotated[Count | None, Meta(description="Most likely; null of a bound.")]
    low_ns: Annotated[Count | None, Meta(description="At least; null of a bound.")]
    high_ns: Annotated[int, Meta(ge=0, description="At most.")]
    basis: Annotated[
        str,
        Meta(
            description="`replay`: the steps were replayed without it, and the replay fits what was"
            " measured. `bound`: no more than this, by a replay that no program reaches or by what"
            " the finding costs.",
            extra_json_schema={"enum": [str(basis) for basis in Basis]},
        ),
    ]
    assume: Annotated[
        str | None,
        Meta(
            description="What was assumed in the replay, as `traceprof whatif --assume` takes it;"
            " null where the bound is what the finding costs, by step."
        ),
    ]


class Finding(Struct, forbid_unknown_fields=True):
    """A claim about one rank."""

    id: FindingId
    severity: Severity
    rank: Count
    title: Text
    impact_ns: Count
    impact_fraction: Fraction
    metrics: dict[str, int | float | str | bool | None]
    evidence: list[Evidence]
    advice: list[Text]
    saving: Annotated[Saving | None, Meta(description="Null where nothing can be said.")]


class NotApplicable(Struct, forbid_unknown_fields=True):
    """A finding that could be neither made nor ruled out."""

    id: FindingId
    reason: Text
    how_to_collect: Text
    rank: Annotated[Count | None, Meta(description="Null: the whole run.")]


class Gate(Struct, forbid_unknown_fields=True):
    """A check of the replay; where one does not hold, nothing is replayed without a finding."""

    name: Annotated[str, one_of("misfit", "unexplained", "host-floor")]
    value: Annotated[float | None, Meta(description="As a share of the step; null if unknown.")]
    limit: float
    holds: bool


class Replay(Struct, forbid_unknown_fields=True):
    """The replay of steps from which savings come."""

    num_steps: Annotated[
        Count, Meta(description="That were replayed; of a long run not all. 0: none was.")
    ]
    gates: list[Gate]
    refused: Annotated[str | None, Meta(description="Why nothing could be replayed, else null.")]
    how_to_collect: str | None


class Gain(Struct, forbid_unknown_fields=True):
    """What a step gains without a finding, beside what it gains without those before."""

    finding: FindingId
    assume: Annotated[str, Meta(description="What was assumed besides what stands before.")]
    gain_ns: Count
    step_ns: Annotated[int, Meta(ge=0, description="What a step takes then.")]


class Headline(Struct, forbid_unknown_fields=True):
    """The run in short."""

    step_ns: Annotated[
        Count | None,
        Meta(
            description="The median step of the rank that takes longest; without steps all that"
            " findings are about is one step. Null without a rank.",
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


class Owner(Struct, forbid_unknown_fields=True):
    """Who owns 3 % or more of a rank's time in which it did not compute."""

    rank: Count
    part: Literal["exposed communication", "exposed copies", "idle"]
    part_ns: Count
    fraction: Fraction
    finding: Annotated[str | None, Meta(description="The finding's id, null where none owns it.")]
    sentence: Annotated[str | None, Meta(description="What it was, where no finding owns it.")]
