"""Which copies go where: to or from the host, to another device, through the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    import numpy.typing as npt

    from traceprof.intervals import Int64, Intervals
    from traceprof.run.opening import Rank, Window
    from traceprof.trace.model.operations import Copies

    Mask = npt.NDArray[np.bool_]

_DEVICE_MEMORY = ("Device", "Device Static", "Array")


def copies_by_direction(rank: Rank, inside: Mask) -> dict[str, Int64]:
    """Return the indices of copies by direction, `h2d`, `d2h`, `d2d`; no empty one, no peer copy.

    Args:
        rank: the rank.
        inside: which copies count, bool[copies].
    """
    kinds = rank.operations.copies.kind
    chosen = {
        direction: np.flatnonzero(
            inside & ~rank.is_peer_copy & np.isin(kinds, np.array(of_direction, np.int64))
        )
        for direction, of_direction in _kinds_by_direction(rank).items()
    }
    return {direction: each for direction, each in chosen.items() if len(each)}


def exposed_copies(rank: Rank, chosen: Int64, window: Window) -> Intervals:
    """Return when these copies ran in the window and no kernel did, nor another communication."""
    copies = rank.operations.copies
    covered = intervals.union(copies.start_ns[chosen], copies.end_ns[chosen])
    covered = intervals.clip(covered, window.start_ns, window.end_ns)
    return intervals.subtract(intervals.subtract(covered, rank.compute), rank.communication)


def is_device_memory(rank: Rank, memory: Int64) -> Mask:
    """Return which kinds of memory are the GPU's own, bool[n]."""
    kinds = [kind for kind, label in rank.trace.memory_kinds.items() if label in _DEVICE_MEMORY]
    mask: Mask = np.isin(memory, np.array(kinds, np.int64))
    return mask


def is_staged(rank: Rank, copies: Copies) -> Mask:
    """Return which copies are a leg, to or from the host, of a copy between two devices.

    Nsight says device on both sides of such a copy; only its kind tells the direction.

    Args:
        rank: of the report.
        copies: of any rank of this report.
    """
    by_kind = _kinds_by_direction(rank)
    over_host = np.isin(copies.kind, np.array(by_kind["h2d"] + by_kind["d2h"], np.int64))
    staged: Mask = over_host & is_device_memory(rank, copies.source_memory)
    return staged & is_device_memory(rank, copies.destination_memory)


def is_to_host(rank: Rank, copies: Copies) -> Mask:
    """Return which copies go to the host, of any rank of this report."""
    mask: Mask = np.isin(copies.kind, np.array(_kinds_by_direction(rank)["d2h"], np.int64))
    return mask


def _kinds_by_direction(rank: Rank) -> dict[str, list[int]]:
    """Return the copy kinds of each direction, by the ends that their labels name."""
    directions: dict[str, list[int]] = {"h2d": [], "d2h": [], "d2d": []}
    for kind, label in rank.copy_kinds.items():
        source, _, destination = label.removeprefix("Unified ").partition("-to-")
        ends = ("h" if source == "Host" else "d", "h" if destination == "Host" else "d")
        name = "2".join(ends)
        if destination and name in directions and label != schema.PEER_TO_PEER:
            directions[name].append(kind)
    return directions
