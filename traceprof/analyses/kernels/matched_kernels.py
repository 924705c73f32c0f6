"""Kernels of several ranks that are at the same place of the same step.

The place is the n-th kernel of its name between two communication kernels of a step, on ranks with
as many of them there. Communication that the next kernel waited for on most ranks ends a *part* of
the step: there ranks meet, and go on together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses.kernels.placed_kernels import DISTURBED
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
