"""One clock for the reports of a run.

A report's times count from its session's start, which it tells in UTC: the *seed*. Reports of one
machine share its clock and need no more. The clocks of two machines are brought together by the
operations that all members leave together: what their ends are apart is what the clocks are apart,
but for some microseconds that vary from one operation to the next. A line through these differences
is the offset and the drift; how far they stray from it is the uncertainty. Medians make both, so
that single outliers do not matter (the slope is Theil and Sen's: the median of the slopes between
pairs; P. K. Sen, J. Am. Stat. Assoc. 63, 1968).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from traceprof.alignment import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.analyses.arrivals import Arrivals
    from traceprof.intervals import Int64
    from traceprof.matching import Group
    from traceprof.trace.model import Session

    Float64 = npt.NDArray[np.float64]
    Source = Literal["reference", "operations", "session start", "none"]

# Nsight's user guide, "Time Synchronization": UTC of machines synchronized by NTP is off by "one to
# tens of milliseconds".
NTP_NS = 50_000_000
# Nsight brings the clocks of GPUs and host together to some microseconds.
ONE_MACHINE_NS = 10_000
# Crystals of servers keep time to some tens of millionths; what drifts more is no clock's doing.
_MOST_DRIFT = 200e-6
# A slope between operations that are close together is noise.
_LEAST_FOR_DRIFT = 12
_PAIRS = 4096
_STRAYING = 3.0
_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of one machine, as the run sees it.

    Attributes:
        host: its name; where it is not known, that of its report.
        source: the clock that the others are measured by (`reference`), measured by common
            `operations`, the `session start` alone, or `none`.
        offset_ns: to be added to its times at `at_ns`.
        drift: to be added per ns since then.
        at_ns: a time by the sessions' starts, in the middle of the operations.
        uncertainty_ns: of differences to the reference, None where nothing is known of them.
        num_operations: that it was measured by.
    """

    host: str
    source: Source
    offset_ns: int
    drift: float
    at_ns: int
    uncertainty_ns: int | None
    num_operations: int


@dataclass(frozen=True)
class Clocks:
    """Times of reports as times of the run, which begins with the first session.

    Attributes:
        seeds_ns: for each report, what the session's start adds to its times.
        host_of: for each report, the index of its machine.
        hosts: the clocks of the machines.
        references: indices of those that the others are measured by, one for each run.
        start_utc_ns: what the reference's clock showed at time 0 of the run, None if unknown.
    """

    seeds_ns: tuple[int, ...]
    host_of: tuple[int, ...]
    hosts: tuple[HostClock, ...]
    references: tuple[int, ...]
    start_utc_ns: int | None

    def to_run(self, report: int, times_ns: Int64) -> Int64:
        """Return times of a report as times of the run, int64[n]."""
        clock = self.hosts[self.host_of[report]]
        seeded = times_ns + self.seeds_ns[report]
        drifted = np.rint((seeded - clock.at_ns) * clock.drift).astype(np.int64)
        corrected: Int64 = seeded + clock.offset_ns + drifted
        return corrected

    def of(self, report: int) -> HostClock:
        """Return the clock of a report's machine."""
        return self.hosts[self.host_of[report]]

    def uncertainty_ns(self, first: int, second: int) -> int | None:
        """Return how well times of two reports compare, None where they do not at all."""
        if self.host_of[first] == self.host_of[second]:
            return ONE_MACHINE_NS
        one, other = self.of(first).uncertainty_ns, self.of(second).uncertainty_ns
        return None if one is None or other is None else round(float(np.hypot(one, other)))


def seeded(sessions: Sequence[Session], runs: Sequence[int] | None = None) -> Clocks:
    """Return the clocks as the sessions' starts tell them.

    Args:
        sessions: of each report.
        runs: of each report, where they are of several: a machine's clock may have been set between
            two.
    """
    starts = [
        None if each.start_utc_ns is None and not each.is_utc else each.start_utc_ns or 0
        for each in sessions
    ]
    known = [
        start for start, each in zip(starts, sessions, strict=True) if start and not each.is_utc
    ]
    known += [each.start_utc_ns for each in sessions if each.is_utc and each.start_utc_ns]
    origin = min(known, default=0)
    # Without a start, a report's times stand for themselves.
    hosts = [
        (
            run,
            session.host or f"machine of report {index}",
            None if start is not None and session.host else index,
        )
        for index, (session, start, run) in enumerate(
            zip(sessions, starts, runs or [0] * len(sessions), strict=True)
        )
    ]
    distinct = list(dict.fromkeys(hosts))
    return Clocks(
        seeds_ns=tuple(
            -origin if each.is_utc else (0 if start is None else start - origin)
            for each, start in zip(sessions, starts, strict=True)
        ),
        host_of=tuple(distinct.index(each) for each in hosts),
        hosts=tuple(
            _unmeasured(host[1], has_start=starts[hosts.index(host)] is not None)
            for host in distinct
        ),
        references=tuple(
            next(index for index, host in enumerate(distinct) if host[0] == run)
            for run in dict.fromkeys(host[0] for host in distinct)
        ),
        start_utc_ns=origin or None,
    )


def _unmeasured(host: str, *, has_start: bool) -> HostClock:
    source: Source = "session start" if has_start else "none"
    return HostClock(host, source, 0, 0.0, 0, NTP_NS if has_start else None, 0)


