"""An independent reference for `few-blocks`, for tests only: plain loops over plain lists.

Shares no code with ``traceprof``. Between two times at which a compute kernel begins or ends, the
same ones run. Counted is the time in which all that run have a known grid, and fewer blocks
together than the GPU has SMs, each at most half as many, and one of them takes 10 us or more.
"""

from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

from tests.reference.nsight_export import COMPUTE, Export, Operation

LONG_NS = 10_000


class FewBlocks(NamedTuple):
    kernel_ns: int
    unused_ns: int
    num_kernels: int


def blocks_of(op: Operation) -> int | None:
    """Return the blocks of a kernel, None where they are not known."""
    grid = [size for size in op.shape[:3] if size is not None and size > 0]
    return prod(grid) if len(grid) == 3 else None


def few_blocks(path: Path, num_sms: int) -> dict[tuple[int, int], FewBlocks]:
    """Return the same as the analysis of each rank of an export, over its whole window."""
    return {rank: _of_rank(ops, num_sms) for rank, ops in Export(path).ranks.items()}


def _of_rank(operations: list[Operation], num_sms: int) -> FewBlocks:
    computes = [op for op in operations if op.kind == COMPUTE and op.end > op.start]
    few = [op for op in computes if 2 * (blocks_of(op) or num_sms) <= num_sms]
    times = sorted({time for op in computes for time in (op.start, op.end)})
    begins = sorted(computes, key=lambda op: op.start)
    kernel_ns, unused, place = 0, 0, 0
    running: list[Operation] = []
    for start, end in pairwise(times):
        running = [op for op in running if op.end > start]
        while place < len(begins) and begins[place].start <= start:
            running.append(begins[place])
            place += 1
        blocks = sum((blocks_of(op) or num_sms) if op in few else num_sms for op in running)
        if blocks < num_sms and any(op.end - op.start >= LONG_NS for op in running):
            kernel_ns += end - start
            unused += (end - start) * (num_sms - blocks)
    is_long = [op.end - op.start >= LONG_NS for op in few]
    return FewBlocks(kernel_ns, unused // num_sms, sum(is_long))
