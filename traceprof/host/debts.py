"""What the host's waits for the GPU take of its run-ahead.

A wait that takes long leaves the host with less launched ahead than it had: a debt, which its
launches pay off in the gaps that follow. Debts are of three kinds of calls:

* a synchronize call: its length less `OVERHEAD_NS`
* a copy that blocks (not Async; or Async, over `MIN_BLOCKING_NS`, from or to pageable memory): what
  passed before the copy began, at most the call's length, less `OVERHEAD_NS`
* such a copy on another device of the process: the call's length less `OVERHEAD_NS`, for this
  device does not run meanwhile

A debt is incurred when the call begins, on every stream of the rank to which its thread launches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.thread_evidence import calls_named
from traceprof.run.launching_calls import launching_calls
from traceprof.trace.model.kinds import ApiCallKind, MemoryKind, api_call_kind
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.rank import Mask, Rank
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import Copies

OVERHEAD_NS = 15_000
"""What a wait would take that waits for nothing."""
MIN_BLOCKING_NS = 20_000
_COPY = re.compile(r"cu(?:da)?Memcpy")
_ASYNC_COPY = re.compile(r"cu(?:da)?Memcpy\w*Async")


@dataclass(frozen=True, slots=True)
class Debts:
    """What waits of a rank's process took, ordered by start.

    Attributes:
        call: int64[n], indices into the calls of the process, each once.
        start_ns: int64[n].
        taken_ns: int64[n], above 0.
        thread: int64[n], which waited.
    """

    call: Int64
    start_ns: Int64
    taken_ns: Int64
    thread: Int64

    def __len__(self) -> int:
        return len(self.call)


NO_DEBTS = Debts(*[np.empty(0, np.int64)] * 4)


def incurred_debts(rank: Rank, calls: ApiCalls) -> Debts:
    """Return the debts of all waits of a process, as one of its devices sees them.

    Args:
        rank: the device's.
        calls: of the process.
    """
    if not len(calls):
        return NO_DEBTS
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
    call, taken = (np.concatenate(column) for column in zip(*groups, strict=True))
    # Of several copies of one call the one that it waited for longest counts.
    order = np.lexsort((-taken, call))
    order = order[np.diff(call[order], prepend=-1) != 0]
    order = order[taken[order] > OVERHEAD_NS]
    call, taken = call[order], taken[order] - OVERHEAD_NS
    order = np.lexsort((taken, calls.start_ns[call]))
    call, taken = call[order], taken[order]
    return Debts(call, calls.start_ns[call], taken, calls.packed_thread.at(call))


def _of_copies(
    copies: Copies, call: Int64, calls: ApiCalls, is_copy: Mask, is_async: Mask, *, is_here: bool
) -> tuple[Int64, Int64]:
    """Return the calls of blocking copies, and what passed before each began; int64[n] each."""
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
