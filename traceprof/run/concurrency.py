"""Concurrency on the GPU of a rank: compute, communication and copies, by pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.findings import Count, one_of
from traceprof.trace.model.kinds import CopyKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64, Intervals
    from traceprof.run.rank import Rank, Window

DIRECTIONS = ("h2d", "d2h", "d2d", "memset")
"""The kinds of copies: between host and device, all others, and memory sets."""
KINDS = ("compute", "communication", "copy", *DIRECTIONS)
"""What can run on a GPU: `copy` is all of `DIRECTIONS` together."""

_NUMBERS = {direction: number for number, direction in enumerate(DIRECTIONS)}
_D2D = _NUMBERS["d2d"]


class KindBeside(Struct, frozen=True):
    """Time for which one kind of operation ran in a window, alone and beside other kinds.

    Beside itself it ran for `total_ns`.
    """

    kind: Annotated[
        str,
        one_of(*list(KINDS)),
        "`copy` is all copies and memory sets together, except peer copies, which count as"
        " communication; `h2d`, `d2h`, `d2d` and `memset` are its parts.",
    ]
    total_ns: Count
    alone_ns: Annotated[
        Count,
        "Time in which no other kind ran; for a part of `copy`, no other kind and no other part.",
    ]
    compute_ns: Count
    communication_ns: Count
    copy_ns: Count
    h2d_ns: Count
    d2h_ns: Count
    d2d_ns: Count
    memset_ns: Count


def copy_directions(rank: Rank) -> Int64:
    """Direction of each copy: int64[copies], indices into `DIRECTIONS`; -1 between GPUs.

    Copies that go neither from the host to a device nor back, or whose direction is unknown, are
    `d2d`.
    """
    kinds = rank.operations.copies.kind
    direction = np.full(len(kinds), _D2D, np.int64)
    for kind in CopyKind:
        if kind.direction in ("h2d", "d2h"):
            direction[kinds == kind] = _NUMBERS[kind.direction]
    direction[rank.is_peer_copy] = -1
    return direction


def concurrency(rank: Rank, window: Window) -> tuple[KindBeside, ...]:
    """A row for each of `KINDS`, in their order: what ran beside it in a window.

    All times are lengths of intersections of unions: operations of one kind that overlap count
    once.
    """
    start, end = window.start_ns, window.end_ns
    directions = _directions(rank)
    # Compute has by far the most intervals. Its overlap with communication is known; otherwise it
    # is only intersected with the other kinds, after clipping.
    few = {
        kind: intervals.clip(covered, start, end)
        for kind, covered in {
            "communication": rank.communication,
            "copy": rank.copy,
            **directions,
        }.items()
    }
    beside = {kind: dict.fromkeys(KINDS, 0) for kind in KINDS}
    beside["compute"]["compute"] = intervals.clip(rank.compute, start, end).measure_ns
    for kind, covered in few.items():
        beside[kind][kind] = covered.measure_ns
        if kind == "communication":
            together = intervals.clip(rank.overlapped, start, end)
        else:
            together = intervals.intersect(covered, rank.compute)
        _both(beside, kind, "compute", together.measure_ns)
    for direction in DIRECTIONS:
        _both(beside, direction, "copy", few[direction].measure_ns)
    pairs = [("communication", kind) for kind in ("copy", *DIRECTIONS)]
    pairs += [(kind, other) for kind in DIRECTIONS for other in DIRECTIONS if kind < other]
    for kind, other in pairs:
        _both(beside, kind, other, intervals.intersect(few[kind], few[other]).measure_ns)
    alone = {direction: _alone(rank, few, direction) for direction in DIRECTIONS}
    both = intervals.intersect(few["communication"], few["copy"])
    all_three = intervals.intersect(both, rank.compute).measure_ns
    for kind, first, second in (
        ("communication", "copy", "compute"),
        ("copy", "communication", "compute"),
        ("compute", "communication", "copy"),
    ):
        of_kind = beside[kind]
        alone[kind] = of_kind[kind] - of_kind[first] - of_kind[second] + all_three
    return tuple(
        KindBeside(kind, beside[kind][kind], alone[kind], *(beside[kind][other] for other in KINDS))
        for kind in KINDS
    )


def _directions(rank: Rank) -> dict[str, Intervals]:
    copies, memsets = rank.operations.copies, rank.operations.memsets
    direction = copy_directions(rank)
    covered = {}
    for number, name in enumerate(DIRECTIONS):
        chosen = direction == number
        covered[name] = intervals.union(copies.start_ns[chosen], copies.ends(chosen))
    covered["memset"] = intervals.union(memsets.start_ns, memsets.end_ns)
    return covered


def _alone(rank: Rank, few: Mapping[str, Intervals], direction: str) -> int:
    others = ("communication", *(other for other in DIRECTIONS if other != direction))
    rest = intervals.subtract(few[direction], intervals.merge(*(few[other] for other in others)))
    return rest.measure_ns - intervals.intersect(rest, rank.compute).measure_ns


def _both(beside: dict[str, dict[str, int]], kind: str, other: str, together_ns: int) -> None:
    beside[kind][other] = beside[other][kind] = together_ns
