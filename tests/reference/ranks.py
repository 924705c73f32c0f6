"""Ranks of several reports on one clock, in plain Python: for a handful of operations, by order.

Reads the exports with sqlite3 alone. Times are in UTC, as `--ts-normalize` writes them, or by the
session's start.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_UTC = 10**18


@dataclass
class Report:
    """The NCCL kernels of a report that has one rank, in UTC, and its machine."""

    host: str
    kernels: list[tuple[int, int]]


@dataclass
class Expected:
    """What must be found."""

    offsets: dict[str, float]  # by machine, to be added to its times
    waits: list[list[float]]  # by operation and report
    transfers: list[float]  # by operation, the median of what is left of the stays after waiting
    last: list[int]  # by operation, the report that came last


def read(path: Path) -> Report:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        (start,) = database.execute(
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
        ).fetchone()
        (host,) = database.execute(
            "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
        ).fetchone()
        kernels = database.execute(
            "SELECT k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s"
            " ON s.id = k.shortName WHERE s.value LIKE 'nccl%' ORDER BY k.start"
        ).fetchall()
    kernels = [(a, b) if a > _UTC else (a + start, b + start) for a, b in kernels]
    return Report(host, kernels)


def expected(paths: Sequence[Path]) -> Expected:
    reports = [read(path) for path in paths]
    hosts = list(dict.fromkeys(report.host for report in reports))
    num = len(reports[0].kernels)

    def left(host: str, operation: int) -> float:
        """Return when the members on a machine left, at their median."""
        return median(report.kernels[operation][1] for report in reports if report.host == host)

    # The difference of medians first: floats hold ns since 1970 to 256 ns only.
    base = min(start for report in reports for start, _ in report.kernels)
    for other in reports:
        other.kernels = [(a - base, b - base) for a, b in other.kernels]
    offsets = {
        host: median(left(hosts[0], row) - left(host, row) for row in range(num)) for host in hosts
    }
    waits, transfers, last = [], [], []
    for row in range(num):
        starts = [report.kernels[row][0] + offsets[report.host] for report in reports]
        stays = [end - start for start, end in (report.kernels[row] for report in reports)]
        waits.append(
            [min(max(starts) - start, stay) for start, stay in zip(starts, stays, strict=True)]
        )
        transfers.append(median(stay - wait for stay, wait in zip(stays, waits[-1], strict=True)))
        last.append(starts.index(max(starts)))
    return Expected(offsets, waits, transfers, last)
