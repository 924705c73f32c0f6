"""Copies that nothing hides, put together by what can be done about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.exposed_copy.gradient_copies import gradient_copies
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.host.places import PlaceKind, places, places_of_calls
from traceprof.run.concurrency import DIRECTIONS
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import MemoryKind, copy_label
from traceprof.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.analyses.exposed_copy.attribution import CopyOwners
    from traceprof.intervals import Int32, Int64, Mask
    from traceprof.run.rank import Rank, Window


_SHARDED = (PlaceKind.FSDP, PlaceKind.DEEPSPEED)


class CopyPart(Record, frozen=True):
    """Exposed copies of one kind."""

    direction: str  # one of `DIRECTIONS`
    memory: MemoryKind  # memory of the host's side; `UNKNOWN` if there is none or it is not known
    is_same_stream: bool  # whether the next compute is on the copy's stream
    is_gradient: bool  # whether they copy gradients out of the buckets in which they were reduced
    # whether a framework of sharded parameters launched them: those that it keeps on the host
    is_offload: bool
    exposed_ns: int  # how long they ran while nothing else did
    num_copies: int  # the number of copies that own a part of it
    bytes: int  # the bytes of these copies
    gb_per_s: float | None  # bytes over the union of these copies; None if no time passed
    place: str | None  # the range around most of their launches, by exposed time
    # the parts of these copies in the window that are exposed longest, longest first
    evidence: tuple[Evidence, ...]


def copy_parts(rank: Rank, window: Window, owners: CopyOwners) -> tuple[CopyPart, ...]:
    """Return the exposed copies by kind, the longest exposed first."""
    is_gradient = _are_gradients(rank, owners)
    known, at = places(rank), _places(rank, owners)
    is_sharded = np.array([*(kind in _SHARDED for kind in known.kinds), False], np.bool_)
    is_offload = is_sharded[at] & (owners.direction <= DIRECTIONS.index("d2h"))
    is_same = owners.is_same_stream
    keys = (owners.direction, owners.memory, is_same, is_gradient, is_offload)
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    number = np.ravel_multi_index([key.astype(np.int64) for key in keys], sizes)
    parts = []
    for part in distinct_values(number).tolist():
        chosen = number == part
        direction, memory, same, gradient, offload = map(int, np.unravel_index(part, sizes))
        size = intervals.total(owners.bytes[chosen])
        busy = intervals.union(owners.start_ns[chosen], owners.end_ns[chosen]).measure_ns
        parts.append(
            CopyPart(
                DIRECTIONS[direction],
                MemoryKind(memory),
                is_same_stream=bool(same),
                is_gradient=bool(gradient),
                is_offload=bool(offload),
                exposed_ns=int(owners.exposed_ns[chosen].sum()),
                num_copies=int(chosen.sum()),
                bytes=size,
                gb_per_s=size / busy if busy else None,
                place=known.most_of(at[chosen], owners.exposed_ns[chosen]),
                evidence=_evidence(rank, window, owners, np.flatnonzero(chosen)),
            )
        )
    return tuple(sorted(parts, key=lambda part: -part.exposed_ns))


def _places(rank: Rank, owners: CopyOwners) -> Int32:
    """Return the place of each owner's launch, int32[n]."""
    _, copies, memsets, _ = rank.launched_by
    is_memset = owners.direction == DIRECTIONS.index("memset")
    call = np.full(len(owners), -1, np.int64)
    call[is_memset] = memsets[owners.copy[is_memset]]
    call[~is_memset] = copies[owners.copy[~is_memset]]
    return places_of_calls(rank, call)


def _are_gradients(rank: Rank, owners: CopyOwners) -> Mask:
    is_gradient: Mask = owners.direction == DIRECTIONS.index("d2d")
    if is_gradient.any():
        is_gradient &= is_in(owners.copy, gradient_copies(rank))
    return is_gradient


def _evidence(
    rank: Rank, window: Window, owners: CopyOwners, chosen: Int64
) -> tuple[Evidence, ...]:
    longest = chosen[intervals.largest(owners.exposed_ns[chosen], MAX_EVIDENCE)]
    return tuple(
        Evidence(
            max(int(owners.start_ns[index]), window.start_ns),
            min(int(owners.end_ns[index]), window.end_ns),
            _label(rank, owners, index),
        )
        for index in longest.tolist()
    )


def _label(rank: Rank, owners: CopyOwners, index: int) -> str:
    num_bytes = int(owners.bytes[index])
    size = f", {size_text(num_bytes)}" if num_bytes else ""
    if DIRECTIONS[owners.direction[index]] == "memset":
        return f"memset{size}"
    kind = copy_label(int(rank.operations.copies.kind[owners.copy[index]]))
    memory = MemoryKind(int(owners.memory[index]))
    known = "" if memory is MemoryKind.UNKNOWN else f", {memory.label.lower()}"
    return f"{kind} copy{size}{known}"


def exposed_ns(parts: Iterable[CopyPart]) -> int:
    """Return for how long copies are exposed, ns."""
    return sum(part.exposed_ns for part in parts)
