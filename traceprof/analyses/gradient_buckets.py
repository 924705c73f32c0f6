"""Gradients that accumulate over several backwards of a step: they are there after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.communication.messages import messages
from traceprof.findings import Count
from traceprof.kernel_names.categories import Category, kernel_kind
from traceprof.patterns import lazy
from traceprof.ranks.passes import BACKWARD_NAMES, FORWARD_NAMES
from traceprof.run.cpu_rank import host_buckets
from traceprof.run.steady_steps import steady_steps
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, median_of
from traceprof.trace.model.special_values import OPEN_END, UNKNOWN

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Window

_OWN = r"(?:[ _-]?(?:pass|step))?"  # people's own names end so
BACKWARD = rf"{BACKWARD_NAMES}|(?i:(?:\[Strategy\]\w+\.|loss[ ._])?(?:backward|bwd){_OWN})"
"""Names of ranges of a whole backward: those of passes, people's own, and Lightning's."""
_FORWARD = rf"{FORWARD_NAMES}|(?i:(?:forward|fwd){_OWN})|\[Strategy\]\w+\.training_step"
_IS_FORWARD, _IS_PASS = lazy(rf"\A(?:{_FORWARD})\Z"), lazy(rf"\A(?:{_FORWARD}|{BACKWARD})\Z")
# PyTorch names the thread of each device that runs backwards, and nothing else.
_AUTOGRAD = lazy(r"\bpt_autograd_\d+\b")
_ALIKE = 0.9  # of the time of kernels: two backwards are of the same model


class Backwards(Record, frozen=True):
    """The backwards of a rank, by start on the host."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    # bool[n], whether a forward may lie between it and the one before: ranges show one, or another
    # thread launched something
    is_after_forward: Mask
    has_ranges: bool  # whether ranges show them; else what autograd's thread launched in a row does


def backwards(rank: Rank) -> Backwards | None:
    """Return the backwards of a rank; None where nothing shows any."""
    return _named(rank) or _of_autograd(rank)


def last_backwards(
    rank: Rank, passes: Backwards, begin: Int64, end: Int64, may_be_several: Mask
) -> Int64:
    """Return when the last backward of each step was called, where it adds to the one before.

    It does if a forward lies between the two, and no optimizer, and both run the same kernels: two
    micro-batches of one model. In steps that `may_be_several` equal models, each with a backward,
    nothing tells of which the first gradient is.

    Returns:
        int64[n], `intervals.BEYOND_NS` for steps whose backwards do not accumulate.
    """
    nowhere = np.full(len(begin), intervals.BEYOND_NS)
    start, stop = passes.start_ns, passes.end_ns
    last = np.searchsorted(start, end) - 1
    adds = np.flatnonzero((last > 0) & ~may_be_several)
    last = last[adds]
    chosen = (start[last - 1] >= begin[adds]) & passes.is_after_forward[last]
    adds, last = adds[chosen], last[chosen]
    if not _are_alike(rank, (start[last - 1], stop[last - 1]), (start[last], stop[last])):
        return nowhere
    between = stop[last - 1], start[last]
    if _took(rank, *between)[_optimizes(rank)].any():
        return nowhere
    if not passes.has_ranges:
        before = np.where(last > 1, stop[last - 2], begin[adds])
        if not _are_alike(rank, (np.maximum(before, begin[adds]), start[last - 1]), between):
            return nowhere
    nowhere[adds] = start[last]
    return nowhere


def _named(rank: Rank) -> Backwards | None:
    named = rank.trace.ranges(_IS_PASS, rank.process).get(rank.process)
    if named is None:
        return None
    outer = named.start_ns >= np.append(
        named.start_ns[:1], np.maximum.accumulate(named.end_ns)[:-1]
    )
    is_forward = np.array([bool(_IS_FORWARD.match(name)) for name in named.names], np.bool_)
    start, stop, thread = named.start_ns[outer], named.end_ns[outer], named.thread[outer]
    place = np.flatnonzero(~is_forward[outer])
    if not len(place):
        return None
    # Nothing but forwards lies between two backwards that follow each other.
    is_after = (np.diff(place, prepend=-1) > 1) & (thread[place - 1] == thread[place])
    return Backwards(start[place], stop[place], is_after, has_ranges=True)


