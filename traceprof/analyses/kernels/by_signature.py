"""Kernels of the same name, grid and block, compared: alone, and beside communication.

One name and grid may stand for different work, such as products with another inner dimension. So
kernels are compared at the same place of a step, where steps are known; what one loses there for
each nanosecond beside communication is the rate by which its like lose at other places.
"""

from __future__ import annotations

from math import floor, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof import intervals
from traceprof.structs import Record
from traceprof.trace.grouping import numbered, ordered, sorted_in_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from traceprof.intervals import Float64, Int32, Int64, Mask
    from traceprof.run.opening import Rank


class SignatureSlowdown(Record, frozen=True):
    """The kernels of one name, grid and block that ran both alone and beside communication.

    Attributes:
        name: the demangled name.
        grid: x, y, z; None if the export lacks them.
        block: x, y, z; None if the export lacks them.
        num_alone: kernels during which nothing communicated, at the places that were compared.
        num_overlapped: kernels during at least half of which something communicated.
        overlapped_ns: the sum of the overlapped kernels' durations.
        excess_ns: how much longer than expected they took together; negative if less.
        longest: start and end of the overlapped kernel that took longest.
    """

    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    num_alone: int
    num_overlapped: int
    overlapped_ns: int
    excess_ns: float
    longest: tuple[int, int]

    @property
    def mean_overlapped_ns(self) -> float:
        """What an overlapped kernel took."""
        return self.overlapped_ns / self.num_overlapped

    @property
    def mean_alone_ns(self) -> float:
        """What an overlapped kernel is expected to take alone."""
        return (self.overlapped_ns - self.excess_ns) / self.num_overlapped


class ExpectedTimes(Record, frozen=True):
    """The total time of overlapped kernels, and their expected time alone.

    Sums over kernels that may have run at the same time.

    Attributes:
        num_overlapped: overlapped kernels whose signature ran alone often enough.
        num_alone: kernels alone that they were compared with.
        overlapped_ns: durations of the overlapped ones.
        expected_ns: had each taken the median alone.
        expected_at_least_ns: the median or the mean alone, whichever is longer.
        expected_at_most_ns: the third quartile or the mean alone, whichever is longer.
        noise_ns: the standard error of what is expected by the means.
    """

    num_overlapped: int
    num_alone: int
    overlapped_ns: int
    expected_ns: float
    expected_at_least_ns: float
    expected_at_most_ns: float
    noise_ns: float

    @property
    def slowdown(self) -> float | None:
        """Time taken over time expected; None if nothing is expected."""
        return self.overlapped_ns / self.expected_ns if self.expected_ns > 0 else None

    @property
    def sure_slowdown(self) -> float:
        """Time taken over the longest time expected; 0 if nothing is expected."""
        at_most = self.expected_at_most_ns
        return self.overlapped_ns / at_most if at_most > 0 else 0.0

    @property
    def excess_ns(self) -> int:
        """Time taken − time expected, to the nearest (even) nanosecond."""
        return round(self.overlapped_ns - self.expected_ns)

    @property
    def sure_excess_ns(self) -> int:
        """The part of it that does not come from a median below the mean."""
        return max(min(self.excess_ns, floor(self.overlapped_ns - self.expected_at_least_ns)), 0)


class ComparedSignatures(Record, frozen=True):
    """The m signatures that ran both alone often enough and overlapped, ascending.

    Attributes:
        signature: int64[m], indices into `Trace.signatures`.
        num_alone: int64[m], kernels alone at the places that were compared.
        num_overlapped: int64[m], at these and all other places.
        overlapped: int64[o], indices of the overlapped kernels by signature, then duration.
        overlapped_ns: int64[o], their durations.
        expected_ns: float64[o], what each takes alone: the median at its place, and where none is
            known what it took less the rate for each nanosecond beside communication.
        excess_ns: float64[m, 3], time taken − time expected of all overlapped kernels, by the
            median, by the median or the mean, and by the third quartile or the mean.
        noise_ns: float64[m], the standard error of the excess by the mean.
        rate: float64[m], by how much a kernel is longer for each nanosecond beside communication;
            negative where it is shorter, which chance may bring.
        rate_error: float64[m], its standard error.
    """

    signature: Int64
    num_alone: Int64
    num_overlapped: Int64
    overlapped: Int64
    overlapped_ns: Int64
    expected_ns: Float64
    excess_ns: Float64
    noise_ns: Float64
    rate: Float64
    rate_error: Float64


