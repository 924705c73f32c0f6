"""Communication calls on the host; -1 and None stand for unknown values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import field

from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64

BARRIER = "Barrier"
OPERATIONS = (
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "AlltoAll",
    "Gather", "Scatter", "SendRecv", "Unknown",
)  # fmt: skip
"""Operations of calls; `CommunicationCalls.operation` has indices into them."""


class Fields(Record, frozen=True):
    """The facts of a range about its communication; None and -1 if unknown."""

    communicator: str | None = None
    bytes: int = -1
    peer: int = -1
    world_size: int = -1
    sequence: int = -1
    rank: int = -1
    description: str | None = None


NOTHING = Fields()


class CommunicationCalls(Record, frozen=True):
    """Calls of one process that communicate, ordered by thread, then start.

    In a *launch range* the host launches the operations of calls: the call's own range, or the
    `ncclGroupEnd` that closes the group, or a label around others (`batch_isend_irecv`). Launch
    ranges are ordered by thread, then start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 if the range was still open at the capture's end.
        thread: int64[n], the calling thread.
        operation: int64[n], indices into `OPERATIONS`.
        bytes: int64[n], one rank's message as NCCL counts it (the sent data in an AllGather, the
            received data in a ReduceScatter); -1 if unknown, as for all attributes below.
        communicator: int64[n], indices into `communicators`.
        peer: int64[n], of a send or receive: its rank in the communicator; in labels, in the world.
        world_size: int64[n], the ranks of the communicator.
        sequence: int64[n], the call's number in its group.
        launch_start_ns: int64[m].
        launch_end_ns: int64[m].
        launch_thread: int64[m].
        launch_parent: int64[m], the launch range around it, -1 for none.
        first_member: int64[m + 1], the beginning of the calls of each launch range in `members`.
        members: int64[k], indices of calls, in their order.
        communicators: NCCL's id in hexadecimal digits, or the name of PyTorch's group.
        descriptions: the user's descriptions of groups (`group_desc`), by name.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    operation: Int64
    bytes: Int64
    communicator: Int64
    peer: Int64
    world_size: Int64
    sequence: Int64
    launch_start_ns: Int64
    launch_end_ns: Int64
    launch_thread: Int64
    launch_parent: Int64
    first_member: Int64
    members: Int64
    communicators: tuple[str, ...]
    descriptions: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    def launch_ranges_of(self, start_ns: Int64, end_ns: Int64, thread: Int64) -> Int64:
        """Return the innermost launch range that holds each API call, int64[k], -1 for none.

        Args:
            start_ns: int64[k], of the calls.
            end_ns: int64[k], of their returns.
            thread: int64[k], their threads.
        """
        calls = np.full(len(start_ns), -1, np.int64)
        for number in distinct_values(self.launch_thread).tolist():
            first, stop = np.searchsorted(self.launch_thread, [number, number + 1]).tolist()
            here = np.flatnonzero(thread == number)
            starts = self.launch_start_ns[first:stop]
            at = np.searchsorted(starts, start_ns[here], side="right") - 1
            calls[here] = np.where(at >= 0, at + first, -1)
        # Leave ranges that were over before, for the one around them.
        while True:
            outside = np.flatnonzero(calls >= 0)
            outside = outside[self.launch_end_ns[calls[outside]] < end_ns[outside]]
            if len(outside) == 0:
                return calls
            calls[outside] = self.launch_parent[calls[outside]]


class ProcessCalls(NamedTuple):
    """The calls of one process.

    Attributes:
        nccl: NCCL's ranges.
        labelled: the labels of `instrument`.
        rank: the process's rank in NCCL's largest communicator; None if unknown.
    """

    nccl: CommunicationCalls
    labelled: CommunicationCalls
    rank: int | None = None


_NOTHING = np.empty(0, np.int64)
NO_CALLS = CommunicationCalls(
    start_ns=_NOTHING,
    end_ns=_NOTHING,
    thread=_NOTHING,
    operation=_NOTHING,
    bytes=_NOTHING,
    communicator=_NOTHING,
    peer=_NOTHING,
    world_size=_NOTHING,
    sequence=_NOTHING,
    launch_start_ns=_NOTHING,
    launch_end_ns=_NOTHING,
    launch_thread=_NOTHING,
    launch_parent=_NOTHING,
    first_member=np.zeros(1, np.int64),
    members=_NOTHING,
    communicators=(),
)
NO_PROCESS_CALLS = ProcessCalls(NO_CALLS, NO_CALLS)
