"""An independent reference for steps that nobody marked, for tests only: plain lists and all lags.

Shares no code with ``traceprof``.

* Searched are the kernels that do not communicate, and whole graphs, that start in a span: all in
  order of start, and those of the stream with the most time alone; of both the one whose operations
  return more often (of equals all). Operations are equal by name, grid and block; all graphs are.
* The lag is that of `period`. Where there is none, or no operation returns with it: that of the
  longest stretch in which each p neighbours match 95 % p later, over all p (of stretches within
  2 % of it the shortest p); what is before and after is searched by itself.
* A period begins at an operation that returns once in each: its distances are the lag within 5 %,
  for 90 % of its returns from the first such distance to the last. Of all of those (of ones with
  most returns, within 5 %) that with the longest gap before it, in the median. Where none does, the
  operations with the one before them, then with the three before, ... are looked at.
* The last period ends with the last of its operations that the latest period of `lag` operations
  has anywhere (the one before, where none has as many); where over 10 % differ from those at the
  same places of that one, before the first that does.
* A phase takes 2 % of the time. The longest counts; and others of ten returns that begin with an
  operation that hardly runs (5 % of the returns) in them and whose own hardly runs in it.
* Phases cover 80 % of the operations' time, at least four returns each. Where they do not: the
  periods like the middle one of the longest phase, wherever they are, if they cover as much and no
  more than 5 % (or three) of them are followed by something else. They begin where the first
  operation that it holds once is in its place behind its first one; the last and the first one
  of a part may differ.
* Where the longest phase's periods hold kernels of an optimizer (by their names), and others, each
  begins after that one of them that the longest stretch of others follows, and any number of them
  may be followed by something without such kernels; those without an update are part of the one
  before. The part that repeats itself in two of them is looked at, too: if it holds such kernels,
  its periods count, unless as many as half of the two's number have more or fewer of them than
  others.
* Where at least half of the periods hold no communication kernel, and others do, periods are also
  searched with these kernels in between: if there are any, they count, each from the operation
  that comes first in it or after it, without these kernels. If all are of one operation: the
  periods of these kernels alone count, if nine in ten of them are within half of their median
  length.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from tests.reference.nsight_export import COMMUNICATION, COMPUTE, Operation

Int64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_UPDATE = re.compile(
    r"(?i)multi_tensor_(?:apply|adam|sgd|lamb)|fused_?(?:adam|sgd|lamb|adagrad)|adam_cuda"
    r"|k(?:Precondition)?Optimizer|amp_(?:update_scale|non_finite)"
)


def period(names: Int64) -> int | None:
    longest = int(len(names) / 3.5)
    match = {lag: float(np.mean(names[lag:] == names[:-lag])) for lag in range(1, longest + 1)}
    least = max(0.95, max(match.values(), default=0) - 0.02)
    fitting = [lag for lag, share in match.items() if share >= least]
    if not fitting:
        return None
    shortest = fitting[0]
    left = [
        place for place in range(len(names) - shortest) if names[place] != names[place + shortest]
    ]
    groups = 0
    for before, place in zip([-shortest - 1, *left], left, strict=False):
        groups += place - before > shortest
    if groups < 3 or len(left) <= 0.05 * shortest * groups:
        return shortest
    for longer in range(shortest + 1, longest + 1):
        if match[longer] < 0.95:
            continue
        known = [place for place in left if place + longer < len(names)]
        num_groups = 0
        for before, place in zip([-longer, *known], known, strict=False):
            num_groups += place - before > longer // 2
        explained = sum(bool(names[place] == names[place + longer]) for place in known)
        if num_groups >= 2 and explained >= 0.9 * len(known):
            return longer
    return shortest


class PeriodStep(NamedTuple):
    """A period of a rank; `launch` is when the host launched what begins it, None if unknown."""

    start: int
    end: int
    launch: int | None
    name: str | None  # of what begins it


@dataclass(frozen=True)
class Phase:
    lag: int
    first: int
    begins: list[int]
    stop: int
    same: int  # of the operations from the first begin to the last that return
    names: Int64


def period_steps(operations: list[Operation], low: int, high: int) -> list[PeriodStep]:
    """The periods of a rank in a span of time; none where its operations have none."""
    items = sorted(
        (op for op in operations if op.kind == COMPUTE and low <= op.start < high),
        key=lambda op: op.start,
    )
    time: dict[int, int] = defaultdict(int)
    for op in items:
        time[op.stream] += op.end - op.start
    busiest = min(time, key=lambda stream: (-time[stream], stream), default=None)
    candidates = [_phases_of(items)]
    if len(time) > 1:
        candidates.append(_phases_of([op for op in items if op.stream == busiest]))
    (kept, phases) = max(candidates, key=lambda candidate: _match(candidate[1]))
    collectives = [
        op
        for op in operations
        if op.kind == COMMUNICATION and not op.is_copy and low <= op.start < high
    ]
    return _steps(kept, _between_collectives(kept, phases, collectives) or phases)


def _between_collectives(
    items: list[Operation], phases: list[Phase], collectives: list[Operation]
) -> list[Phase]:
    begins = [items[place].start for phase in phases for place in phase.begins]
    holders = {sum(begin <= op.start for begin in begins) for op in collectives}
    if not holders or 2 * len(holders) > len(begins):
        return []
    merged = sorted([*items, *collectives], key=lambda op: op.start)
    before = [0]
    for op in merged:
        before.append(before[-1] + (op.kind == COMPUTE))
    alone = sorted(collectives, key=lambda op: op.start)
    before_alone = [0, *(sum(item.start < op.start for item in items) for op in alone)]
    found = _of_places(merged, before)
    if any(phase.lag > 1 for phase in found or phases):
        return found
    return _of_places(alone, before_alone) or found


def _of_places(searched: list[Operation], before: list[int]) -> list[Phase]:
    longer = []
    for phase in _phases_of(searched)[1]:
        first, stop = before[phase.first], before[phase.stop]
        places = sorted({before[place] for place in phase.begins})
        if len(places) < 4:
            continue
        lengths = [b - a for a, b in pairwise(places)]
        lag = round(median(lengths))
        alike = sum(abs(length - lag) <= lag / 2 for length in lengths)
        if alike < 0.9 * len(lengths):
            continue
        if places[0] - first >= 0.95 * lag:
            places.insert(0, first)
        places = [place for place in places if place < stop]
        longer.append(Phase(lag, first, places, stop, phase.same, phase.names))
    return longer


def _match(phases: list[Phase]) -> float:
    """The share of operations that return, each period of its lag."""
    num = sum(len(phase.begins) * phase.lag for phase in phases)
    shares = (
        phase.same / (phase.begins[-1] - phase.begins[0]) * len(phase.begins) * phase.lag
        for phase in phases
    )
    return sum(shares) / num if num else -1.0


def _steps(items: list[Operation], phases: list[Phase]) -> list[PeriodStep]:
    steps = []
    for phase in phases:
        end = max(op.end for op in items[phase.begins[-1] : phase.stop])
        begins = [items[place] for place in phase.begins]
        ends = [op.start for op in begins[1:]] + [end]
        steps += [
            PeriodStep(op.start, stop, op.call.start if op.call else None, op.name)
            for op, stop in zip(begins, ends, strict=True)
        ]
    return [
        step._replace(end=min([step.end, *(after.start for after in steps[place : place + 1])]))
        for place, step in enumerate(steps, start=1)
    ]


def _phases_of(items: list[Operation]) -> tuple[list[Operation], list[Phase]]:
    """The operations and their phases."""
    number: dict[object, int] = {}
    names = np.array(
        [number.setdefault((op.name, op.shape), len(number)) for op in items], np.int64
    )
    phases = [phase for phase in _searched(items, names, 0, len(items)) if len(phase.begins) >= 4]
    phases.sort(key=lambda phase: -_time(items, phase.first, phase.stop))
    kept = phases[:1]
    for phase in phases[1:]:
        if len(phase.begins) >= 10 and all(_apart(names, phase, other) for other in kept):
            kept.append(phase)
    covered = sum(_time(items, phase.first, phase.stop) for phase in kept)
    if covered < 0.8 * _time(items, 0, len(items)):
        kept = _interrupted(items, names.tolist(), _searched(items, names, 0, len(items)))
    found = kept or _searched(items, names, 0, len(items))
    return items, _between_updates(items, names, found) or sorted(kept, key=lambda one: one.first)


def _between_updates(items: list[Operation], names: Int64, phases: list[Phase]) -> list[Phase]:
    longest = max(phases, key=lambda phase: phase.stop - phase.first, default=None)
    if longest is None or not _updates(items, longest):
        return []
    first = longest.begins[0]
    run = _longest_run(names[first : first + 2 * longest.lag])
    if run is None:
        return []
    lag, begin, end = run
    begin, end = first + begin, first + end
    inner = _phase(items, names, begin, end, period(names[begin:end]) or lag)
    is_step = inner is not None and bool(_updates(items, inner))
    steps = _interrupted(items, names.tolist(), [inner]) if inner and is_step else []
    for step in steps:
        updates = [_num_updates(items[a:b]) for a, b in pairwise(step.begins)]
        others = sum(num != median(updates) for num in updates)
        if 2 * others >= len(longest.begins):
            return []
    return steps


def _num_updates(items: list[Operation]) -> int:
    return sum(bool(op.name and _UPDATE.search(op.name)) for op in items)


def _updates(items: list[Operation], phase: Phase) -> list[int]:
    """Places of an optimizer's operations in a period; none if all or none are."""
    inside = items[phase.begins[0] :][: phase.lag]
    places = [place for place, op in enumerate(inside) if op.name and _UPDATE.search(op.name)]
    return places if len(places) < len(inside) else []


