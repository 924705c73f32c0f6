"""Kernels beside communication, compared with kernels of the same signature alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.kernels.kernel_table import compare
from traceprof.analyses.kernels.placed_kernels import beside_other_compute
from traceprof.analyses.kernels.placed_kernels import places_in_steps as places
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from traceprof.analyses.kernels.kernel_table import ComparedSignatures
    from traceprof.intervals import Float64, Int64, Mask
    from traceprof.run.rank import Rank

MIN_ALONE = 3  # fewer kernels of a signature give no median worth the name
_MIN_ERRORS = 3  # standard errors: a smaller difference between other places is noise
_ERRORS = 2  # to either side, within which a rate lies in 95 %


class BesideCommunication(Record, frozen=True):
    """Some compute kernels of a rank, n of them."""

    length_ns: Int64  # int64[n]
    beside_ns: Int64  # int64[n], during which something communicated
    is_judged: Mask  # bool[n], beside no other compute, which may slow the others
    is_beside: Mask  # bool[n], during which something communicated
    is_half: Mask  # bool[n], during at least half of which something did
    has_places: bool  # whether places of kernels in steps are known
    # those that were judged, by signature: alone, and beside communication for half of their time
    # or more, at the same place of their step where steps are known
    compared: ComparedSignatures


class SlowedKernels(Record, frozen=True):
    """The n compute kernels of a rank beside communication, and how much longer that makes them."""

    kernel: Int64  # int64[n], indices
    beside_ns: Int64  # int64[n], during which something communicated
    # float64[n], by how much each is longer for each nanosecond of that; negative where its like
    # were shorter by chance. Known from kernels at the same place of a step; where there are none,
    # from all of the signature, if the difference is beyond noise; else 0. From those beside
    # communication for half of their time, where there are any
    rate: Float64
    # float64[n], the least that it may be: where only other places are known, nothing
    least: Float64
    # float64[n], the most that it may be if kernels lose as much as their like at other places: no
    # kernel loses more than its time beside communication, which counts where none of the
    # signature ran alone
    most: Float64
    limit: Float64  # float64[n], what it cannot exceed whatever kernels lose at other places
    num_elsewhere: int  # how many are only known from kernels at other places
    num_unknown: int  # of how many none of the signature ran alone

    @property
    def at_most_ns(self) -> Int64:
        """How much longer communication makes each at most, int64[n]."""
        return np.ceil(self.limit * self.beside_ns).astype(np.int64)


class SlowedRates(Record, frozen=True):
    """How much longer communication makes kernels, by signature: what was found by comparing."""

    # the number of compute kernels that were compared, beside communication or not
    num_compared: int
    signature: Int64  # int64[s], ascending: of the kernels beside communication
    # float64[4, s], as `SlowedKernels` has them: `rate`, `least`, `most` and `limit`
    rates: Float64
    is_elsewhere: Mask  # bool[s], known from kernels at other places only
    is_unknown: Mask  # bool[s], none of the signature ran alone


def keep_rates(rank: Rank, rates: SlowedRates) -> None:
    """Keep what was found by comparing the kernels of a rank, unless others were compared."""
    if rates.num_compared == np.count_nonzero(~rank.is_communication_kernel):
        rank.cache.keep(_rates, rates)


def slowed_kernels(rank: Rank) -> SlowedKernels:
    """Return the compute kernels of a rank beside communication."""
    return rank.cache.get_alone(_slowed_kernels, rank, rank.release)


def _slowed_kernels(rank: Rank) -> SlowedKernels:
    rates = rank.cache.get(_rates, rank)
    computes = np.flatnonzero(~rank.is_communication_kernel)
    return slowed_of(rank, computes, _times(rank, computes)[1], rates)


def _rates(rank: Rank) -> SlowedRates:
    computes = np.flatnonzero(~rank.is_communication_kernel)
    return rates_of(rank, computes, beside_communication(rank, computes))


def slowed_of(rank: Rank, computes: Int64, beside_ns: Int64, known: SlowedRates) -> SlowedKernels:
    """Return the kernels beside communication of some that were compared.

    `beside_ns`: during which something communicated. `known`: what comparing them found.
    """
    chosen = np.flatnonzero(beside_ns > 0)
    kernel = computes.take(chosen)
    signature = rank.operations.kernels.packed_signature.kept[kernel]
    place = np.searchsorted(known.signature, np.arange(int(signature.max(initial=0)) + 1))
    place = place.take(signature)
    rate, least, most, limit = known.rates.take(place, axis=1)
    num = np.bincount(place, minlength=len(known.signature))
    return SlowedKernels(
        kernel=kernel,
        beside_ns=beside_ns.take(chosen),
        rate=rate,
        least=least,
        most=most,
        limit=limit,
        num_elsewhere=int(num[known.is_elsewhere].sum()),
        num_unknown=int(num[known.is_unknown].sum()),
    )


def rates_of(rank: Rank, computes: Int64, beside: BesideCommunication) -> SlowedRates:
    """Return by how much communication makes kernels longer, by signature."""
    signature = rank.operations.kernels.packed_signature.kept.take(computes)
    rates = np.zeros((4, int(signature.max(initial=0)) + 1))
    limit = rates[3]
    rates[2:] = 1.0
    is_unknown = np.ones(rates.shape[1], np.bool_)
    is_unknown[beside.compared.signature] = False
    rest = np.flatnonzero(is_unknown.take(signature) & beside.is_judged)
    is_beside, is_half = beside.is_beside[rest], beside.is_half[rest]
    num_half = np.bincount(signature[rest[is_half]], minlength=rates.shape[1])
    is_over = np.where(num_half[signature[rest]] > 0, is_half, is_beside)
    elsewhere = compare(
        beside.length_ns[rest],
        beside.beside_ns[rest],
        signature[rest],
        ~is_beside,
        is_over,
        MIN_ALONE,
    )
    rate, error = elsewhere.rate, elsewhere.rate_error
    # None loses more than the time that it spends beside communication.
    rate = np.where(np.abs(rate) > _MIN_ERRORS * error, np.minimum(rate, 1.0), 0.0)
    rates[:3, elsewhere.signature] = rate, np.minimum(rate, 0), np.maximum(rate, 0)
    rate, error = beside.compared.rate, _ERRORS * beside.compared.rate_error
    most = np.clip(rate + error, 0, 1)  # communication makes no kernel faster
    rates[:3, beside.compared.signature] = rate, rate - error, most
    if beside.has_places:
        limit[beside.compared.signature] = most
    slowed = distinct_values(signature[beside.is_beside])
    is_elsewhere = is_in(slowed, elsewhere.signature)
    return SlowedRates(
        len(computes), slowed, rates[:, slowed], is_elsewhere, is_unknown[slowed] & ~is_elsewhere
    )


def beside_communication(rank: Rank, chosen: Int64) -> BesideCommunication:
    """Compare kernels of a rank: `chosen`, int64[n] indices of compute kernels."""
    is_judged = ~beside_other_compute(rank).take(chosen)  # first of all, since it takes memory
    length, beside = _times(rank, chosen)
    is_beside, is_half = beside > 0, (beside > 0) & (beside >= length - beside)
    place = places(rank)
    compared = compare(
        length,
        beside,
        rank.operations.kernels.packed_signature.kept.take(chosen),
        is_judged & ~is_beside,
        is_judged & is_half,
        MIN_ALONE,
        None if place is None else lambda rows: place(chosen.take(rows)),
    )
    return BesideCommunication(
        length, beside, is_judged, is_beside, is_half, place is not None, compared
    )


def _times(rank: Rank, chosen: Int64) -> tuple[Int64, Int64]:
    """Return durations of kernels, and how long something communicated meanwhile, int64[n] each."""
    kernels = rank.operations.kernels
    start, length = kernels.start_ns.take(chosen), kernels.packed_length.at(chosen)
    return length, intervals.covered_within(rank.communication, start, start + length)
