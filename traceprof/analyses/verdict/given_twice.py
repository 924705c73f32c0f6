"""Checks that no recording, and no rank of a run, was given twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.errors import UsageError
from traceprof.run.recognition import SOURCES_OF_RANKS

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from traceprof.run.summary import ReportSummary, RunSummary

_RECORDED_SOURCES = (*SOURCES_OF_RANKS, "environment")  # which a copy has, too


def check_are_different(run: RunSummary, times: Sequence[Hashable]) -> None:
    """Check that no recording, and no rank of a run, was given twice.

    Containers of one host share process ids, and runs begin alike: the times of their operations
    tell them apart.

    Args:
        run: of all reports.
        times: by report, how long its ranks compute, communicate and copy, in ns.

    Raises:
        UsageError: one was; it names both reports.
    """
    first: dict[object, ReportSummary] = {}
    for report, of_report in zip(run.reports, times, strict=True):
        identity = report.identity
        if not identity.work:
            continue
        session = identity.session
        claims = tuple(report.rank_numbers.get(source) for source in _RECORDED_SOURCES)
        facts = session.host, session.start_utc_ns, identity.work, claims, of_report
        other = first.setdefault(facts, report)
        if other is not report:
            raise UsageError(
                f"{other.path} and {report.path} are the same recording",
                "their operations begin, end and take the same time to the nanosecond",
                "give each recording once",
            )
    if run.rank_source in SOURCES_OF_RANKS:
        return
    for source in SOURCES_OF_RANKS:
        _check_ranks(run, source)


def _check_ranks(run: RunSummary, source: str) -> None:
    """Check that no two reports of a run are of the same rank of several, by one source."""
    claims: dict[tuple[int, int], Path] = {}
    several = {
        number
        for report, number in zip(run.reports, run.run_numbers, strict=True)
        if (report.identity.world_size or max(_numbers(report, source), default=0) + 1) > 1
    }
    for report, number in zip(run.reports, run.run_numbers, strict=True):
        for rank in _numbers(report, source) if number in several else ():
            other = claims.setdefault((number, rank), report.path)
            if other != report.path:
                raise UsageError(
                    f"{other} and {report.path} are of the same rank of one run, {rank}",
                    "ranks cannot be compared with themselves",
                    "give one recording of each rank; traceprof compare takes two of a run",
                )


def _numbers(report: ReportSummary, source: str) -> set[int]:
    """Return the ranks that a report says it is of."""
    return {number for number in report.rank_numbers.get(source, ()) if number is not None}
