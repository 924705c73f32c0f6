"""Kernels beside communication, compared with kernels of the same signature alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof import intervals
from traceprof.analyses.kernels.by_signature import compare
from traceprof.analyses.kernels.concurrent_compute import beside_other_compute

if TYPE_CHECKING:
    from traceprof.analyses.kernels.by_signature import Compared
    from traceprof.intervals import Int64
    from traceprof.run.opening import Mask, Rank

MIN_ALONE = 3  # fewer kernels of a signature give no median worth the name


@dataclass(frozen=True, slots=True)
class BesideCommunication:
    """Some compute kernels of a rank, n of them.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        length_ns: int64[n].
        is_judged: bool[n], beside no other compute, which may slow the others.
        is_beside: bool[n], during which something communicated.
        is_half: bool[n], during at least half of which something did.
        compared: those that were judged, by signature: alone, and beside communication for half of
            their time or more.
    """

    start_ns: Int64
    end_ns: Int64
    length_ns: Int64
    is_judged: Mask
    is_beside: Mask
    is_half: Mask
    compared: Compared


def beside_communication(rank: Rank, chosen: Int64) -> BesideCommunication:
    """Compare kernels of a rank.

    Args:
        rank: the rank.
        chosen: int64[n], indices of compute kernels.
    """
    kernels = rank.operations.kernels
    is_judged = ~beside_other_compute(rank)[chosen]  # first of all, since it takes memory
    start, end = kernels.start_ns[chosen], kernels.ends(chosen)
    beside = intervals.covered_within(rank.communication, start, end)
    is_beside, is_half = beside > 0, (beside > 0) & (beside >= end - start - beside)
    del beside  # there are many kernels
    length = kernels.packed_length.at(chosen)
    compared = compare(
        length,
        kernels.packed_signature.at(chosen),
        is_judged & ~is_beside,
        is_judged & is_half,
        MIN_ALONE,
    )
    return BesideCommunication(start, end, length, is_judged, is_beside, is_half, compared)
