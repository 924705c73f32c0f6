"""An independent reference for what runs beside what, for tests only.

Of each pair of kinds, for how long both run at the same time: the measure of the intersection of
their unions, clipped to the window. By a boundary sweep, not by intersecting lists of spans.

Kinds: compute (kernels and whole graphs), communication (its kernels, and peer copies, which are no
copies here), the copies by direction (h2d, d2h, d2d, memset, as in `exposed_copy`), and copy, all
four of these together. Operations of one kind beside each other are not told: the pair of a kind
with itself is how long it runs. `alone` is how long it runs with no operation of another kind (of
copy: no compute or communication; of a direction: no other direction either).
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

from tests.reference.exposed_copy import KINDS, kind_of
from tests.reference.nsight_export import COMMUNICATION, COMPUTE, COPY, Key, Operation
from tests.reference.spans import Span
from tests.reference.streams import Rank, read

ALL = (COMPUTE, COMMUNICATION, COPY, *KINDS)
PARTS = {COPY: set(KINDS)} | {kind: {COPY} for kind in KINDS}  # what is no other kind beside it


@dataclass
class Beside:
    """How long kinds ran together, by pairs in the order of `ALL`, and alone; ns."""

    together: dict[tuple[str, str], int]
    alone: dict[str, int]


def kinds_of(op: Operation) -> tuple[str, ...]:
    return (COPY, kind_of(op)) if op.kind == COPY else (op.kind,)


def reference(path: Path, window: Span | None = None) -> dict[Key, Beside]:
    """What must be found for each (process, device) of an export."""
    return {(rank.process, rank.device): measured(rank, window) for rank in read(path)}


def measured(rank: Rank, window: Span | None) -> Beside:
    low, high = window or rank.window
    changes: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for op in rank.operations:
        start, end = max(op.start, low), min(op.end, high)
        for kind in kinds_of(op) if start < end else ():
            changes[start][kind] += 1
            changes[end][kind] -= 1
    times = sorted(changes)
    active = dict.fromkeys(ALL, 0)
    result = Beside(dict.fromkeys(combinations_with_replacement(ALL, 2), 0), dict.fromkeys(ALL, 0))
    for time, following in pairwise(times):
        for kind, change in changes[time].items():
            active[kind] += change
        running = [kind for kind in ALL if active[kind]]
        for pair in combinations_with_replacement(running, 2):
            result.together[pair] += following - time
        for kind in running:
            others = set(running) - {kind} - PARTS.get(kind, set())
            result.alone[kind] += (following - time) * (not others)
    return result
