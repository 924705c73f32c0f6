"""Unevenness of ranks: the same kernels at the same place of a step take longer on one of them.

In each part of a step (`matched_kernels`) a rank is *beyond* the others by what its kernels take
longer than their means over the ranks. The longest rank of each part costs the others what it is
beyond them. Noise makes some rank the longest, too: so which rank it is is read from one portion of
the data, and what it costs from another. Of equal ranks that is nothing, on average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses.kernels.placed_kernels import DISTURBED
from traceprof.analyses.steps import block_of, num_blocks
from traceprof.findings import share
from traceprof.run.session_clocks import ONE_MACHINE_NS
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, grouped, is_in, median_of, numbered, places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.kernels.placed_kernels import PlacedKernels
    from traceprof.intervals import Float64, Int64
    from traceprof.run.session_clocks import Clocks

NUM_FOLDS = 8
"""Groups of the places of a part, of similar length."""
_MAX_ROWS = 1 << 16  # matched at once: more take as much memory as the whole rest of an analysis
_MAX_UNSURE = 0.25  # of a step: with coarser clocks, steps are matched by their numbers


class SharedSteps(Record, frozen=True):
    """Steps that several ranks have."""

    numbers: Int64  # int64[s], of the rank with most steps
    # by rank, int64[steps], which of these each of its steps is; -1 for none
    of_rank: tuple[Int64, ...]


class MatchedKernels(Record, frozen=True):
    """Kernels that are at the same place on two ranks or more, n of them, in some steps."""

    rank: Int64  # int64[n], index of the rank
    row: Int64  # int64[n], its place among the rank's kernels
    part: Int64  # int64[n], indices of parts
    fold: Int64  # int64[n], of `NUM_FOLDS`
    category: Int64  # int64[n], indices into the categories
    length_ns: Int64  # int64[n]
    mean_ns: Float64  # float64[n], over the ranks at the same place
    # float64[n], thread blocks as a multiple of the mean of the others at the same place; not a
    # number where they are not known
    work: Float64
    num_ranks: Int64  # int64[n], how many these are
    step_of_part: Int64  # int64[p], indices of shared steps
    # int64[p], how much communication was launched in its step before its last kernel: the number
    # of the one after it
    number_in_step: Int64
    compute_ns: Int64  # int64[ranks], what all kernels take in these steps, matched or not

    def sums(self, values: Float64, column: Int64, num_columns: int) -> Float64:
        """Return sums of values by part and column, float64[p, columns]."""
        at = self.part * num_columns + column
        num = len(self.step_of_part) * num_columns
        sums: Float64 = np.bincount(at, values, num).astype(np.float64, copy=False)
        return sums.reshape(-1, num_columns)


def shared_steps(placed: Sequence[PlacedKernels], clocks: Clocks) -> SharedSteps:
    """Match the steps of ranks: by time where clocks show it, else by number."""
    most = max(placed, key=lambda rank: len(rank.number))
    start, end = (clocks.to_run(most.report, limit) for limit in (most.start_ns, most.end_ns))
    length = float(median_of(end - start))
    of_rank = []
    for rank in placed:
        own = [clocks.to_run(rank.report, limit) for limit in (rank.start_ns, rank.end_ns)]
        unsure = clocks.uncertainty_ns(rank.report, most.report)
        if (rank.num_steps == 0) != (most.num_steps == 0):
            step = np.full(len(rank.number), -1)
        elif unsure is None or unsure > max(_MAX_UNSURE * length, ONE_MACHINE_NS):
            step = np.searchsorted(most.number, rank.number)
            step = np.where(is_in(rank.number, most.number), step, -1)
        else:
            middle = (own[0] + own[1]) // 2
            step = np.searchsorted(start, middle, side="right") - 1
            step = np.where((step >= 0) & (middle < end[step]), step, -1)
            step[1:][step[1:] == step[:-1]] = -1
        of_rank.append(step)
    known = np.concatenate(of_rank)
    num = np.bincount(known[known >= 0], minlength=len(start))
    number = np.where(num > 1, np.cumsum(num > 1) - 1, -1)
    return SharedSteps(
        most.number[num > 1], tuple(np.where(step >= 0, number[step], -1) for step in of_rank)
    )


def categories_of(placed: Sequence[PlacedKernels]) -> tuple[str, ...]:
    """Return the categories of the kernels of all ranks."""
    return tuple(dict.fromkeys(category for rank in placed for category in rank.categories))


def matched_kernels(
    placed: Sequence[PlacedKernels], steps: SharedSteps
) -> Iterator[MatchedKernels]:
    """Yield the kernels that are at the same place on several ranks, some steps at a time.

    Those beside communication are not compared with those alone, nor those beside other compute.
    """
    runs = [rank.places.runs.values.reshape(-1, 3) for rank in placed]
    step_of = [of[run[:, 0]] for of, run in zip(steps.of_rank, runs, strict=True)]
    num_rows = np.zeros(len(steps.numbers), np.int64)
    for step, run in zip(step_of, runs, strict=True):
        np.add.at(num_rows, step[step >= 0], run[step >= 0, 2])
    chunk = np.cumsum(num_rows) // _MAX_ROWS
    names: dict[tuple[str, str], int] = {}
    name_of = [
        np.array([names.setdefault(key, len(names)) for key in zip(*texts, strict=True)], np.int64)
        for texts in ((rank.names, rank.categories) for rank in placed)
    ]
    categories = categories_of(placed)
    category_of = np.array([categories.index(category) for _, category in names], np.int64)
    meets = np.append(0, np.cumsum(meeting(placed)))
    for number in distinct_values(chunk).tolist():
        columns: list[tuple[Int64, ...]] = []
        for index, (rank, step) in enumerate(zip(placed, step_of, strict=True)):
            chosen = np.flatnonzero((step >= 0) & (chunk[step] == number))
            row, own, part, name, blocks, beside = rank.places.in_runs(chosen)
            columns.append(
                (
                    np.full(len(row), index),
                    row,
                    steps.of_rank[index][own],
                    part,
                    name_of[index][name],
                    rank.length_ns.at(row),
                    blocks,
                    beside,
                )
            )
        several = [*zip(*columns, strict=True)]
        del columns  # there can be many
        joined = [np.concatenate(several.pop(0)) for _ in range(len(several))]
        yield _matched(joined, meets, category_of, len(placed))


def _matched(
    columns: Sequence[Int64], meets: Int64, category_of: Int64, num_ranks: int
) -> MatchedKernels:
    rank, row, step, part, name, length, blocks, beside = columns
    number, count = places(rank, step, part, name)
    order, is_new = grouped(step, part, name, count, number)  # of the same, rank by rank
    place = np.cumsum(is_new) - 1
    in_order = beside.take(order)
    state = in_order.compress(is_new)
    num = np.bincount(place)
    alike = place.compress(in_order == state.take(place))
    are_alike = np.bincount(alike, minlength=len(num)) == num
    kept = ((num > 1) & are_alike & (state != DISTURBED))[place]
    order, place = order[kept], np.cumsum(is_new[kept]) - 1
    num = np.bincount(place)
    mean = np.bincount(place, length.take(order)) / np.maximum(num, 1)
    own = blocks[order].astype(np.float64)
    own[own == 0] = np.nan
    others = (np.bincount(place, own).take(place) - own) / (num.take(place) - 1)
    meeting = meets.take(np.minimum(part.take(order), len(meets) - 1))
    parts, part_of = numbered(step[order] * len(meets) + meeting)
    number_in_step = np.zeros(len(parts), np.int64)
    np.maximum.at(number_in_step, part_of, part[order])
    first = np.append(0, np.cumsum(num))[:-1]
    return MatchedKernels(
        rank=rank[order],
        row=row[order],
        part=part_of,
        fold=_folds(part_of[first], mean).take(place),
        category=category_of.take(name.take(order)),
        length_ns=length.take(order),
        mean_ns=mean[place],
        work=own / others,
        num_ranks=num[place],
        step_of_part=parts // len(meets),
        number_in_step=number_in_step,
        compute_ns=np.bincount(rank, length, num_ranks).astype(np.int64),
    )


def meeting(placed: Sequence[PlacedKernels]) -> Int64:
    """Return after which communication of a step ranks meet, 0 or 1 by its number in the step."""
    num = max(len(rank.num_communicating) for rank in placed)
    blocking, communicating = np.zeros(num, np.int64), np.zeros(num, np.int64)
    for rank in placed:
        blocking[: len(rank.num_blocking)] += rank.num_blocking
        communicating[: len(rank.num_communicating)] += rank.num_communicating
    return (2 * blocking > communicating).astype(np.int64)


def _folds(part: Int64, mean_ns: Float64) -> Int64:
    """Share the places of each part out among folds, longest first, back and forth."""
    order = np.lexsort((-mean_ns, part))
    number = np.empty(len(order), np.int64)
    size = np.bincount(part)
    number[order] = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
    within = number % (2 * NUM_FOLDS)
    return np.minimum(within, 2 * NUM_FOLDS - 1 - within)


MIN_STANDARD_ERRORS = 4.0
"""Standard errors that the mean of an excess must be above 0 to be known."""
MIN_EXCESS = 0.02
"""An excess that is a smaller share of the kernels' time is usual among equal GPUs."""
MIN_CONSTANT = 0.5
"""The share of the excess that is always the same rank's, from which on it is constant."""
MIN_STEPS = 6
"""In fewer, a rank that is always the longest may be so by chance."""
_MIN_VALUES = 6