def measured(clocks: Clocks, arrivals: Sequence[Arrivals], groups: Sequence[Group]) -> Clocks:
    """Return the clocks brought together by operations that all members leave together.

    The machine of a run's first report is the reference. From it, machines that share operations
    with it are measured, then those that share some with these, and so on.

    Args:
        clocks: as the sessions' starts tell them.
        arrivals: of each rank.
        groups: matched operations.
    """
    ends = _ends_by_host(clocks, arrivals, groups)
    hosts = list(clocks.hosts)
    reached = {
        index: HostClock(hosts[index].host, "reference", 0, 0.0, 0, 0, 0)
        for index in clocks.references
    }
    frontier = list(reached)
    while frontier:
        known = frontier.pop(0)
        for host in range(len(hosts)):
            shared = None if host in reached else _shared(ends, known, host)
            if shared is not None:
                by = _corrected(reached[known], shared[0])
                reached[host] = _fitted(hosts[host].host, by, *shared[1:], reached[known])
                frontier.append(host)
    return replace(
        clocks, hosts=tuple(reached.get(index, each) for index, each in enumerate(hosts))
    )


def _ends_by_host(
    clocks: Clocks, arrivals: Sequence[Arrivals], groups: Sequence[Group]
) -> list[tuple[Int64, Int64, dict[int, int]]]:
    """Return for each group when the members on each machine left, and how far apart they were.

    Returns:
        Ends int64[m, h] by the sessions' starts, -1 for none; spreads int64[m, h]; and the column
        of each machine.
    """
    # Groups that are known by their order alone may be of several communicators, and are used only
    # for machines that no better one reaches, the longest first.
    found: list[tuple[Int64, Int64, dict[int, int]]] = []
    for group in sorted(groups, key=lambda each: (each.source == "order", -len(each))):
        together = group.chosen(group.leaves_together & group.is_whole)
        members = [arrivals[member] for member in group.members]
        host_of = [clocks.host_of[each.report] for each in members]
        column = {host: index for index, host in enumerate(dict.fromkeys(host_of))}
        known = {host for *_, columns in found for host in columns}
        is_superfluous = group.source == "order" and column.keys() <= known
        if len(column) < 2 or len(together) == 0 or is_superfluous:
            continue
        end = together.times([each.end_ns + clocks.seeds_ns[each.report] for each in members])
        duration = together.times([each.end_ns - each.start_ns for each in members])
        middle, apart = [], []
        for host in column:
            of_host = [index for index, each in enumerate(host_of) if each == host]
            own = end[:, of_host]
            middle.append(np.median(own, axis=1).astype(np.int64))
            # With one member alone, only the time that it was inside bounds when it left.
            alone = duration[:, of_host].min(axis=1)
            apart.append(alone if len(of_host) == 1 else own.max(axis=1) - own.min(axis=1))
        found.append((np.stack(middle, axis=1), np.stack(apart, axis=1), column))
    return found


def _shared(
    ends: Sequence[tuple[Int64, Int64, dict[int, int]]], known: int, host: int
) -> tuple[Int64, Int64, Int64] | None:
    """Return the ends of two machines' common operations and their spread; None without any."""
    found = [
        (
            end[:, column[known]],
            end[:, column[host]],
            np.maximum(apart[:, column[known]], apart[:, column[host]]),
        )
        for end, apart, column in ends
        if known in column and host in column
    ]
    if not found:
        return None
    # Operations that were matched wrongly do not end together: groups that stray are left out.
    strays = [spread((one - other).astype(np.float64)) for one, other, _ in found]
    least = min(strays)
    kept = [
        each
        for each, stray in zip(found, strays, strict=True)
        if stray <= _STRAYING * least + ONE_MACHINE_NS
    ]
    one, other, apart = (np.concatenate(each) for each in zip(*kept, strict=True))
    order = np.argsort(one, kind="stable")
    return one[order], other[order], apart[order]


def _corrected(clock: HostClock, times: Int64) -> Int64:
    drifted = np.rint((times - clock.at_ns) * clock.drift).astype(np.int64)
    corrected: Int64 = times + clock.offset_ns + drifted
    return corrected


def _fitted(host: str, by: Int64, own: Int64, within: Int64, known: HostClock) -> HostClock:
    """Measure a clock by the times that another one and it show at the same moments."""
    at = int(np.median(own))
    apart = (by - own).astype(np.float64)
    since = (own - at).astype(np.float64)
    drift = _slope(since, apart)
    offset = float(np.median(apart - drift * since))
    strayed = np.abs(apart - drift * since - offset)
    # One or two operations do not show how far ends stray: what is seen on one machine does.
    residual = float(np.quantile(strayed, _QUANTILE))
    if len(own) < 3:
        residual = max(residual, float(np.median(within)))
    uncertainty = float(np.hypot(residual, known.uncertainty_ns or 0))
    return HostClock(
        host, "operations", round(offset), drift, at, max(round(uncertainty), 1), len(own)
    )


def _slope(x: Float64, y: Float64) -> float:
    """Return the median slope between points of the first and the second half, 0 if too few."""
    if len(x) < _LEAST_FOR_DRIFT:
        return 0.0
    half = len(x) // 2
    each = np.unique(np.linspace(0, half - 1, min(half, _PAIRS)).astype(np.int64))
    run = x[each + half] - x[each]
    rising = run > 0
    if not rising.any():
        return 0.0
    slope = float(np.median((y[each + half] - y[each])[rising] / run[rising]))
    return slope if abs(slope) <= _MOST_DRIFT else 0.0
