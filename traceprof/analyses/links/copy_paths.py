"""Paths of copies: to or from the host, to another device, through the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import DEVICE_MEMORY, CopyKind

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.opening import Rank, Window
    from traceprof.trace.model.operations import Copies


_KINDS_BY_DIRECTION = {
    direction: np.array([kind for kind in CopyKind if kind.direction == direction], np.int64)
    for direction in ("h2d", "d2h", "d2d")
}


def copies_by_direction(rank: Rank, inside: Mask) -> dict[str, Int64]:
    """Return the indices of copies by direction, `h2d`, `d2h`, `d2d`; no empty one, no peer copy.

    Args:
        rank: the rank.
        inside: which copies count, bool[copies].
    """
    kinds = rank.operations.copies.kind
    chosen = {
        direction: np.flatnonzero(inside & ~rank.is_peer_copy & is_in(kinds, of_direction))
        for direction, of_direction in _KINDS_BY_DIRECTION.items()
    }
    return {direction: path for direction, path in chosen.items() if len(path)}


def exposed_copies(rank: Rank, chosen: Int64, window: Window) -> Intervals:
    """Return when these copies ran in the window and no kernel did, nor another communication."""
    copies = rank.operations.copies
    covered = intervals.union(copies.start_ns[chosen], copies.end_ns[chosen])
    covered = intervals.clip(covered, window.start_ns, window.end_ns)
    return intervals.subtract(intervals.subtract(covered, rank.compute), rank.communication)


def is_device_memory(memory: Int64) -> Mask:
    """Return which kinds of memory are the GPU's own, bool[n]."""
    mask: Mask = is_in(memory, np.array(DEVICE_MEMORY, np.int64))
    return mask


def is_staged(copies: Copies) -> Mask:
    """Return which copies are a leg, to or from the host, of a copy between two devices.

    The trace says device on both sides of such a copy; only its kind shows the direction.
    """
    over_host = is_in(copies.kind, _KINDS_BY_DIRECTION["h2d"])
    over_host |= is_to_host(copies)
    staged: Mask = over_host & is_device_memory(copies.source_memory)
    return staged & is_device_memory(copies.destination_memory)


def is_to_host(copies: Copies) -> Mask:
    """Return which copies go to the host, bool[copies]."""
    mask: Mask = is_in(copies.kind, _KINDS_BY_DIRECTION["d2h"])
    return mask
