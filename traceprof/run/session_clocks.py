"""The clocks of a run's reports, from the starts of their sessions.

A report's times count from its session's start, which it gives in UTC: the *seed*. Reports of one
machine share its clock and need no more. The clocks of different machines are aligned by
operations that their ranks did at the same moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from traceprof.findings import Count, one_of
from traceprof.intervals import Int64
from traceprof.structs import Record
from traceprof.trace.model.trace import Session

# Nsight's user guide, "Time Synchronization": UTC of machines synchronized by NTP is off by "one to
# tens of milliseconds".
NTP_NS = 50_000_000
# Nsight aligns the clocks of GPUs and host to some microseconds, and the starts of sessions on one
# machine are as accurate (two processes left a barrier 0 to 2 µs apart, at the median of 121).
ONE_MACHINE_NS = 10_000
UNNAMED_MACHINES = "machine of report", "the machine of these GPUs"
"""What machines are called whose name is not in the report: by its number, or together."""


class MachineClock(Struct, frozen=True):
    """Clock of a machine, compared with the reference's."""

    host: Annotated[str, "Name of the machine; if unknown, of its report."]
    source: Annotated[
        str,
        one_of("reference", "operations", "session start", "none"),
        "How the clock was compared with the reference clock. `reference`: it is the reference;"
        " `operations`: by operations that all members leave together; `session start`: only by"
        " the session's start in UTC; `none`: not at all.",
    ]
    offset_ns: Annotated[
        int, "Nanoseconds to add, at `at_ns`, to times since the first session's start."
    ]
    drift: Annotated[float, "Nanoseconds to add for each nanosecond since `at_ns`."]
    at_ns: Annotated[
        int, "Time of `offset_ns`, by the sessions' starts: the middle of the operations."
    ]
    uncertainty_ns: Annotated[
        Count | None, "Uncertainty of differences to the reference clock; null if unknown."
    ]
    num_operations: Annotated[Count, "Number of operations by which it was compared."]

    def corrected(self, times_ns: Int64) -> Int64:
        """Return times since the first session's start by the reference's clock, int64[n]."""
        drifted = np.rint((times_ns - self.at_ns) * self.drift).astype(np.int64)
        return times_ns + self.offset_ns + drifted


class Clocks(Record, frozen=True):
    """Times of reports as times of the run, which begins with the first session."""

    seeds_ns: tuple[int, ...]  # for each report, what the session's start adds to its times
    host_of: tuple[int, ...]  # for each report, the index of its machine
    hosts: tuple[MachineClock, ...]  # the clocks of the machines
    references: tuple[int, ...]  # indices of those that others are measured by, one for each run
    start_utc_ns: int | None  # time 0 of the run by the reference, None if unknown

    def to_run(self, report: int, times_ns: Int64) -> Int64:
        """Return times of a report as times of the run, int64[n]."""
        return self.of(report).corrected(times_ns + self.seeds_ns[report])

    def to_report(self, report: int, times_ns: Int64) -> Int64:
        """Return the first time of a report at or after each time of the run, int64[n]."""
        clock = self.of(report)
        since = times_ns - clock.offset_ns - clock.at_ns
        drifted = np.rint(since * (clock.drift / (1 + clock.drift))).astype(np.int64)
        first: Int64 = since - drifted + clock.at_ns - self.seeds_ns[report]
        if clock.drift:  # rounded twice: at most one off
            first = first - 2
            for _ in range(4):
                first = first + (self.to_run(report, first) < times_ns)
        return first

    def of(self, report: int) -> MachineClock:
        """Return the clock of a report's machine."""
        return self.hosts[self.host_of[report]]

    def uncertainty_ns(self, first: int, second: int) -> int | None:
        """Return the uncertainty of comparing times of two reports, None if incomparable."""
        if self.host_of[first] == self.host_of[second]:
            return ONE_MACHINE_NS
        of_first, of_second = self.of(first).uncertainty_ns, self.of(second).uncertainty_ns
        if of_first is None or of_second is None:
            return None
        return round(float(np.hypot(of_first, of_second)))


def seeded(sessions: Sequence[Session], runs: Sequence[int] | None = None) -> Clocks:
    """Return clocks by the sessions' starts; `runs`: by report, as clocks may be set between."""
    starts = [
        None if session.start_utc_ns is None and not session.is_utc else session.start_utc_ns or 0
        for session in sessions
    ]
    origin = min(filter(None, (session.start_utc_ns for session in sessions)), default=0)
    hosts = []
    for index, session in enumerate(sessions):
        # Without a start, a report's times are taken as they are.
        is_known = starts[index] is not None and session.host
        name = session.host or f"{UNNAMED_MACHINES[0]} {index}"
        hosts.append((runs[index] if runs else 0, name, None if is_known else index))
    first = {host: index for index, host in reversed([*enumerate(hosts)])}  # its first report
    distinct = sorted(first, key=lambda host: first[host])
    return Clocks(
        seeds_ns=tuple(
            -origin if session.is_utc else (0 if start is None else start - origin)
            for session, start in zip(sessions, starts, strict=True)
        ),
        host_of=tuple(map(distinct.index, hosts)),
        hosts=tuple(
            MachineClock(host[1], "none", 0, 0.0, 0, None, 0)
            if starts[first[host]] is None
            else MachineClock(host[1], "session start", 0, 0.0, 0, NTP_NS, 0)
            for host in distinct
        ),
        references=tuple(
            next(index for index, host in enumerate(distinct) if host[0] == run)
            for run in dict.fromkeys(host[0] for host in distinct)
        ),
        start_utc_ns=origin or None,
    )
