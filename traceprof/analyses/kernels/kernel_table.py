"""The kernels of a rank by name: number, total and median time, or some as evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import floor, fsum, sqrt
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from traceprof import intervals
from traceprof.analyses.results import RankResult
from traceprof.analyses.steps import block_of, num_blocks
from traceprof.findings import Count, Evidence
from traceprof.intervals import Float64, Int32, Int64, Mask
from traceprof.kernel_names import short_title
from traceprof.kernel_names.categories import KernelKind, kernel_kind
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import SteadySteps, steady_steps
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, numbered, sorted_in_groups


class InSteadyStep(Record, frozen=True):
    """Time of the kernels of one name in a steady step of one rank."""

    ns: float  # the mean over steps of the sum of their durations
    # the standard error of that mean, by blocks of neighbouring steps; None if there are too few
    # steps
    error_ns: float | None
    place: float  # where in a step the first of them starts, as a share of it, 0 to 1


def in_steady_steps(
    start_ns: Int64, length_ns: Int64, which: Int64, num_names: int, steps: SteadySteps
) -> list[InSteadyStep | None]:
    """Return the time of each name in a steady step; None if it occurs in none.

    `which`: int64[n], the name of each kernel. Kernels and steps ascend; steps are apart from each
    other.
    """
    num = len(steps.start_ns)
    blocks, block = max(num_blocks(num), 1), block_of(num)
    firsts = np.searchsorted(start_ns, steps.start_ns).tolist()
    stops = np.searchsorted(start_ns, steps.end_ns).tolist()
    spent = np.zeros((blocks, num_names))
    place = np.full(num_names, np.nan)
    for step, (first, stop) in enumerate(zip(firsts, stops, strict=True)):
        names = which[first:stop]
        spent[block[step]] += np.bincount(names, length_ns[first:stop], num_names)
        if np.isnan(place.take(names)).any():
            distinct, index = np.unique(names, return_index=True)
            begin, end = steps.start_ns[step], steps.end_ns[step]
            offset = (start_ns[first:stop][index] - begin) / (end - begin)
            place[distinct] = np.where(np.isnan(place[distinct]), offset, place[distinct])
    mean = spent.sum(axis=0) / num
    error: list[float | None] = [None] * num_names
    if num_blocks(num):
        deviation = spent / np.bincount(block, minlength=blocks)[:, np.newaxis] - mean
        error = np.sqrt((deviation**2).sum(axis=0) / (blocks - 1) / blocks).tolist()
    return [
        None if math.isnan(offset) else InSteadyStep(ns, wrong_by, offset)
        for ns, wrong_by, offset in zip(mean.tolist(), error, place.tolist(), strict=True)
    ]


class KernelUse(Struct, frozen=True):
    """The kernels of one name; `in_steady_step` is None of a name that occurs in none."""

    name: Annotated[str, "Demangled name, where the report has it."]
    kind: KernelKind
    count: Annotated[Count, "Kernels that start in the window."]
    total_ns: Annotated[Count, "Sum of their durations."]
    median_ns: Annotated[Count, "Median of their durations, rounded down."]
    per_step_ns: Annotated[
        Count | None, "Their time in a training step, mean over steps; null without steps."
    ]
    in_steady_step: InSteadyStep | None


class KernelTable(RankResult, frozen=True):
    """The kernels of one rank that start in a window."""

    uses: tuple[KernelUse, ...]  # by name, the longest together first


def named_signatures(rank: Rank) -> tuple[list[str], Int64]:
    """Return the names of a rank's kernels, ascending, and by signature the index of its name."""
    # Several ids may stand for the same text.
    ids = distinct_values(rank.operations.kernels.name_of_signature)
    texts = [rank.kernel_names[id_] for id_ in ids.tolist()]
    names = sorted(set(texts))
    place = {name: index for index, name in enumerate(names)}
    of_id = np.array([place[text] for text in texts], np.int64)
    return names, of_id[np.searchsorted(ids, rank.operations.kernels.name_of_signature)]


