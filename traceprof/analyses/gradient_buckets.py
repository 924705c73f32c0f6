"""Buckets of gradients: when steps reduce them, and how many there are."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.communication.messages import messages
from traceprof.findings import Count
from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.ranks.passes import BACKWARD_NAMES
from traceprof.run.cpu_rank import host_buckets
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import steady_steps
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, median_of
from traceprof.trace.model.special_values import OPEN_END, UNKNOWN

# Names of ranges of a whole backward: those of passes, people's own, and Lightning's; and of parts
# of one, by PyTorch's `emit_nvtx`.
_BACKWARD = re.compile(
    rf"\A(?:{BACKWARD_NAMES}"
    r"|(?i:(?:\[Strategy\]\w+\.|loss[ ._])?(?:backward|bwd)(?:[ _-]?(?:pass|step))?)"
    r"|autograd::engine::evaluate_function: .*)\Z"
)

# Where the first bucket starts after nine tenths of the compute, a tenth at most can hide it. DDP
# starts it when the last layers are through: in the real traces after 59 to 70 % of the compute, of
# which the forward is a third.
_IN_TEN = 10
# Beside gradients a step reduces scalars (a loss, a flag): what is 20 times shorter is no bucket.
MIN_OF_LONGEST = 20


class StepTails(Record, frozen=True):
    """The reduction of gradients in each judged step, in order of time."""

    number: Int64  # int64[n], of the step
    num_buckets: Int64  # int64[n], AllReduce kernels not much shorter than the step's longest
    # float64[n], the share of the compute, from the step's first compute kernel to the end of the
    # last bucket, that ran after the first bucket had started
    hideable: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    # int64[n], the end of the compute that ran or had run when the first late bucket started; of
    # the last bucket where none is late
    tail_start_ns: Int64
    tail_end_ns: Int64  # int64[n], the end of the last bucket to end, or `tail_start_ns` if later
    is_late: Mask  # bool[n], whether there is one bucket, or all are late
    # int64[n], before which no gradient was there: when the backward's first kernel started, or
    # that of the step where the backward is not known. If no step is late, when the first bucket
    # started
    ready_ns: Int64
    is_steady: Mask  # bool[n], whether the step is steady


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
    ranges, called_ns = rank.step_ranges, rank.calls.start_ns.take(launched_by)
    step = intervals.holder(ranges.start_ns, ranges.end_ns, called_ns)
    return np.where(launched_by >= 0, step, -1)


class _Groups:
    """m runs of equal ids among n."""

    def __init__(self, ids: Int64) -> None:
        """Take ids in ascending order."""
        # int64[m] each: the ids, where each run begins, and how long it is
        self.id, self.first, self.num = np.unique(ids, return_index=True, return_counts=True)
        # int64[n], which run each element is in
        self.of = np.repeat(np.arange(len(self.id)), self.num)


def judge_steps(rank: Rank, window: Window, step: Int64, reduces: Mask, inside: Mask) -> StepTails:
    """Judge the steps but the first; arrays by kernel, `step` -1 for none."""
    kernels, ranges = rank.operations.kernels, rank.step_ranges
    buckets, begin = _buckets(rank, step, reduces, inside)
    if len(buckets) == 0 or ranges is None:
        none, number = np.empty(0, np.bool_), NO_NUMBERS.astype(np.float64)
        return StepTails(
            NO_NUMBERS, NO_NUMBERS, number, NO_NUMBERS, NO_NUMBERS, none, NO_NUMBERS, none
        )
    group = _Groups(step[buckets])
    start, last = kernels.start_ns[buckets], group.first + group.num - 1
    end = np.maximum.reduceat(kernels.ends(buckets), group.first)
    before_step = intervals.covered_before(rank.compute, begin[group.id])
    total = intervals.covered_before(rank.compute, end) - before_step
    ran = intervals.covered_before(rank.compute, start) - before_step[group.of]
    is_late_bucket = ran >= total[group.of] - total[group.of] // _IN_TEN
    first_late = np.minimum.reduceat(
        np.where(is_late_bucket, np.arange(len(start)), last[group.of]), group.first
    )
    # The step has compute before its first bucket, so that there is always a compute interval.
    running = np.searchsorted(rank.compute.start_ns, start[first_late], side="left") - 1
    tail_start = rank.compute.end_ns[running]
    is_late, ready = (group.num == 1) | is_late_bucket[group.first], start[group.first]
    if is_late.any():
        ready = _ready(rank, ranges.start_ns[group.id], ranges.end_ns[group.id], ready)
    steady = (
        NO_NUMBERS if rank.steps is None else rank.steps.source[steady_steps(rank, window).step]
    )
    return StepTails(
        number=ranges.number[group.id],
        num_buckets=group.num,
        hideable=1 - ran[group.first] / total,
        tail_start_ns=tail_start,
        tail_end_ns=np.maximum(end, tail_start),
        is_late=is_late,
        ready_ns=ready,
        is_steady=is_in(group.id, steady),
    )


def _ready(rank: Rank, begin: Int64, end: Int64, reduced: Int64) -> Int64:
    """Return before which time no gradient of a step was there, int64[n].

    `begin` and `end`: of steps on the host. `reduced`: when the first bucket of each started.
    """
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    if rank.calls is None:
        return reduced
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
    place = np.searchsorted(launch, begin)
    ready = first[place]
    called, opened_by = _first_parts(rank, begin)
    # Autograd's thread may name a part of the backward only: it has made no other launch before.
    for opener in distinct_values(opened_by[opened_by != thread[place]]).tolist():
        own = np.append(launch[thread[:-1] == opener], intervals.BEYOND_NS)
        before = np.minimum(called, own[np.searchsorted(own, begin)])
        called = np.where((opened_by == opener) & (thread[place] != opener), before, called)
    of_backward = first[np.searchsorted(launch, called)]
    return np.where((called < end) & (of_backward <= reduced), of_backward, ready)


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


def _buckets(rank: Rank, step: Int64, reduces: Mask, inside: Mask) -> tuple[Int64, Int64]:
    """Return the buckets of the steps to judge, by step, then start; and when steps began.

    Arrays by kernel: its `step`, -1 for none; which are AllReduce (`reduces`), and which start in
    the window (`inside`).

    Returns:
        Indices of kernels, and for each step the start of its first compute kernel. Those with
        AllReduce kernels outside the window, or without compute before the first, have no buckets.
    """
    kernels = rank.operations.kernels
    begin = np.full(int(step.max(initial=-1)) + 1, intervals.BEYOND_NS)
    lasts = kernels.packed_length.kept > 0
    computes = np.flatnonzero((step >= 0) & ~rank.is_communication_kernel & lasts)
    # Kernels are in the order of time: what is written last is the first of a step.
    rows = computes[::-1]
    begin[step.take(rows)] = kernels.start_ns.take(rows)
    buckets = np.flatnonzero(reduces & (step > step.min(initial=len(begin), where=step >= 0)))
    if len(buckets) == 0:
        return buckets, begin
    buckets = buckets[np.argsort(step[buckets], kind="stable")]
    group = _Groups(step[buckets])
    length = kernels.packed_length.at(buckets)
    longest = np.maximum.reduceat(length, group.first)
    chosen = length >= -(-longest // MIN_OF_LONGEST)[group.of]
    chosen &= np.logical_and.reduceat(inside[buckets], group.first)[group.of]
    buckets = buckets[chosen]
    group = _Groups(step[buckets])
    has_compute = begin[group.id] < kernels.start_ns[buckets][group.first]
    return buckets[has_compute[group.of]], begin


class BucketUse(Struct, frozen=True):
    """A gradient bucket of DistributedDataParallel, by index and size.

    DistributedDataParallel makes its buckets anew after the first step.
    """

    index: Annotated[Count | None, "Index of the bucket; null if unknown."]
    bytes: Annotated[Count | None, "Size of the bucket; null if unknown."]
    count: Annotated[Count, "Number of times that it became ready in the window."]
    median_ready_to_done_ns: Annotated[
        Count | None,
        "Median time from the bucket's last gradient to the end of its reduction; null where"
        " the capture ended before that.",
    ]


class DdpBucketsResult(Record, frozen=True):
    """The buckets of one rank, by index and size."""

    rank: int  # the rank's number
    uses: tuple[BucketUse, ...]  # one for each index and size


def run(rank: Rank, window: Window) -> DdpBucketsResult:
    """Measure the buckets that were ready in the window."""
    ranges = rank.trace.label_ranges.get(rank.process)
    if ranges is None:
        return DdpBucketsResult(rank.rank, ())
    buckets = host_buckets(ranges)
    inside = window.holds_start(buckets.start_ns)
    is_done, duration = buckets.end_ns != OPEN_END, buckets.end_ns - buckets.start_ns
    uses = []
    pairs = np.stack((buckets.index, buckets.bytes))[:, inside]
    # With indices, since numpy imports its masked arrays otherwise.
    for index, size in np.unique(pairs, return_index=True, axis=1)[0].T:
        chosen = inside & (buckets.index == index) & (buckets.bytes == size)
        done = duration[chosen & is_done]
        uses.append(
            BucketUse(
                index=int(index) if index >= 0 else None,
                bytes=int(size) if size >= 0 else None,
                count=int(chosen.sum()),
                median_ready_to_done_ns=int(median_of(done)) if len(done) else None,
            )
        )
    return DdpBucketsResult(rank.rank, tuple(uses))