class Unevenness(Record, frozen=True):
    """Kernels of a run that take longer on one rank than on the others."""

    is_uneven: bool  # whether that is more than noise and usual differences make of equal ranks
    is_constant: bool | None  # whether it is always the same rank; None if too few steps show it
    member: int  # index of the rank, or of the one that costs most
    excess_ns: float  # in a step, on average: what the longest rank takes beyond the mean of all
    category: str  # of the kernels that make up most of it
    category_share: float  # of the excess
    num_kernels: float  # how many of that category were compared in a step, on average
    share_longest: float  # in which share of the parts the rank was the longest
    slower: float  # what its compared kernels take, as a multiple of the others' mean
    # the thread blocks of its kernels where it was the longest, as a multiple of the others' mean,
    # weighted by time; None if no grids are known
    work: float | None
    coverage: float  # the share of the ranks' compute in these steps that was compared
    is_judged: bool  # whether there is enough to know what is noise
    numbers: Int64  # int64[s], of the steps
    by_step_ns: Float64  # float64[s, ranks], what each rank is beyond the others
    # the bytes that the longest rank sends in the all-to-all after a part, as a multiple of the
    # mean of the ranks, weighted by the excess; None if unknown
    all_to_all: float | None


class _Parts(Record, frozen=True):
    """Sums over kernels, by part or by rank."""

    beyond_ns: Float64  # float64[p, ranks]
    # float64[p, folds], what a rank is beyond the others in a fold that is the longest in all
    # other folds
    held_out_ns: Float64
    of_longest_ns: Float64  # float64[p, categories], what the longest rank is beyond the others
    num_of_longest: Float64  # float64[p, categories], in how many kernels
    of_rank_ns: Float64  # float64[ranks, categories], the same of each rank
    num_of_rank: Float64  # float64[ranks, categories]
    length_ns: Float64  # float64[ranks, 2], what kernels take, and at the same places on the others
    # float64[ranks, 2], the time of kernels whose grids are known, and the same times their thread
    # blocks as a multiple of the others'; where the rank is the longest of the part
    work: Float64
    step: Int64  # int64[p]
    number_in_step: Int64  # int64[p]
    compute_ns: Int64  # int64[ranks], with kernels that were not compared