def _of_autograd(rank: Rank) -> Backwards | None:
    """Return what autograd's threads launched with no launch of another thread between."""
    names, calls = rank.trace.thread_names, rank.calls
    own = [thread for thread, name in names.items() if _AUTOGRAD.search(name)]
    if calls is None or not own:
        return None
    launched_by = rank.launched_by[0]
    call = distinct_values(launched_by[~rank.is_communication_kernel & (launched_by >= 0)])
    call = call[np.argsort(calls.start_ns[call], kind="stable")]
    is_own = is_in(calls.thread[call], own)
    begins = is_own & ~np.append(False, is_own[:-1])
    ends = is_own & ~np.append(is_own[1:], False)
    if not begins.any():
        return None
    start, stop = calls.start_ns[call[begins]], calls.ends(call[ends])
    return Backwards(start, stop, np.ones(len(start), np.bool_), has_ranges=False)


def _are_alike(rank: Rank, one: tuple[Int64, Int64], other: tuple[Int64, Int64]) -> bool:
    """Return whether the same kernels were launched in two sets of disjoint times."""
    took = [_took(rank, *times) for times in (one, other)]
    longer_ns, both_ns = max(int(of.sum()) for of in took), int(np.minimum(*took).sum())
    return 0 < _ALIKE * longer_ns <= both_ns


def _optimizes(rank: Rank) -> Int64:
    name = rank.trace.signatures.name
    ids = [
        key
        for key, text in rank.kernel_names.items()
        if kernel_kind(text, communicates=False).category is Category.OPTIMIZER
    ]
    return np.flatnonzero(is_in(name, ids))


def _took(rank: Rank, start: Int64, stop: Int64) -> Int64:
    """Return what compute kernels took that were launched in disjoint times, by signature."""
    kernels, launched_by, calls = rank.operations.kernels, rank.launched_by[0], rank.calls
    size = len(rank.trace.signatures.name)
    if not len(start) or calls is None:
        return np.zeros(size, np.int64)
    chosen = np.flatnonzero(~rank.is_communication_kernel & (launched_by >= 0))
    launch = calls.start_ns[launched_by[chosen]]
    at = np.searchsorted(start, launch, side="right") - 1
    chosen = chosen[(at >= 0) & (launch < stop[at])]
    signature, length = kernels.packed_signature.at(chosen), kernels.packed_length.at(chosen)
    return np.bincount(signature, length, size).astype(np.int64)


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
    """

    number: Int64  # int64[n], of the step
    num_buckets: Int64  # int64[n], AllReduce kernels not much shorter than the pass's longest
    # float64[n], the share of the compute, from the pass's first compute kernel to the end of the
    # last bucket, that ran after the first bucket had started
    hideable: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    # int64[n], the end of the compute that ran or had run when the first late bucket started; of
    # the last bucket where none is late
    tail_start_ns: Int64
    tail_end_ns: Int64  # int64[n], the end of the last bucket to end, or `tail_start_ns` if later
    is_late: Mask  # bool[n], whether there is one bucket, or all are late, in each pass of the step
    # int64[n], before which no gradient was there: when the backward's first kernel started, of
    # the last backward where gradients accumulate, or that of the pass where the backward is not
    # known. If no step is late, when the first bucket started
    ready_ns: Int64
    accumulates: bool  # whether that is of the last one of several backwards in a step
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
    called_ns, ranges = rank.calls.start_ns, rank.step_ranges

    def step_of(call: Int64) -> Int64:
        launch = called_ns.take(call)
        step = intervals.num_before(ranges.start_ns, launch, "right") - 1
        known = (call >= 0) & (step >= 0) & (launch < ranges.end_ns.take(step))
        return np.where(known, step, -1)

    return intervals.by_rows(step_of, launched_by)


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
        is_steady=is_in(
            of_step,
            _NOTHING if rank.steps is None else rank.steps.source[steady_steps(rank, window).step],
        ),
    )


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

    `times`: when passes begin on the host, and end. `reduced`: when the first bucket of each
    started. `bytes_`: of each bucket.
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

    Arrays by kernel: its `step` and pass (`split`), -1 for none; which are AllReduce (`reduces`),
    and which start in the window (`inside`).

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
