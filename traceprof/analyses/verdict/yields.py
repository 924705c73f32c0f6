"""Usual yield: what changes on file brought of the limits that findings had given before them.

`make validation` writes the table, `usual_yields.json`, from pairs of recordings and from changes
that were timed on GPUs. A limit says what a change cannot exceed; its usual yield says what one may
expect.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Annotated

from msgspec import Struct
from msgspec import json as msgspec_json

from traceprof.communication.exposure import Reason
from traceprof.findings import Count, Finding, Number, Text
from traceprof.host.idle_causes import IdleCause

MIN_CHANGES = 5
"""Changes from which on the report speaks of a usual yield."""


class UsualYield(Struct, frozen=True, forbid_unknown_fields=True):
    """What changes of one kind brought, as a share of the limit that was given before."""

    finding: Annotated[Text, "The id of the finding."]
    cause: Annotated[Text | None, "Its largest part; null for a finding of one part."]
    num_changes: Annotated[Count, "The changes on file."]
    low: Annotated[Number, "First quartile of what came, as a share of the limit."]
    middle: Annotated[Number, "Median."]
    high: Annotated[Number, "Third quartile."]
    expected: Annotated[
        Number, "The share to expect: the mean, drawn to that of all kinds where changes are few."
    ]


class UsualYields(Struct, frozen=True, forbid_unknown_fields=True):
    """The table that `make validation` writes."""

    of_any: float  # the share to expect of a kind without a change on file
    kinds: list[UsualYield]


@cache
def usual_yields() -> UsualYields:
    """Return the table."""
    text = files("traceprof.analyses.verdict").joinpath("usual_yields.json").read_bytes()
    return msgspec_json.decode(text, type=UsualYields)


def cause_of(finding: Finding) -> str | None:
    """Return the largest part of a finding that has several, of the mean step if it differs there.

    None for findings of one part.
    """
    if finding.id not in {"gpu-idle", "exposed-communication"}:
        return None
    of_step = finding.metrics.get("step_cause")
    if isinstance(of_step, str):
        return of_step
    parts = {
        name.removesuffix("_ns"): value
        for name, value in finding.metrics.items()
        if name in _PARTS and isinstance(value, int) and value > 0
    }
    return max(parts, key=lambda name: parts[name], default=None)


_PARTS = {f"{cause.value}_ns" for cause in IdleCause} | {reason.metric for reason in Reason}


def usual_yield(finding: Finding) -> UsualYield | None:
    """Return what changes on file brought of such a limit; None if there are none."""
    kind = finding.id, cause_of(finding)
    return next((row for row in usual_yields().kinds if (row.finding, row.cause) == kind), None)


def expected_ns(finding: Finding, step_ns: int) -> int:
    """Return the expected gain of a step: an estimate's middle, or a limit by its usual yield.

    `step_ns`: what a step takes.
    """
    saving = finding.saving
    if finding.elsewhere is not None:
        return finding.elsewhere.expected_ns
    if saving is not None and saving.step_ns is not None and saving.low_ns:
        return saving.step_ns
    most_ns = None if saving is None else saving.high_ns
    of_any = usual_yields().of_any
    if most_ns is None:
        return round(of_any * finding.impact_fraction * step_ns)
    known = usual_yield(finding)
    if known is None and finding.id == "few-blocks":  # of its kernels' time the idle share
        most_ns = min(most_ns, round(finding.impact_fraction * step_ns))
    return round(most_ns * (of_any if known is None else known.expected))
