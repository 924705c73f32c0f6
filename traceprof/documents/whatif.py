"""The document of what-if answers, `traceprof.whatif/1`: its types and how it is built.

Fields may be added, never renamed. Times are nanoseconds; a change is negative where a step gains.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from traceprof.analyses.verdict.savings import Gate
from traceprof.documents.analysis.model import maker
from traceprof.findings import Count
from traceprof.replay.results import Answer as Answered
from traceprof.replay.results import Asked, PathPart, StepPath
from traceprof.version import __version__

SCHEMA: Literal["traceprof.whatif/1"] = "traceprof.whatif/1"
Kind = Literal["estimate", "bound"]


class Baseline(Struct, forbid_unknown_fields=True):
    """The mean of the steady steps, as measured and as replayed."""

    step_ns: Count
    replayed_ns: int | None
    misfit: float | None
    num_steps: Annotated[
        int, Meta(ge=1), "Number of replayed steps; 1 is the whole training if no steps are known."
    ]
    num_measured: Annotated[
        int,
        Meta(ge=1),
        "Number of steps whose mean is `step_ns`: more than `num_steps` if only a sample of a"
        " long run was replayed.",
    ]
    gates: tuple[Gate, ...]


class Answer(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Time of a step under an assumption, or the reason why there is no answer."""

    assume: str
    kind: Kind
    step_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    change_ns: int | None = None
    is_too_small: Annotated[
        bool | None, "Whether the change is smaller than the error of the replay."
    ] = None
    refused: str | None = None
    how_to_collect: Annotated[
        str | None, "What to record to get an answer; null if nothing would help."
    ] = None
    note: str | None = None


class WhatIfDocument(Struct):
    """Output of `traceprof whatif --format json`: how long a step would take.

    Times are nanoseconds. New keys may appear; those required here stay.
    """

    schema: Literal["traceprof.whatif/1"]
    version: str
    reports: list[str]
    baseline: Baseline | None
    answers: list[Answer]
    critical_path: list[PathPart]
    refused: Annotated[str | None, "Why there are no answers at all for this run."]
    how_to_collect: str | None
    blocked_sends: Annotated[list[str], "Always empty; earlier versions listed sends here."]
    unknown_sends: Annotated[None, "Always null; earlier versions said why these were unknown."]
    schedules: Annotated[list[str], "Always empty; earlier versions listed times here."]
    step_paths: Annotated[list[StepPath], "Critical paths of the steps that --path-of asks for."]


_baseline = maker(Baseline)


def document(answers: Asked) -> WhatIfDocument:
    """Return answers to what-if questions as the document that is written."""
    whatif = answers.whatif
    return WhatIfDocument(
        schema=SCHEMA,
        version=__version__,
        reports=[str(report.path) for report in answers.run.reports],
        baseline=None if whatif.baseline is None else _baseline(whatif.baseline),
        answers=[_answer(answer) for answer in whatif.answers],
        critical_path=list(whatif.critical_path),
        refused=whatif.refused,
        how_to_collect=whatif.how_to_collect,
        blocked_sends=[],
        unknown_sends=None,
        schedules=[],
        step_paths=list(answers.paths),
    )


def _answer(answer: Answered) -> Answer:
    kind: Kind = "bound" if answer.is_bound else "estimate"
    if answer.refused is not None:
        how = answer.how_to_collect
        return Answer(answer.assume, kind, refused=answer.refused, how_to_collect=how)
    return Answer(
        assume=answer.assume,
        kind=kind,
        step_ns=answer.step_ns,
        low_ns=answer.low_ns,
        high_ns=answer.high_ns,
        change_ns=answer.change_ns,
        is_too_small=answer.is_too_small,
        note=answer.note or None,
    )
