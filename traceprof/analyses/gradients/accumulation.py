"""Gradients that accumulate over several backwards of a step: they are there after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.patterns import lazy
from traceprof.ranks.passes import BACKWARD_NAMES, FORWARD_NAMES

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.opening import Rank

_OWN = r"(?:[ _-]?(?:pass|step))?"  # people's own names end so
BACKWARD = rf"{BACKWARD_NAMES}|(?i:(?:\[Strategy\]\w+\.|loss[ ._])?(?:backward|bwd){_OWN})"
"""Names of ranges of a whole backward: those of passes, people's own, and Lightning's."""
_FORWARD = rf"{FORWARD_NAMES}|(?i:(?:forward|fwd){_OWN})|\[Strategy\]\w+\.training_step"
_IS_FORWARD, _IS_PASS = lazy(rf"\A(?:{_FORWARD})\Z"), lazy(rf"\A(?:{_FORWARD}|{BACKWARD})\Z")
_ALIKE = 0.9  # of the time of kernels: two backwards are of the same model


def last_backwards(rank: Rank, begin: Int64, end: Int64) -> Int64:
    """Return when the last backward of each step was called, where it adds to the one before.

    It does if a forward lies between the two, and both run the same kernels: two micro-batches.

    Args:
        rank: the rank.
        begin: int64[n], of the steps on the host.
        end: int64[n].

    Returns:
        int64[n], `intervals.BEYOND_NS` for steps whose backwards do not accumulate.
    """
    nowhere = np.full(len(begin), intervals.BEYOND_NS)
    named = rank.trace.ranges(_IS_PASS, rank.process).get(rank.process)
    if named is None:
        return nowhere
    outer = named.start_ns >= np.append(
        named.start_ns[:1], np.maximum.accumulate(named.end_ns)[:-1]
    )
    is_forward = np.array([bool(_IS_FORWARD.match(name)) for name in named.names], np.bool_)
    start, stop, thread = named.start_ns[outer], named.end_ns[outer], named.thread[outer]
    backward = np.flatnonzero(~is_forward[outer])
    place = np.searchsorted(start[backward], end) - 1
    adds = np.flatnonzero(place > 0)
    last, before = backward[place[adds]], backward[place[adds] - 1]
    # Nothing but forwards lies between two backwards that follow each other.
    chosen = (
        (start[before] >= begin[adds]) & (last - before > 1) & (thread[last - 1] == thread[last])
    )
    adds, last, before = adds[chosen], last[chosen], before[chosen]
    took = [_took(rank, start[one], stop[one]) for one in (before, last)]
    if not 0 < _ALIKE * max(one.sum() for one in took) <= np.minimum(*took).sum():
        return nowhere
    nowhere[adds] = start[last]
    return nowhere


def _took(rank: Rank, start: Int64, stop: Int64) -> Int64:
    """Return what compute kernels took that were launched in disjoint times, by signature."""
    kernels, launched_by, calls = rank.operations.kernels, rank.launched_by[0], rank.calls
    size = len(rank.trace.signatures.name)
    if not len(start) or calls is None:
        return np.zeros(size, np.int64)
    chosen = np.flatnonzero(~rank.is_communication_kernel & (launched_by >= 0))
    launch = calls.start_ns[launched_by[chosen]]
    at = np.searchsorted(start, launch, side="right") - 1
    chosen = chosen[(at >= 0) & (launch < stop[at])]
    signature, length = kernels.packed_signature.at(chosen), kernels.packed_length.at(chosen)
    return np.bincount(signature, length, size).astype(np.int64)
