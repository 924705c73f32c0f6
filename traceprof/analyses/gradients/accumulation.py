"""Gradients that accumulate over several backwards of a step: they are there after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.kernel_names.categories import Category, kernel_kind
from traceprof.patterns import lazy
from traceprof.ranks.passes import BACKWARD_NAMES, FORWARD_NAMES
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.opening import Rank

_OWN = r"(?:[ _-]?(?:pass|step))?"  # people's own names end so
BACKWARD = rf"{BACKWARD_NAMES}|(?i:(?:\[Strategy\]\w+\.|loss[ ._])?(?:backward|bwd){_OWN})"
"""Names of ranges of a whole backward: those of passes, people's own, and Lightning's."""
_FORWARD = rf"{FORWARD_NAMES}|(?i:(?:forward|fwd){_OWN})|\[Strategy\]\w+\.training_step"
_IS_FORWARD, _IS_PASS = lazy(rf"\A(?:{_FORWARD})\Z"), lazy(rf"\A(?:{_FORWARD}|{BACKWARD})\Z")
# PyTorch names the thread of each device that runs backwards, and nothing else.
_AUTOGRAD = lazy(r"\bpt_autograd_\d+\b")
_ALIKE = 0.9  # of the time of kernels: two backwards are of the same model


class Backwards(Record, frozen=True):
    """The backwards of a rank, by start on the host.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        is_after_forward: bool[n], whether a forward may lie between it and the one before: ranges
            show one, or another thread launched something.
        has_ranges: whether ranges show them; else what autograd's thread launched in a row does.
    """

    start_ns: Int64
    end_ns: Int64
    is_after_forward: Mask
    has_ranges: bool


def backwards(rank: Rank) -> Backwards | None:
    """Return the backwards of a rank; None where nothing shows any."""
    return _named(rank) or _of_autograd(rank)


def last_backwards(
    rank: Rank, passes: Backwards, begin: Int64, end: Int64, may_be_several: Mask
) -> Int64:
    """Return when the last backward of each step was called, where it adds to the one before.

    It does if a forward lies between the two, and no optimizer, and both run the same kernels: two
    micro-batches of one model.

    Args:
        rank: the rank.
        passes: its backwards.
        begin: int64[n], of the steps on the host.
        end: int64[n].
        may_be_several: bool[n], whether the step may train several equal models, each with a
            backward: then nothing tells of which the first gradient is.

    Returns:
        int64[n], `intervals.BEYOND_NS` for steps whose backwards do not accumulate.
    """
    nowhere = np.full(len(begin), intervals.BEYOND_NS)
    start, stop = passes.start_ns, passes.end_ns
    last = np.searchsorted(start, end) - 1
    adds = np.flatnonzero((last > 0) & ~may_be_several)
    last = last[adds]
    chosen = (start[last - 1] >= begin[adds]) & passes.is_after_forward[last]
    adds, last = adds[chosen], last[chosen]
    if not _are_alike(rank, (start[last - 1], stop[last - 1]), (start[last], stop[last])):
        return nowhere
    between = stop[last - 1], start[last]
    if _took(rank, *between)[_optimizes(rank)].any():
        return nowhere
    if not passes.has_ranges:
        before = np.where(last > 1, stop[last - 2], begin[adds])
        if not _are_alike(rank, (np.maximum(before, begin[adds]), start[last - 1]), between):
            return nowhere
    nowhere[adds] = start[last]
    return nowhere


def _named(rank: Rank) -> Backwards | None:
    """Return the backwards that ranges name."""
    named = rank.trace.ranges(_IS_PASS, rank.process).get(rank.process)
    if named is None:
        return None
    outer = named.start_ns >= np.append(
        named.start_ns[:1], np.maximum.accumulate(named.end_ns)[:-1]
    )
    is_forward = np.array([bool(_IS_FORWARD.match(name)) for name in named.names], np.bool_)
    start, stop, thread = named.start_ns[outer], named.end_ns[outer], named.thread[outer]
    place = np.flatnonzero(~is_forward[outer])
    if not len(place):
        return None
    # Nothing but forwards lies between two backwards that follow each other.
    is_after = (np.diff(place, prepend=-1) > 1) & (thread[place - 1] == thread[place])
    return Backwards(start[place], stop[place], is_after, has_ranges=True)


def _of_autograd(rank: Rank) -> Backwards | None:
    """Return what autograd's threads launched with no launch of another thread between."""
    names, calls = rank.trace.thread_names, rank.calls
    own = [thread for thread, name in names.items() if _AUTOGRAD.search(name)]
    if calls is None or not own:
        return None
    launched_by = rank.launched_by[0]
    call = distinct_values(launched_by[~rank.is_communication_kernel & (launched_by >= 0)])
    call = call[np.argsort(calls.start_ns[call], kind="stable")]
    is_own = is_in(calls.thread[call], own)
    begins = is_own & ~np.append(False, is_own[:-1])
    ends = is_own & ~np.append(is_own[1:], False)
    if not begins.any():
        return None
    start, stop = calls.start_ns[call[begins]], calls.ends(call[ends])
    return Backwards(start, stop, np.ones(len(start), np.bool_), has_ranges=False)


def _are_alike(rank: Rank, one: tuple[Int64, Int64], other: tuple[Int64, Int64]) -> bool:
    """Return whether the same kernels were launched in two sets of disjoint times."""
    took = [_took(rank, *times) for times in (one, other)]
    longer_ns, both_ns = max(int(of.sum()) for of in took), int(np.minimum(*took).sum())
    return 0 < _ALIKE * longer_ns <= both_ns


def _optimizes(rank: Rank) -> Int64:
    """Return the signatures of kernels of optimizers."""
    name = rank.trace.signatures.name
    ids = [
        key
        for key, text in rank.kernel_names.items()
        if kernel_kind(text, communicates=False).category is Category.OPTIMIZER
    ]
    return np.flatnonzero(is_in(name, ids))


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
