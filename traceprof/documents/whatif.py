"""The document of what-if answers, `traceprof.whatif/1`: its types and how it is built.

Fields may be added, never renamed. Times are nanoseconds; a change is negative where a step gains.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from traceprof.documents.analysis.model import maker, record
from traceprof.replay import results
from traceprof.replay.results import Asked, PathPart, StepPath
from traceprof.version import __version__

SCHEMA: Literal["traceprof.whatif/1"] = "traceprof.whatif/1"
Kind = Literal["estimate", "bound"]


@record("step_ns", "replayed_ns", "misfit", "num_steps", "num_measured", "gates")
class Baseline(results.Baseline, frozen=True, kw_only=True):
    """The mean of the steady steps, as measured and as replayed."""

    misfit: float | None  # a property of the result


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
_answer = maker(Answer, "kind", "is_too_small", "note")


def document(answers: Asked) -> WhatIfDocument:
    """Return answers to what-if questions as the document that is written."""
    whatif = answers.whatif
    return WhatIfDocument(
        schema=SCHEMA,
        version=__version__,
        reports=[str(report.path) for report in answers.run.reports],
        baseline=None if whatif.baseline is None else _baseline(whatif.baseline),
        answers=[
            _answer(
                answer,
                "bound" if answer.is_bound else "estimate",
                answer.is_too_small if answer.refused is None else None,
                answer.note or None,
            )
            for answer in whatif.answers
        ],
        critical_path=list(whatif.critical_path),
        refused=whatif.refused,
        how_to_collect=whatif.how_to_collect,
        blocked_sends=[],
        unknown_sends=None,
        schedules=[],
        step_paths=list(answers.paths),
    )
