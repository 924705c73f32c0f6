"""Concurrency on the GPU of a rank: compute, communication and copies, by pairs."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.findings import Count, one_of
from traceprof.intervals import Int64
from traceprof.run.rank import Rank, Window
from traceprof.trace.model.kinds import CopyKind

DIRECTIONS = ("h2d", "d2h", "d2d", "memset")
"""The kinds of copies: between host and device, all others, and memory sets."""
KINDS = ("compute", "communication", "copy", *DIRECTIONS)
"""What can run on a GPU: `copy` is all of `DIRECTIONS` together."""

_NUMBERS = {direction: number for number, direction in enumerate(DIRECTIONS)}
_D2D = _NUMBERS["d2d"]


class KindBeside(Struct, frozen=True):
    """How long a kind of operation ran in a window (`total_ns`), alone and beside other kinds."""

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
    """Direction of each copy: int64[copies], indices into `DIRECTIONS`; -1 between GPUs."""
    kinds = rank.operations.copies.kind
    direction = np.full(len(kinds), _D2D, np.int64)
    for kind in CopyKind:
        if kind.direction in ("h2d", "d2h"):
            direction[kinds == kind] = _NUMBERS[kind.direction]
    direction[rank.is_peer_copy] = -1
    return direction


def concurrency(rank: Rank, window: Window) -> tuple[KindBeside, ...]:
    """A row for each of `KINDS`: what ran beside it in a window, by intersections of unions."""
    start, end = window.start_ns, window.end_ns
    copies, memsets, number = rank.operations.copies, rank.operations.memsets, copy_directions(rank)
    all_of = {"communication": rank.communication, "copy": rank.copy}
    for direction in DIRECTIONS[:-1]:
        rows = np.flatnonzero(number == _NUMBERS[direction])
        all_of[direction] = intervals.union(copies.start_ns[rows], copies.ends(rows))
    all_of["memset"] = intervals.union(memsets.start_ns, memsets.end_ns)
    few = {kind: intervals.clip(covered, start, end) for kind, covered in all_of.items()}
    overlapped = intervals.clip(rank.overlapped, start, end)
    beside = {kind: dict.fromkeys(KINDS, 0) for kind in KINDS}
    beside["compute"]["compute"] = intervals.clip(rank.compute, start, end).measure_ns
    # Compute has by far the most intervals: it is only intersected with what is clipped.
    for kind, covered in few.items():
        beside[kind][kind] = covered.measure_ns
        both = overlapped if kind == "communication" else intervals.intersect(covered, rank.compute)
        beside[kind]["compute"] = beside["compute"][kind] = both.measure_ns
    for direction in DIRECTIONS:
        beside[direction]["copy"] = beside["copy"][direction] = few[direction].measure_ns
    pairs = [("communication", kind) for kind in ("copy", *DIRECTIONS)]
    pairs += [(kind, other) for kind in DIRECTIONS for other in DIRECTIONS if kind < other]
    for kind, other in pairs:
        together = intervals.intersect(few[kind], few[other]).measure_ns
        beside[kind][other] = beside[other][kind] = together
    alone = {}
    for direction in DIRECTIONS:
        others = [few[kind] for kind in ("communication", *DIRECTIONS) if kind != direction]
        rest = intervals.subtract(few[direction], intervals.merge(*others))
        alone[direction] = rest.measure_ns - intervals.intersect(rest, rank.compute).measure_ns
    all_three = intervals.intersect(overlapped, few["copy"]).measure_ns
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
