"""Kernels of the same name, grid and block, compared: alone, and beside communication."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.intervals import Int64
    from traceprof.run.opening import Mask, Rank


_NARROW_BITS = 32


@dataclass(frozen=True, slots=True)
class SignatureSlowdown:
    """The kernels of one name, grid and block that ran both alone and beside communication.

    Attributes:
        name: the demangled name.
        grid: x, y, z; None where the export lacks them.
        block: x, y, z; None where the export lacks them.
        num_alone: kernels during which nothing communicated.
        num_overlapped: kernels during at least half of which something communicated.
        median_alone_ns: what one is expected to take; of an even number the mean of the middle two.
        median_overlapped_ns: the median beside communication, found in the same way.
        overlapped_ns: the sum of the overlapped kernels' durations.
        excess_ns: how much longer than expected they took together; negative if less.
        longest: start and end of the overlapped kernel that took longest.
    """

    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    num_alone: int
    num_overlapped: int
    median_alone_ns: float
    median_overlapped_ns: float
    overlapped_ns: int
    excess_ns: float
    longest: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The total time of overlapped kernels, and their expected time alone.

    Sums over kernels that may have run at the same time.

    Attributes:
        num_overlapped: overlapped kernels whose signature ran alone often enough.
        num_alone: kernels alone of these signatures.
        overlapped_ns: durations of the overlapped ones.
        expected_ns: had each taken the median of its signature alone.
        expected_at_least_ns: the median or the mean alone, whichever is longer.
        expected_at_most_ns: the third quartile or the mean alone, whichever is longer.
        noise_ns: the standard error of what is expected by the means.
    """

    num_overlapped: int
    num_alone: int
    overlapped_ns: int
    expected_ns: Fraction
    expected_at_least_ns: int
    expected_at_most_ns: int
    noise_ns: float

    @property
    def slowdown(self) -> float | None:
        """Time taken over time expected; None where nothing is expected."""
        return float(self.overlapped_ns / self.expected_ns) if self.expected_ns else None

    @property
    def sure_slowdown(self) -> float:
        """Time taken over the longest time expected; 0 where nothing is expected."""
        at_most = self.expected_at_most_ns
        return self.overlapped_ns / at_most if at_most else 0.0

    @property
    def excess_ns(self) -> int:
        """Time taken − time expected, to the nearest (even) nanosecond."""
        return round(self.overlapped_ns - self.expected_ns)

    @property
    def sure_excess_ns(self) -> int:
        """The part of it that does not come from a median below the mean."""
        return max(min(self.excess_ns, self.overlapped_ns - self.expected_at_least_ns), 0)


