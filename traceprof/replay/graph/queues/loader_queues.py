"""Queues between the stages of a loader and the threads that train, by the ranges of the stages.

NVIDIA DALI runs each batch through stages, on a thread each, and marks what a stage does for it by
a range. A stage begins with a batch when it is done with the one before and the stage before has
brought it. A thread that trains feeds the first stage once a step, and takes what the last one has
brought some batches before. Calls alone do not show it: the first stage may make none, and what it
takes for a batch varies more than any wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.replay.graph.columns import COMMUNICATION
from traceprof.replay.graph.event_waits import calls_of_kind
from traceprof.replay.graph.queues.batch_queues import Uses, batch_queue
from traceprof.replay.graph.queues.loader_stages import (
    FAR,
    ORDER,
    WOKEN_NS,
    input_of,
    mostly,
    stages_of,
    values_at,
)
from traceprof.replay.graph.queues.rows import (
    MIN_TAKEN,
    queue_rows,
    silent_ns,
    taken_rows,
    usual_lag,
)
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, median_of, quantiles_of
from traceprof.trace.model.kinds import ApiCallKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.replay.graph.event_waits import EventWaits
    from traceprof.replay.graph.host_waits import HostWaits
    from traceprof.replay.graph.queues.loader_stages import LoaderStage
    from traceprof.replay.graph.stream_waits import OperationWaits
    from traceprof.run.opening import Rank

_WAITED_NS = 100_000  # a first stage that begins so long after the batch before waited for its feed
_SLEPT_NS = 50_000  # it waited at least this long
_NONE = np.empty(0, np.int64)
_MORE = 0.05  # of its calls a step may make more or less than others


class QueueWaits(Record, frozen=True):
    """The m waits of calls for others, by queues between threads; a call may have several.

    Attributes:
        call: int64[m], outer calls, indices into `HostCalls`.
        after: int64[m], the call that each waits for; of its own thread for the batch before.
        gap_ns: int64[m], how long after the return of that call it begins at the earliest.
        own_ns: int64[m], how long after the return of its thread's call before.
        is_sure: bool[m], whether it waits; else it may.
        threads: int64[t], those of stages.
        busy: when the first stage works.
        is_known: whether it is known what all stages wait for.
        ahead: how many batches are there at most when one is taken; 0 if unknown.
        unknown: int64[u], calls that copy batches, of threads whose queue is unknown.
    """

    call: Int64
    after: Int64
    gap_ns: Int64
    own_ns: Int64
    is_sure: Mask
    threads: Int64
    busy: Intervals
    is_known: bool
    ahead: int = 0
    unknown: Int64 = _NONE


class _Uses(Record, frozen=True):
    """Calls whose work, or which themselves, wait for what other calls launched: int64[u] both."""

    call: Int64
    used: Int64


class _Feed(Record, frozen=True):
    """How a thread that trains feeds a first stage.

    Attributes:
        outer: int64[c], the outer calls of that thread.
        place: int64[n], which of these is its last before it feeds each batch, as far as known.
        per_step: how many of them it makes in a step.
    """

    outer: Int64
    place: Int64
    per_step: int


NO_QUEUES = QueueWaits(
    _NONE, _NONE, _NONE, _NONE, _NONE > 0, _NONE, intervals.empty(), is_known=True
)


def queue_waits(
    rank: Rank,
    calls: HostCalls,
    work: GpuWork,
    waits: HostWaits,
    between: OperationWaits,
    training: Int64,
    events: EventWaits | None,
    shift_ns: int,
) -> QueueWaits:
    """Return the waits of a loader's stages, and of the training for them.

    Args:
        rank: one rank of the process.
        calls: of the process.
        work: of all its ranks.
        waits: of its calls for the GPU.
        between: its streams.
        training: int64[t], the threads that train.
        events: that it recorded, if they are known.
        shift_ns: what was added to times of the report.
    """
    if not rank.program.uses_dali:
        return _of_threads(rank, calls, work, between, training, events)
    stages = [stage for stage in stages_of(rank, calls, shift_ns) if stage.thread not in training]
    ends = [stage for stage in stages if stage.order == len(ORDER) - 1 and stage.thread >= 0]
    if not ends:  # without its ranges it is not known what its threads wait for
        copying = calls.thread[work.call[work.is_to_device & (work.call >= 0)]]
        return replace(NO_QUEUES, is_known=bool(is_in(copying, training).all()))
    sure = between.is_sure
    call = np.append(waits.call, work.call[between.consumer[sure]])
    used = work.call[np.append(waits.operation, between.producer[sure])]
    known = (call >= 0) & (used >= 0)
    uses = _Uses(call[known], used[known])
    chains = [of for of in (_of_pipeline(end, stages, calls, training, uses) for end in ends) if of]
    if len(chains) < len(ends):
        return replace(NO_QUEUES, is_known=False)
    rows, threads, busy = zip(*chains, strict=True)
    return _joined(rows, np.concatenate(threads), busy, calls)


def _of_threads(
    rank: Rank, calls: HostCalls, work: GpuWork, between: OperationWaits, training: Int64,
    events: EventWaits | None,
) -> QueueWaits:  # fmt: skip
    """Return the waits at the queues of threads that bring batches by copies of their own."""
    copying, communicating = (
        work.call[(work.call >= 0) & chosen]
        for chosen in (work.is_to_device, work.kind == COMMUNICATION)
    )
    others = np.append(training, calls.thread[communicating])
    copying = np.sort(copying[~is_in(calls.thread[copying], others)])
    bringing, unknown = distinct_values(calls.thread[copying]), replace(NO_QUEUES, unknown=copying)
    if events is None or not len(bringing):
        return unknown
    consumed, used = work.call[between.consumer], work.call[between.producer]
    known = (consumed >= 0) & (used >= 0)
    consumed, used = consumed[known], calls.outer[used[known]]
    wait = np.sort(calls_of_kind(rank, calls, ApiCallKind.STREAM_WAIT))
    taking = values_at(wait, np.searchsorted(wait, consumed) - 1)
    by_time = np.argsort(calls.in_time)
    waiting = calls.outer[by_time[events.wait_key % events.span - 1]]
    awaited = _looked_up(by_time[events.record_place - 1], waiting, calls.outer[taking])
    recording = by_time[events.records.place - 1]
    event, record = _looked_up(events.record_event, recording, awaited), calls.outer[awaited]
    is_taking = (taking >= 0) & (calls.thread[taking] == calls.thread[consumed])
    is_taking &= is_in(calls.thread[consumed], training)
    queues = []
    for thread in bringing.tolist():
        rows = is_taking & (calls.thread[used] == thread)
        # Who works between a batch's last operation and its event is not done with it before. And
        # an event that another thread records is not one of a batch.
        soon = (awaited[rows] >= 0) & (calls.thread[record[rows]] == thread)
        soon &= calls.start_ns[record[rows]] - calls.end_ns[used[rows]] <= _SLEPT_NS
        if not len(soon) or not mostly(soon):
            continue
        uses = Uses(calls.outer[taking[rows]], used[rows], event[rows])
        queue = batch_queue(thread, uses, calls)
        if queue is not None:
            queues.append(queue)
    if not queues:
        return unknown
    threads, rows_of, busy, ahead = zip(*queues, strict=True)
    copying = copying[~is_in(calls.thread[copying], threads)]
    joined = _joined(rows_of, np.array(threads), busy, calls)
    return replace(joined, ahead=max(ahead), unknown=copying)


def _looked_up(values: Int64, keys: Int64, wanted: Int64) -> Int64:
    """Return the values of wanted keys, int64[n]; -1 where there is none."""
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted)
    return np.where(values_at(keys[order], at) == wanted, values_at(values[order], at), -1)


def _joined(
    rows: Sequence[Int64], threads: Int64, busy: Sequence[Intervals], calls: HostCalls
) -> QueueWaits:
    """Return the waits of several queues as one, by rows of them, int64[5, m] each."""
    every = np.concatenate(rows, axis=1)
    # When a thread makes its first call, nothing else says.
    every = every[:, calls.thread[every[0]] == calls.thread[every[0] - 1]]
    call, after, gap_ns, own_ns, is_sure = every
    longest = max(busy, key=lambda spans: spans.measure_ns)
    return QueueWaits(call, after, gap_ns, own_ns, is_sure > 0, threads, longest, is_known=True)


def _of_pipeline(
    last: LoaderStage, stages: list[LoaderStage], calls: HostCalls, training: Int64, uses: _Uses
) -> tuple[Int64, Int64, Intervals] | None:
    """Return the waits in one pipeline, int64[5, m], its threads, and when its first stage works.

    None if it is unknown what its stages wait for.
    """
    chain, rows = [last], []
    batch = np.arange(len(last.begin_ns))
    while (given := input_of(chain[-1], stages)) is not None:
        before, batch = given
        if before.thread >= 0:
            ready_ns = before.end_ns[batch]
            rows.append(_begun(chain[-1], values_at(before.last, batch), ready_ns, calls))
        chain.append(before)
    first, with_calls = chain[-1], [stage for stage in chain if stage.thread >= 0]
    feed = _fed(first, last, calls, training)
    taken = _taken(last, feed, calls, training, uses)
    if taken is None or any(stage.thread < 0 for stage in chain[:-1]):
        return None
    rows.append(taken)
    fed = np.full(len(first.begin_ns), -1) if feed is None else values_at(feed.outer, feed.place)
    following = np.full(len(fed), -1) if feed is None else values_at(feed.outer, feed.place + 1)
    got = _taken_for(following, taken)
    if first.thread >= 0:
        rows.append(_begun(first, fed, calls.end_ns[fed], calls))
    else:
        rows += _fed_through(chain[-2], values_at(fed, batch), values_at(got, batch), calls)
    threads = np.array([stage.thread for stage in with_calls], np.int64)
    return np.concatenate(rows, axis=1), threads, intervals.union(first.begin_ns, first.end_ns)


def _fed(stage: LoaderStage, last: LoaderStage, calls: HostCalls, training: Int64) -> _Feed | None:
    """Return how a first stage is fed; None if that is unknown.

    Wherever it waited, its feeder is at the same place of its step, by the number of its calls, and
    has returned from the last of them as long before, or has got a batch of the last stage.
    """
    all_waited = np.flatnonzero(stage.since_ns > _WAITED_NS)[1:]  # of the first it is not known
    ready_ns = np.append(calls.end_ns[last.last], -FAR)
    got_ns = ready_ns[np.searchsorted(ready_ns[:-1], stage.begin_ns, side="right") - 1]
    best, least = None, float(WOKEN_NS)
    for thread in training.tolist():
        outer = np.flatnonzero((calls.thread == thread) & calls.is_outer)
        at = np.searchsorted(calls.end_ns[outer], stage.begin_ns[all_waited], side="right") - 1
        waited, at = all_waited[at >= 0], at[at >= 0]
        if len(waited) < MIN_TAKEN:
            continue
        steps, batches = np.diff(at), np.diff(waited)
        per_step = int(median_of(steps / batches))
        # Now and then a step makes some calls more.
        is_same = np.abs(steps - per_step * batches) <= _MORE * per_step * batches
        lag = stage.begin_ns[waited] - np.maximum(calls.end_ns[outer[at]], got_ns[waited])
        spread = float(np.subtract(*quantiles_of(lag, (0.75, 0.25))))
        if per_step > 0 and mostly(is_same) and spread <= least:
            place = _continued(at, waited, per_step, len(stage.begin_ns))
            best, least = _Feed(outer, place, per_step), spread
    return best


def _begun(stage: LoaderStage, after: Int64, ready_ns: Int64, calls: HostCalls) -> Int64:
    """Return the waits of a stage for calls of others: int64[5, m].

    Args:
        stage: it has calls.
        after: int64[n], the call that each batch waits for; -1 if unknown.
        ready_ns: int64[n], when the batch is there, at that call's return or later.
        calls: of the process.
    """
    rows = np.flatnonzero((stage.first >= 0) & (after >= 0))
    rows = rows[calls.end_ns[after[rows]] <= calls.start_ns[stage.first[rows]]]
    call, after, ready_ns = stage.first[rows], after[rows], ready_ns[rows]
    lag = stage.begin_ns[rows] - ready_ns
    waited = lag < stage.since_ns[rows]
    usual = int(median_of(lag[waited])) if waited.any() else 0
    start, returned = calls.start_ns[call], calls.end_ns[after]
    least = ready_ns - returned + usual + start - stage.begin_ns[rows]
    gap = np.where(waited, start - returned, np.minimum(start - returned, least))
    silent = silent_ns(calls, call)
    own = np.where(waited, np.minimum(stage.own_ns(calls)[rows], silent), silent)
    return queue_rows(call, after, gap, own)


def _fed_through(stage: LoaderStage, fed: Int64, got: Int64, calls: HostCalls) -> list[Int64]:
    """Return the waits of a stage for a first one without calls, as such of that one: int64[5, m].

    It takes its time for a batch when it has been fed and is done with the batch before.

    Args:
        stage: the second one.
        fed: int64[n], the call that feeds each batch; -1 if unknown.
        got: int64[n], the last stage's call that this waited for, too; -1 for none.
        calls: of the process.
    """
    before = np.append(-1, stage.first[:-1])
    rows = np.flatnonzero((stage.first >= 0) & (before >= 0))
    call, waited_for = stage.first[rows], np.stack((before[rows], fed[rows], got[rows]))
    returned = np.where(waited_for >= 0, calls.end_ns[waited_for], -FAR)
    returned[returned > calls.start_ns[call]] = -FAR
    gap = calls.start_ns[call] - returned.max(axis=0)
    own = np.minimum(stage.own_ns(calls)[rows], silent_ns(calls, call))
    return [
        queue_rows(call, after, gap, own)[:, has]
        for after, has in zip(waited_for, returned > -FAR, strict=True)
    ]


def _taken_for(call: Int64, taken: Int64) -> Int64:
    """Return what each call waited for as one that takes a batch, int64[n]; -1 for nothing."""
    order = np.argsort(taken[0])
    at = np.minimum(np.searchsorted(taken[0], call, sorter=order), len(order) - 1)
    return np.where(taken[0][order[at]] == call, taken[1][order[at]], -1)


def _taken(
    stage: LoaderStage, feed: _Feed | None, calls: HostCalls, training: Int64, uses: _Uses
) -> Int64 | None:
    """Return the waits of a training thread for the batches of a last stage: int64[5, m].

    Its work may be seen to wait for the batch's. Else, where it waited for a batch, it goes on as
    long after the stage's last call for that, at the same place of its step. Where it hardly ever
    did, the first call after it has fed the loader may wait for the latest batch that was there in
    all steps, or for none: this is not sure. None if nothing is known.
    """
    ready_ns, usual = calls.end_ns[stage.last], FAR
    number, chosen, is_used = np.arange(len(ready_ns)), None, False
    for thread in (training if feed is None else calls.thread[feed.outer[:1]]).tolist():
        outer = np.flatnonzero((calls.thread == thread) & calls.is_outer)
        by_stage = (calls.thread[uses.call] == thread) & (calls.thread[uses.used] == stage.thread)
        batch = np.searchsorted(stage.first, uses.used[by_stage], side="right") - 1
        at = np.searchsorted(outer, calls.outer[uses.call[by_stage]])
        for fits, every in _at_same_place(at, batch, feed, len(ready_ns)):
            if not is_used and 2 * len(distinct_values(batch[fits])) > len(ready_ns):
                chosen, is_used = (outer, every), True
        start, silent = calls.start_ns[outer], silent_ns(calls, outer)
        latest = np.searchsorted(ready_ns, start, side="right") - 1
        lag = start - ready_ns[latest]
        at = np.flatnonzero((latest >= 0) & (lag < silent) & (silent > _SLEPT_NS))
        for fits, every in () if is_used else _at_same_place(at, latest[at], feed, len(ready_ns)):
            shortest, is_clear = usual_lag(lag[at[fits]])
            known = (every >= 0) & (every < len(outer))
            is_after = start[every[known]] >= ready_ns[known]
            if is_clear and shortest < usual and known.any() and mostly(is_after):
                chosen, usual = (outer, every), shortest
    is_sure = chosen is not None
    if chosen is None:
        if feed is None:
            return None
        fed = np.flatnonzero((feed.place >= 0) & (feed.place + 1 < len(feed.outer)))
        at = feed.place[fed] + 1
        latest = np.searchsorted(ready_ns, calls.start_ns[feed.outer[at]], side="right") - 1
        chosen, number = (feed.outer, at), fed - int((fed - latest).max())
    call, after = values_at(*chosen), values_at(stage.last, number)
    known = (call >= 0) & (after >= 0)
    return taken_rows(call[known], after[known], calls, is_sure=is_sure)


def _at_same_place(
    at: Int64, batch: Int64, feed: _Feed | None, num_batches: int
) -> Iterator[tuple[Mask, Int64]]:
    """Yield which calls are at the same place of their step, and this place for each batch.

    Args:
        at: int64[n], numbers of a thread's calls.
        batch: int64[n], the batch that each may have to do with.
        feed: by a thread that trains, if it is known.
        num_batches: how many there are.
    """
    further = np.diff(batch) > 0
    if further.sum() < MIN_TAKEN - 1:
        return
    steps = np.diff(at)[further] / np.diff(batch)[further]
    per_step = int(median_of(steps)) if feed is None else feed.per_step
    places = at - per_step * batch
    distinct, count = np.unique(places, return_counts=True)
    for place in distinct[count >= 2].tolist() if per_step > 0 else ():
        fits = np.abs(places - place) <= _MORE * per_step
        yield fits, _continued(at[fits], batch[fits], per_step, num_batches)


def _continued(at: Int64, batch: Int64, per_step: int, num_batches: int) -> Int64:
    """Return the numbers of calls for all batches where some are known: int64[b].

    Args:
        at: int64[n], numbers of calls.
        batch: int64[n], for which batch each is.
        per_step: how many calls lie between two batches.
        num_batches: how many there are.
    """
    order, number = np.argsort(batch, kind="stable"), np.arange(num_batches)
    known = order[np.maximum(np.searchsorted(batch[order], number, side="right") - 1, 0)]
    continued: Int64 = at[known] + per_step * (number - batch[known])
    return continued