def run(rank: Rank, window: Window, judged: Window | None = None) -> KernelTable:
    """Add up the kernels that start in a window, including communication.

    Steady steps are compared within `judged`, if given.
    """
    kernels = rank.operations.kernels
    chosen = np.flatnonzero(window.holds_start(kernels.start_ns))
    names, of_signature = named_signatures(rank)
    which = of_signature.take(kernels.packed_signature.at(chosen))
    length = kernels.packed_length.at(chosen)
    count, median = _by_name(which, length, len(names))
    total = sums_by(which, length, len(names))
    start = kernels.start_ns.take(chosen)
    steps = _steps_within(rank, window)
    inside = slice(*np.searchsorted(start, steps[:2]).tolist()) if steps else slice(0)
    in_steps = sums_by(which[inside], length[inside], len(names))
    alike = steady_steps(rank, judged or window)
    steady = in_steady_steps(start, length, which, len(names), alike)
    order = sorted(np.flatnonzero(count).tolist(), key=lambda index: (-total[index], names[index]))
    communicating = {rank.kernel_names[id_] for id_ in rank.communication_operations}
    uses = (
        KernelUse(
            name=names[index],
            kind=kernel_kind(names[index], communicates=names[index] in communicating),
            count=int(count[index]),
            total_ns=total[index],
            median_ns=int(median[index]),
            per_step_ns=None if steps is None else in_steps[index] // steps[2],
            in_steady_step=steady[index],
        )
        for index in order
    )
    return KernelTable(rank.rank, tuple(uses))


def kernel_evidence(rank: Rank, window: Window, texts: Mapping[int, str]) -> tuple[Evidence, ...]:
    """Show kernels of a rank within a window: name, then a text by the kernel's index."""
    kernels, chosen = rank.operations.kernels, np.array([*texts], np.int64)
    start = np.maximum(kernels.start_ns[chosen], window.start_ns).tolist()
    end = np.minimum(kernels.ends(chosen), window.end_ns).tolist()
    names = [short_title(rank.kernel_names[kernels.name_id(kernel)]) for kernel in texts]
    labels = [f"{name}{text}" for name, text in zip(names, texts.values(), strict=True)]
    return tuple(map(Evidence, start, end, labels))


def sums_by(which: Int64, values: Int64, num: int) -> list[int]:
    """Return exact sums by kind, also where they do not fit 64 bits."""
    upper = np.bincount(which, values >> 24, num)
    lower = np.bincount(which, values & 0xFF_FFFF, num)
    return [(int(above) << 24) + int(below) for above, below in zip(upper, lower, strict=True)]


