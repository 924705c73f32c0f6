"""Kernels of a rank by their place in the step, to be compared with those of other ranks.

A step is divided by its communication kernels, in the order of launches: ranks that run the same
program launch the same kernels between two of them. All is sent by other processes, so it is kept
in few bytes: of each kernel its length and one number for what it is, of each part of a step how
many it has, and of a long run only some steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from traceprof import intervals, labels
from traceprof.intervals import Int32, Int64, Mask
from traceprof.kernel_names import function_name
from traceprof.kernel_names.categories import MAIN_COMPUTE, kernel_kind
from traceprof.run.rank import Rank, Window
from traceprof.run.session_clocks import ONE_MACHINE_NS, Clocks
from traceprof.run.steady_steps import steady_steps
from traceprof.structs import Record
from traceprof.trace.columns import Column, pack
from traceprof.trace.grouping import distinct_values, is_in, median_of, numbered


def places_in_steps(rank: Rank) -> Callable[[Int64], Int32] | None:
    """Return a function that returns the places of kernels in their step; None without steps.

    The n-th kernel of its signature that a step launched is at the n-th place of all steps that
    launch as many of them. Where ranges of `instrument` show more backward passes than steps, each
    pass is taken instead of a step: gradients are reduced in one of several micro-batches only.
    The function takes int64[n], indices of kernels, and returns int32[n], -1 where the launch is
    not known, or comes before the first step.
    """
    starts_ns, calls = unit_starts(rank), rank.calls
    if starts_ns is None or calls is None:
        return None

    def of(chosen: Int64) -> Int32:
        kernels = rank.operations.kernels
        signature = kernels.packed_signature.kept
        call = rank.launched_by[0]
        wanted = np.zeros(int(signature.max(initial=0)) + 1, np.bool_)
        wanted[signature.take(chosen)] = True
        known = np.flatnonzero(wanted.take(signature) & (call >= 0)).astype(np.int32)
        # By signature, then launch: launches are nearly in order, and narrow numbers sort quickly.
        launch = calls.start_ns.take(call.take(known))
        order = np.argsort(launch, kind="stable")
        known = known.take(order)
        launch = launch.take(order)
        unit = (np.searchsorted(starts_ns, launch, "right") - 1).astype(np.int32)
        narrow = signature.take(known).astype(np.min_scalar_type(len(wanted)))
        order = np.argsort(narrow, kind="stable")
        known, unit, narrow = (column.take(order) for column in (known, unit, narrow))
        begins = np.ones(len(known), np.bool_)
        begins[1:] = (unit[1:] != unit[:-1]) | (narrow[1:] != narrow[:-1])
        first = np.flatnonzero(begins)
        num = np.diff(np.append(first, len(known)))
        numbers = np.arange(len(known))
        numbers -= np.repeat(first, num)
        numbers *= int(num.max(initial=0)) + 1
        numbers += np.repeat(num, num)
        numbers = numbered(numbers)[1]
        numbers[unit < 0] = -1
        place = np.full(len(kernels), -1, np.int32)
        place[known] = numbers
        return place.take(chosen)

    return of


def unit_starts(rank: Rank) -> Int64 | None:
    """Return where steps begin on the host, or the passes that are taken instead of them."""
    steps, ranges = rank.step_ranges, rank.trace.label_ranges.get(rank.process)
    if steps is None:
        return None
    if ranges is not None:
        kinds = [
            index for index, kind in enumerate(ranges.kinds) if kind.operation == labels.BACKWARD
        ]
        ends: Int64 = np.sort(ranges.end_ns[is_in(ranges.kind, np.array(kinds, np.int64))])
        if len(ends) > len(steps.start_ns):
            return np.append(steps.start_ns[:1], ends[ends > steps.start_ns[0]])
    return steps.start_ns


def beside_other_compute(rank: Rank) -> Mask:
    """Return beside which kernels of the rank other compute ran on the device, bool[kernels].

    Kernels and whole graphs of the rank, and of other processes on the same GPU, if there are some.
    Touching is not beside, and a kernel without length has nothing beside it.
    """
    return rank.cache.get(_beside_other_compute, rank)


def _beside_other_compute(rank: Rank) -> Mask:
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    computing = np.flatnonzero(~rank.is_communication_kernel)
    start = [kernels.start_ns.take(computing), graphs.start_ns]
    end = [kernels.ends(computing), graphs.end_ns]
    for key, operations in rank.trace.operations.items() if rank.gpu_id is not None else ():
        if key != rank.key and rank.trace.gpu_id(key) == rank.gpu_id:  # of another process
            others = operations.kernels
            computes = np.flatnonzero(~others.are_named(rank.communication_operations))
            start += [others.start_ns[computes], operations.graphs.start_ns]
            end += [others.ends(computes), operations.graphs.end_ns]
            operations.release()
    is_beside = np.zeros(len(kernels), np.bool_)
    disturbed = share_time(np.concatenate(start), np.concatenate(end))
    is_beside[computing] = disturbed[: len(computing)]
    return is_beside


def share_time(start_ns: Int64, end_ns: Int64) -> Mask:
    """Return which intervals share time with another one, bool[n]."""
    lasting = np.flatnonzero(end_ns > start_ns)
    order = lasting[np.argsort(start_ns[lasting], kind="stable")]
    start, end = start_ns[order], end_ns[order]
    # Of those that started before, one may still run; of those that start later, the next one does
    # so first.
    overlaps = np.zeros(len(order), np.bool_)
    overlaps[:-1] = start[1:] < end[:-1]
    overlaps[1:] |= start[1:] < np.maximum.accumulate(end)[:-1]
    is_beside = np.zeros(len(start_ns), np.bool_)
    is_beside[order] = overlaps
    return is_beside


MAX_KERNELS = 1 << 17
"""Kernels of a rank that are kept at most, but no fewer than those of `_MIN_STEPS` steps."""
_MIN_STEPS = 6
_MAX_UNSURE = 0.25  # of a step: with coarser clocks, steps are matched by their numbers
_STRIDE = 3  # steps often alternate: an even stride would see one kind only
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


class Places(Record, frozen=True):
    """The places and identities of n kernels."""

    # int64[m, 3], of neighbours in the same part of a step: the index of the step, the number of
    # communication kernels that were launched before them in it, and their number
    runs: Column
    kind: Column  # n indices into `kinds`
    kinds: Int64  # int64[k, 2]: an index of a name, and the number of thread blocks, 0 if unknown

    @property
    def unpacked(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Step and part of each kernel, as in `runs`, its name and thread blocks, int64[n] each."""
        runs = self.runs.values.reshape(-1, 3)
        step, part = np.repeat(runs[:, :2], runs[:, 2], axis=0).T
        name, blocks = self.kinds.take(self.kind.values, axis=0).T
        return step, part, name, blocks


