"""Communication kernels by operation: how many, and how long they ran, waiting included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.trace import schema

if TYPE_CHECKING:
    from traceprof.findings import Finding, NotApplicable
    from traceprof.run import Rank, Window

IDS: tuple[str, ...] = ()
REQUIRES: tuple[schema.Table, ...] = (schema.KERNEL,)
EXPLANATIONS: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class OperationUse:
    """The communication kernels of one operation on one rank.

    Attributes:
        operation: as the kernel's name tells it; send and receive share one name.
        count: kernels that start in the window.
        total_ns: the sum of their durations, which include waiting for the last rank.
        median_ns: the median duration.
    """

    operation: str
    count: int
    total_ns: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class CollectivesResult:
    """The communication kernels of one rank, the longest-running operation first."""

    rank: int
    uses: tuple[OperationUse, ...]


def run(rank: Rank, window: Window) -> CollectivesResult:
    """Add up the communication kernels that start in the window."""
    kernels = rank.operations.kernels
    inside = (
        (kernels.start_ns >= window.start_ns)
        & (kernels.start_ns < window.end_ns)
        & rank.is_communication_kernel
    )
    names, durations = kernels.name[inside], (kernels.end_ns - kernels.start_ns)[inside]
    by_operation: dict[str, list[int]] = {}
    for name, operation in rank.communication_operations.items():
        by_operation.setdefault(operation, []).append(name)
    uses = []
    for operation, ids in by_operation.items():
        of_operation = durations[np.isin(names, np.array(ids, np.int64))]
        if len(of_operation):
            total, median = intervals.total(of_operation), int(np.median(of_operation))
            uses.append(OperationUse(operation, len(of_operation), total, median))
    uses.sort(key=lambda use: (-use.total_ns, use.operation))
    return CollectivesResult(rank.rank, tuple(uses))


def findings(result: CollectivesResult) -> list[Finding | NotApplicable]:
    """Claim nothing: a long collective may have waited, which one report cannot tell."""
    del result
    return []
