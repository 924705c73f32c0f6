"""Waits without a record: of the host (silences) and of streams (delays).

A gap between two calls of a launching thread is its own time, or a wait that the report lacks. One
gap does not show which; all gaps at one place of the program often do: a wait ends after its
operation, and its length varies with that operation's.

An operation that begins right after another stream's operation, later than all known dependencies
explain, waited for it. The number expected by chance is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceprof import intervals
from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.replay.graph.columns import COMMUNICATION, GpuWork, HostCalls, Recorded
from traceprof.replay.graph.stream_waits import OperationWaits
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import (
    distinct_values,
    greatest_so_far,
    is_in,
    median_of,
    numbered_rows,
    quantiles_of,
    reached_before,
)

MIN_GAP_NS = 20_000
"""Shorter silences are launch overhead."""
_MIN_WAITED_NS = 5_000  # the clocks of host and GPU agree to some microseconds
_HANDED_OVER_NS = 50_000  # longest time from another thread's return to the resumed call
_MIN_SITE = 6
_BEFORE, _AFTER = 0.9, 0.8
_NEAR_NS = 30_000
_CHANCE = 0.05  # of other silences are as long as if they ended shortly after: no coincidence
_DRAWS, _SEED = 100, 1
_MAX_DRAWN = 500  # gaps of a place; more say no more
_MAX_POSSIBLE = 2_000  # of a process: the longest ones
_MIN_ENDS, _MOST, _SHORTLY = 3, 0.5, 0.15  # silences; of the time; of a silence
_MANY_LAUNCHES = 3  # for each silence
_LITTLE = 1e-3  # of the time: what the rest makes together is left out


class HiddenWaits(Rows, frozen=True):
    """The m silences of threads that may be waits for the GPU."""

    # int64[m], the outer calls before which they are, ascending; indices into `HostCalls`
    call: Int64
    operation: Int64  # int64[m], what the thread may have waited for, an index into `GpuWork`
    waited_ns: Int64  # int64[m], how long that operation still took
    is_seen: Mask  # bool[m], whether its place is sure to wait; else it may


NO_HIDDEN_WAITS = HiddenWaits(NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, np.empty(0, np.bool_))


class _Gaps(Rows, frozen=True):
    """The g silences of launching threads."""

    call: Int64  # int64[g], the outer calls that end them
    since_ns: Int64  # int64[g], when they began
    length_ns: Int64  # int64[g]
    last: Int64  # int64[g], what the thread launched last before
    by_kernels: Int64  # int64[g], the place by calls and kernels
    by_calls: Int64  # int64[g], the place by calls alone
    by_thread: Int64  # int64[g], the thread


def hidden_host_waits(process: Recorded, handed_over: Int64, *, waits_seen: bool) -> HiddenWaits:
    """Return which silences of the threads of a process may hide waits for the GPU.

    Silences that end with a hand-over of another thread, and those that something else takes most
    of (MPI, set-up, allocation, data loading), hide none. A place waits where nearly all of its
    silences end after the operation, most of their length is that wait, and either their length
    follows it (what is left varies by half as much, and hardly any shuffling of the operations'
    times does as well), or they end shortly after, which hardly any other silence would. A place
    whose silences end before the operation is over, or are no longer where it takes longer, does
    not wait. What is left may or may not.

    A program without any recorded wait that nevertheless falls silent for most of the time
    until shortly after its work is over, each time, waits however few its silences are: one that
    does not wait runs ahead, or stops for what it does itself. (Silent after each launch, it may
    just be slow.)

    `handed_over`: int64[n], calls that are known to have waited for another thread's;
    `waits_seen`: whether any wait of the process is in the report.
    """
    calls, work, (gaps, all_ns) = process.calls, process.work, _gaps(process)
    is_known = is_in(gaps.call, handed_over) | _explained(process, gaps)
    gaps = gaps.chosen(~is_known)
    if not len(gaps):
        return NO_HIDDEN_WAITS
    site = _merged((gaps.by_kernels, gaps.by_calls, gaps.by_thread))
    operation = np.full(len(gaps.call), -1, np.int64)
    waited = np.zeros(len(gaps.call), np.int64)
    verdict = np.full(int(site.max()) + 1, _OWN, np.int64)
    for candidate in _candidates(gaps, site, calls, work):
        known = candidate >= 0
        x_ns = np.where(known, work.end_ns[candidate] - gaps.since_ns, _NOTHING_NS)
        verdicts = _verdicts(site, x_ns, gaps.length_ns, all_ns)
        # The first candidate by which a place waits, else the first by which it may.
        is_better = (verdicts[site] == _WAITS) & (verdict[site] != _WAITS)
        is_better |= (
            (verdicts[site] == _OPEN)
            & (verdict[site] != _WAITS)
            & ((waited <= _MIN_WAITED_NS) & (x_ns > _MIN_WAITED_NS) & (x_ns <= gaps.length_ns))
        )
        operation, waited = np.where(is_better, (candidate, x_ns), (operation, waited))
        verdict = np.maximum(verdict, verdicts)
    possible = (waited > _MIN_WAITED_NS) & (waited <= gaps.length_ns) & (operation >= 0)
    rows = _longest(np.flatnonzero(possible), waited, calls)
    is_seen = verdict[site[rows]] == _WAITS
    are_few = _MANY_LAUNCHES * len(rows) <= np.count_nonzero(work.call >= 0)
    if not waits_seen and are_few and _end_with_work(gaps.chosen(rows), waited[rows]):
        is_seen[:] = True
    return HiddenWaits(gaps.call[rows], operation[rows], waited[rows], is_seen)


def _end_with_work(gaps: _Gaps, waited: Int64) -> bool:
    """Return whether silences end shortly after the work that they may wait for, nearly always.

    And fill most of the time from the first to the last.
    """
    length, since = gaps.length_ns, gaps.since_ns
    if len(length) < _MIN_ENDS:
        return False
    span_ns = int((since + length).max() - since.min())
    is_most = intervals.union(since, since + waited).measure_ns > _MOST * span_ns
    return is_most and bool(np.mean(length - waited <= _SHORTLY * length) >= _BEFORE)


def seen_ns(waits: HiddenWaits, calls: HostCalls, limits_ns: tuple[int, int]) -> int:
    """Return how long threads waited at the places that wait, within some limits."""
    since = calls.end_ns[calls.outer[waits.call[waits.is_seen] - 1]]
    return covered_ns(since, since + waits.waited_ns[waits.is_seen], limits_ns)


_OWN, _OPEN, _WAITS = range(3)
_NOTHING_NS = -intervals.BEYOND_NS


def _candidates(gaps: _Gaps, site: Int64, calls: HostCalls, work: GpuWork) -> tuple[Int64, ...]:
    """Return the possible targets of each silence, int64[g] each; -1 for none.

    What the thread launched last (a stream, a copy), what ends last of all (the device), and what
    most silences of the place are behind on the stream (an event).
    """
    launched = np.flatnonzero(work.call >= 0)
    by_call = launched[np.argsort(calls.in_time[work.call[launched]], kind="stable")]
    latest = greatest_so_far(work.end_ns[by_call])
    before = np.searchsorted(calls.in_time[work.call[by_call]], calls.in_time[gaps.call]) - 1
    of_all = np.where(before >= 0, by_call[latest[np.maximum(before, 0)]], -1)
    # Streams lie one after the other, far apart, so that one search serves all.
    base = work.chain * (int(work.end_ns.max()) - int(work.start_ns.min()) + 1)
    reached = np.maximum.accumulate(work.end_ns + base)
    until = gaps.since_ns + gaps.length_ns + base[gaps.last]
    lag = np.maximum(gaps.last - (np.searchsorted(reached, until, side="right") - 1), 0)
    usual = _usual_lag(site, lag)
    earlier = gaps.last - usual
    is_same = (earlier >= 0) & (work.chain[earlier] == work.chain[gaps.last]) & (usual > 0)
    return gaps.last, of_all, np.where(is_same, earlier, -1)


def _usual_lag(site: Int64, lag: Int64) -> Int64:
    """Return the number that nearly all silences of each place have, int64[g]; 0 if none is."""
    pair = site * (int(lag.max()) + 1) + lag
    of_pair, count = np.unique(pair, return_counts=True)
    owner = of_pair // (int(lag.max()) + 1)
    total = np.bincount(site)
    usual = np.zeros(len(total), np.int64)
    is_usual = count >= _BEFORE * total[owner]
    usual[owner[is_usual]] = of_pair[is_usual] % (int(lag.max()) + 1)
    return usual[site]


def _gaps(process: Recorded) -> tuple[_Gaps, Int64]:
    """Return the silences, and the lengths of all of these threads, also short ones; ascending."""
    calls, work = process.calls, process.work
    launching = process.launching_threads
    call, since = calls.silences(launching)
    length = calls.start_ns[call] - since
    all_ns, is_long = np.sort(length), length > MIN_GAP_NS
    call, since, length = call[is_long], since[is_long], length[is_long]
    # What the thread launched last before, and what it launches next.
    launch, by_call = process.launches
    after = np.searchsorted(launch, call, side="left")
    has = after > 0
    before = by_call[np.maximum(after - 1, 0)]
    has[has] = calls.thread[work.call[before[has]]] == calls.thread[call[has]]
    has &= ~_handed_over(calls, launching, call, since)
    call, since, length, before, after = (
        column[has] for column in (call, since, length, before, after)
    )
    following = np.append(by_call, -1)[after]
    is_own = (following >= 0) & (calls.thread[work.call[following]] == calls.thread[call])
    named, api = process.operation_names, process.call_names
    previous = calls.outer[call - 1]
    kernels = named[before], np.where(is_own, named[following], -1)
    by_calls = calls.thread[call], api[previous], api[call]
    sites = numbered_rows(*by_calls, *kernels), numbered_rows(*by_calls), numbered_rows(by_calls[0])
    return _Gaps(call, since, length, before, *sites), all_ns


def _handed_over(calls: HostCalls, launching: Int64, call: Int64, since: Int64) -> Mask:
    """Say before which calls another thread's call returned, or others launched most of it."""
    until = calls.start_ns[call]
    handed = np.zeros(len(call), np.bool_)
    order = np.argsort(calls.end_ns, kind="stable")
    ends, threads = calls.end_ns.take(order), calls.thread.take(order)
    for thread in distinct_values(calls.thread[call]).tolist():
        rows = np.flatnonzero(calls.thread[call] == thread)
        of_others = ends[threads != thread]
        at = np.searchsorted(of_others, until[rows], side="right")
        handed[rows] = (
            until[rows] - np.append(-intervals.BEYOND_NS, of_others)[at] <= _HANDED_OVER_NS
        )
        other = calls.is_outer & is_in(calls.thread, launching[launching != thread])
        busy = intervals.union(calls.start_ns[other], calls.end_ns[other])
        covered = intervals.covered_within(busy, since[rows], until[rows])
        handed[rows] |= 2 * covered > until[rows] - since[rows]
    return handed


