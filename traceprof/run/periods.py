"""Periods of a program, which are its steps if no range marks any.

The program is a sequence of names (kernel, grid and block). Its period is the shortest lag at which
at least 95 % of the names recur; candidates are the commonest distances between returns of rare
names, since there are too many lags to try all. Where no lag fits everything, the longest part
that repeats itself is a phase, and what comes before and after is searched alone. Where phases do
not cover the program, periods like those of the longest one are searched everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct
from msgspec.structs import replace

from traceprof import intervals
from traceprof.errors import one_line
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.step_ranges import StepRanges, StepsSource, StepWindows
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import (
    are_first,
    distinct_values,
    is_in,
    median_of,
    medians_of_known,
    numbered_rows,
)
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.operations import RankOperations

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
    """A part of a sequence that repeats itself."""

    lag: int  # its period
    first: int  # where it begins
    stop: int  # one past where it ends

    @property
    def length(self) -> int:
        """The number of its elements."""
        return self.stop - self.first


def best_lag(names: Names) -> int | None:
    """Period of a sequence, in elements: the shortest lag that matches nearly as well as any.

    If its mismatches recur after a longer lag (the end of an iteration), the period is that lag.
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
    """Longest part of a sequence that repeats itself, of nearly as long ones the shortest lag."""
    tried = [*candidate_lags(names).items()][:_NUM_TRIED_IN_PARTS]
    found = [_longest_run(names, lag) for lag, share in tried if share >= _MIN_PART]
    runs = [run for run in found if run is not None and run.length >= _MIN_PERIODS * run.lag]
    longest = max((run.length for run in runs), default=0)
    as_long = [run for run in runs if run.length >= (1 - _NEAR_BEST) * longest]
    return min(as_long, key=lambda run: run.lag, default=None)


def candidate_lags(names: Names) -> dict[int, float]:
    """Most frequent distances of rare names; the share that recurs after each, largest first."""
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
    """Drop harmonics; of lags that differ by an insertion keep the most frequent."""
    lags: list[int] = []
    for lag in sorted(lag for lag, match in matches.items() if match >= _MIN_OWN):
        near = [other for other in matches if _are_near(lag, other)]
        if matches[lag] < max(matches[other] for other in near):
            continue
        if not any(_are_near(round(lag / base) * base, lag) for base in lags):
            lags.append(lag)
    return lags


def _are_near(lag: int, other: int) -> bool:
    return abs(other - lag) <= _MAX_INSERTED * lag


def _returns_after(names: Names, lag: int, lags: Iterable[int]) -> Mask:
    """Elements that recur after a lag, or after one that differs by an insertion."""
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
    """First element of each group of chosen ones; groups lie more than a lag apart."""
    places = np.flatnonzero(chosen)
    return places[np.diff(places, prepend=-lag - 1) > lag]


def _distances(places: Int64, num: int) -> list[int]:
    """Most frequent distances between places; a sequence of `num` holds several of each."""
    distances = []
    for following in range(1, min(_NUM_NEXT, len(places) - 1) + 1):
        lags, agree = np.unique(places[following:] - places[:-following], return_counts=True)
        lag = int(lags[agree.argmax()])
        if _MIN_PERIODS * lag <= num:
            distances.append(lag)
    return distances