def _by_name(which: Int64, length_ns: Int64, num_names: int) -> tuple[Int64, Int64]:
    """Return count and median duration of each name, int64[m] each; 0 without kernels."""
    count = np.bincount(which, minlength=num_names)
    ordered = sorted_in_groups(length_ns, which)
    used = np.flatnonzero(count)
    first = (np.cumsum(count) - count)[used]
    low = ordered[first + (count[used] - 1) // 2]
    high = ordered[first + count[used] // 2]
    median = np.zeros(num_names, np.int64)
    median[used] = low + (high - low) // 2
    return count, median


def _steps_within(rank: Rank, window: Window) -> tuple[int, int, int] | None:
    steps = rank.steps
    if steps is None:
        return None
    inside = (steps.start_ns >= window.start_ns) & (steps.end_ns <= window.end_ns)
    if not inside.any():
        return None
    return int(steps.start_ns[inside].min()), int(steps.end_ns[inside].max()), int(inside.sum())


class SignatureSlowdown(Record, frozen=True):
    """The kernels of one name, grid and block that ran both alone and beside communication."""

    name: str  # the demangled name
    grid: tuple[int, int, int] | None  # x, y, z; None if the export lacks them
    block: tuple[int, int, int] | None  # x, y, z; None if the export lacks them
    num_alone: int  # kernels during which nothing communicated, at the places that were compared
    num_overlapped: int  # kernels during at least half of which something communicated
    overlapped_ns: int  # the sum of the overlapped kernels' durations
    excess_ns: float  # how much longer than expected they took together; negative if less
    longest: tuple[int, int]  # start and end of the overlapped kernel that took longest

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
    """

    num_overlapped: int  # overlapped kernels whose signature ran alone often enough
    num_alone: int  # kernels alone that they were compared with
    overlapped_ns: int  # durations of the overlapped ones
    expected_ns: float  # had each taken the median alone
    expected_at_least_ns: float  # the median or the mean alone, whichever is longer
    expected_at_most_ns: float  # the third quartile or the mean alone, whichever is longer
    noise_ns: float  # the standard error of what is expected by the means

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
    """The m signatures that ran both alone often enough and overlapped, ascending."""

    signature: Int64  # int64[m], indices into `Trace.signatures`
    num_alone: Int64  # int64[m], kernels alone at the places that were compared
    num_overlapped: Int64  # int64[m], at these places
    overlapped: Int64  # int64[o], indices of the overlapped kernels by signature, then duration
    overlapped_ns: Int64  # int64[o], their durations
    expected_ns: Float64  # float64[o], the median alone at the place of each
    # float64[m, 3], time taken − time expected of the overlapped kernels, by the median, by the
    # median or the mean, and by the third quartile or the mean
    excess_ns: Float64
    noise_ns: Float64  # float64[m], the standard error of the excess by the mean
    # float64[m], by how much a kernel is longer for each nanosecond beside communication; negative
    # where it is shorter, which chance may bring
    rate: Float64
    rate_error: Float64  # float64[m], its standard error


MIN_ALONE = 3
"""Fewer kernels of a signature give no median worth the name."""
_I, _F = np.empty(0, np.int64), np.empty(0)
_NOTHING_COMPARED = ComparedSignatures(_I, _I, _I, _I, _I, _F, np.empty((0, 3)), _F, _F, _F)


def compare(
    length_ns: Int64,
    beside_ns: Int64,
    signature: npt.NDArray[np.integer[Any]],
    is_alone: Mask,
    is_overlapped: Mask,
    places: Callable[[Int64], Int32] | None = None,
) -> ComparedSignatures:
    """Compare n kernels of a signature that ran at the same place, alone and overlapped.

    During `beside_ns` something communicated. A place with fewer than `MIN_ALONE` kernels alone is
    not compared. `places` returns the places of kernels by their indices, negative if unknown;
    without it, all of a signature are at one place.
    """
    size = int(signature.max()) + 1 if len(signature) else 0
    may = np.bincount(signature[is_alone], minlength=size) >= MIN_ALONE
    may &= np.bincount(signature[is_overlapped], minlength=size) > 0
    if not may.any():
        return _NOTHING_COMPARED
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
    is_used = num_alone >= MIN_ALONE
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
    index, took = of_signature[group], length_ns.take(paired)
    beside = np.maximum(summed(beside_ns.take(paired), index), 1)
    excess = np.stack(
        [summed(took, index) - summed(num_paired * mean) for mean in expected], axis=1
    )
    # Of the sum of `num_paired` draws, and of a mean of `num_alone` draws taken for each of them.
    error = np.sqrt(summed(variance * num_paired * (1 + num_paired / num_alone)))
    order = np.lexsort((took, index))
    return ComparedSignatures(
        signature=chosen,
        num_alone=summed(num_alone).astype(np.int64),
        num_overlapped=np.bincount(index, minlength=num),
        overlapped=paired.take(order),
        overlapped_ns=took.take(order),
        expected_ns=expected[0].take(group.take(order)),
        excess_ns=excess,
        noise_ns=error,
        rate=excess[:, 0] / beside,
        rate_error=error / beside,
    )


def _expected(alone_ns: Int64, num: Int64) -> tuple[tuple[Float64, ...], Float64]:
    """Return what a kernel of each group takes alone, and the variance in ns², float64[g] each.

    The first is the median, of an even number the mean of the middle two; then the median or the
    mean, whichever is longer; then a duration that three of four do not exceed, or the mean. Of
    three or four kernels that is the longest, so that an expectation errs on the long side.

    `alone_ns`: int64[a], durations by group, then duration; `num`: int64[g], two at least.
    """
    if len(num) == 0:
        nothing = np.empty(0)
        return (nothing, nothing, nothing), nothing
    first = np.cumsum(num) - num
    low = alone_ns[first]
    above = alone_ns - np.repeat(low, num)  # small numbers, which floating point holds exactly
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

    `compared`: the rank's compute kernels in the window; `kernel`: int64[n], their indices.
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
    # Exact sums, the same in whatever order the export has its kernels.
    median, at_least, at_most = (took - fsum(excess) for excess in compared.excess_ns.T.tolist())
    comparison = ExpectedTimes(
        num_overlapped=len(compared.overlapped),
        num_alone=intervals.total(compared.num_alone),
        overlapped_ns=took,
        expected_ns=median,
        expected_at_least_ns=at_least,
        expected_at_most_ns=at_most,
        noise_ns=sqrt(fsum((compared.noise_ns**2).tolist())),
    )
    return comparison, tuple(rows)


def _dimensions(shape: Int64) -> tuple[int, int, int] | None:
    x, y, z = shape.tolist()
    return None if min(x, y, z) < 0 else (x, y, z)
