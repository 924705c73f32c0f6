"""Copies from and to pageable host memory: slow, and the host waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.results import RankResult
from traceprof.findings import (
    MAX_EVIDENCE,
    Evidence,
    Finding,
    Metric,
    NotApplicable,
    bullets,
    severity_of_cost,
)
from traceprof.host.synchronization import MAX_STAGED_BYTES, clocks_disagree, memory_ids
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.read_columns import NULL
from traceprof.units import duration

if TYPE_CHECKING:
    from traceprof.intervals import Int64, Intervals
    from traceprof.run.opening import Mask, Rank, Window

IDS: tuple[str, ...] = ("pageable-copy",)
REQUIRES: tuple[schema.Table, ...] = (schema.MEMCPY,)


@dataclass(frozen=True, slots=True)
class PageableCopyResult(RankResult):
    """The copies between one rank's GPU and pageable host memory that start in a window.

    Attributes:
        window_ns: the window's length.
        num_copies: copies of more than `MAX_STAGED_BYTES`.
        bytes: theirs.
        host_blocked_ns: the durations of their API calls; None where none is in the report.
        cost_ns: time in which the GPU did nothing but these copies, or nothing at all while the
            host was inside their calls.
        direction: `h2d` or `d2h`, whichever carried more; None without copies.
        gb_per_s: bytes over the union of the pageable copies in that direction.
        pinned_gb_per_s: the same of copies with pinned memory; None without such.
        num_large: copies of more than `MAX_STAGED_BYTES` in the window that are no peer copies.
        num_known: those whose kinds of memory the report tells.
        evidence: the copies that took longest, longest first.
    """

    window_ns: int
    num_copies: int
    bytes: int
    host_blocked_ns: int | None
    cost_ns: int
    direction: str | None
    gb_per_s: float | None
    pinned_gb_per_s: float | None
    num_large: int
    num_known: int
    evidence: tuple[Evidence, ...]


def run(rank: Rank, window: Window) -> PageableCopyResult:
    """Add up the pageable copies that start in the window."""
    copies = rank.operations.copies
    large = window.holds_start(copies.start_ns)
    large &= (copies.bytes > MAX_STAGED_BYTES) & ~rank.is_peer_copy
    known = (
        large & _is_known(rank, copies.source_memory) & _is_known(rank, copies.destination_memory)
    )
    pageable = _directions(rank, schema.PAGEABLE)
    chosen = np.flatnonzero(known & (pageable["h2d"] | pageable["d2h"]))
    carried = {
        direction: intervals.total(copies.bytes[known & mask])
        for direction, mask in pageable.items()
    }
    direction = max(carried, key=lambda each: carried[each]) if len(chosen) else None
    rate = pinned_rate = None
    if direction is not None:
        rate = _gb_per_s(rank, known & pageable[direction])
        pinned_rate = _gb_per_s(rank, known & _directions(rank, schema.PINNED)[direction])
    called = rank.launched_by[1][chosen]
    called = np.unique(called[called >= 0])
    blocked = None
    if rank.calls is not None and (len(called) or not len(chosen)):
        blocked = int((rank.calls.end_ns[called] - rank.calls.start_ns[called]).sum())
    return PageableCopyResult(
        rank=rank.rank,
        window_ns=window.length_ns,
        num_copies=len(chosen),
        bytes=sum(carried.values()),
        host_blocked_ns=blocked,
        cost_ns=_cost(rank, window, chosen, called).measure_ns,
        direction=direction,
        gb_per_s=rate,
        pinned_gb_per_s=pinned_rate,
        num_large=int(large.sum()),
        num_known=int(known.sum()),
        evidence=_evidence(rank, chosen),
    )


def findings(result: PageableCopyResult) -> list[Finding | NotApplicable]:
    """Judge the time that pageable copies kept the GPU from its work."""
    if result.num_large and not result.num_known:
        return [
            NotApplicable(
                IDS[0],
                "the report does not tell which kinds of memory were copied from and to",
                "export the .nsys-rep again with a newer Nsight Systems (srcKind and dstKind of"
                f" {schema.MEMCPY.name})",
                result.rank,
            )
        ]
    fraction = result.cost_ns / result.window_ns if result.window_ns else 0.0
    severity = severity_of_cost(fraction)
    if severity is None:
        return []
    metrics: dict[str, Metric] = {
        "bytes": result.bytes,
        "num_copies": result.num_copies,
        "host_blocked_ns": result.host_blocked_ns,
        "direction": result.direction,
        "gb_per_s": result.gb_per_s,
        "pinned_gb_per_s": result.pinned_gb_per_s,
        "coverage": result.num_known / result.num_large if result.num_large else 1.0,
    }
    copies = "1 copy" if result.num_copies == 1 else f"{result.num_copies} copies"
    end = "from" if result.direction == "h2d" else "to"
    rate = f" at {result.gb_per_s:.1f} GB/s" if result.gb_per_s else ""
    title = (
        f"{copies} {end} pageable host memory ({result.bytes / 1e9:.2f} GB{rate}) kept the GPU from"
        f" its work for {duration(result.cost_ns)}"
    )
    return [
        Finding(
            IDS[0],
            severity,
            result.rank,
            title,
            result.cost_ns,
            fraction,
            metrics,
            result.evidence,
            _ADVICE,
        )
    ]


# -- numbers --------------------------------------------------------------------------------------


def _is_known(rank: Rank, memory: Int64) -> Mask:
    known: Mask = (memory != NULL) & ~np.isin(memory, memory_ids(rank, "Unknown"))
    return known


def _directions(rank: Rank, host_memory: str) -> dict[str, Mask]:
    """Return which copies go between the GPU and this kind of host memory, by direction."""
    copies, host = rank.operations.copies, memory_ids(rank, host_memory)
    any_host = np.concatenate([memory_ids(rank, each) for each in (schema.PAGEABLE, schema.PINNED)])
    return {
        "h2d": np.isin(copies.source_memory, host) & ~np.isin(copies.destination_memory, any_host),
        "d2h": np.isin(copies.destination_memory, host) & ~np.isin(copies.source_memory, any_host),
    }


def _gb_per_s(rank: Rank, chosen: Mask) -> float | None:
    copies = rank.operations.copies
    busy = intervals.union(copies.start_ns[chosen], copies.end_ns[chosen]).measure_ns
    return intervals.total(copies.bytes[chosen]) / busy if busy else None


def _cost(rank: Rank, window: Window, chosen: Int64, called: Int64) -> Intervals:
    """Return when the GPU did nothing but these copies, or nothing while the host made them."""
    copies, calls = rank.operations.copies, rank.calls
    copying = intervals.union(copies.start_ns[chosen], copies.end_ns[chosen])
    exposed = intervals.subtract(intervals.subtract(copying, rank.compute), rank.communication)
    cost = intervals.clip(exposed, window.start_ns, window.end_ns)
    if calls is None or not len(called) or clocks_disagree(rank, calls):
        return cost
    idle = intervals.complement(rank.busy, window.start_ns, window.end_ns)
    inside = intervals.union(calls.start_ns[called], calls.end_ns[called])
    return intervals.merge(cost, intervals.intersect(inside, idle))


def _evidence(rank: Rank, chosen: Int64) -> tuple[Evidence, ...]:
    copies = rank.operations.copies
    length = copies.end_ns[chosen] - copies.start_ns[chosen]
    return tuple(
        Evidence(
            int(copies.start_ns[index]),
            int(copies.end_ns[index]),
            f"{rank.copy_kinds.get(int(copies.kind[index]), 'unknown')} copy,"
            f" {int(copies.bytes[index]) / 1e6:.1f} MB, pageable",
        )
        for index in chosen[intervals.largest(length, MAX_EVIDENCE)].tolist()
    )


# -- judgement ------------------------------------------------------------------------------------


_ADVICE = (
    (
        "Copy from pinned memory without waiting: DataLoader(pin_memory=True) and"
        " .to(device, non_blocking=True); non_blocking alone does nothing for pageable memory"
    ),
    (
        "Copy the next batch on a stream of its own while this one is computed, and let the compute"
        " stream wait for its event (a prefetcher)"
    ),
    (
        "Pin buffers that are used again once: tensor.pin_memory(), cudaHostAlloc or"
        " cudaHostRegister; pinning anew for each copy costs more than it gains"
    ),
    "Keep what does not change on the GPU, create tensors there (device='cuda'), copy fewer bytes",
)

EXPLANATIONS: dict[str, str] = {
    "pageable-copy": f"""\
# pageable-copy

Copies between the GPU and pageable host memory. The driver copies such memory through a pinned
buffer of its own, piece by piece, in the calling thread: the copy is slower than from pinned
memory, and cannot run beside other work that the thread would launch.

**Measured** on copies of more than {MAX_STAGED_BYTES // 1024} KiB that start in the window and
whose host memory is `Pageable` in the report. Smaller ones take microseconds, and reads of some
bytes (`loss.item()`) are host-sync's.

* `bytes`, `num_copies`: what was copied, in how many copies.
* `host_blocked_ns`: the durations of their API calls; null where the capture has none of them.
* `direction`: `h2d` or `d2h`, whichever carried more bytes.
* `gb_per_s`, `pinned_gb_per_s`: the rate in that direction of pageable copies, and of copies of
  pinned memory of more than {MAX_STAGED_BYTES // 1024} KiB (null where there were none).
* `coverage`: the share of such copies whose kinds of memory the report tells.

**The impact** is the time in which the GPU did nothing but these copies, or nothing at all while
the host was inside their calls.

**Severity** follows the impact's share of the window: info from 1 %, low from 3 %, medium from
10 %, high from 25 %.

**What to do**

{bullets(_ADVICE)}
""",
}
