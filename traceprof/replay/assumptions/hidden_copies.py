"""The assumption that copies take no time, with what goes where nobody makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.host.thread_evidence import host_evidence
from traceprof.replay.assumptions.one_process import (
    copying_meanwhile,
    faster,
    free_of,
    launching_before,
)
from traceprof.replay.graph.columns import COPY
from traceprof.replay.graph.needed_waits import MAX_SCALAR_BYTES, copied_bytes, round_trips
from traceprof.trace.grouping import distinct_values, is_in, median_of

if TYPE_CHECKING:
    from traceprof.intervals import Float64, Int64, Mask
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations


def _is_read(process: Process) -> Mask:
    """Say which waits are for more than a number that the host does not use at once, bool[m]."""
    work, waits = process.work, process.host_waits
    is_more = copied_bytes(process.ranks, work, waits.operation) > MAX_SCALAR_BYTES
    return work.is_to_host[waits.operation] & is_more & ~waits.is_needed


def with_hidden_copies(process: Process, durations: Durations) -> Durations:
    """Let copies, and calls that make one meanwhile or wait for one, take no time.

    Waits for numbers that the host reads stay (`no-sync`), and those for results that it uses at
    once. Copies to the host of what goes back to a GPU at once go there directly instead: neither
    the wait for them nor what the host does until the copy back takes any time.
    """
    durations = faster(durations, process.work.kind == COPY, 0.0)
    calls, waits, work = process.calls, process.host_waits, process.work
    copying = copying_meanwhile(process, work.kind == COPY)
    own, before = _without_launches(process, copying, durations)
    own[copying] = (calls.end_ns - calls.start_ns)[copying]
    freed = free_of(process, durations, work.is_to_device[waits.operation] | _is_read(process))
    since, until = round_trips(process.ranks, calls, process.work, (waits.call, waits.operation))
    freed[since] = True
    # Calls of a thread are in a row: those after the wait, up to the launch of the copy back.
    change = np.zeros(len(calls) + 1, np.int64)
    np.add.at(change, since + 1, 1)
    np.add.at(change, until + 1, -1)
    between = (np.cumsum(change)[:-1] > 0) & calls.is_outer
    outer = np.flatnonzero(calls.is_outer)
    own[between] = (calls.end_ns - calls.start_ns)[between]
    follows = outer[1:][between[outer[1:]]]
    before[follows] = calls.start_ns[follows] - calls.end_ns[calls.outer[follows - 1]]
    return replace(
        durations,
        is_free_of_wait=freed,
        in_call_ns=own,
        before_call_ns=before,
        is_gone=work.kind == COPY,
    )


def _without_launches(
    process: Process, copying: Int64, durations: Durations
) -> tuple[Float64, Float64]:
    """Return how much less calls take, and threads before each, if nobody launches copies.

    Calls that launch copies go. They may wait for something unknown: none counts with more than
    twice the median of those of its name that return before their copy begins. What the thread
    runs between two copies of one direction goes, too, and what it runs before copies that it waits
    for, and after them until it launches what is no upload, unless it uses them at once;
    between other work and a copy, at most twice what is usual between two calls that launch.

    Args:
        process: whose calls they are.
        copying: calls that have not returned when their copy begins.
        durations: of the process.
    """
    calls, work, rank = process.calls, process.work, process.ranks[0][1]
    inside, before = durations.in_call_ns.copy(), durations.before_call_ns.copy()
    launches, goes = np.zeros((2, len(calls)), np.bool_)
    direction, has_call = np.zeros(len(calls), np.int64), work.call >= 0
    of_work = work.is_to_host + 2 * work.is_to_device
    direction[calls.outer[work.call[has_call]]] = of_work[has_call]
    for launched, copies in ((work.kind != COPY, False), (work.kind == COPY, True)):
        launching = calls.outer[work.call[launched & (work.call >= 0)]]
        goes[launching] = copies & ~launches[launching]
        launches[launching] = True
    if not goes.any():
        return inside, before
    columns, evidence, took_ns = rank.calls, host_evidence(rank), calls.end_ns - calls.start_ns
    assert columns is not None  # noqa: S101
    assert evidence is not None  # noqa: S101
    names, returns = columns.packed_name.at(calls.index), goes & ~process.is_held
    returns[copying] = False
    for name in distinct_values(names[returns]).tolist():
        rows = np.flatnonzero(returns & (names == name))
        usual_ns = np.minimum(took_ns[rows], 2 * median_of(took_ns[rows]))
        inside[rows] = np.maximum(inside[rows], usual_ns)
    launching = np.flatnonzero(launches)
    later, launching_ns = launching_before(process, evidence, counts_awake=False)
    following = np.append(launching, -1)[np.searchsorted(launching, later)]
    previous = launching[np.searchsorted(launching, later) - 1]
    same = calls.thread[previous] == calls.thread[later]
    of_one = goes[previous] & (direction[previous] == direction[following]) & same
    # Who reads results also prepares for them, and looks at them. Copies in a row: waits for one.
    to_host, others = np.zeros((2, len(calls)), np.bool_)
    is_read = _is_read(process)
    for marked, chosen in ((to_host, is_read), (others, ~is_read)):
        awaited = work.call[process.host_waits.operation[chosen]]
        marked[calls.outer[awaited[awaited >= 0]]] = True
    kind = 4 * calls.thread[launching] + np.where(goes, direction, 0)[launching]
    row = np.cumsum(np.append(False, kind[1:] != kind[:-1]))
    to_host[launching] = is_in(row, row[to_host[launching]])
    to_host &= goes & ~others
    is_after = to_host[previous] & same & (direction[following] != 2)
    is_before = goes[following] & (calls.thread[following] == calls.thread[later])
    is_theirs = is_after | (is_before & to_host[following])
    most_ns = 2 * median_of(launching_ns[launches[later]]) if launches[later].any() else 0
    launching_ns = np.where(of_one, launching_ns, np.minimum(launching_ns, most_ns))
    if is_theirs.any():
        _, awake_ns = launching_before(process, evidence, counts_awake=True)
        launching_ns = np.where(is_theirs, awake_ns, launching_ns)
    is_before |= is_after
    later = later[is_before]
    before[later] = np.maximum(before[later], launching_ns[is_before])
    return inside, before