def _explained(process: Recorded, gaps: _Gaps) -> Mask:
    """Return which silences are mostly covered by other recorded activity of the thread."""
    explained = np.zeros(len(gaps.call), np.bool_)
    until = process.calls.start_ns[gaps.call] - process.shift_ns
    for rows, of in process.by_thread(gaps.call):
        spans = intervals.merge(of.mpi, of.setup, of.allocation, of.loading)
        low = until[rows] - gaps.length_ns[rows]
        explained[rows] = (
            2 * intervals.covered_within(spans, low, until[rows]) > (gaps.length_ns[rows])
        )
    return explained


def _merged(sites: Sequence[Int64]) -> Int64:
    """Return the place of each silence; places with few silences are merged into larger ones."""
    chosen, offset = sites[0].copy(), int(sites[0].max()) + 1
    for coarser in sites[1:]:
        is_rare = np.bincount(chosen)[chosen] < _MIN_SITE
        chosen[is_rare] = coarser[is_rare] + offset
        offset += int(coarser.max()) + 1
    return np.unique(chosen, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _verdicts(site: Int64, waited: Int64, length: Int64, all_ns: Int64) -> Int64:
    """Classify places, int64[sites]: waits, does not wait, or unknown."""
    verdict = np.full(int(site.max()) + 1, _OPEN, np.int64)
    # Where the operation was over when the silence began, there was nothing to wait for.
    rows = np.flatnonzero(waited > _MIN_WAITED_NS)
    rows = rows[np.argsort(site[rows], kind="stable")]
    for of_site in np.split(rows, np.flatnonzero(np.diff(site[rows])) + 1):
        if len(of_site) < _MIN_SITE:
            continue
        num = min(len(of_site), _MAX_DRAWN)
        some = of_site[np.linspace(0, len(of_site) - 1, num).astype(np.int64)]
        # The share of other silences that would end as close to an operation by chance.
        low = int(median_of(waited[of_site]))
        high = low + max(_NEAR_NS, int(median_of(length[of_site])) // 10)
        own = np.count_nonzero((length[of_site] >= low) & (length[of_site] < high))
        others = np.diff(np.searchsorted(all_ns, (low, high)))[0] - own
        is_chance = bool(others > _CHANCE * max(len(all_ns) - len(of_site), 1))
        verdict[site[some[0]]] = _verdict(waited[some], length[some], is_chance=is_chance)
    return verdict


def _verdict(waited: Int64, length: Int64, *, is_chance: bool) -> int:
    rest = length - waited
    if np.mean(rest >= 0) < _BEFORE:
        return _OWN
    of_length, of_rest = _range(length), _range(rest)
    if 2 * median_of(rest) <= median_of(length):
        near = rest <= np.maximum(_NEAR_NS, length // 10)
        if np.mean(near) >= _AFTER and not is_chance:
            return _WAITS
        if 2 * of_rest < of_length:
            drawn = np.random.default_rng(_SEED).permuted(np.tile(waited, (_DRAWS, 1)), axis=1)
            low, high = quantiles_of(length - drawn, (0.25, 0.75))
            if np.count_nonzero(high - low <= of_rest) <= _DRAWS // 100:
                return _WAITS
    # A wait's length follows the operation's; one that does not is the thread's own.
    return _OWN if 2 * of_length < of_rest else _OPEN


def _range(values: Int64) -> float:
    low, high = quantiles_of(values, (0.25, 0.75))
    return float(high - low)


def _longest(rows: Int64, waited: Int64, calls: HostCalls) -> Int64:
    """Return the rows with nearly all of the time, in their order."""
    by_length = rows[np.argsort(-waited[rows], kind="stable")][:_MAX_POSSIBLE]
    total = int(calls.end_ns.max() - calls.start_ns.min())
    left = waited[rows].sum() - np.cumsum(waited[by_length])
    num = int(np.searchsorted(-left, -_LITTLE * total)) + 1
    return np.sort(by_length[:num])


_MIN_LATE_NS = 5_000
_SOONEST_NS, _LATEST_NS = 500, 5_000  # from the end of what was waited for to the start
_SHIFTS, _SHIFT_SEED = 20, 1
_COPIES = 1  # the group of copies


def hidden_stream_ns(
    process: Recorded, launched_ns: Int64, between: OperationWaits
) -> tuple[Int64, Int64]:
    """Return begins and ends of delays that seem to be waits for other streams, int64[k] each.

    An operation began 0.5 to 5 us after one of another stream that was launched before, and over 5
    us after all that is known to have held it. As many do so by chance as do where all are moved by
    the same random time: so much counts less. `launched_ns`: int64[n], when each was launched.
    """
    work = process.work
    held = np.maximum(launched_ns, _previous_ends(work))
    known = slice(None) if between.is_recorded else ~between.is_sure
    np.maximum.at(held, between.consumer[known], work.end_ns[between.producer[known]])
    late = np.flatnonzero((work.call >= 0) & (work.start_ns - held > _MIN_LATE_NS))
    by_end = np.argsort(work.end_ns, kind="stable")
    ends, chain = work.end_ns[by_end], work.chain[by_end]
    in_time = process.launched_at
    start, own = work.start_ns[late], work.chain[late]

    def following(begin: Int64) -> tuple[Int64, Mask]:
        """Return the last operation that ended by then, and whether that one may have held it."""
        last = np.searchsorted(ends, begin - _SOONEST_NS, side="right") - 1
        is_near = (last >= 0) & (begin - ends[np.maximum(last, 0)] <= _LATEST_NS)
        return by_end[last], is_near & (chain[np.maximum(last, 0)] != own)

    before, is_hidden = following(start)
    is_hidden &= in_time[before] < in_time[late]
    low = int(work.start_ns.min())
    span = max(int(work.end_ns.max()) - low + 1, 2)
    by_chance = np.zeros(len(late))
    for shift in np.random.default_rng(_SHIFT_SEED).integers(1, span, _SHIFTS).tolist():
        by_chance += following(low + (start - low + shift) % span)[1]
    delay = start - held[late]
    hidden_ns = int(delay[is_hidden].sum())
    expected_ns = float((by_chance * delay).sum()) / _SHIFTS
    rows = late[is_hidden]
    if hidden_ns <= expected_ns:
        return NO_NUMBERS, NO_NUMBERS
    # Each counts as much less as chance explains of all.
    share = 1 - expected_ns / hidden_ns
    begin = work.start_ns[rows] - np.rint(share * delay[is_hidden]).astype(np.int64)
    return begin, work.start_ns[rows]


def _previous_ends(work: GpuWork) -> Int64:
    """Return when what was before each was over, int64[n].

    On its stream; of copies, in their direction; of communication kernels, on their rank.
    """
    previous = np.full(len(work), -intervals.BEYOND_NS)
    follows = np.flatnonzero(work.chain[1:] == work.chain[:-1]) + 1
    previous[follows] = work.end_ns[follows - 1]
    copies = np.flatnonzero(work.group == _COPIES)
    direction = work.is_to_host[copies] + 2 * work.is_to_device[copies]
    sent = np.flatnonzero((work.kind == COMMUNICATION) & (work.group == 0))
    for rows, engine in (
        (copies, work.rank[copies] * 4 + direction),
        (sent, work.rank[sent]),  # a communicator runs one operation at a time
    ):
        order = np.lexsort((work.start_ns[rows], engine))
        at = rows[order]
        reached = reached_before(work.end_ns[at], engine[order])
        previous[at] = np.maximum(previous[at], np.minimum(reached, work.start_ns[at]))
    return previous


def covered_ns(begin_ns: Int64, end_ns: Int64, limits_ns: tuple[int, int]) -> int:
    """Return the time of some limits that delays cover."""
    return intervals.clip(intervals.union(begin_ns, end_ns), *limits_ns).measure_ns