@dataclass(frozen=True, slots=True)
class Compared:
    """The signatures that ran both alone often enough and overlapped, ascending.

    Attributes:
        signature: int64[m], indices into `Trace.signatures`.
        num_alone: int64[m].
        num_overlapped: int64[m].
        alone_ns: int64[a], durations alone by signature, then duration.
        overlapped: int64[o], indices of the overlapped kernels by signature, then duration.
        overlapped_ns: int64[o], their durations.
    """

    signature: Int64
    num_alone: Int64
    num_overlapped: Int64
    alone_ns: Int64
    overlapped: Int64
    overlapped_ns: Int64

    def __iter__(self) -> Iterator[tuple[int, Int64, Int64, Int64]]:
        """Yield each signature with its durations alone, indices and durations overlapped."""
        alone, overlapped = 0, 0
        rows = zip(self.signature, self.num_alone, self.num_overlapped, strict=True)
        for signature, num_alone, num_overlapped in rows:
            places = slice(overlapped, overlapped + num_overlapped)
            yield (
                int(signature),
                self.alone_ns[alone : alone + num_alone],
                self.overlapped[places],
                self.overlapped_ns[places],
            )
            alone += num_alone
            overlapped += num_overlapped

    @property
    def expected_up_ns(self) -> Int64:
        """The median duration alone of each overlapped kernel, rounded up to whole ns, int64[o]."""
        first = np.cumsum(self.num_alone) - self.num_alone
        low = self.alone_ns[first + (self.num_alone - 1) // 2]
        high = self.alone_ns[first + self.num_alone // 2]
        return np.repeat(low + (high - low + 1) // 2, self.num_overlapped)


def compare(
    length_ns: Int64, signature: Int64, is_alone: Mask, is_overlapped: Mask, least_alone: int
) -> Compared:
    """Sort the kernels of each signature by duration, alone and overlapped.

    Args:
        length_ns: int64[n], the kernels' durations.
        signature: int64[n].
        is_alone: bool[n].
        is_overlapped: bool[n].
        least_alone: kernels alone, at least one, without which a signature is not compared.
    """
    size = int(signature.max()) + 1 if len(signature) else 0
    num_alone = np.bincount(signature[is_alone], minlength=size)
    num_overlapped = np.bincount(signature[is_overlapped], minlength=size)
    is_compared = (num_alone >= least_alone) & (num_overlapped > 0)

    def chosen(mask: Mask) -> Int64:
        indices = np.flatnonzero(mask)
        return indices[is_compared[signature[indices]]]

    alone, overlapped = chosen(is_alone), chosen(is_overlapped)
    overlapped = overlapped[_order(length_ns[overlapped], signature[overlapped])]
    return Compared(
        signature=np.flatnonzero(is_compared),
        num_alone=num_alone[is_compared],
        num_overlapped=num_overlapped[is_compared],
        alone_ns=sorted_by_signature(length_ns[alone], signature[alone]),
        overlapped=overlapped,
        overlapped_ns=length_ns[overlapped],
    )


def _order(length_ns: Int64, signature: Int64) -> Int64:
    """Return the order by signature, then length, of equal ones the first first."""
    bits = int(length_ns.max(initial=0)).bit_length()
    place = len(length_ns).bit_length()
    if bits + place + int(signature.max(initial=0)).bit_length() > 62:
        return np.lexsort((length_ns, signature))
    keys = (signature << bits | length_ns) << place
    keys |= np.arange(len(length_ns))
    keys.sort()
    keys &= (1 << place) - 1
    return keys


def sorted_by_signature(length_ns: Int64, signature: Int64) -> Int64:
    """Return lengths by signature, then length; most kernels are alone, so it must be quick."""
    bits = int(length_ns.max(initial=0)).bit_length()
    if bits + int(signature.max(initial=0)).bit_length() > 62:
        return length_ns[np.lexsort((length_ns, signature))]
    # Sorting one key is five times as fast as two. In place, since there are many.
    keys = signature << bits
    keys |= length_ns
    if bits + int(signature.max(initial=0)).bit_length() <= _NARROW_BITS:
        narrow = keys.astype(np.uint32)  # which takes half the time
        narrow.sort()
        keys[:] = narrow
    else:
        keys.sort()
    keys &= (1 << bits) - 1
    return keys


@dataclass(frozen=True, slots=True)
class _Alone:
    """Durations of the kernels of one signature when nothing communicates.

    Attributes:
        num: kernels.
        median_doubled_ns: twice the median, which lies between two of them where `num` is even.
        total_ns: the sum.
        third_quartile_ns: a duration that three of four do not exceed; of three or four kernels
            the longest, so that an expectation errs on the long side.
        variance: of the sample, in ns².
    """

    num: int
    median_doubled_ns: int
    total_ns: int
    third_quartile_ns: int
    variance: float


def _describe(sorted_ns: Int64) -> _Alone:
    """Describe durations, two at least, in ascending order."""
    num = len(sorted_ns)
    # Its floating point differs from exact arithmetic only where no clock does.
    variance = float(np.var(sorted_ns - sorted_ns[0], ddof=1))
    return _Alone(
        num=num,
        median_doubled_ns=int(sorted_ns[(num - 1) // 2]) + int(sorted_ns[num // 2]),
        total_ns=intervals.total(sorted_ns),
        third_quartile_ns=int(sorted_ns[-(-3 * (num - 1) // 4)]),
        variance=variance,
    )


def slowdowns(
    rank: Rank, compared: Compared, start: Int64, end: Int64
) -> tuple[Comparison, tuple[SignatureSlowdown, ...]]:
    """Add up all signatures, and describe each, the largest excess first.

    Args:
        rank: the rank.
        compared: its compute kernels in the window.
        start: int64[n], of these kernels.
        end: int64[n].
    """
    known = rank.trace.signatures
    rows = []
    num_alone, overlapped_ns, doubled, at_least, at_most, variance = 0, 0, 0, 0, 0, 0.0
    for signature, alone_ns, indices, lengths in compared:
        alone, num, took = _describe(alone_ns), len(indices), intervals.total(lengths)
        by_mean = num * alone.total_ns // alone.num
        num_alone += alone.num
        overlapped_ns += took
        doubled += num * alone.median_doubled_ns
        at_least += max(num * alone.median_doubled_ns // 2, by_mean)
        at_most += max(num * alone.third_quartile_ns, by_mean)
        # Of the sum of `num` draws, and of a mean of `alone.num` draws taken for each of them.
        variance += alone.variance * num * (1 + num / alone.num)
        middle = int(lengths[(num - 1) // 2]) + int(lengths[num // 2])
        rows.append(
            SignatureSlowdown(
                name=rank.kernel_names[int(known.name[signature])],
                grid=_dimensions(known.shape[signature, :3]),
                block=_dimensions(known.shape[signature, 3:]),
                num_alone=alone.num,
                num_overlapped=num,
                median_alone_ns=alone.median_doubled_ns / 2,
                median_overlapped_ns=middle / 2,
                overlapped_ns=took,
                excess_ns=(2 * took - num * alone.median_doubled_ns) / 2,
                longest=(int(start[indices[-1]]), int(end[indices[-1]])),
            )
        )
    rows.sort(key=lambda row: (-row.excess_ns, row.name, row.longest))
    comparison = Comparison(
        num_overlapped=len(compared.overlapped),
        num_alone=num_alone,
        overlapped_ns=overlapped_ns,
        expected_ns=Fraction(doubled, 2),
        expected_at_least_ns=at_least,
        expected_at_most_ns=at_most,
        noise_ns=sqrt(variance),
    )
    return comparison, tuple(rows)


def _dimensions(shape: Int64) -> tuple[int, int, int] | None:
    x, y, z = shape.tolist()
    return None if min(x, y, z) < 0 else (x, y, z)