def _interrupted(items: list[Operation], names: list[int], phases: list[Phase]) -> list[Phase]:
    longest = max(phases, key=lambda phase: phase.stop - phase.first, default=None)
    whole = [a for a, b in pairwise(longest.begins) if b - a == longest.lag] if longest else []
    if longest is None or longest.lag == 1 or not whole:
        return []
    lag = longest.lag
    places = _updates(items, replace(longest, begins=whole))
    if places and len(whole) > 1:
        gaps = [after - place for place, after in pairwise([*places, places[0] + lag])]
        whole = [first + places[gaps.index(max(gaps))] + 1 for first in whole[:-1]]
    usual = names[whole[len(whole) // 2] :][:lag]
    once = next((place for place, name in enumerate(usual) if usual.count(name) == 1), None)
    if once is None:
        return []
    likeness = {}
    for place, name in enumerate(names):
        first = place - once
        if name == usual[once] and first >= 0 and names[first] == usual[0]:
            before = names[first - lag : first] if first >= lag else []
            likeness[first] = _likeness(before, usual), _likeness(names[first:][:lag], usual)
    whole = [first for first, (_, after) in likeness.items() if after >= 0.95]
    interruptions = sum(
        b - a != lag and (not places or _num_updates(items[a + lag : b]) > 0)
        for a, b in pairwise(whole)
    )
    spent = sum(_time(items, first, first + lag) for first in whole)
    is_rare = interruptions <= max(3, 0.05 * len(whole))
    is_rare = is_rare and len(likeness) * lag <= 2 * len(names)
    if len(whole) < 4 or not is_rare or spent < 0.8 * _time(items, 0, len(items)):
        return []
    begins = [first for first, both in likeness.items() if max(both) >= 0.4]
    if _updates(items, longest):
        begins = [
            first
            for first, after in pairwise([*begins, len(items)])
            if _num_updates(items[first:after])
        ]
    same = round(
        sum(after for _, after in likeness.values()) / len(likeness) * (begins[-1] - begins[0])
    )
    end = _end(names, begins, len(names), lag)
    return [Phase(lag, begins[0], begins, end, same, np.array(names, np.int64))]


def _likeness(part: list[int], usual: list[int]) -> float:
    return sum(a == b for a, b in zip(part, usual, strict=False)) / len(usual)


def _time(items: list[Operation], first: int, stop: int) -> int:
    return sum(op.end - op.start for op in items[first:stop])


def _apart(names: Int64, one: Phase, other: Phase) -> bool:
    for phase, beside in ((one, other), (other, one)):
        inside = list(names[beside.first : beside.stop]).count(names[phase.begins[0]])
        if inside > 0.05 * len(phase.begins):
            return False
    return True


def _searched(items: list[Operation], names: Int64, first: int, stop: int) -> list[Phase]:
    if stop - first < 4 or _time(items, first, stop) < 0.02 * _time(items, 0, len(items)):
        return []
    phase = None
    lag = period(names[first:stop])
    if lag is not None:
        phase = _phase(items, names, first, stop, lag)
    if phase is None:
        run = _longest_run(names[first:stop])
        if run is None:
            return []
        lag, begin, end = run
        inner = period(names[first + begin : first + end]) or lag
        phase = _phase(items, names, first + begin, first + end, inner)
    if phase is None:
        return []
    before = _searched(items, names, first, phase.first)
    return [*before, phase, *_searched(items, names, phase.stop, stop)]


def _longest_run(names: Int64) -> tuple[int, int, int] | None:
    """The lag, begin and end of the longest part that repeats itself."""
    runs: list[tuple[int, int, int]] = []
    for lag in range(1, int(len(names) / 3.5) + 1):
        same = np.concatenate(([0], np.cumsum(names[lag:] == names[:-lag])))
        good = same[lag:] - same[:-lag] >= 0.95 * lag
        edges = np.flatnonzero(np.diff(np.concatenate(([0], good.astype(np.int64), [0]))))
        lengths = edges[1::2] - edges[::2]
        if not len(lengths):
            continue
        at = int(lengths.argmax())
        begin, end = int(edges[2 * at]), min(int(edges[2 * at + 1]) - 1 + 2 * lag, len(names))
        if end - begin >= 3.5 * lag:
            runs.append((lag, begin, end))
    longest = max((end - begin for _, begin, end in runs), default=0)
    return next((run for run in runs if run[2] - run[1] >= 0.98 * longest), None)


def _phase(items: list[Operation], names: Int64, first: int, stop: int, lag: int) -> Phase | None:
    begins = _begins(items[first:stop], names[first:stop].tolist(), lag)
    if begins is None:
        return None
    begins = [first + place for place in begins]
    same = [names[place] == names[place - lag] if place - lag >= first else False
            for place in range(first, stop)]  # fmt: skip
    end = _end(names.tolist(), begins, stop, lag)
    returns = sum(bool(same[place + lag - first]) for place in range(begins[0], begins[-1])
                  if place + lag < stop)  # fmt: skip
    begin = begins[0]
    earlier = max(begin - lag, first)
    if earlier < begin and sum(map(bool, same[earlier + lag - first : begin + lag - first])) >= (
        0.9 * (begin - earlier)
    ):
        begin = earlier
    return Phase(lag, begin, begins, end, returns, names)


def _end(names: list[int], begins: list[int], stop: int, lag: int) -> int:
    usual = next((a for a, b in reversed([*pairwise(begins)]) if b - a == lag), begins[-2])
    last = range(begins[-1], min(begins[-1] + lag, stop))
    others = [place for place in last if names[place] != names[usual + place - begins[-1]]]
    if len(others) > 0.1 * len(last):
        return others[0]
    of_usual = set(names[usual : usual + lag])
    return max(place for place in last if names[place] in of_usual) + 1


def _begins(items: list[Operation], names: list[int], lag: int) -> list[int] | None:
    gaps, latest = [0], items[0].end
    for op in items[1:]:
        gaps.append(max(op.start - latest, 0))
        latest = max(latest, op.end)
    length = 1
    while True:
        keys = [tuple(names[max(place - length + 1, 0) : place + 1]) for place in range(len(names))]
        places: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, key in enumerate(keys):
            places[key].append(place)
        candidates = [
            (median(gaps[place] for place in returns), returns)
            for of_key in places.values()
            if len(returns := _returns(of_key, lag)) >= 4
        ]
        if candidates:
            most = max(len(returns) for _, returns in candidates)
            several = [candidate for candidate in candidates if 1.05 * len(candidate[1]) >= most]
            return max(several, key=lambda candidate: candidate[0])[1]
        if length >= lag:
            return None
        length *= 2


def _returns(places: list[int], lag: int) -> list[int]:
    is_one = [abs(b - a - lag) <= 0.05 * lag for a, b in pairwise(places)]
    if not any(is_one):
        return []
    first, last = is_one.index(True), len(is_one) - 1 - is_one[::-1].index(True)
    regular = is_one[first : last + 1]
    return places[first : last + 2] if sum(regular) >= 0.9 * len(regular) else []
