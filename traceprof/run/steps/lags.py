"""Lags of a sequence: after how many operations the same ones come again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from traceprof.intervals import Int64, Mask

    Names = npt.NDArray[np.unsignedinteger]

MIN_MATCH = 0.95
"""Of the operations are the same one period later; 0.80 finds periods where there are none."""
_NEAR_BEST = 0.02  # a shorter lag that matches that much worse than the best one is as good
_MIN_PERIODS = 3.5  # in a sequence
_MIN_RETURNS = 10  # of a name whose distances are candidates
_NUM_NAMES, _NUM_NEXT = 60, 12  # the rarest names, and to how many next ones distances are taken
_MIN_AGREE = 3  # of such distances
_NUM_TRIED = 64  # candidates
_NUM_TRIED_IN_PARTS = 16
_NUM_INSERTIONS = 2  # different lengths of them
_MIN_INSERTED = 0.3  # of what a lag leaves returns after an insertion: less is chance
_MAX_INSERTED = 0.05  # of a period: operations that some periods have, and others do not
_MIN_OWN = 0.4  # of the operations come again after a lag itself, without insertions
_MIN_PART = 0.15  # of them do where a part of the sequence repeats itself
_MAX_PLACES = 2048  # of a name: their distances are candidates
_NUM_DRAWN = 4096  # elements by which candidates are tried
_MIN_EXPLAINED = 0.9  # of what a lag leaves returns after a longer one: that one is the period
_MIN_GROUPS = 3  # of what a lag leaves: fewer are chance


class Repeat(Record, frozen=True):
    """A part of a sequence that repeats itself.

    Attributes:
        lag: its period.
        first: where it begins.
        stop: one past where it ends.
    """

    lag: int
    first: int
    stop: int

    @property
    def length(self) -> int:
        """The number of its elements."""
        return self.stop - self.first


def best_lag(names: Names) -> int | None:
    """Return the period of a sequence, the number of its elements; None if it has none.

    It is the shortest lag at which nearly as much returns as at the best one. Where what it leaves
    returns after a longer lag (the end of an iteration, after many equal layers), it is that one.

    Args:
        names: unsigned integers[n], from 0, equal for equal operations.
    """
    lags = candidate_lags(names)
    tried = [lag for lag, share in lags.items() if share >= _MIN_OWN][:_NUM_TRIED]
    alone = {lag: float((names[lag:] == names[:-lag]).mean()) for lag in tried}
    matches = dict(alone)
    for lag in _fundamental(alone):
        matches[lag] = float(_returns_after(names, lag, lags).mean())
    least = max(MIN_MATCH, max(matches.values(), default=0.0) - _NEAR_BEST)
    kept = sorted(lag for lag, match in matches.items() if match >= least)
    if not kept:
        return None
    shortest = kept[0]
    is_left = ~_returns_after(names, shortest, lags)
    groups = _group_begins(is_left, shortest)
    if int(is_left.sum()) <= _MAX_INSERTED * shortest * len(groups):
        return shortest  # what is left was inserted
    longer = sorted({*kept[1:], *_distances(groups, len(names))})
    for lag in longer if len(groups) >= _MIN_GROUPS else []:
        if lag > shortest and _explains(names, lag, is_left):
            return lag
    return shortest


def longest_run(names: Names) -> Repeat | None:
    """Return the longest part of a sequence that repeats itself; None if none does.

    Of parts that are nearly as long it is the one with the shortest lag.
    """
    tried = [*candidate_lags(names).items()][:_NUM_TRIED_IN_PARTS]
    found = [_longest_run(names, lag) for lag, share in tried if share >= _MIN_PART]
    runs = [run for run in found if run is not None and run.length >= _MIN_PERIODS * run.lag]
    longest = max((run.length for run in runs), default=0)
    as_long = [run for run in runs if run.length >= (1 - _NEAR_BEST) * longest]
    return min(as_long, key=lambda run: run.lag, default=None)


def candidate_lags(names: Names) -> dict[int, float]:
    """Return the commonest distances from the rarest names to the next ones of the same name.

    Args:
        names: unsigned integers[n], from 0.

    Returns:
        By lag, what share of some elements comes again after it, largest first.
    """
    count = np.bincount(names)
    used = np.flatnonzero(count >= _MIN_RETURNS)
    rarest = used[np.argsort(count[used], kind="stable")][:_NUM_NAMES]
    order = np.argsort(names, kind="stable")
    first = np.cumsum(count) - count
    candidates: set[int] = set()
    for name in rarest.tolist():
        middle = max((int(count[name]) - _MAX_PLACES) // 2, 0)
        begin = int(first[name]) + middle
        places = order[begin : begin + min(int(count[name]), _MAX_PLACES)]
        for following in range(1, min(_NUM_NEXT, len(places) - 1) + 1):
            lags, agree = np.unique(places[following:] - places[:-following], return_counts=True)
            for place in np.argsort(-agree, kind="stable")[:2].tolist():
                if agree[place] >= _MIN_AGREE and _MIN_PERIODS * lags[place] <= len(names):
                    candidates.add(int(lags[place]))
    sample = np.random.default_rng(0).random(_NUM_DRAWN)
    shares: dict[int, float] = {}
    for lag in sorted(candidates):
        num = len(names) - lag
        places = np.arange(num) if num <= _NUM_DRAWN else (sample * num).astype(np.int64)
        shares[lag] = float((names[places + lag] == names[places]).mean())
    return {lag: shares[lag] for lag in sorted(shares, key=lambda lag: (-shares[lag], lag))}


def _fundamental(matches: Mapping[int, float]) -> list[int]:
    """Return the lags that may differ from period to period: no multiples of others.

    Of those that differ by an insertion, the one without it is the commonest.
    """
    lags: list[int] = []
    for lag in sorted(lag for lag, match in matches.items() if match >= _MIN_OWN):
        near = [other for other in matches if _are_near(lag, other)]
        if matches[lag] < max(matches[other] for other in near):
            continue
        if not any(_are_near(round(lag / base) * base, lag) for base in lags):
            lags.append(lag)
    return lags


def _are_near(lag: int, other: int) -> bool:
    """Return whether two lags differ by an insertion."""
    return abs(other - lag) <= _MAX_INSERTED * lag


def _returns_after(names: Names, lag: int, lags: Iterable[int]) -> Mask:
    """Return which elements come again after a lag, or after one that differs by an insertion."""
    returns: Mask = names[lag:] == names[:-lag]
    near = [other for other in lags if other != lag and _are_near(lag, other)]
    for _ in range(_NUM_INSERTIONS if near else 0):
        left = np.flatnonzero(~returns[: len(names) - max(near)])
        left = left[:: len(left) // _NUM_DRAWN + 1]
        if not len(left):
            break
        shares = {other: float((names[left + other] == names[left]).mean()) for other in near}
        other = max(shares, key=lambda other: (shares[other], -other))
        if shares[other] < _MIN_INSERTED:
            break
        num = min(len(names) - other, len(returns))
        returns[:num] |= names[other : other + num] == names[:num]
    return returns


def _group_begins(chosen: Mask, lag: int) -> Int64:
    """Return where groups of chosen elements begin, which lie more than a lag apart."""
    places = np.flatnonzero(chosen)
    return places[np.diff(places, prepend=-lag - 1) > lag]


def _distances(places: Int64, num: int) -> list[int]:
    """Return the commonest distances from places to the next ones, at which `num` repeats."""
    distances = []
    for following in range(1, min(_NUM_NEXT, len(places) - 1) + 1):
        lags, agree = np.unique(places[following:] - places[:-following], return_counts=True)
        lag = int(lags[agree.argmax()])
        if _MIN_PERIODS * lag <= num:
            distances.append(lag)
    return distances


def _explains(names: Names, lag: int, is_left: Mask) -> bool:
    """Return whether a sequence repeats after a lag, and what a shorter one left does, too."""
    returns = names[lag:] == names[:-lag]
    left = is_left[: len(returns)]
    if len(_group_begins(left, lag // 2)) < _MIN_GROUPS - 1 or returns.mean() < MIN_MATCH:
        return False
    return float(returns[left[: len(returns)]].mean()) >= _MIN_EXPLAINED


def _longest_run(names: Names, lag: int) -> Repeat | None:
    """Return the longest part in which nearly everything comes again after a lag."""
    before = np.concatenate(([0], np.cumsum(names[lag:] == names[:-lag])))
    matches = before[lag:] - before[:-lag] >= MIN_MATCH * lag
    edges = np.diff(np.concatenate(([0], matches.astype(np.int8), [0])))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return None
    longest = int(np.argmax(ends - begins))
    # The window from the last place is one lag long, and comes again after another.
    return Repeat(lag, int(begins[longest]), min(int(ends[longest]) - 1 + 2 * lag, len(names)))
