"""Grouping of several reports by the recording that they are ranks of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traceprof.run.recognition import number_runs

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from collections.abc import Set as AbstractSet

    from traceprof.run.summary import RankInfo, ReportSummary

# What they say of a rank's number holds in the whole run; of a report's only rank, also the others.
_SOURCES = ("labels", "mpi")
_SOURCES_OF_ONE = (*_SOURCES, "environment", "file name")


class _Report(NamedTuple):
    """The facts by which a report is assigned to a recording.

    Attributes:
        places: what only one report of a recording can have.
        is_numbered: whether the numbers of its ranks are known.
        has_time: whether its time of capture is known.
        communicators: ids of NCCL communicators of several ranks.
    """

    places: AbstractSet[Hashable]
    is_numbered: bool
    has_time: bool
    communicators: AbstractSet[str]


def captures(
    reports: Sequence[ReportSummary], ranks: Sequence[Sequence[RankInfo]]
) -> list[list[int]]:
    """Return the reports of each recording, as indices, in the order given.

    Reports are of one recording if they are of one run, no rank is in two of them, and something
    says that they belong together: a communicator, the time, or the numbers of their ranks.

    Args:
        reports: of the same program.
        ranks: of each report.
    """
    runs = number_runs([report.identity for report in reports])
    described = [_described(*pair) for pair in zip(reports, ranks, strict=True)]
    recordings: list[list[int]] = []
    for index, report in enumerate(described):
        fitting = (
            recording
            for recording in recordings
            if runs[recording[0]] == runs[index]
            and not any(described[other].places & report.places for other in recording)
            and any(_belong_together(described[other], report) for other in recording)
        )
        recording = next(fitting, None)
        if recording is None:
            recordings.append([index])
        else:
            recording.append(index)
    return recordings


def _belong_together(one: _Report, other: _Report) -> bool:
    return (
        bool(one.communicators & other.communicators)
        or (one.has_time and other.has_time)
        or (one.is_numbered and other.is_numbered)
    )


def _described(report: ReportSummary, ranks: Sequence[RankInfo]) -> _Report:
    session = report.session
    numbered: set[Hashable] = set()
    for source in _SOURCES if len(ranks) > 1 else _SOURCES_OF_ONE:
        numbers = report.rank_numbers.get(source, ())
        numbered |= {(source, number) for number in numbers if number is not None}
    places: set[Hashable] = set()
    if session.host is not None:
        places |= {(session.host, rank.pid, rank.device) for rank in ranks}
    has_time = session.is_utc or session.start_utc_ns is not None
    communicators = report.identity.communicators
    return _Report(numbered | places, bool(numbered), has_time, communicators)
