"""Kernels beside communication, compared with kernels of the same signature alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.kernels.by_signature import compare
from traceprof.analyses.kernels.concurrent_compute import beside_other_compute
from traceprof.analyses.kernels.places import places
from traceprof.structs import Record
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from traceprof.analyses.kernels.by_signature import ComparedSignatures
    from traceprof.intervals import Float64, Int64, Mask
    from traceprof.run.opening import Rank

MIN_ALONE = 3  # fewer kernels of a signature give no median worth the name
_MIN_ERRORS = 3  # standard errors: a smaller difference between other places is noise
_ERRORS = 2  # to either side, within which a rate lies in 95 %


class BesideCommunication(Record, frozen=True):
    """Some compute kernels of a rank, n of them.

    Attributes:
        start_ns: int64[n].
        length_ns: int64[n].
        beside_ns: int64[n], during which something communicated.
        is_judged: bool[n], beside no other compute, which may slow the others.
        is_beside: bool[n], during which something communicated.
        is_half: bool[n], during at least half of which something did.
        has_places: whether places of kernels in steps are known.
        compared: those that were judged, by signature: alone, and beside communication for half of
            their time or more, at the same place of their step where steps are known.
    """

    start_ns: Int64
    length_ns: Int64
    beside_ns: Int64
    is_judged: Mask
    is_beside: Mask
    is_half: Mask
    has_places: bool
    compared: ComparedSignatures

    @property
    def end_ns(self) -> Int64:
        """The ends, int64[n]."""
        return self.start_ns + self.length_ns


class SlowedKernels(Record, frozen=True):
    """The n compute kernels of a rank beside communication, and how much longer that makes them.

    Attributes:
        kernel: int64[n], indices.
        beside_ns: int64[n], during which something communicated.
        rate: float64[n], by how much each is longer for each nanosecond of that; negative where
            its like were shorter by chance. Known from kernels at the same place of a step; where
            there are none, from all of the signature, if the difference is beyond noise; else 0.
            From those beside communication for half of their time, where there are any.
        least: float64[n], the least that it may be: where only other places are known, nothing.
        most: float64[n], the most that it may be if kernels lose as much as their like at other
            places: no kernel loses more than its time beside communication, which counts where
            none of the signature ran alone.
        limit: float64[n], what it cannot exceed whatever kernels lose at other places.
        num_elsewhere: how many are only known from kernels at other places.
        num_unknown: of how many none of the signature ran alone.
    """

    kernel: Int64
    beside_ns: Int64
    rate: Float64
    least: Float64
    most: Float64
    limit: Float64
    num_elsewhere: int
    num_unknown: int

    @property
    def at_most_ns(self) -> Int64:
        """How much longer communication makes each at most, int64[n]."""
        return np.ceil(self.limit * self.beside_ns).astype(np.int64)


def slowed_kernels(rank: Rank) -> SlowedKernels:
    """Return the compute kernels of a rank beside communication."""
    return rank.cache.get_alone(_slowed_kernels, rank, rank.release)


def _slowed_kernels(rank: Rank) -> SlowedKernels:
    computes = np.flatnonzero(~rank.is_communication_kernel)
    return slowed_of(rank, computes, beside_communication(rank, computes))


def slowed_of(rank: Rank, computes: Int64, beside: BesideCommunication) -> SlowedKernels:
    """Return the kernels beside communication of some that were compared.

    Args:
        rank: the rank.
        computes: int64[n], indices of the kernels.
        beside: of the same kernels.
    """
    signature = rank.operations.kernels.packed_signature.kept[computes]
    rates = np.zeros((4, int(signature.max(initial=0)) + 1))
    limit = rates[3]
    rates[2:] = 1.0
    is_unknown = np.ones(rates.shape[1], np.bool_)
    is_unknown[beside.compared.signature] = False
    rest = np.flatnonzero(is_unknown[signature] & beside.is_judged)
    is_beside, is_half = beside.is_beside[rest], beside.is_half[rest]
    num_half = np.bincount(signature[rest[is_half]], minlength=rates.shape[1])
    is_over = np.where(num_half[signature[rest]] > 0, is_half, is_beside)
    elsewhere = compare(
        beside.length_ns[rest], beside.beside_ns[rest], signature[rest], ~is_beside, is_over,
        MIN_ALONE,
    )  # fmt: skip
    rate, error = elsewhere.rate, elsewhere.rate_error
    # None loses more than the time that it spends beside communication.
    rate = np.where(np.abs(rate) > _MIN_ERRORS * error, np.minimum(rate, 1.0), 0.0)
    rates[:3, elsewhere.signature] = rate, np.minimum(rate, 0), np.maximum(rate, 0)
    rate, error = beside.compared.rate, _ERRORS * beside.compared.rate_error
    most = np.clip(rate + error, 0, 1)  # communication makes no kernel faster
    rates[:3, beside.compared.signature] = rate, rate - error, most
    if beside.has_places:
        limit[beside.compared.signature] = most
    slowed = signature[beside.is_beside]
    is_elsewhere = is_in(slowed, elsewhere.signature)
    rate, least, most, limit = rates[:, slowed]
    return SlowedKernels(
        kernel=computes[beside.is_beside], beside_ns=beside.beside_ns[beside.is_beside],
        rate=rate, least=least, most=most, limit=limit,
        num_elsewhere=int(is_elsewhere.sum()),
        num_unknown=int((is_unknown[slowed] & ~is_elsewhere).sum()),
    )  # fmt: skip


def beside_communication(rank: Rank, chosen: Int64) -> BesideCommunication:
    """Compare kernels of a rank.

    Args:
        rank: the rank.
        chosen: int64[n], indices of compute kernels.
    """
    kernels = rank.operations.kernels
    is_judged = ~beside_other_compute(rank)[chosen]  # first of all, since it takes memory
    start, length = kernels.start_ns[chosen], kernels.packed_length.at(chosen)
    beside = intervals.covered_within(rank.communication, start, start + length)
    is_beside, is_half = beside > 0, (beside > 0) & (beside >= length - beside)
    place = places(rank)
    compared = compare(
        length,
        beside,
        kernels.packed_signature.kept[chosen],
        is_judged & ~is_beside,
        is_judged & is_half,
        MIN_ALONE,
        None if place is None else lambda rows: place(chosen[rows]),
    )
    return BesideCommunication(
        start, length, beside, is_judged, is_beside, is_half, place is not None, compared
    )
