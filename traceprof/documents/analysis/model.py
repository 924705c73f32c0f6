"""The JSON document, `traceprof.analysis/1`, as types: its schema is made from them.

Fields may be added, never renamed. Units are in their names; times are nanoseconds of the report's
own clock, rates 1e9 bytes per second, fractions 0 to 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from traceprof.analyses.compute.compute_parts import StepFlops
from traceprof.analyses.steps.step_means import StepTotals
from traceprof.analyses.verdict.attribution import Attribution
from traceprof.documents.analysis.communication import (
    Bucket,
    Collective,
    CommunicationTotals,
    LinkUse,
)
from traceprof.documents.analysis.headline import Headline
from traceprof.documents.analysis.measures import (
    Beside,
    Breakdown,
    Completeness,
    Compute,
    Kernel,
    Module,
    Step,
    Training,
)
from traceprof.documents.analysis.reports import LostReport, Note, Rank, Report, Run
from traceprof.findings import Finding, NotApplicable

SCHEMA: Literal["traceprof.analysis/1"] = "traceprof.analysis/1"


class Document(Struct):
    """Output of `traceprof analyze --format json`.

    Times are nanoseconds of the report's own clock; rates are 1e9 bytes per second; fractions are 0
    to 1. New keys may appear; those required here stay.
    """

    schema: Literal["traceprof.analysis/1"]
    traceprof_version: str
    reports: list[Report]
    ranks: list[Rank]
    run: Run
    completeness: Annotated[
        list[Completeness],
        "What each recording lacks. From 1 % of lost launches on, gaps between operations are not"
        " judged, from 20 % on nothing is.",
    ]
    breakdown: list[Breakdown]
    training: list[Training]
    steps: list[Step]
    step_totals: list[StepTotals]
    communication_totals: list[CommunicationTotals]
    beside: Annotated[
        list[Beside],
        "Which kinds of operations ran at the same time; kinds that did not run are left out.",
    ]
    links: list[LinkUse]
    collectives: list[Collective]
    buckets: list[Bucket]
    compute: list[Compute]
    step_flops: list[StepFlops]
    kernels: list[Kernel]
    modules: list[Module]
    headline: Headline
    owners: list[Attribution]
    findings: list[Finding]
    not_applicable: list[NotApplicable]
    notes: list[Note]
    lost_reports: list[LostReport]