def unevenness(placed: Sequence[PlacedKernels], clocks: Clocks) -> Unevenness | None:
    """Return how uneven the ranks of a run are; None if no two have kernels at the same place."""
    if len(placed) < 2:
        return None
    steps = shared_steps(placed, clocks)
    several = [
        _sums(matched, len(placed), len(categories_of(placed)))
        for matched in matched_kernels(placed, steps)
        if len(matched.rank)
    ]
    if not several:
        return None
    parts = _joined(several)
    num_steps = len(steps.numbers)
    by_step = _by_step(parts.beyond_ns, parts.step, num_steps)
    constant = _held_out(by_step.sum(axis=0) - by_step, by_step)
    changing = _by_step(parts.held_out_ns.sum(axis=1), parts.step, num_steps)
    if num_steps < MIN_STEPS:
        cells = parts.held_out_ns[parts.held_out_ns != 0]
        is_constant, is_uneven, is_judged = None, _is_known(cells), len(cells) >= _MIN_VALUES
    else:
        is_judged = True
        is_most = bool(constant.sum() >= MIN_CONSTANT * changing.sum())
        is_constant = _is_known(constant) and is_most
        is_uneven = is_constant or _is_known(changing)
    row = np.arange(len(parts.step))
    if is_constant:
        member = int(by_step.sum(axis=0).argmax())
        longest = np.full(len(row), member)
        of_category, num = parts.of_rank_ns[member], parts.num_of_rank[member]
        excess = float(by_step[:, member].sum())
    else:
        longest = parts.beyond_ns.argmax(axis=1)
        cost = np.bincount(longest, parts.beyond_ns[row, longest], len(placed))
        member = int(cost.argmax())
        of_category, num = parts.of_longest_ns.sum(axis=0), parts.num_of_longest.sum(axis=0)
        excess = float(changing.sum())
    largest = int(of_category.argmax())
    own_ns, others_ns = parts.length_ns[member].tolist()
    known_ns, work_ns = (parts.work[member] if is_constant else parts.work.sum(axis=0)).tolist()
    compared_ns = float(parts.length_ns[:, 0].sum()) / len(placed)
    return Unevenness(
        is_judged=is_judged,
        is_uneven=is_uneven and excess >= MIN_EXCESS * compared_ns,
        is_constant=is_constant,
        member=member,
        excess_ns=max(excess, 0.0) / num_steps,
        category=categories_of(placed)[largest],
        category_share=min(float(of_category[largest]) / max(float(of_category.sum()), 1.0), 1.0),
        num_kernels=float(num[largest]) / num_steps,
        share_longest=float((parts.beyond_ns.argmax(axis=1) == member).mean()),
        slower=own_ns / others_ns if others_ns else 1.0,
        work=work_ns / known_ns if known_ns else None,
        coverage=share(round(compared_ns * len(placed)), int(parts.compute_ns.sum())),
        numbers=steps.numbers,
        by_step_ns=by_step,
        all_to_all=_all_to_all(placed, steps, parts, longest),
    )


