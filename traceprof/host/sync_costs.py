"""The run-ahead that the host loses by waiting for the GPU.

After a long wait the host has less launched ahead than before it. The time lost is the cost of the
wait: the GPU idles for it in the gaps that follow. Three kinds of calls have a cost:

* a synchronize call: its length less `OVERHEAD_NS`
* a copy that blocks (not Async; or Async, over `MIN_BLOCKING_NS`, from or to pageable memory): the
  time before the copy began, at most the call's length, less `OVERHEAD_NS`
* such a copy on another device of the process: the call's length less `OVERHEAD_NS`, since this
  device does not run meanwhile

A cost applies from the start of the call, on every stream of the rank to which its thread launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.thread_evidence import calls_named
from traceprof.patterns import lazy
from traceprof.run.launching_calls import launching_calls
from traceprof.structs import Record
from traceprof.trace.model.kinds import ApiCallKind, MemoryKind, api_call_kind
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import Copies

OVERHEAD_NS = 15_000
"""The length of a wait that finds everything done."""
MIN_BLOCKING_NS = 20_000
"""A call that stays longer than this with a copy of pageable memory waits for it: CUDA stages
smaller ones and returns (measured: 98 % of those that return at once take under 15 us)."""
_COPY = lazy(r"cu(?:da)?Memcpy")
_ASYNC_COPY = lazy(r"cu(?:da)?Memcpy\w*Async")


class SyncCosts(Record, frozen=True):
    """Waits of a rank's process and the run-ahead that each cost, ordered by start.

    Attributes:
        call: int64[n], indices into the calls of the process, each once.
        start_ns: int64[n].
        cost_ns: int64[n], above 0.
        thread: int64[n], the thread that waited.
    """

    call: Int64
    start_ns: Int64
    cost_ns: Int64
    thread: Int64

    def __len__(self) -> int:
        return len(self.call)


NO_SYNC_COSTS = SyncCosts(*[np.empty(0, np.int64)] * 4)


def sync_costs(rank: Rank, calls: ApiCalls) -> SyncCosts:
    """Return the costs of all waits of a process for one of its devices."""
    if not len(calls):
        return NO_SYNC_COSTS
    ids = [
        key
        for key, name in rank.trace.api_names.items()
        if api_call_kind(name) is ApiCallKind.SYNCHRONIZE
    ]
    waits = np.flatnonzero(calls.packed_name.isin(ids))
    groups = [(waits, calls.packed_length.at(waits))]
    is_copy, is_async = calls_named(rank, calls, _COPY), calls_named(rank, calls, _ASYNC_COPY)
    for key, operations in rank.trace.operations.items():
        if key.process == rank.process and len(operations.copies):
            is_here = key == rank.key
            copies = operations.copies
            call = rank.launched_by[1] if is_here else launching_calls(copies, calls)
            groups.append(_of_copies(copies, call, calls, is_copy, is_async, is_here=is_here))
    call, cost = (np.concatenate(column) for column in zip(*groups, strict=True))
    # Of several copies of one call the one that it waited for longest counts.
    order = np.lexsort((-cost, call))
    order = order[np.diff(call[order], prepend=-1) != 0]
    order = order[cost[order] > OVERHEAD_NS]
    call, cost = call[order], cost[order] - OVERHEAD_NS
    order = np.lexsort((cost, calls.start_ns[call]))
    call, cost = call[order], cost[order]
    return SyncCosts(call, calls.start_ns[call], cost, calls.packed_thread.at(call))


def _of_copies(
    copies: Copies, call: Int64, calls: ApiCalls, is_copy: Mask, is_async: Mask, *, is_here: bool
) -> tuple[Int64, Int64]:
    """Return the calls of blocking copies, and the ns before each copy began; int64[n] each."""
    pageable = (copies.source_memory == MemoryKind.PAGEABLE) | (
        copies.destination_memory == MemoryKind.PAGEABLE
    )
    length = calls.packed_length.at(call)
    blocks = ~is_async[call] | (pageable & (length > MIN_BLOCKING_NS))
    rows = np.flatnonzero((call >= 0) & is_copy[call] & blocks & (copies.kind != NULL))
    call, length = call[rows], length[rows]
    if not is_here:
        return call, length
    return call, np.minimum(copies.start_ns[rows] - calls.start_ns[call], length)
