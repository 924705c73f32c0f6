"""An independent reference for `overlap-slowdown`, for tests only.

It shares no code with ``traceprof``: plain lists and dictionaries, `statistics` and fractions.
Kernels count that start in the window [start, end), or in [start, end] where it is the rank's own.

Kernels are compared with those at the same place, where `units` says when steps, or passes taken in
place of them, begin on the host: the n-th of its signature by launch in a unit that launches as
many of them. Overlapped kernels at other places are not compared.

A kernel is judged, alone or overlapped, only if no other compute on the device
(kernels and whole graphs of the rank, also those outside the window, and of other processes whose
device has the same uuid) ran during it. Touching is not beside; a
kernel without length has nothing beside it. What is disturbed stays in `num_beside`, `num_half` and
`half_ns`, of which `matched_fraction` is a share, and counts nowhere else.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

from tests.reference.nsight_export import COMMUNICATION, opened, rows
from tests.reference.spans import Span, covered, length, union
from tests.reference.streams import read

_GROUPS = {
    ("KERNEL", False): "kernels", ("KERNEL", True): "communication", ("MEMCPY", False): "copies",
    ("MEMCPY", True): "peers", ("MEMSET", False): "copies", ("GRAPH_TRACE", False): "graphs",
}  # fmt: skip
"""By the table of an operation, and whether it communicates."""


@dataclass(frozen=True)
class Rank:
    """Everything that the analysis counts, sums and compares for one rank."""

    num_communication: int
    num_beside: int
    num_half: int
    half_ns: int
    half_wall_ns: int
    num_disturbed: int  # of num_half, those beside other compute: not judged
    num_overlapped: int
    num_alone: int
    overlapped_ns: int
    expected_ns: Fraction
    expected_at_least_ns: Fraction
    expected_at_most_ns: Fraction
    noise_ns: float
    wall_excess_ns: int
    hidden_ns: int
    num_sms_taken: int | None
    max_sms_taken: int | None
    signatures: dict[tuple[Any, ...], tuple[int, int, Fraction, Fraction, Fraction]]

    @property
    def slowdown(self) -> float:
        return float(self.overlapped_ns / self.expected_ns) if self.expected_ns else 0.0

    @property
    def excess_ns(self) -> Fraction:
        return self.overlapped_ns - self.expected_ns

    @property
    def matched_fraction(self) -> float:
        return self.overlapped_ns / self.half_ns if self.half_ns else 0.0


def beside_others(spans: list[Span]) -> set[Span]:
    """Which spans have another one beside them: more of them begin before one ends than have ended.

    Equal spans are beside each other.
    """
    lasting = [(start, end) for start, end in spans if end > start]
    starts = sorted(start for start, _ in lasting)
    ends = sorted(end for _, end in lasting)
    return {
        (start, end)
        for start, end in lasting
        if bisect_left(starts, end) - bisect_right(ends, start) > 1
    }


def reference(
    path: Path, window: Span | None = None, *, units: dict[int, list[int]]
) -> dict[tuple[int, int], Rank]:
    """What the analysis must find for each (process, device) of an export."""
    ranks: dict[tuple[int, int], dict[str, list[Any]]] = {}
    for of_rank in read(path):
        groups = ranks[of_rank.process, of_rank.device] = defaultdict(list)
        for op in of_rank.operations:
            launch = op.call.start if op.call else None
            group = _GROUPS[op.table, op.kind == COMMUNICATION]
            groups[group].append((op.start, op.end, (op.name, *op.shape), launch))
    with opened(path) as (db, _):
        devices = "TARGET_INFO_CUDA_DEVICE"
        uuids = {row[:2]: row[2] for row in rows(db, devices, "pid", "cudaId", "uuid") if row[2]}
    gpus = {key: uuids.get((key[0] >> 24 & 0xFFFFFF, key[1])) for key in ranks}
    others: dict[tuple[int, int], list[Span]] = {
        key: [
            operation[:2]
            for other, group in ranks.items()
            if other != key and gpus[key] is not None and gpus[other] == gpus[key]
            for operation in (*group["kernels"], *group["graphs"])
        ]
        for key in ranks
    }
    return {
        key: rank(operations, window, others[key], units.get(key[0]))
        for key, operations in ranks.items()
    }


def in_places(kernels: list[Any], units: list[int]) -> dict[int, tuple[int, int]]:
    """The place of each kernel whose launch is known, by its index: its number, and of how many."""
    launched = defaultdict(list)
    for index, (start, _, signature, launch) in enumerate(kernels):
        unit = -1 if launch is None else bisect_right(units, launch) - 1
        if unit >= 0:
            launched[unit, signature].append((launch, start, index))
    return {
        index: (number, len(group))
        for group in launched.values()
        for number, (_, _, index) in enumerate(sorted(group))
    }


def of_signature(
    beside: list[tuple[Span, Any]], alone: dict[Any, list[int]]
) -> tuple[int, list[Fraction], float, list[tuple[Span, int]]]:
    """Compare the overlapped kernels of a signature with those alone, by place.

    Returns how many alone they were compared with, what those compared take alone in three ways
    (median, at least, at most), the variance of that, and by how much each is longer at least.
    """
    num_alone, variance = 0, 0.0
    ways = [Fraction(0)] * 3
    compared: list[tuple[Span, int]] = []
    for place in {place for _, place in beside}:
        usual = sorted(alone.get(place, []))
        if len(usual) < 3:
            continue
        spans = [span for span, at in beside if at == place]
        median = statistics.median([Fraction(duration) for duration in usual])
        mean = Fraction(sum(usual), len(usual))
        quartile = next(
            duration for index, duration in enumerate(usual) if 4 * index >= 3 * len(usual) - 3
        )
        expectations = median, max(median, mean), max(Fraction(quartile), mean)
        ways = [sum_ + value * len(spans) for sum_, value in zip(ways, expectations, strict=True)]
        num_alone += len(usual)
        variance += float(statistics.variance([Fraction(duration) for duration in usual])) * (
            len(spans) + len(spans) ** 2 / len(usual)
        )
        compared += [((start, end), max(int(end - start - median), 0)) for start, end in spans]
    return num_alone, ways, variance, compared


def rank(
    operations: dict[str, list[Any]],
    window: Span | None,
    others: list[Span],
    units: list[int] | None,
) -> Rank:
    """What the analysis must find for a rank's operations, (start, end, signature) each."""
    communication_kernels, kernels = operations["communication"], operations["kernels"]
    peers, graphs = operations["peers"], operations["graphs"]
    every = [operation for group in operations.values() for operation in group]
    low = min(operation[0] for operation in every)
    high = max(operation[1] for operation in every) + 1  # an instant at the very end is inside
    low, high = window or (low, high)

    def inside(group: list[Any]) -> list[Any]:
        return [operation for operation in group if low <= operation[0] < high]

    busy = union([operation[:2] for operation in (*communication_kernels, *peers)])
    computing = union([operation[:2] for operation in (*kernels, *graphs)])
    computes = [operation[:2] for operation in (*kernels, *graphs)]
    disturbed = beside_others([*computes, *others])
    alone: dict[Any, list[int]] = defaultdict(list)
    overlapped: dict[Any, list[tuple[Span, Any]]] = defaultdict(list)
    halves: list[Span] = []
    num_disturbed = 0
    num_beside = sum(covered(busy, start, end) > 0 for start, end, *_ in inside(graphs))
    place_of = {} if units is None else in_places(kernels, units)
    for index, (start, end, signature, _) in enumerate(kernels):
        if not low <= start < high:
            continue
        place = (0, 0) if units is None else place_of.get(index)
        beside = covered(busy, start, end)
        num_beside += beside > 0
        judged = (start, end) not in disturbed
        if beside == 0:
            if judged and place:
                alone[signature, place].append(end - start)
        elif 2 * beside >= end - start:
            halves.append((start, end))
            num_disturbed += not judged
            if judged:
                overlapped[signature].append(((start, end), place))
    result: dict[tuple[Any, ...], tuple[int, int, Fraction, Fraction, Fraction]] = {}
    expected, took, at_least, at_most, variance = Fraction(0), 0, Fraction(0), Fraction(0), 0.0
    tails: list[Span] = []
    for signature, kernels_beside in overlapped.items():
        num_alone, sums, error, compared = of_signature(
            kernels_beside, {at: ns for (of, at), ns in alone.items() if of == signature}
        )
        if not compared:
            continue
        lengths = sum(end - start for (start, end), _ in compared)
        took += lengths
        expected, at_least, at_most = expected + sums[0], at_least + sums[1], at_most + sums[2]
        variance += error
        tails += [(end - excess, min(end, high)) for (_, end), excess in compared]
        num = len(compared)
        result[signature] = (
            num_alone, num, sums[0] / num, Fraction(lengths, num), lengths - sums[0]
        )  # fmt: skip
    grids = sorted(
        signature[1]
        for _, _, signature, _ in inside(communication_kernels)
        if signature[1] is not None and signature[1] > 0
    )
    return Rank(
        num_communication=len(inside(communication_kernels)) + len(inside(peers)),
        num_beside=num_beside,
        num_half=len(halves),
        half_ns=sum(end - start for start, end in halves),
        half_wall_ns=length(union((start, min(end, high)) for start, end in halves)),
        num_disturbed=num_disturbed,
        num_overlapped=sum(count for _, count, *_ in result.values()),
        num_alone=sum(count for count, *_ in result.values()),
        overlapped_ns=took,
        expected_ns=expected,
        expected_at_least_ns=at_least,
        expected_at_most_ns=at_most,
        noise_ns=variance**0.5,
        wall_excess_ns=max(
            min(length(union(tails)), round(took - expected), floor(took - at_least)), 0
        ),
        hidden_ns=sum(covered(busy, max(start, low), min(end, high)) for start, end in computing),
        num_sms_taken=statistics.median_low(grids) if grids else None,
        max_sms_taken=grids[-1] if grids else None,
        signatures=result,
    )
