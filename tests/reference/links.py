"""An independent reference for the analyses of links, for tests only: plain Python, row by row.

Times are ns of the file's own clock. Copies count by their start in [start, end] of the rank's own
window; exposed is what copies (or communication) cover and compute does not, nor, for copies,
communication. Samples are clipped to the window.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.reference.nsight_export import COMMUNICATION, COMPUTE, Key, Operation, export_of
from tests.reference.spans import Span, length, union, without
from tests.reference.streams import Rank, read

H2D, D2H = {1, 3, 11}, {2, 4, 12}
DEVICE, PINNED = {2, 3, 5}, 1
FOUR_MIB = 4 << 20


def covered(spans: Iterable[Span]) -> int:
    return length(union(spans))


def left_over(spans: Iterable[Span], hiding: Iterable[Span]) -> int:
    return length(without(union(spans), union(hiding)))


def _copies(rank: Rank) -> list[Operation]:
    return [op for op in rank.operations if op.table == "MEMCPY"]


def reference_copies(path: Path) -> dict[Key, dict[str, Any]]:
    """By (globalPid, device): uses, host copies, exposed and big copies of each direction."""
    result = {}
    for rank in read(path):
        hiding = [(op.start, op.end) for op in rank.of_kind(COMPUTE, COMMUNICATION)]
        groups: dict[Any, list[Operation]] = defaultdict(list)
        for copy in _copies(rank):
            kind, (source, target) = copy.copy_kind, copy.devices
            if copy.kind == COMMUNICATION:
                others = {target if source == rank.device else source} - {rank.device}
                groups["p2p", others.pop() if others else None].append(copy)
            elif kind in H2D | D2H | {5, 6, 7, 8, 13}:
                way = "h2d" if kind in H2D else "d2h" if kind in D2H else "d2d"
                groups[way, None].append(copy)
        out: dict[str, Any] = {"uses": {}, "exposed": {}, "big": {}}
        for (way, peer), some in groups.items():
            spans = [copy[:2] for copy in some]
            total = sum(max(copy.bytes, 0) for copy in some)
            out["uses"][way, peer] = (total, covered(spans), len(some))
            if way not in {"h2d", "d2h"}:
                continue
            out["exposed"][way] = left_over(spans, hiding)
            host, device = (0, 1) if way == "h2d" else (1, 0)
            big = [
                copy
                for copy in some
                if copy.memory
                and copy.memory[host] == PINNED
                and copy.memory[device] in DEVICE
                and copy.bytes >= FOUR_MIB
            ]
            spans = [copy[:2] for copy in big]
            if big:
                total = sum(copy.bytes for copy in big)
                out["big"][way] = (total, covered(spans), len(big), left_over(spans, hiding))
        result[rank.process, rank.device] = out
    return result


def reference_staged(path: Path) -> dict[Key, tuple[int, int, int, int]]:
    """By (globalPid, device): copies sent through the host, bytes, union of legs, pairs."""
    legs = {
        (rank.process, rank.device): [
            copy
            for copy in _copies(rank)
            if copy.memory and {*copy.memory} <= DEVICE and copy.copy_kind in H2D | D2H
        ]
        for rank in read(path)
    }
    result = {}
    for key, own in legs.items():
        others = [
            copy
            for other, some in legs.items()
            if other[0] == key[0] and other != key
            for copy in some
        ]
        first = [copy for copy in own if copy.copy_kind in D2H]
        sent = {copy.correlation for copy in first}
        landing = [copy for copy in others if copy.copy_kind in H2D and copy.correlation in sent]
        landed = {copy.correlation for copy in landing}
        if first:
            result[key] = (
                len(first),
                sum(copy.bytes for copy in first),
                covered(copy[:2] for copy in first + landing),
                sum(copy.correlation in landed for copy in first),
            )
    return result


METRICS = {
    ("nvlink", "tx"): ["NVLink TX Requests User Data", "NVLink TX Responses User Data"],
    ("nvlink", "rx"): ["NVLink RX Requests User Data", "NVLink RX Responses User Data"],
    ("pcie", "tx"): ["PCIe TX Throughput"],
    ("pcie", "rx"): ["PCIe RX Throughput"],
}


def reference_series(path: Path) -> dict[tuple[int, str, str], list[tuple[int, int, int]]]:
    """By (GPU, link, direction): start, end and value of each period."""
    export = export_of(path)
    ids = {
        (kind, name.removesuffix(" [Throughput %]")): metric
        for kind, metric, name in export.rows(
            "TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName"
        )
    }
    samples: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for time, kind, metric, value in export.rows(
        "GPU_METRICS", "timestamp", "typeId", "metricId", "value"
    ):
        if time is not None and value is not None and time >= 0 and 0 <= value <= 100:
            samples[kind, metric][time] = max(samples[kind, metric].get(time, -1), value)
    result = {}
    for kind in {kind for kind, _ in ids}:
        for (link, direction), names in METRICS.items():
            of_names = [samples[kind, ids[kind, name]] for name in names if (kind, name) in ids]
            of_names = [by_time for by_time in of_names if by_time]
            times = sorted(set.intersection(*map(set, of_names))) if of_names else []
            if len(times) < 2:
                continue
            steps = [after - before for before, after in pairwise(times)]
            usual = sorted(steps)[len(steps) // 2]
            periods = [usual] + [step if step <= 2 * usual else usual for step in steps]
            result[kind & 255, link, direction] = [
                (time - period, time, sum(by_time[time] for by_time in of_names))
                for time, period in zip(times, periods, strict=True)
            ]
    return result


def reference_integral(
    periods: list[tuple[int, int, int]], window: Span, busy: list[Span], skip_idle: bool
) -> tuple[int, int, int, int, int]:
    """Samples, covered, covered with traffic, sum of value times length, idle spikes."""
    busy = union(busy)
    starts = [start for start, _ in busy]
    clipped, spikes = [], 0
    for start, end, value in periods:
        low, high = max(start, window[0]), min(end, window[1])
        if high <= low:
            continue
        at = bisect_right(starts, end - 1) - 1
        runs = at >= 0 and busy[at][1] > start
        if skip_idle and value >= 90 and not runs:
            spikes += 1
            continue
        clipped.append((high - low, value))
    return (
        len(clipped),
        sum(size for size, _ in clipped),
        sum(size for size, value in clipped if value > 0),
        sum(size * value for size, value in clipped),
        spikes,
    )
