"""The AllReduce kernels that carry a training step's gradients, and what they outlast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.gradients.accumulation import BACKWARD, backwards, last_backwards
from traceprof.communication.messages import messages
from traceprof.patterns import lazy
from traceprof.run.steady_steps import steady_steps
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.opening import Rank, Window

# Where the first bucket starts after nine tenths of the compute, a tenth at most can hide it. DDP
# starts it when the last layers are through: in the real traces after 59 to 70 % of the compute, of
# which the forward is a third.
_IN_TEN = 10
_ROWS_AT_ONCE = 1 << 15
# Beside gradients a step reduces scalars (a loss, a flag): what is 20 times shorter is no bucket.
MIN_OF_LONGEST = 20

# Whole ones, and parts of one by PyTorch's `emit_nvtx`.
_BACKWARD = lazy(rf"\A(?:{BACKWARD}|autograd::engine::evaluate_function: .*)\Z")
_NOTHING = np.empty(0, np.int64)


class StepTails(Record, frozen=True):
    """The reduction of gradients in each judged pass, in order of time.

    A step is one pass, unless it has several backwards whose gradients are reduced before the next
    forward: then each of them is.

    Attributes:
        number: int64[n], of the step.
        num_buckets: int64[n], AllReduce kernels not much shorter than the pass's longest.
        hideable: float64[n], the share of the compute, from the pass's first compute kernel to the
            end of the last bucket, that ran after the first bucket had started.
        tail_start_ns: int64[n], the end of the compute that ran or had run when the first late
            bucket started; of the last bucket where none is late.
        tail_end_ns: int64[n], the end of the last bucket to end, or `tail_start_ns` if later.
        is_late: bool[n], whether there is one bucket, or all are late, in each pass of the step.
        ready_ns: int64[n], before which no gradient was there: when the backward's first kernel
            started, of the last backward where gradients accumulate, or that of the pass where the
            backward is not known. If no step is late, when the first bucket started.
        accumulates: whether that is of the last one of several backwards in a step.
        is_steady: bool[n], whether the step is steady.
    """

    number: Int64
    num_buckets: Int64
    hideable: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    tail_start_ns: Int64
    tail_end_ns: Int64
    is_late: Mask
    ready_ns: Int64
    accumulates: bool
    is_steady: Mask


def of_operation(rank: Rank, operation: str) -> Mask:
    """Return which kernels are of a collective operation, bool[kernels].

    Where a name hides it (RCCL's kernels for all operations), their calls show it.
    """
    sent = messages(rank)
    chosen = np.zeros(len(rank.operations.kernels), np.bool_)
    chosen[sent.kernel[sent.operation == sent.operations.index(operation)]] = True
    return chosen


def steps_of_kernels(rank: Rank) -> Int64:
    """Return in which of the rank's step ranges each kernel was launched, -1 for none.

    By launch, not by time: a thread that runs ahead launches the next step's copies while this
    step's gradients are reduced. Of ranges that overlap, the one that began last counts.
    """
    launched_by = rank.launched_by[0]
    if rank.step_ranges is None or rank.calls is None or len(rank.calls) == 0:
        return np.full(len(launched_by), -1, np.int64)
    called_ns, ranges = rank.calls.start_ns, rank.step_ranges

    def step_of(call: Int64) -> Int64:
        launch = called_ns.take(call)
        step = intervals.num_before(ranges.start_ns, launch, "right") - 1
        known = (call >= 0) & (step >= 0) & (launch < ranges.end_ns.take(step))
        return np.where(known, step, -1)

    return intervals.by_rows(step_of, launched_by)


class _Groups:
    """Runs of equal ids.

    Attributes:
        id: int64[m], ascending.
        first: int64[m], where each run begins.
        num: int64[m], how long it is.
        of: int64[n], which run each element is in.
    """

    def __init__(self, ids: Int64) -> None:
        """Take ids in ascending order."""
        self.id, self.first, self.num = np.unique(ids, return_index=True, return_counts=True)
        self.of = np.repeat(np.arange(len(self.id)), self.num)


def judge_steps(rank: Rank, window: Window, step: Int64, reduces: Mask, inside: Mask) -> StepTails:
    """Judge the steps but the first.

    Args:
        rank: the rank.
        window: the part of it that is judged.
        step: int64[kernels], the step of each kernel, -1 for none.
        reduces: bool[kernels], which are AllReduce.
        inside: bool[kernels], which start in the window.
    """
    kernels, ranges = rank.operations.kernels, rank.step_ranges
    buckets, begin = _buckets(rank, step, step, reduces, inside)
    if len(buckets) == 0 or ranges is None:
        none, number = np.empty(0, np.bool_), _NOTHING.astype(np.float64)
        return StepTails(
            _NOTHING, _NOTHING, number, _NOTHING, _NOTHING, none, _NOTHING, False, none
        )
    bounds, split = _ends_of_passes(rank, buckets), step
    if len(bounds):
        split = np.where(step >= 0, step + np.searchsorted(bounds, _launched(rank), "right"), -1)
        buckets, begin = _buckets(rank, step, split, reduces, inside)
    group = _Groups(split[buckets])
    of_step = step[buckets[group.first]]
    start, last = kernels.start_ns[buckets], group.first + group.num - 1
    end = np.maximum.reduceat(kernels.ends(buckets), group.first)
    before_step = intervals.covered_before(rank.compute, begin[group.id])
    total = intervals.covered_before(rank.compute, end) - before_step
    ran = intervals.covered_before(rank.compute, start) - before_step[group.of]
    is_late_bucket = ran >= total[group.of] - total[group.of] // _IN_TEN
    first_late = np.minimum.reduceat(
        np.where(is_late_bucket, np.arange(len(start)), last[group.of]), group.first
    )
    # The pass has compute before its first bucket, so that there is always a compute interval.
    running = np.searchsorted(rank.compute.start_ns, start[first_late], side="left") - 1
    tail_start = rank.compute.end_ns[running]
    is_late, ready = (group.num == 1) | is_late_bucket[group.first], start[group.first]
    passes = _Groups(of_step)
    is_late = np.logical_and.reduceat(is_late, passes.first)[passes.of]
    accumulates = False
    if is_late.any():
        limits = np.concatenate(([0], bounds, [intervals.BEYOND_NS]))
        place = group.id - of_step
        times = (
            np.maximum(ranges.start_ns[of_step], limits[place]),
            np.minimum(ranges.end_ns[of_step], limits[place + 1]),
        )
        ready, accumulates = _ready(rank, group, times, ready, _sizes(rank, buckets))
    return StepTails(
        number=ranges.number[of_step],
        num_buckets=group.num,
        hideable=1 - ran[group.first] / total,
        tail_start_ns=tail_start,
        tail_end_ns=np.maximum(end, tail_start),
        is_late=is_late,
        ready_ns=ready,
        accumulates=accumulates,
        is_steady=is_in(of_step, _steady(rank, window)),
    )


def _steady(rank: Rank, window: Window) -> Int64:
    """Return the ranges of the steady steps of a window, as indices."""
    return _NOTHING if rank.steps is None else rank.steps.source[steady_steps(rank, window).step]


def _launched(rank: Rank) -> Int64:
    """Return when the launch of each kernel began, int64[kernels]; -1 if that is not known."""
    calls = rank.calls

    def launched(call: Int64) -> Int64:
        launch = np.full(len(call), UNKNOWN)
        if calls is not None:
            known = np.flatnonzero(call >= 0)
            launch[known] = calls.start_ns.take(call.take(known))
        return launch

    return intervals.by_rows(launched, rank.launched_by[0])


def _ends_of_passes(rank: Rank, buckets: Int64) -> Int64:
    """Return after which launches of buckets another forward and backward of a step follow."""
    passes, ranges = backwards(rank), rank.step_ranges
    if passes is None or ranges is None:
        return _NOTHING
    launch = np.append(np.sort(_launched(rank)[buckets]), intervals.BEYOND_NS)
    start = passes.start_ns
    step = intervals.num_before(ranges.start_ns, start, "right") - 1
    # The last one before each backward but the first.
    ends = launch[np.searchsorted(launch, start[1:]) - 1]
    ends = np.where(ends < start[1:], ends, -1)
    is_one = (ends >= start[:-1]) & passes.is_after_forward[1:]
    is_one &= (step[1:] == step[:-1]) & (start[1:] < ranges.end_ns[step[1:]])
    return ends[is_one] + 1


def _ready(
    rank: Rank, group: _Groups, times: tuple[Int64, Int64], reduced: Int64, bytes_: Int64
) -> tuple[Int64, bool]:
    """Return before which time no gradient of a pass was there, int64[n], and if they accumulate.

    Args:
        rank: the rank.
        group: the buckets of each pass.
        times: int64[n] each, when passes begin on the host, and end.
        reduced: int64[n], when the first bucket of each started.
        bytes_: int64[buckets], what each holds.
    """
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    if rank.calls is None:
        return reduced, False
    columns = []
    for work, launched_by, chosen in (
        (kernels, rank.launched_by[0], np.flatnonzero(~rank.is_communication_kernel)),
        (graphs, rank.launched_by[3], np.arange(len(graphs))),
    ):
        by, start = launched_by[chosen], work.start_ns[chosen]
        # What has no launch was launched before it started.
        launch = np.where(by >= 0, rank.calls.start_ns[by], start)
        columns.append((launch, start, np.where(by >= 0, rank.calls.thread[by], UNKNOWN)))
    launch, start, thread = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(launch, kind="stable")
    launch, thread = launch[order], np.append(thread[order], UNKNOWN)
    # The first to start of all that were launched from each on.
    first = np.append(np.minimum.accumulate(start[order][::-1])[::-1], intervals.BEYOND_NS)
    begin, end = times
    place = np.searchsorted(launch, begin)
    ready = first[place]
    called, opened_by = _first_parts(rank, begin)
    # Autograd's thread may name a part of the backward only: it has made no other launch before.
    for opener in distinct_values(opened_by[opened_by != thread[place]]).tolist():
        own = np.append(launch[thread[:-1] == opener], intervals.BEYOND_NS)
        before = np.minimum(called, own[np.searchsorted(own, begin)])
        called = np.where((opened_by == opener) & (thread[place] != opener), before, called)
    passes = backwards(rank)
    if passes is None:
        last = np.full(len(begin), intervals.BEYOND_NS)
    else:
        if not passes.has_ranges:
            first_one = np.append(passes.start_ns, intervals.BEYOND_NS)
            called = np.minimum(called, first_one[np.searchsorted(passes.start_ns, begin)])
        most = int(
            (np.searchsorted(passes.start_ns, end) - np.searchsorted(passes.start_ns, begin)).max()
        )
        last = last_backwards(rank, passes, begin, end, _may_repeat(group, bytes_, most))
    of_backward = first[np.searchsorted(launch, called)]
    ready = np.where((called < end) & (of_backward <= reduced), of_backward, ready)
    last = first[np.searchsorted(launch, last)]
    adds = (last <= reduced) & (last > ready)
    return np.where(adds, last, ready), bool(adds.any())


def _first_parts(rank: Rank, begin: Int64) -> tuple[Int64, Int64]:
    """Return when ranges of a backward first begin from each time on, and the threads of these.

    `intervals.BEYOND_NS` and `UNKNOWN` where there are none.
    """
    parts = rank.trace.ranges(_BACKWARD, rank.process).get(rank.process)
    if parts is None:
        return np.full(len(begin), intervals.BEYOND_NS), np.full(len(begin), UNKNOWN)
    at = np.searchsorted(parts.start_ns, begin)
    called = np.append(parts.start_ns, intervals.BEYOND_NS)[at]
    return called, np.append(parts.thread, UNKNOWN)[at]


def _sizes(rank: Rank, buckets: Int64) -> Int64:
    """Return what buckets hold in bytes, int64[n]; `UNKNOWN` where no call or record says it."""
    sent = messages(rank)
    size = np.full(len(rank.operations.kernels), UNKNOWN)
    size[sent.kernel] = sent.bytes
    return size[buckets]


def _may_repeat(group: _Groups, bytes_: Int64, most: int) -> Mask:
    """Return in which steps buckets of the same sizes return in the same order, bool[n].

    Equal models have them, one after the other, at most as many as there are backwards in a step.
    Sizes that are not known may be equal.
    """
    may: Mask = np.zeros(len(group.id), np.bool_)
    place = np.arange(len(bytes_)) - group.first[group.of]
    for times in range(2, min(most, int(group.num.max())) + 1):
        part = (group.num // times)[group.of]
        has_next = place < group.num[group.of] - part
        after = np.where(has_next, np.arange(len(bytes_)) + part, np.arange(len(bytes_)))
        is_equal = bytes_ == bytes_[after]
        may |= (group.num % times == 0) & np.logical_and.reduceat(is_equal, group.first)
    return may


def _buckets(
    rank: Rank, step: Int64, split: Int64, reduces: Mask, inside: Mask
) -> tuple[Int64, Int64]:
    """Return the buckets of the passes to judge, by pass, then start; and when passes began.

    Args:
        rank: the rank.
        step: int64[kernels], the step of each kernel, -1 for none.
        split: int64[kernels], its pass, -1 for none.
        reduces: bool[kernels], which are AllReduce.
        inside: bool[kernels], which start in the window.

    Returns:
        Indices of kernels, and for each pass the start of its first compute kernel. Those with
        AllReduce kernels outside the window, or without compute before the first, have no buckets.
    """
    kernels = rank.operations.kernels
    begin = np.full(int(split.max(initial=-1)) + 1, intervals.BEYOND_NS)
    lasts = kernels.packed_length.kept > 0
    computes = np.flatnonzero((split >= 0) & ~rank.is_communication_kernel & lasts)
    # Kernels are in the order of time: what is written last is the first of a pass.
    for first in reversed(range(0, len(computes), _ROWS_AT_ONCE)):
        rows = computes[first : first + _ROWS_AT_ONCE][::-1]
        begin[split.take(rows)] = kernels.start_ns.take(rows)
    buckets = np.flatnonzero(reduces & (step > step.min(initial=len(begin), where=step >= 0)))
    if len(buckets) == 0:
        return buckets, begin
    buckets = buckets[np.argsort(split[buckets], kind="stable")]
    group = _Groups(split[buckets])
    length = kernels.packed_length.at(buckets)
    longest = np.maximum.reduceat(length, group.first)
    chosen = length >= -(-longest // MIN_OF_LONGEST)[group.of]
    chosen &= np.logical_and.reduceat(inside[buckets], group.first)[group.of]
    buckets = buckets[chosen]
    group = _Groups(split[buckets])
    has_compute = begin[group.id] < kernels.start_ns[buckets][group.first]
    return buckets[has_compute[group.of]], begin