def compare(
    length_ns: Int64,
    beside_ns: Int64,
    signature: npt.NDArray[np.integer[Any]],
    is_alone: Mask,
    is_overlapped: Mask,
    least_alone: int,
    places: Callable[[Int64], Int32] | None = None,
) -> ComparedSignatures:
    """Compare kernels of a signature that ran at the same place, alone and overlapped.

    Args:
        length_ns: int64[n], the kernels' durations.
        beside_ns: int64[n], during which something communicated.
        signature: int[n].
        is_alone: bool[n].
        is_overlapped: bool[n], beside communication for more than no time.
        least_alone: kernels alone, at least two, without which a place is not compared.
        places: returns the places of kernels with these indices, negative if unknown. All of
            a signature are at one place where not given.
    """
    size = int(signature.max()) + 1 if len(signature) else 0
    may = np.bincount(signature[is_alone], minlength=size) >= least_alone
    may &= np.bincount(signature[is_overlapped], minlength=size) > 0
    rows = np.flatnonzero((is_alone | is_overlapped) & may.take(signature))
    group, num_places = np.zeros(1, np.int64), 1
    if places is not None:
        place = places(rows)
        rows, group = rows[place >= 0], place[place >= 0].astype(np.int64)
        num_places = int(group.max(initial=0)) + 1
    group = group + signature.take(rows).astype(np.int64) * num_places
    over = is_overlapped.take(rows)
    groups, group = numbered(group)
    num_alone = np.bincount(group.compress(~over), minlength=len(groups))
    is_used = num_alone >= least_alone
    is_used &= np.bincount(group[over], minlength=len(groups)) > 0
    used = is_used.take(group)
    group, rows, over = (np.cumsum(is_used) - 1).take(group[used]), rows[used], over[used]
    of_group, num_alone = groups[is_used] // num_places, num_alone[is_used]
    alone_ns = sorted_in_groups(length_ns.take(rows.compress(~over)), group.compress(~over))
    expected, variance = _expected(alone_ns, num_alone)
    paired, group = rows.compress(over), group.compress(over)
    chosen, of_signature = np.unique(of_group, return_inverse=True)
    num = len(chosen)

    def summed(values: Float64 | Int64, by: Int64 = of_signature) -> Float64:
        return np.bincount(by, values, num).astype(np.float64)

    num_paired = np.bincount(group, minlength=len(of_group))
    signature_of_pair = of_signature[group]
    took = summed(length_ns[paired], signature_of_pair)
    beside = summed(beside_ns[paired], signature_of_pair)
    index_of = np.full(size, -1)
    index_of[chosen] = np.arange(num)
    index = np.where(is_overlapped, index_of.take(signature), -1)
    of_signatures = np.flatnonzero(index >= 0)
    index = index[of_signatures]
    # By how much more the others of these signatures ran beside communication.
    scale = summed(beside_ns[of_signatures], index) / np.maximum(beside, 1)
    excess = np.stack([took - summed(num_paired * mean) for mean in expected], axis=1)
    # Of the sum of `num_paired` draws, and of a mean of `num_alone` draws taken for each of them.
    error = np.sqrt(summed(variance * num_paired * (1 + num_paired / num_alone)))
    rate = excess[:, 0] / np.maximum(beside, 1)
    usual = length_ns.take(of_signatures) - rate.take(index) * beside_ns.take(of_signatures)
    usual[np.searchsorted(of_signatures, paired)] = expected[0][group]
    order = ordered(index, length_ns.take(of_signatures))
    of_signatures = of_signatures.take(order)
    return ComparedSignatures(
        signature=chosen,
        num_alone=summed(num_alone).astype(np.int64),
        num_overlapped=np.bincount(index, minlength=num),
        overlapped=of_signatures,
        overlapped_ns=length_ns.take(of_signatures),
        expected_ns=usual.take(order),
        excess_ns=excess * scale[:, np.newaxis],
        noise_ns=error * scale,
        rate=rate,
        rate_error=error / np.maximum(beside, 1),
    )