def pack_places(step: Int64, part: Int64, name: Int64, blocks: Int64) -> Places:
    """Return the places of n kernels, given by columns, int64[n]; see `Places`."""
    is_first = np.ones(len(step), np.bool_)
    is_first[1:] = (np.diff(step) != 0) | (np.diff(part) != 0)
    first = np.flatnonzero(is_first)
    num = np.diff(np.append(first, len(step)))
    sizes, size = numbered(blocks)
    keys, kind = numbered(name * len(sizes) + size)
    of_name, of_size = np.divmod(keys, max(len(sizes), 1))
    return Places(
        pack(np.stack((step[first], part[first], num), axis=1).ravel()),
        pack(kind),
        np.stack((of_name, sizes[of_size]), axis=1),
    )


class PlacedKernels(Record, frozen=True):
    """The n compute kernels of a rank's steady steps, in the order of launches in each step."""

    rank: int  # the rank's number
    report: int  # index of its report
    num_steps: int  # how many steady steps the rank has; 0 if the window counts as one
    number: Int64  # int64[s], the numbers of the steps that are kept
    start_ns: Int64  # int64[s], when they start, in the report's time
    end_ns: Int64  # int64[s]
    places: Places  # of the kernels, by indices of these steps and of `names`
    length_ns: Column  # n durations
    names: tuple[str, ...]  # of kernels, without what the size of their work changes
    categories: tuple[str, ...]  # of these names
    # int64[p], by number in the step, how many communication kernels were over before the next
    # compute kernel began
    num_blocking: Int64
    num_communicating: Int64  # int64[p], how many there are
    window_ns: int  # the length of the part that findings are about
    # the mean clock of its GPU while it computed; None if it was not sampled
    clock_hz: float | None