def _sums(matched: MatchedKernels, num_ranks: int, num_categories: int) -> _Parts:
    beyond = matched.length_ns - matched.mean_ns
    by_rank = matched.sums(beyond, matched.rank, num_ranks)
    folds = matched.sums(beyond, matched.fold * num_ranks + matched.rank, NUM_FOLDS * num_ranks)
    of_fold = folds.reshape(-1, NUM_FOLDS, num_ranks).swapaxes(0, 1)
    held_out = np.stack([_held_out(by_rank - own, own) for own in of_fold], axis=1)
    is_longest = by_rank.argmax(axis=1)[matched.part] == matched.rank
    of_longest, num_of_longest = (
        matched.sums(np.where(is_longest, values, 0.0), matched.category, num_categories)
        for values in (beyond, np.ones(len(beyond)))
    )
    at = matched.rank * num_categories + matched.category
    num = num_ranks * num_categories
    of_rank, num_of_rank = (
        np.bincount(at, values, num).astype(np.float64).reshape(num_ranks, -1)
        for values in (beyond, np.ones(len(beyond)))
    )
    others = (matched.mean_ns * matched.num_ranks - matched.length_ns) / (matched.num_ranks - 1)
    length = [np.bincount(matched.rank, of, num_ranks) for of in (matched.length_ns, others)]
    known = np.flatnonzero(is_longest & np.isfinite(matched.work))
    time = matched.mean_ns[known]
    work = [
        np.bincount(matched.rank[known], of, num_ranks) for of in (time, time * matched.work[known])
    ]
    return _Parts(
        by_rank,
        held_out,
        of_longest,
        num_of_longest,
        of_rank,
        num_of_rank,
        np.stack(length, axis=1),
        np.stack(work, axis=1),
        matched.step_of_part,
        matched.number_in_step,
        matched.compute_ns,
    )


