"""Kernels that ran beside other compute on their device, which may have slowed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.intervals import Int64, Mask
    from traceprof.run.opening import Rank


def beside_other_compute(rank: Rank) -> Mask:
    """Return beside which kernels of the rank other compute ran on the device, bool[kernels].

    Kernels and whole graphs of the rank, and of other processes on the same GPU, if there are some.
    Touching is not beside, and a kernel without length has nothing beside it.
    """
    return rank.cache.get(_beside_other_compute, rank)


def _beside_other_compute(rank: Rank) -> Mask:
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    computing = np.flatnonzero(~rank.is_communication_kernel)
    start = [kernels.start_ns.take(computing), graphs.start_ns]
    end = [kernels.ends(computing), graphs.end_ns]
    for start_ns, end_ns in _other_processes_compute(rank):
        start.append(start_ns)
        end.append(end_ns)
    is_beside = np.zeros(len(kernels), np.bool_)
    if len(start) == 2 and not len(graphs):
        is_beside[computing] = share_time(start[0], end[0])
    else:
        disturbed = share_time(np.concatenate(start), np.concatenate(end))
        is_beside[computing] = disturbed[: len(computing)]
    return is_beside


def _other_processes_compute(rank: Rank) -> Iterator[tuple[Int64, Int64]]:
    """Yield start and end of what other processes computed on the GPU of the rank."""
    if rank.gpu_id is None:
        return
    for key, operations in rank.trace.operations.items():
        if key == rank.key or rank.trace.gpu_id(key) != rank.gpu_id:
            continue
        kernels = operations.kernels
        computes = np.flatnonzero(~kernels.are_named(rank.communication_operations))
        yield kernels.start_ns[computes], kernels.ends(computes)
        yield operations.graphs.start_ns, operations.graphs.end_ns
        operations.release()


def share_time(start_ns: Int64, end_ns: Int64) -> Mask:
    """Return which intervals share time with another one, bool[n].

    Args:
        start_ns: int64[n], in any order.
        end_ns: int64[n], each not before its start.
    """
    is_beside = np.zeros(len(start_ns), np.bool_)
    lasting: Int64 | slice = slice(None)
    if (end_ns <= start_ns).any():
        lasting = np.flatnonzero(end_ns > start_ns)
        start_ns, end_ns = start_ns[lasting], end_ns[lasting]
    if len(start_ns) < 2:
        return is_beside
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
        lasting = order if isinstance(lasting, slice) else lasting[order]
    # Of those that started before, one may still run; of those that start later, the next one does
    # so first.
    overlaps = np.zeros(len(start_ns), np.bool_)
    np.less(start_ns[1:], end_ns[:-1], out=overlaps[:-1])
    overlaps[1:] |= start_ns[1:] < np.maximum.accumulate(end_ns)[:-1]
    is_beside[lasting] = overlaps
    return is_beside
