"""An independent reference for `unified-memory`, for tests only: plain loops over plain lists.

Shares no code with ``traceprof``. Kernels compute while pages move to the GPU (copy kind 11, no
call) that no earlier call of the process prefetched.
"""

import re
from pathlib import Path
from typing import NamedTuple

from tests.reference.breakdown import COMPUTE
from tests.reference.nsight_export import Export
from tests.reference.spans import Span, both, length, union

PAGE_TO_GPU = 11  # copy kind
_PREFETCH = re.compile("cuMemPrefetch|cudaMemPrefetch|hipMemPrefetch")


class UnifiedMemory(NamedTuple):
    moving_ns: int
    kernel_ns: int
    num_kernels: int
    num_moves: int


def unified_memory(path: Path) -> dict[tuple[int, int], UnifiedMemory]:
    """Return the same as the analysis of each rank of an export, over its whole window."""
    export = Export(path)
    answers = {}
    for (process, device), operations in export.ranks.items():
        calls = export.calls.get(process, [])
        first = min((call.start for call in calls if _PREFETCH.match(call.name)), default=None)
        moves: list[Span] = [
            (op.start, op.end)
            for op in operations
            if op.copy_kind == PAGE_TO_GPU
            and op.call is None
            and (first is None or op.start < first)
        ]
        computing = [op for op in operations if op.kind == COMPUTE]
        spans = union((op.start, op.end) for op in computing)
        waits = both(union(moves), spans)
        kernels: list[Span] = [
            (op.start, op.end)
            for op in computing
            if op.name is not None and both([(op.start, op.end)], waits)
        ]
        beside = [move for move in moves if both([move], waits)]
        answers[process, device] = UnifiedMemory(
            length(waits), length(union(kernels)), len(kernels), len(beside)
        )
    return answers
