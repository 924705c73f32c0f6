"""An independent reference for the period of a sequence, for tests only.

Tries every lag, where `traceprof` tries the distances of rare names.

* match(p): share of the elements that are the same p elements later.
* The period is the shortest p, at most n / 3.5, with match(p) of at least 0.95, and of at least the
  best one less 0.02.
* What it leaves forms groups, more than p apart. Where there are at least three and a longer lag P
  matches 0.95, too, and has the same element later for at least 0.9 of what is left, P is the
  period: the shortest such one. Unless what is left is at most 5 % of p in each group.
* Insertions, which some periods have and others do not, are not known here.
"""

import numpy as np

Int64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


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
