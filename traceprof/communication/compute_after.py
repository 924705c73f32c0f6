"""The next compute after a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank


class ComputeAfter(Record, frozen=True):
    """The next compute after some times, int64[n] each; -1 if there is none.

    Attributes:
        index: into all operations of the rank, its groups joined.
        stream: the stream on which it ran.
        launch_ns: when the call that launched it returned, -1 if that is not in the capture.
    """

    index: Int64
    stream: Int64
    launch_ns: Int64


def compute_after(rank: Rank, times_ns: Int64, stream: Int64) -> ComputeAfter:
    """Return the compute that starts first at or after each time.

    Of several that start at once, it is one on the stream given, else the one that ends first.

    Args:
        rank: a rank with a GPU.
        times_ns: int64[n].
        stream: int64[n].
    """
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    chosen = np.flatnonzero(~rank.is_communication_kernel)
    start = kernels.start_ns.take(chosen)
    if len(graphs):
        chosen = np.concatenate(
            (chosen, np.arange(len(graphs)) + len(rank.operations) - len(graphs))
        )
        end = np.concatenate((kernels.ends(chosen[: len(start)]), graphs.end_ns))
        start = np.concatenate((start, graphs.start_ns))
        order = np.lexsort((end, start))
        chosen, start = chosen[order], start[order]
    first = np.searchsorted(start, times_ns, side="left")
    operations = np.full(len(times_ns), -1, np.int64)
    is_one = first < len(start)
    operations[is_one] = chosen[first[is_one]]
    at = np.flatnonzero(is_one)
    num = np.searchsorted(start, start[first[at]], side="right") - first[at]
    at, num = at[num > 1], num[num > 1]
    if len(at):
        which = np.repeat(np.arange(len(at)), num)
        place = np.arange(len(which)) - np.repeat(np.cumsum(num) - num, num) + first[at][which]
        on_stream = np.flatnonzero(_streams(rank, chosen[place]) == stream[at][which])
        which, first_one = np.unique(which[on_stream], return_index=True)
        operations[at[which]] = chosen[place[on_stream[first_one]]]
    return ComputeAfter(operations, _streams(rank, operations), _launched(rank, operations))


def _streams(rank: Rank, index: Int64) -> Int64:
    """Return the streams of kernels and graphs, int64[n]; -1 if the index is -1."""
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    stream = np.full(len(index), -1, np.int64)
    is_kernel = (index >= 0) & (index < len(kernels))
    stream[is_kernel] = kernels.packed_stream.at(index[is_kernel])
    is_graph = index >= len(kernels)
    if is_graph.any():
        first = len(rank.operations) - len(graphs)
        stream[is_graph] = graphs.packed_stream.at(index[is_graph] - first)
    return stream


def _launched(rank: Rank, index: Int64) -> Int64:
    """Return when the launches of kernels and graphs returned, int64[n]; -1 if unknown."""
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    call = np.full(len(index), -1, np.int64)
    is_kernel = (index >= 0) & (index < len(kernels))
    call[is_kernel] = rank.launched_by[0][index[is_kernel]]
    is_graph = index >= len(kernels)
    call[is_graph] = rank.launched_by[3][index[is_graph] - (len(rank.operations) - len(graphs))]
    launch = np.full(len(index), UNKNOWN, np.int64)
    if rank.calls is not None:
        launch[call >= 0] = rank.calls.ends(call[call >= 0])
    return launch
