"""CUDA graphs whose capture was recorded: the captured launch of each replayed kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.evidence_names import BEGIN_CAPTURE, END_CAPTURE
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls


class Captures(Record, frozen=True):
    """Launches that were captured into graphs, so that none of them ran.

    Attributes:
        call: int64[n], indices of the calls, one capture after the other, each in order of time.
        first: int64[k + 1], where each capture begins in `call`.
        end_ns: int64[k], when each was over.
    """

    call: Int64
    first: Int64
    end_ns: Int64


def captures(rank: Rank, calls: ApiCalls) -> Captures:
    """Return the captures of a process with at least one launch."""
    names = rank.trace.api_names
    begins, ends = (
        np.flatnonzero(calls.packed_name.isin([key for key in names if pattern.match(names[key])]))
        for pattern in (BEGIN_CAPTURE, END_CAPTURE)
    )
    by_capture: list[Int64] = []
    end_ns: list[int] = []
    if len(begins) and len(ends):
        launches = np.flatnonzero(
            calls.packed_name.isin([key for key in names if _launches_kernel(names[key])])
        )
        for thread in distinct_values(calls.packed_thread.at(begins)).tolist():
            begin, end, launch = (
                np.sort(calls.start_ns[rows[calls.packed_thread.at(rows) == thread]])
                for rows in (begins, ends, launches)
            )
            of_launch = launches[calls.packed_thread.at(launches) == thread]
            of_launch = of_launch[np.argsort(calls.start_ns[of_launch], kind="stable")]
            stop = np.searchsorted(end, begin)
            for since, place in zip(begin.tolist(), stop.tolist(), strict=True):  # few
                if place < len(end):
                    inside = slice(*np.searchsorted(launch, (since, end[place])).tolist())
                    by_capture.append(of_launch[inside])
                    end_ns.append(int(end[place]))
    some = [index for index, rows in enumerate(by_capture) if len(rows)]
    lengths = [len(by_capture[index]) for index in some]
    return Captures(
        np.concatenate([by_capture[index] for index in some]) if some else np.empty(0, np.int64),
        np.cumsum([0, *lengths]),
        np.array([end_ns[index] for index in some], np.int64),
    )


def replays(
    rank: Rank, calls: ApiCalls, kernels: Int64, call: Int64, known: Captures
) -> Iterator[tuple[Int64, Int64]]:
    """Yield replays of one number of kernels, and the captures of so many launches before them.

    A graph whose kernels run on several streams is left out: their order is not that of the
    launches.

    Args:
        rank: the rank.
        calls: of its process.
        kernels: int64[n], ascending indices of its kernels.
        call: int64[n], the call that launched each, -1 if unknown.
        known: the captures.

    Yields:
        int64[r, m] rows of `kernels`, and int64[c] captures of m launches.
    """
    names = rank.trace.api_names
    graphs = [key for key in names if _launches_graph(names[key])]
    if not graphs or not len(known.end_ns):
        return
    rows = np.flatnonzero(call >= 0)
    rows = rows[is_in(calls.packed_name.at(call[rows]), graphs)]
    if not len(rows):
        return
    rows = rows[np.argsort(call[rows], kind="stable")]
    first = np.flatnonzero(np.diff(call[rows], prepend=-1))
    stream = rank.operations.kernels.packed_stream.at(kernels[rows])
    is_one = np.minimum.reduceat(stream, first) == np.maximum.reduceat(stream, first)
    count = np.diff(first, append=len(rows))
    launches = np.diff(known.first)
    begun_ns = calls.start_ns[call[rows[first]]]
    for num in distinct_values(count[is_one]).tolist():
        chosen = np.flatnonzero(launches == num)
        if len(chosen):
            after = is_one & (count == num) & (begun_ns >= known.end_ns[chosen].max())
            yield rows[first[after][:, np.newaxis] + np.arange(num)], chosen


def _launches_graph(name: str) -> bool:
    return api_call_kind(name) is ApiCallKind.LAUNCH and "Graph" in name


def _launches_kernel(name: str) -> bool:
    return api_call_kind(name) is ApiCallKind.LAUNCH and "Graph" not in name
