"""The JSON document of what-if answers, `traceprof.whatif/1`, as types.

Fields may be added, never renamed. Times are nanoseconds; a change is negative where a step gains.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.analyses.verdict.savings import Gate
from traceprof.findings import Count

SCHEMA: Literal["traceprof.whatif/1"] = "traceprof.whatif/1"
Kind = Literal["estimate", "bound"]
OrderName = Literal["gpipe", "1f1b", "interleaved"]
Direction = Literal["send", "receive", "exchange"]


class Baseline(Struct, forbid_unknown_fields=True):
    """The median step as it was measured, and as it is replayed."""

    step_ns: Count
    replayed_ns: int | None
    misfit: float | None
    num_steps: Annotated[
        int, Meta(ge=1, description="1 is the whole training where no steps are known.")
    ]
    gates: list[Gate]


class Send(Struct, forbid_unknown_fields=True):
    """A send or receive as it comes again in every step."""

    direction: Direction
    peer: Annotated[int, Meta(ge=0, description="The other rank.")]
    micro_batch: Annotated[
        int, Meta(ge=0, description="How many went the same way before it in the step.")
    ]


class StreamOrder(Struct, forbid_unknown_fields=True):
    """In which order a stream runs its sends in a step."""

    rank: Count
    sends: list[Send]


class BlockedSend(Struct, forbid_unknown_fields=True):
    """A send that both sides were ready for, and that waited behind another one of its stream."""

    rank: Annotated[int, Meta(ge=0, description="Whose stream.")]
    blocked: Send
    behind: Send
    stage: Annotated[int, Meta(ge=0, description="The rank that went without it for so long.")]
    blocked_ns: Annotated[int, Meta(ge=0, description="In the median step.")]


class Schedule(Struct, forbid_unknown_fields=True):
    """What the stages of a pipeline would take if they computed their passes in an order."""

    order: OrderName
    step_ns: Annotated[
        int | None,
        Meta(description="From the first pass to the last; null if stages would wait for ever."),
    ]
    naive_ns: Annotated[
        int | None, Meta(description="The same if communication slowed no kernels down.")
    ]


class Answer(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a step would take under an assumption, or why that cannot be said."""

    assume: str
    kind: Kind
    step_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    change_ns: int | None = None
    is_too_small: Annotated[
        bool | None, Meta(description="Whether the change is smaller than what the replay misses.")
    ] = None
    refused: str | None = None
    how_to_collect: Annotated[
        str | None, Meta(description="What to record for an answer; none where nothing would help.")
    ] = None
    note: str | None = None
    orders: Annotated[
        list[StreamOrder] | None,
        Meta(description="Of the sends on those streams where it is another one."),
    ] = None


class PathPart(Struct, forbid_unknown_fields=True):
    """What the critical path of all steps spends on a rank."""

    rank: Count
    compute_ns: Count
    communication_ns: Count
    copy_ns: Count
    host_ns: Count
    delay_ns: Annotated[
        int, Meta(ge=0, description="Between what held an operation and its start.")
    ]


class StepPathPart(Struct, forbid_unknown_fields=True):
    """A part of a step's critical path: a call, an operation, or what passes between them."""

    rank: Count
    kind: Annotated[
        str,
        Meta(extra_json_schema={"enum": ["compute", "communication", "copy", "host", "delay"]}),
    ]
    start_ns: Annotated[int, Meta(description="In the own time of the rank's report.")]
    end_ns: int
    name: str
    stream: Annotated[int | None, Meta(description="Where an operation ran; null of the host.")]


class StepPath(Struct, forbid_unknown_fields=True):
    """The critical path of a step: the lengths of its parts sum to the step's."""

    step: int | None
    rank: Annotated[int, Meta(ge=0, description="On which the step takes longest.")]
    length_ns: Count
    parts: Annotated[list[StepPathPart], Meta(description="In the order of time.")]


class WhatIfDocument(Struct):
    """Output of `traceprof whatif --format json`: what a step would take if.

    Times are nanoseconds. New keys may appear; those required here stay.
    """

    schema: Literal["traceprof.whatif/1"]
    version: str
    reports: list[str]
    baseline: Baseline | None
    answers: list[Answer]
    critical_path: list[PathPart]
    refused: Annotated[str | None, Meta(description="Why nothing can be said of the run at all.")]
    how_to_collect: str | None
    blocked_sends: Annotated[list[BlockedSend], Meta(description="The worst first; at most 20.")]
    unknown_sends: Annotated[
        str | None, Meta(description="Why `blocked_sends` is not known; null where it is.")
    ]
    schedules: Annotated[
        list[Schedule], Meta(description="Of the stages of a pipeline in other orders.")
    ]
    step_paths: Annotated[
        list[StepPath], Meta(description="Of the steps that were asked for with --path-of.")
    ]
