"""An independent reference for the table of kernels and `full-precision-matmul`, for tests only.

Plain dictionaries and `statistics`; of ``traceprof`` it takes only what names mean, which it is
given as functions. Kernels count that start in [start, end), or in [start, end] where it is the
rank's own.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.reference.nsight_export import COMMUNICATION
from tests.reference.spans import length, union
from tests.reference.streams import read

Row = tuple[int, int, int]
"""How many, the sum of their durations, and the median, rounded down."""
Kernel = tuple[int, int, str, bool]


def kernels_of(path: Path) -> dict[tuple[int, int], list[Kernel]]:
    """Start, end, name and whether it communicates, of each kernel by (process, device)."""
    return {
        (rank.process, rank.device): [
            (op.start, op.end, op.name or "", op.kind == COMMUNICATION)
            for op in rank.operations
            if op.table == "KERNEL"
        ]
        for rank in read(path)
    }


def table(kernels: list[Kernel], low: int, high: int) -> dict[str, Row]:
    """What the table must hold of kernels that start in [low, high)."""
    lengths: dict[str, list[int]] = defaultdict(list)
    for start, end, name, _ in kernels:
        if low <= start < high:
            lengths[name].append(end - start)
    return {
        name: (len(of_name), sum(of_name), int(statistics.median(of_name)))
        for name, of_name in lengths.items()
    }


def full_precision(
    kernels: list[Kernel], window: tuple[int, int], is_slow: Callable[[str], bool]
) -> tuple[int, int, int]:
    """Time of slow kernels and of all that compute in a window, and the number of slow ones."""
    low, high = window

    def measure(chosen: list[Kernel]) -> int:
        clipped = [(max(start, low), min(end, high)) for start, end, *_ in chosen]
        return length(union([span for span in clipped if span[0] < span[1]]))

    compute = [kernel for kernel in kernels if not kernel[3]]
    slow = [kernel for kernel in compute if is_slow(kernel[2])]
    return measure(slow), measure(compute), len(slow)