def _explains(names: Names, lag: int, is_left: Mask) -> bool:
    returns = names[lag:] == names[:-lag]
    left = is_left[: len(returns)]
    if len(_group_begins(left, lag // 2)) < _MIN_GROUPS - 1 or returns.mean() < MIN_MATCH:
        return False
    return float(returns[left[: len(returns)]].mean()) >= _MIN_EXPLAINED


def _longest_run(names: Names, lag: int) -> Repeat | None:
    before = np.concatenate(([0], np.cumsum(names[lag:] == names[:-lag])))
    matches = before[lag:] - before[:-lag] >= MIN_MATCH * lag
    edges = np.diff(np.concatenate(([0], matches.astype(np.int8), [0])))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return None
    longest = int(np.argmax(ends - begins))
    # The window from the last place is one lag long, and comes again after another.
    return Repeat(lag, int(begins[longest]), min(int(ends[longest]) - 1 + 2 * lag, len(names)))


MIN_RETURNS = 4
"""Fewer returns of a kernel are no period."""
MIN_COVERED = 0.8
"""Of the operations' time: periods that cover less are not what the program does."""
_MIN_RETURNS_OF_A_PHASE = 10  # where there are several, one after the other
_MAX_PHASES = 4
_MAX_INTERRUPTIONS = 0.05  # of the periods of a phase; more are no interruptions
_MIN_PHASE = 0.02  # of the time: what is shorter between phases is not searched
_MIN_REGULAR = 0.9  # of the distances between returns are one period
_TOLERANCE = 0.05  # of a period: returns that far apart are one
_MAX_SHIFT = 0.5  # of a period: how much longer or shorter those between collectives may be
_MAX_COMMON = 0.05  # of the returns of a phase's kernel may lie in other phases
_LOOKED_AT = (0.5, 0.25, 0.75)  # of the operations: where periods are looked at
_SAMPLED = 64  # periods by which the longest gap is found
_TRIED = 32  # kernels that may begin the period


class Items(Rows, frozen=True):
    """The n operations by which periods are found, in order of start."""

    signature: Names  # unsigned integers[n], equal for equal ones, from 0; narrow ones are faster
    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    updates: Mask | None = None  # bool[n], whether it updates parameters, which ends a step


class Phase(Record, frozen=True):
    """A part of a program that runs the same operations again and again."""

    lag: int  # the number of operations of a period
    first: int  # the first operation that returns: at most a period before the first one begins
    begins: Int64  # int64[m], ascending, the operations at which a period begins
    stop: int  # one past the last operation of the last period
    match: float  # share of the operations that return after one period


class Periods(Record, frozen=True):
    """The periods of a program."""

    items: Items  # the operations by which they were found
    # in order of time; several where the program does one thing after the other
    phases: tuple[Phase, ...]

    @property
    def match(self) -> float:
        """Share of the operations that return after one period."""
        num = [len(phase.begins) * phase.lag for phase in self.phases]
        return float(np.average([phase.match for phase in self.phases], weights=num))


def find_periods(items: Items) -> Periods | None:
    """Return the periods that cover most of the operations' time; None if there are none."""
    num = len(items.signature)
    if num < MIN_RETURNS:
        return None
    found = _phases(items, 0, num, _MAX_PHASES)
    phases = _disjoint(items, found)
    covered = sum(_time(items, phase.first, phase.stop) for phase in phases)
    if covered < MIN_COVERED * _time(items, 0, num):
        phases = _interrupted(items, found)
    phases = _between_updates(items, phases or found) or phases
    return Periods(items, tuple(phases)) if phases else None


def _between_updates(items: Items, phases: Sequence[Phase]) -> list[Phase]:
    """Periods that each update the parameters, where those found update them several times.

    These end with something else, such as an evaluation after every tenth step. What they end with
    updates nothing: else they are steps with accumulated gradients, or of several optimizers.
    """
    longest = max(phases, key=lambda phase: phase.stop - phase.first, default=None)
    if longest is None or items.updates is None or not _updates(items, longest):
        return []
    first = int(longest.begins[0])
    run = longest_run(items.signature[first : first + 2 * longest.lag])
    inner = None if run is None else _phase(items, first + run.first, first + run.stop)
    if inner is None or not _updates(items, inner):
        return []
    found = _interrupted(items, [inner])
    if found:
        num_updates = np.diff(np.append(0, np.cumsum(items.updates))[found[0].begins])
        num_others = np.count_nonzero(num_updates != median_of(num_updates))
        if 2 * num_others >= len(longest.begins):
            return []
    return found


def _updates(items: Items, phase: Phase) -> bool:
    """Whether a period updates the parameters, and does something else, too."""
    if items.updates is None:
        return False
    inside = items.updates[phase.begins[0] : phase.begins[0] + phase.lag]
    return bool(inside.any()) and not inside.all()


def _interrupted(items: Items, phases: Sequence[Phase]) -> list[Phase]:
    """One phase of all periods like those of the longest one, where hardly anything else runs.

    What comes between them, such as an evaluation or one step with more in it, ends a phase; here
    it is the end of the period before it. What updates nothing may come often where each of them
    updates the parameters.
    """
    if not phases:
        return []
    names, longest = items.signature, max(phases, key=lambda phase: phase.stop - phase.first)
    lag, updates = longest.lag, items.updates if _updates(items, longest) else None
    whole = longest.begins[:-1][np.diff(longest.begins) == lag]
    if updates is not None and len(whole) > 1:  # each ends with its updates
        places = np.flatnonzero(updates[whole[0] : whole[0] + lag])
        last = places[np.diff(places, append=places[0] + lag).argmax()]
        whole = whole[:-1] + last + 1
    if lag == 1 or not len(whole):  # an operation that is common has no period
        return []
    middle = int(whole[len(whole) // 2])
    pattern = names[middle : middle + lag]
    _, place, count = np.unique(pattern, return_inverse=True, return_counts=True)
    once = np.flatnonzero(count[place] == 1)
    if not len(once):
        return []
    begins = np.flatnonzero(names == pattern[once[0]]) - once[0]
    begins = begins[begins >= 0]
    begins = begins[names[begins] == pattern[0]]
    if len(begins) * lag > 2 * len(names):
        return []
    around = np.concatenate((np.full(lag, -1), names.astype(np.int64), np.full(lag, -1)))
    rows = begins[:, np.newaxis] + np.arange(lag)
    before, after = ((around[rows + shift] == pattern).mean(axis=1) for shift in (0, lag))
    whole = begins[after >= MIN_MATCH]
    spent = np.append(0, np.cumsum(items.end_ns - items.start_ns))
    ends = np.minimum(whole + lag, len(names))
    whole_ns = int((spent[ends] - spent[whole]).sum())
    is_between = np.diff(whole) != lag
    total = None if updates is None else np.append(0, np.cumsum(updates))
    if total is not None:
        is_between &= total[whole[1:]] > total[ends[:-1]]
    most = max(_MAX_PHASES - 1, _MAX_INTERRUPTIONS * len(whole))
    if len(whole) < MIN_RETURNS or is_between.sum() > most or whole_ns < MIN_COVERED * spent[-1]:
        return []
    begins, match = begins[np.maximum(before, after) >= _MIN_OWN], float(after.mean())
    if total is not None:  # what begins alike and updates nothing is no step
        begins = begins[np.diff(total[np.append(begins, len(names))]) > 0]
    last = _end_of_last(names, begins, lag)
    return [Phase(lag, int(begins[0]), begins, last, match)]


def _time(items: Items, first: int, stop: int) -> int:
    return int((items.end_ns[first:stop] - items.start_ns[first:stop]).sum())


def _phases(items: Items, first: int, stop: int, most: int) -> list[Phase]:
    if most == 0 or stop - first < MIN_RETURNS:
        return []
    if _time(items, first, stop) < _MIN_PHASE * _time(items, 0, len(items.signature)):
        return []
    phase = _phase(items, first, stop)
    if phase is None:
        return []
    before = _phases(items, first, phase.first, most - 1)
    after = _phases(items, phase.stop, stop, most - 1 - len(before))
    return [*before, phase, *after]


def _disjoint(items: Items, phases: list[Phase]) -> list[Phase]:
    """Longest phase, and others whose first kernel runs in no other one."""
    by_time = sorted(phases, key=lambda phase: -_time(items, phase.first, phase.stop))
    kept = by_time[:1]
    for phase in by_time[1:]:
        is_long = len(phase.begins) >= _MIN_RETURNS_OF_A_PHASE
        if is_long and all(_come_apart(items, phase, other) for other in kept):
            kept.append(phase)
    return sorted(kept, key=lambda phase: phase.first)


def _come_apart(items: Items, one: Phase, other: Phase) -> bool:
    for phase, beside in ((one, other), (other, one)):
        inside = items.signature[beside.first : beside.stop]
        num = int((inside == items.signature[phase.begins[0]]).sum())
        if num > _MAX_COMMON * len(phase.begins):
            return False
    return True


def _phase(items: Items, first: int, stop: int) -> Phase | None:
    signature = items.signature[first:stop]
    lag = best_lag(signature)
    begins = None if lag is None else _begins(items.chosen(slice(first, stop)), lag)
    if lag is None or begins is None:
        # A lag of several phases together is none of theirs.
        run = longest_run(signature)
        if run is None:
            return None
        first, stop = first + run.first, first + run.stop
        signature = items.signature[first:stop]
        lag = best_lag(signature) or run.lag
        begins = _begins(items.chosen(slice(first, stop)), lag)
    if begins is None:
        return None
    same = signature[lag:] == signature[:-lag]
    begin, last = int(begins[0]), _end_of_last(signature, begins, lag)
    match = float(same[begin : int(begins[-1])].mean())
    earlier = max(begin - lag, 0)
    if earlier < begin and same[earlier:begin].mean() >= _MIN_REGULAR:
        begin = earlier
    return Phase(lag, first + begin, first + begins, first + last, match)


def _end_of_last(names: Names, begins: Int64, lag: int) -> int:
    """Where the last period ends: at the latest where only something else runs.

    It is compared with the latest whole period: one with an insertion has its operations elsewhere.
    """
    begin = int(begins[-1])
    is_whole = np.diff(begins) == lag
    whole = int(begins[np.flatnonzero(is_whole)[-1] if is_whole.any() else -2])
    usual, last = names[whole : whole + lag], names[begin : begin + lag]
    is_other = last != usual[: len(last)]  # never the first, at which both begin
    if is_other.mean() > 1 - _MIN_REGULAR:
        return begin + int(is_other.argmax())
    return begin + int(np.flatnonzero(is_in(last, usual))[-1]) + 1


def _begins(part: Items, lag: int) -> Int64 | None:
    """Where periods begin, int64[m]: at the operation with the longest gap before it.

    It is a name that occurs once in each period, else one with those before it; None without any.
    """
    names = part.signature
    gap = np.zeros(len(names), np.int64)
    gap[1:] = np.maximum(part.start_ns[1:] - np.maximum.accumulate(part.end_ns)[:-1], 0)
    length = 1
    while True:
        # Where a phase runs its operations several times in a period, none returns once.
        candidates = [_regular(names, gap, lag, share) for share in _LOOKED_AT]
        known = [begins for begins in candidates if begins is not None]
        if known:
            return max(known, key=len)
        if length >= lag:
            return None
        # The names of twice as many operations, those up to this one, as one name.
        before = np.concatenate((np.full(length, names[0]), names[:-length])).astype(np.int64)
        pairs = before * (int(names.max()) + 1) + names
        names = np.unique(pairs, return_inverse=True)[1].astype(np.uint32)
        length *= 2


def _regular(names: Names, gap: Int64, lag: int, share: float) -> Int64 | None:
    """Returns of the name with the longest gap among those that occur once in a period.

    `share`, 0 to 1, is the place in the sequence whose names are tried.
    """
    samples = _good_periods(names, lag, share)
    if not len(samples):
        return None
    rows = samples[:, np.newaxis] + np.arange(lag)
    pattern = names[rows[int(share * (len(rows) - 1))]]
    is_same = names[rows] == pattern
    is_alike = is_same.mean(axis=1) >= _MIN_REGULAR
    gaps = medians_of_known(np.where(is_same, gap[rows], np.nan)[is_alike].T)
    _, place, count = np.unique(pattern, return_inverse=True, return_counts=True)
    once = np.flatnonzero(count[place] == 1)
    best: Int64 | None = None
    for column in once[np.argsort(-gaps[once], kind="stable")][:_TRIED].tolist():
        returns = _returns(names, int(pattern[column]), lag)
        if best is None or len(returns) > (1 + _TOLERANCE) * len(best):
            best = returns
    return best if best is not None and len(best) >= MIN_RETURNS else None


def _good_periods(names: Names, lag: int, share: float) -> Int64:
    num = len(names)
    some = min((_SAMPLED + 2) * lag, num)
    first = int(share * (num - some))
    names = names[first : first + some]
    before = np.concatenate(([0], np.cumsum(names[lag:] == names[:-lag])))
    num_same = before[lag:] - before[:-lag]  # not empty: a run holds two periods or more
    good = np.flatnonzero(num_same >= max(num_same.max(), _MIN_REGULAR * lag))
    if not len(good):
        return good
    # In step with each other: every period from one of them, while it returns.
    middle = int(share * (len(good) - 1))
    in_step = first + good[(good - good[middle]) % lag == 0]
    chosen = np.linspace(0, len(in_step) - 1, min(len(in_step), _SAMPLED)).astype(np.int64)
    return in_step[chosen]


def _returns(names: Names, name: int, lag: int) -> Int64:
    """Where a name recurs once in each period; empty if it recurs irregularly."""
    returns = np.flatnonzero(names == name)
    is_one = np.abs(np.diff(returns) - lag) <= _TOLERANCE * lag
    regular = np.flatnonzero(is_one)
    if not len(regular):
        return returns[:0]
    chosen = slice(int(regular[0]), int(regular[-1]) + 2)
    if len(regular) < _MIN_REGULAR * (regular[-1] + 1 - regular[0]):
        return returns[:0]
    return returns[chosen]


_MAX_NAME = 80  # characters in a sentence
MAX_PERIODS = 20_000
"""If there are more, those in the middle are steps: each costs 2 kB, also as JSON."""
GRAPH = "CUDA graph"
"""What begins a period that a graph begins, whose kernels are hidden."""


class Period(Struct, frozen=True, forbid_unknown_fields=True):
    """What a program, or a phase of it, repeats."""

    kernel: Annotated[str, "Where a period begins: a kernel, or `CUDA graph`."]
    num_kernels: Annotated[
        int,
        Meta(ge=1),
        "Number of kernels without communication; on the busiest stream only, if no other"
        " stream is regular.",
    ]
    is_only: Annotated[bool, "True if no other kernel of the period has the same name."]

    def __str__(self) -> str:
        """Return in words where it begins and ends."""
        kernels = f"{self.num_kernels} kernel{'s' * (self.num_kernels != 1)}"
        name = one_line(self.kernel, _MAX_NAME)
        if self.is_only:
            return f"from one {name} to the next ({kernels})"
        return f"a period of {kernels} that begins with {name}"


def about_periods(phases: Sequence[Period], layers: tuple[int, int] | None = None) -> str:
    """A sentence that says what a step is where no range marks any; `layers`: first and last."""
    if layers is None:
        return f"No range marks steps; an iteration is {from_to(phases)}."
    first, last = layers
    return (
        f"No range marks steps; a period is a layer of the model, layers {first} to {last}:"
        f" {from_to(phases)}."
    )


def from_to(phases: Sequence[Period]) -> str:
    """Return the beginning and the end of the periods of each phase, in words."""
    steps = ", then ".join(dict.fromkeys(map(str, phases)))
    where = f", in {len(phases)} phases of the program" if len(phases) > 1 else ""
    return f"{steps}{where}"


class PeriodSteps(Record, frozen=True):
    """The periods of a rank as its steps, numbered from 0."""

    windows: StepWindows  # the steps; of very many periods those in the middle of each phase
    phases: tuple[Period, ...]  # what returns in each phase of the program, in order of time
    spans_ns: tuple[tuple[int, int], ...]  # begin and end of each phase, steps or not
    span_ns: tuple[int, int]  # when the first of the n periods began, and the last one ended
    is_graph: Mask  # bool[n], whether a CUDA graph begins it
    begins: Int64  # int64[n], the index of the kernel or graph that begins it

    @property
    def num(self) -> int:
        """The number of periods; not all of them need be steps."""
        return len(self.begins)

    @property
    def is_part(self) -> bool:
        """Whether not all of them are steps."""
        return len(self.windows) < self.num

    def on_host(self, launched_by: Sequence[Int64], calls: ApiCalls) -> StepRanges | None:
        """Launch times of the periods; None if one call launched several, or is not known."""
        call = np.empty(len(self.begins), np.int64)
        for of_graphs, group in ((False, 0), (True, 3)):
            chosen = self.is_graph == of_graphs
            call[chosen] = launched_by[group][self.begins[chosen]]
        if (call < 0).any():
            return None
        start = np.sort(calls.start_ns[call])
        if not (np.diff(start) > 0).all():
            return None
        end = np.append(start[1:], max(self.span_ns[1], int(start[-1]) + 1))
        return StepRanges(np.arange(self.num), start, end)


def period_steps(
    operations: RankOperations,
    communicates: Mask,
    updates: Mask,
    name_of: Callable[[int], str],
    launched_by: Sequence[Int64],
    span_ns: tuple[int, int],
    whole_ns: tuple[int, int],
) -> PeriodSteps | None:
    """Steps of a rank by the periods of its kernels; None if it has no period.

    They are searched among all kernels in order of start, and on the busiest stream alone; the more
    regular ones count. Kernels that `communicates` are left out, since they wait for other ranks,
    unless most periods have none: see `_of_collectives`. Those that `updates` chooses, as an
    optimizer does, end training steps. `launched_by`: the call of each operation, by group.
    `span_ns`: the training, in which they are searched. `whole_ns`: what they must hold most of.
    """
    kernels, graphs = operations.kernels, operations.graphs
    searched = min(span_ns[0], whole_ns[0]), span_ns[1]
    places = np.flatnonzero(~communicates & _within(kernels.start_ns, searched))
    of_graphs = np.flatnonzero(_within(graphs.start_ns, searched))
    signature = np.concatenate(
        (kernels.packed_signature.at(places) + 1, np.zeros(len(of_graphs), np.int64))
    )
    start = np.concatenate((kernels.start_ns[places], graphs.start_ns[of_graphs]))
    end = np.concatenate((kernels.ends(places), graphs.ends(of_graphs)))
    stream = np.concatenate((kernels.packed_stream.at(places), graphs.packed_stream.at(of_graphs)))
    place = np.concatenate((places, of_graphs))
    call = np.concatenate((launched_by[0][places], launched_by[3][of_graphs]))
    if len(of_graphs) and len(places):
        order = np.argsort(start, kind="stable")
        signature, start, end, stream, place, call = (
            column[order] for column in (signature, start, end, stream, place, call)
        )
    everything = signature, start, end
    first = int(np.searchsorted(start, span_ns[0]))
    signature, start, end, stream, place, call = (
        column[first:] for column in (signature, start, end, stream, place, call)
    )
    is_update = np.append(updates, False)[np.where(signature > 0, place, -1)]
    items = Items(_narrow(signature), start, end, is_update)
    periods, chosen = find_periods(items), np.arange(len(place))
    busiest = _busiest(stream, end - start)
    if busiest is not None:
        on_stream = items.chosen(busiest)
        alone = find_periods(replace(on_stream, signature=_narrow(on_stream.signature)))
        if alone is not None and (periods is None or alone.match > periods.match):
            periods, chosen = alone, np.flatnonzero(busiest)
    periods = periods and _of_launches(periods, call[chosen])
    if periods is None:
        return None
    joined = np.flatnonzero(communicates & _within(kernels.start_ns, (span_ns[0], searched[1])))
    collectives = Items(
        _narrow(kernels.packed_signature.at(joined)), kernels.start_ns[joined], kernels.ends(joined)
    )
    periods = _of_collectives(periods, collectives) or periods
    begins = chosen[np.concatenate([phase.begins for phase in periods.phases])]
    windows = _windows(periods)
    judged = intervals.union(windows.start_ns, windows.end_ns)
    names = np.append(kernels.name_of_signature, -1)[everything[0] - 1]
    is_begin = is_in(names, distinct_values(names[first + begins]))
    if not _holds_most(judged, whole_ns, *everything[1:], is_begin):
        return None
    is_graph = signature == 0

    def period(phase: Phase) -> Period:
        middle = int(phase.begins[len(phase.begins) // 2 - 1])
        inside = chosen[middle : middle + phase.lag]
        of_phase = signature[inside]
        _, distinct = np.unique(of_phase, return_index=True)
        same = [
            GRAPH if is_graph[index] else name_of(int(place[index]))
            for index in [inside[0], *inside[distinct]]
        ]
        num_first = int(np.count_nonzero(of_phase == of_phase[0]))
        return Period(same[0], phase.lag, same[1:].count(same[0]) == 1 == num_first)

    return PeriodSteps(
        windows.chosen(_middle(windows.phases)),
        tuple(map(period, periods.phases)),
        tuple(
            (int(windows.start_ns[of_phase][0]), int(windows.end_ns[of_phase][-1]))
            for of_phase in (windows.phases == np.arange(len(periods.phases))[:, np.newaxis])
        ),
        (int(windows.start_ns[0]), int(windows.end_ns.max())),
        is_graph[begins],
        place[begins],
    )


def _of_launches(periods: Periods, call: Int64) -> Periods | None:
    """Return periods that never begin inside the launch of a CUDA graph, if there are any.

    `call`: int64[n], the call that launched each item, -1 if unknown.
    """
    items, num = periods.items, len(call)
    is_first = (call < 0) | are_first(call + 1, np.arange(num))
    if is_first[np.concatenate([phase.begins for phase in periods.phases])].all():
        return periods
    heads = np.flatnonzero(is_first)
    length = np.diff(np.append(heads, num))
    names = numbered_rows(items.signature[heads].astype(np.int64), length)
    launches = Items(_narrow(names), items.start_ns[heads], items.end_ns[heads])
    phases = _phases_between(launches, np.append(heads[1:], num))
    return Periods(items, tuple(phases)) if phases else None


def _of_collectives(periods: Periods, collectives: Items) -> Periods | None:
    """Return periods that end with collectives which most of the given ones lack, if any.

    A program that does the same again and again between two collectives repeats itself with them.
    """
    items = periods.items
    begins = items.start_ns[np.concatenate([phase.begins for phase in periods.phases])]
    holders = distinct_values(np.searchsorted(begins, collectives.start_ns, "right"))
    if not 0 < 2 * len(holders) <= len(begins):
        return None
    num = len(items.signature)
    start, end = (
        np.concatenate(columns)
        for columns in ((items.start_ns, collectives.start_ns), (items.end_ns, collectives.end_ns))
    )
    names = np.concatenate((items.signature, collectives.signature.astype(np.int64) + num))
    order = np.argsort(start, kind="stable")
    merged = Items(_narrow(names[order]), start[order], end[order])
    phases = _phases_between(merged, np.cumsum(order < num))
    if all(phase.lag == 1 for phase in phases or periods.phases):
        # Equal kernels: collectives may end periods at places that vary.
        alone = np.searchsorted(items.start_ns, collectives.start_ns)
        phases = _phases_between(collectives, alone) or phases
    return Periods(items, tuple(phases)) if phases else None


def _phases_between(searched: Items, before: Int64) -> list[Phase]:
    """Phases whose periods begin where those of other operations begin.

    `before`: int64[n], for each operation searched, how many items have started.
    """
    found, before = find_periods(searched), np.append(0, before)
    phases = []
    for phase in found.phases if found else ():
        first, stop = int(before[phase.first]), int(before[phase.stop])
        of_phase = distinct_values(before[phase.begins])
        if len(of_phase) < MIN_RETURNS:
            continue  # collectives alone
        length = np.diff(of_phase)
        lag = round(float(median_of(length)))
        is_alike = np.abs(length - lag) <= _MAX_SHIFT * lag
        if is_alike.mean() < _MIN_REGULAR:
            continue
        if of_phase[0] - first >= (1 - _TOLERANCE) * lag:
            of_phase = np.append(first, of_phase)  # before the first collective
        phases.append(Phase(lag, first, of_phase[of_phase < stop], stop, phase.match))
    return phases


def _holds_most(
    judged: Intervals, whole_ns: tuple[int, int], start_ns: Int64, end_ns: Int64, is_begin: Mask
) -> bool:
    """Whether periods hold most of a rank's kernel time and of the launches that begin them.

    Else a part would be judged as the whole. `judged`: the time of all periods. `whole_ns`: the
    time most of which they must hold. `is_begin`: whether a kernel's name begins periods.
    """
    low, high = whole_ns
    judged = intervals.clip(judged, low, high)
    held_ns = intervals.total(intervals.covered_within(judged, start_ns, end_ns))
    length_ns = np.maximum(np.minimum(end_ns, high) - np.maximum(start_ns, low), 0)
    if held_ns < MIN_COVERED * intervals.total(length_ns):
        return False
    begun = start_ns[is_begin & _within(start_ns, whole_ns)]
    num_held = np.count_nonzero(intervals.covered_within(judged, begun, begun + 1))
    return bool(num_held >= MIN_COVERED * len(begun))


def about_part(num: int, num_periods: int) -> str:
    """Return a note on a rank some of whose periods are not steps."""
    return (
        f"no range marks steps, and its kernels repeat {num_periods} times: {num} of these"
        " periods, from the middle, are its steps"
    )


def _middle(phase: Int64) -> Mask:
    """Periods that become steps: at most `MAX_PERIODS`, the middle of each phase."""
    kept = np.ones(len(phase), np.bool_)
    if len(phase) <= MAX_PERIODS:
        return kept
    for number in distinct_values(phase).tolist():
        places = np.flatnonzero(phase == number)
        num = max(len(places) * MAX_PERIODS // len(phase), 1)
        first = (len(places) - num) // 2
        kept[places[:first]] = kept[places[first + num :]] = False
    return kept


def _within(start_ns: Int64, span_ns: tuple[int, int]) -> Mask:
    return (start_ns >= span_ns[0]) & (start_ns < span_ns[1])


def _narrow(values: npt.NDArray[np.integer]) -> Names:
    if not len(values):
        return values.astype(np.uint16)
    used = np.bincount(values) > 0
    number = np.cumsum(used) - 1
    return number.astype(np.min_scalar_type(int(number[-1])))[values]


def _busiest(stream: Int64, length_ns: Int64) -> Mask | None:
    """Operations on the stream with most time; None if there is one stream."""
    if not len(stream) or (stream == stream[0]).all():
        return None
    streams, which = np.unique(stream, return_inverse=True)
    return which == np.bincount(which, length_ns, len(streams)).argmax()


def _windows(periods: Periods) -> StepWindows:
    start = [periods.items.start_ns[phase.begins] for phase in periods.phases]
    end = [
        np.append(begins[1:], periods.items.end_ns[phase.begins[-1] : phase.stop].max())
        for begins, phase in zip(start, periods.phases, strict=True)
    ]
    phase = np.repeat(np.arange(len(start)), [len(begins) for begins in start])
    number = np.arange(len(phase))
    ends = np.concatenate(end)
    # Beside the end of a phase on one stream another one may have begun.
    ends[:-1] = np.minimum(ends[:-1], np.concatenate(start)[1:])
    return StepWindows(number, np.concatenate(start), ends, number, StepsSource.PERIOD, phase)