def _expected(alone_ns: Int64, num: Int64) -> tuple[tuple[Float64, ...], Float64]:
    """Return what a kernel of each group takes alone, and the variance in ns², float64[g] each.

    The first is the median, of an even number the mean of the middle two; then the median or the
    mean, whichever is longer; then a duration that three of four do not exceed, or the mean. Of
    three or four kernels that is the longest, so that an expectation errs on the long side.

    Args:
        alone_ns: int64[a], durations by group, then duration.
        num: int64[g], two at least.
    """
    if len(num) == 0:
        nothing = np.empty(0)
        return (nothing, nothing, nothing), nothing
    first = np.cumsum(num) - num
    low = alone_ns[first]
    above = alone_ns - np.repeat(low, num)  # small numbers, of which floating point loses nothing
    mean = np.add.reduceat(above, first) / num
    variance = np.add.reduceat((above - np.repeat(mean, num)) ** 2, first) / (num - 1)
    median = (above[first + (num - 1) // 2] + above[first + num // 2]) / 2
    quartile = above[first - (-3 * (num - 1) // 4)].astype(np.float64)
    ways = median, np.maximum(median, mean), np.maximum(quartile, mean)
    return tuple(low + way for way in ways), variance


def slowdowns(
    rank: Rank, compared: ComparedSignatures, kernel: Int64
) -> tuple[ExpectedTimes, tuple[SignatureSlowdown, ...]]:
    """Add up all signatures, and describe each, the largest excess first.

    Args:
        rank: the rank.
        compared: its compute kernels in the window.
        kernel: int64[n], the indices of these kernels.
    """
    known, kernels = rank.trace.signatures, rank.operations.kernels
    stops = np.cumsum(compared.num_overlapped)
    longest = kernel[compared.overlapped[stops - 1]]
    spans = zip(kernels.start_ns[longest].tolist(), kernels.ends(longest).tolist(), strict=True)
    of_each = zip(compared.signature.tolist(), stops.tolist(), spans, strict=True)
    rows = []
    for index, (signature, stop, span) in enumerate(of_each):
        num = int(compared.num_overlapped[index])
        took = intervals.total(compared.overlapped_ns[stop - num : stop])
        rows.append(
            SignatureSlowdown(
                name=rank.kernel_names[int(known.name[signature])],
                grid=_dimensions(known.shape[signature, :3]),
                block=_dimensions(known.shape[signature, 3:]),
                num_alone=int(compared.num_alone[index]),
                num_overlapped=num,
                overlapped_ns=took,
                excess_ns=float(compared.excess_ns[index, 0]),
                longest=span,
            )
        )
    rows.sort(key=lambda row: (-row.excess_ns, row.name, row.longest))
    took = intervals.total(compared.overlapped_ns)
    median, at_least, at_most = (took - compared.excess_ns.sum(axis=0)).tolist()
    comparison = ExpectedTimes(
        num_overlapped=len(compared.overlapped),
        num_alone=intervals.total(compared.num_alone),
        overlapped_ns=took,
        expected_ns=median,
        expected_at_least_ns=at_least,
        expected_at_most_ns=at_most,
        noise_ns=sqrt(float((compared.noise_ns**2).sum())),
    )
    return comparison, tuple(rows)


def _dimensions(shape: Int64) -> tuple[int, int, int] | None:
    x, y, z = shape.tolist()
    return None if min(x, y, z) < 0 else (x, y, z)