class SharedSteps(Record, frozen=True):
    """Steps that several ranks have."""

    num: int
    # by rank, int64[steps], which of these each of its steps is; -1 for none
    of_rank: tuple[Int64, ...]


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
            step = intervals.holder(start, end, (own[0] + own[1]) // 2)
            step[1:][step[1:] == step[:-1]] = -1
        of_rank.append(step)
    known = np.concatenate(of_rank)
    num = np.bincount(known[known >= 0], minlength=len(start))
    number = np.where(num > 1, np.cumsum(num > 1) - 1, -1)
    numbered_steps = (np.where(step >= 0, number[step], -1) for step in of_rank)
    return SharedSteps(int((num > 1).sum()), tuple(numbered_steps))


def run(rank: Rank, window: Window) -> PlacedKernels:
    """Return the kernels of a rank's steady steps; a window without steps counts as one."""
    steps = steady_steps(rank, window)
    number, start_ns, end_ns = np.zeros(1, np.int64), steps.start_ns, steps.end_ns
    if rank.steps is not None and len(steps.step):
        number = rank.steps.number[steps.step]
    row, step, kept = _ordered(rank, number, start_ns, end_ns)
    kernels = rank.operations.kernels
    communicates = rank.is_communication_kernel.take(row)
    # The number of communication kernels before each in its step.
    before: Int64 = np.cumsum(communicates) - communicates
    first = np.searchsorted(step, np.arange(len(kept) + 1))
    part = before - np.append(before, 0)[first[:-1]][step]
    start, end = kernels.start_ns[row], kernels.ends(row)
    blocking, communicating = _blocking(communicates, part, step, start, end)
    computes = np.flatnonzero(~communicates)
    row, step, part = row.take(computes), step.take(computes), part.take(computes)
    of_name, names, categories = _names(rank)
    signature = kernels.packed_signature.kept.take(row)
    used, name = numbered(of_name.take(signature))
    return PlacedKernels(
        rank=rank.rank,
        report=rank.report,
        num_steps=len(steps.step),
        number=number[kept],
        start_ns=start_ns[kept],
        end_ns=end_ns[kept],
        places=pack_places(step, part, name, blocks_by_signature(rank).take(signature)),
        length_ns=pack(kernels.packed_length.at(row)),
        names=tuple(names[index] for index in used.tolist()),
        categories=tuple(categories[index] for index in used.tolist()),
        num_blocking=blocking,
        num_communicating=communicating,
        window_ns=window.length_ns,
        clock_hz=_clock(rank, start_ns[kept], end_ns[kept]),
    )


def _ordered(
    rank: Rank, number: Int64, start_ns: Int64, end_ns: Int64
) -> tuple[Int64, Int64, Int64]:
    """Return the kernels that start in some of the steps, in the order of launches in each.

    Arrays by step; at most `MAX_KERNELS` are kept, if they are those of enough steps.

    Returns:
        int64[n], indices of kernels; int64[n], indices into the steps that are kept; and
        int64[k], indices of these steps.
    """
    kernels = rank.operations.kernels
    low, high = (np.searchsorted(kernels.start_ns, limit) for limit in (start_ns, end_ns))
    if len(start_ns) == 1:  # no steps: a last operation may begin where the window ends
        high = np.minimum(high, low + MAX_KERNELS)
    kept, stride = np.arange(len(number)), 1
    while intervals.total((high - low)[kept]) > MAX_KERNELS:
        stride *= _STRIDE
        fewer = np.flatnonzero(number % stride == 0)
        if len(fewer) < _MIN_STEPS:
            break
        kept = fewer
    num = (high - low)[kept]
    step = np.repeat(np.arange(len(kept)), num)
    row = np.arange(len(step)) - np.repeat(np.cumsum(num) - num, num) + np.repeat(low[kept], num)
    launched = kernels.start_ns.take(row)
    if rank.calls is not None and len(rank.calls):
        call = rank.launched_by[0].take(row)
        launched = np.where(call >= 0, rank.calls.start_ns[call], launched)
    order = np.lexsort((row, launched, step))
    return row.take(order), step, kept


def _names(rank: Rank) -> tuple[Int64, list[str], list[str]]:
    """Return by signature the number of its name, and the names and categories by number.

    The size of the work may choose another kernel of a library: numbers in names do not count, and
    of kernels that libraries choose neither do template arguments.
    """
    numbers: dict[tuple[str, str], int] = {}
    of_name: dict[int, int] = {}
    ids = rank.operations.kernels.name_of_signature
    for id_ in distinct_values(ids).tolist():
        text = rank.kernel_names[id_]
        category = kernel_kind(text, communicates=False).category
        text = function_name(text) if category in MAIN_COMPUTE else text
        key = (_NUMBER.sub("#", text), category.value)
        of_name[id_] = numbers.setdefault(key, len(numbers))
    of_signature = np.array([of_name[id_] for id_ in ids.tolist()], np.int64)
    return of_signature, [text for text, _ in numbers], [category for _, category in numbers]


def blocks_by_signature(rank: Rank) -> Int64:
    """Return the number of thread blocks by signature; 0 if that is unknown."""
    grid = rank.trace.signatures.shape[:, :3]
    return np.where((grid > 0).all(axis=1), np.maximum(grid, 1).prod(axis=1), 0)


def _blocking(
    communicates: Mask, part: Int64, step: Int64, start_ns: Int64, end_ns: Int64
) -> tuple[Int64, Int64]:
    """Count the communication that the next compute kernel waited for, by number in the step."""
    at = np.flatnonzero(communicates)
    computes = np.flatnonzero(~communicates)
    place = np.searchsorted(computes, at)
    has_next = place < len(computes)
    at, after = at[has_next], computes[place[has_next]]
    is_same = step[after] == step[at]
    at, after = at[is_same], after[is_same]
    num = int(part[at].max(initial=-1)) + 1
    blocks = start_ns[after] >= end_ns[at]
    return np.bincount(part[at][blocks], minlength=num), np.bincount(part[at], minlength=num)


def _clock(rank: Rank, start_ns: Int64, end_ns: Int64) -> float | None:
    """Return the mean clock of the rank's GPU in steps, while it computed, Hz."""
    if rank.device is None:
        return None
    samples = rank.trace.counters.clock_of(rank.key)
    if samples is None:
        return None
    computing = intervals.covered_within(rank.compute, samples.start_ns, samples.end_ns)
    step = np.searchsorted(start_ns, samples.end_ns, side="right") - 1
    inside = (step >= 0) & (samples.end_ns <= end_ns[step])
    # A sample is a mean over its period: one of an idle GPU says nothing of its kernels.
    chosen = inside & (2 * computing >= samples.end_ns - samples.start_ns)
    return float(samples.value[chosen].mean()) if chosen.any() else None
