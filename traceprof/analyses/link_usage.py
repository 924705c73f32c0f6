"""What memory copies carried: bytes, busy time and rate by direction and peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.trace import schema

if TYPE_CHECKING:
    from traceprof.findings import Finding, NotApplicable
    from traceprof.intervals import Int64
    from traceprof.run import Rank, Window

IDS: tuple[str, ...] = ()
REQUIRES: tuple[schema.Table, ...] = (schema.MEMCPY,)
EXPLANATIONS: dict[str, str] = {}

# Boards whose host link is NVLink-C2C; every other GPU reaches the host over PCIe.
_C2C_BOARDS = ("GH200", "GB200", "GB300")


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one link carried in one direction.

    Attributes:
        link: `pcie` where the direction tells it, else None: the path of a peer copy is not in
            an export, and a copy within the device takes no link.
        direction: `h2d`, `d2h`, `d2d` or `p2p`.
        peer: the other device's ordinal, for `p2p`.
        bytes: carried by the copies that start in the window.
        busy_ns: the union of these copies.
    """

    link: str | None
    direction: str
    peer: int | None
    bytes: int
    busy_ns: int

    @property
    def gb_per_s(self) -> float | None:
        """Bytes over busy time, in 1e9 bytes per second; None where no time passed."""
        return self.bytes / self.busy_ns if self.busy_ns else None


@dataclass(frozen=True, slots=True)
class LinkUsageResult:
    """The copies of one rank, by direction and peer."""

    rank: int
    uses: tuple[LinkUse, ...]


def run(rank: Rank, window: Window) -> LinkUsageResult:
    """Add up the copies that start in the window."""
    copies = rank.operations.copies
    inside = (copies.start_ns >= window.start_ns) & (copies.start_ns < window.end_ns)
    uses = []
    for direction, kinds in _kinds_by_direction(rank).items():
        chosen = np.flatnonzero(
            inside & ~rank.is_peer_copy & np.isin(copies.kind, np.array(kinds, np.int64))
        )
        if len(chosen):
            uses.append(_use(rank, chosen, direction, None))
    peers = np.where(
        copies.source_device == rank.device, copies.destination_device, copies.source_device
    )
    for peer in np.unique(peers[inside & rank.is_peer_copy]).tolist():
        chosen = np.flatnonzero(inside & rank.is_peer_copy & (peers == peer))
        uses.append(_use(rank, chosen, "p2p", peer if peer >= 0 else None))
    return LinkUsageResult(rank.rank, tuple(uses))


def findings(result: LinkUsageResult) -> list[Finding | NotApplicable]:
    """Claim nothing: a rate is only good or bad against the link's peak."""
    del result
    return []


def _use(rank: Rank, chosen: Int64, direction: str, peer: int | None) -> LinkUse:
    copies = rank.operations.copies
    over_pcie = direction in ("h2d", "d2h") and not any(
        board in (rank.gpu or "") for board in _C2C_BOARDS
    )
    return LinkUse(
        link="pcie" if over_pcie else None,
        direction=direction,
        peer=peer,
        bytes=intervals.total(np.maximum(copies.bytes[chosen], 0)),
        busy_ns=intervals.union(copies.start_ns[chosen], copies.end_ns[chosen]).measure_ns,
    )


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
