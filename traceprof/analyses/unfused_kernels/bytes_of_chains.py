"""The bytes that a fused kernel still moves, where the shapes of operators say them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.launching_code import launching_code

if TYPE_CHECKING:
    import numpy.typing as npt

    from traceprof.analyses.unfused_kernels.chains import Chains
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank


def longer_by_bytes(rank: Rank, found: Chains) -> Int64:
    """Return how much longer than a chain's longest pass its bytes keep a fused kernel, int64[c].

    A fused kernel reads what the first kernel of the chain reads, and writes what the last one
    writes, in the time that these bytes take of those kernels: memory is what takes their time.
    Nothing is known of operators that launched several kernels, or whose shapes are not recorded.

    Args:
        rank: the rank.
        found: its chains.
    """
    operators = rank.trace.operators(rank.process)
    if operators is None or len(operators.work) == 1 or not len(found.first):
        return np.zeros(len(found.first), np.int64)
    order = np.argsort(found.kernel)
    code = launching_code(rank, found.kernel[order])
    if code is None:
        return np.zeros(len(found.first), np.int64)
    operator = np.empty(len(order), np.int64)
    operator[order] = code.innermost
    count = np.bincount(operator + 1)
    length = rank.operations.kernels.packed_length.at(found.kernel)

    def spent(kernel: Int64, part: Int64) -> npt.NDArray[np.float64]:
        """Return the time that a part of the bytes takes of kernels, 0 where that is unknown."""
        of = operator[kernel]
        is_known = (of >= 0) & (count[of + 1] == 1) & (code.moved[of] > 0)
        share = part[of] / np.maximum(code.moved[of], 1)
        return np.where(is_known, share * length[kernel], 0.0)

    last = found.first + found.count - 1
    least = spent(found.first, code.read) + spent(last, code.moved - code.read)
    return np.clip(least - (found.total_ns - found.saved_ns), 0, found.saved_ns).astype(np.int64)