def _joined(several: Sequence[_Parts]) -> _Parts:
    def rows(name: str) -> Float64:
        return np.concatenate([getattr(parts, name) for parts in several])

    def sums(name: str) -> Float64:
        total: Float64 = np.sum([getattr(parts, name) for parts in several], axis=0)
        return total

    return _Parts(
        rows("beyond_ns"),
        rows("held_out_ns"),
        rows("of_longest_ns"),
        rows("num_of_longest"),
        sums("of_rank_ns"),
        sums("num_of_rank"),
        sums("length_ns"),
        sums("work"),
        np.concatenate([parts.step for parts in several]),
        np.concatenate([parts.number_in_step for parts in several]),
        np.sum([parts.compute_ns for parts in several], axis=0),
    )


def _held_out(others: Float64, own: Float64) -> Float64:
    """Return what is the own value of the rank that is the longest by the others, float64[n].

    Where the others are not known, it is 0.
    """
    longest = others.argmax(axis=1)[:, np.newaxis]
    value = np.take_along_axis(own, longest, axis=1)[:, 0]
    return np.where(others.any(axis=1), value, 0.0)


def _by_step(values: Float64, step: Int64, num_steps: int) -> Float64:
    sums = np.zeros((num_steps, *values.shape[1:]))
    np.add.at(sums, step, values)
    return sums


def _is_known(values: Float64) -> bool:
    """Return whether the mean of values, by blocks of neighbours, is above 0 beyond noise."""
    if len(values) < _MIN_VALUES:
        return False
    if num_blocks(len(values)):
        block = block_of(len(values))
        values = np.bincount(block, values) / np.bincount(block)
    error = float(values.std(ddof=1)) / np.sqrt(len(values))
    return bool(values.mean() > MIN_STANDARD_ERRORS * error)


def _all_to_all(
    placed: Sequence[PlacedKernels], steps: SharedSteps, parts: _Parts, longest: Int64
) -> float | None:
    """Return the bytes that the longest rank sends after parts, as a multiple of the mean.

    Experts send back as many tokens as they have worked on.
    """
    width = 1 + max(int(rank.all_to_all[:, 1].max(initial=0)) for rank in placed)
    wanted = parts.step * width + parts.number_in_step
    sizes = np.full((len(wanted), len(placed)), np.nan)
    for index, (rank, step_of) in enumerate(zip(placed, steps.of_rank, strict=True)):
        step, number, size = rank.all_to_all.T
        at, size = step_of[step] * width + number, size[step_of[step] >= 0]
        at = at[step_of[step] >= 0]
        order = np.argsort(at)
        place = np.minimum(np.searchsorted(at[order], wanted), max(len(at) - 1, 0))
        if len(at):
            is_there = (at[order][place] == wanted) & (parts.number_in_step < width)
            sizes[is_there, index] = size[order][place][is_there]
    mean = sizes.mean(axis=1)
    row = np.arange(len(wanted))
    known = np.flatnonzero(mean > 0)  # not of those that are not a number
    weight = np.maximum(parts.beyond_ns[row, longest], 0)[known]
    if not weight.sum():
        return None
    return float(np.average(sizes[known, longest[known]] / mean[known], weights=weight))
