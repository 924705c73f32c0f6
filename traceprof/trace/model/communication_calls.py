"""Who communicated what, as the host saw it: -1 and None are what a trace does not tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64

BARRIER = "Barrier"
OPERATIONS = (
    "AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Send", "Recv", "AlltoAll",
    "Gather", "Scatter", "SendRecv", "Unknown",
)  # fmt: skip
"""What a call does; `CommunicationCalls.operation` counts them."""


class Fields(NamedTuple):
    """What a range says of its communication; None and -1 where it does not."""

    communicator: str | None = None
    bytes: int = -1
    peer: int = -1
    world_size: int = -1
    sequence: int = -1
    rank: int = -1
    description: str | None = None


NOTHING = Fields()


@dataclass(frozen=True, slots=True)
class CommunicationCalls:
    """Calls of one process that communicate, ordered by thread, then start.

    A *launch range* is where the host launches what was called: the call's own range, or the
    `ncclGroupEnd` that closes the group, or a label around others (`batch_isend_irecv`). Launch
    ranges are ordered by thread, then start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n]; the largest int64 where the range was still open at the capture's end.
        thread: int64[n], the calling thread.
        operation: int64[n], indices into `OPERATIONS`.
        bytes: int64[n], one rank's message as NCCL counts it (what is sent in an AllGather,
            received in a ReduceScatter); -1 where unknown, as are all that follow.
        communicator: int64[n], indices into `communicators`.
        peer: int64[n], of a send or receive: its rank in the communicator; in labels, in the world.
        world_size: int64[n], the ranks of the communicator.
        sequence: int64[n], the call's number in its group.
        launch_start_ns: int64[m].
        launch_end_ns: int64[m].
        launch_thread: int64[m].
        launch_parent: int64[m], the launch range around it, -1 for none.
        first_member: int64[m + 1], where the calls of each launch range begin in `members`.
        members: int64[k], indices of calls, in their order.
        communicators: NCCL's id in hexadecimal digits, or the name of PyTorch's group.
        descriptions: of groups, by name, where the user gave one (`group_desc`).
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
            start_ns: int64[k], when the calls were entered.
            end_ns: int64[k], when they returned.
            thread: int64[k], their threads.
        """
        calls = np.full(len(start_ns), -1, np.int64)
        for number in np.unique(self.launch_thread).tolist():
            first, stop = np.searchsorted(self.launch_thread, [number, number + 1]).tolist()
            here = np.flatnonzero(thread == number)
            starts = self.launch_start_ns[first:stop]
            at = np.searchsorted(starts, start_ns[here], side="right") - 1
            calls[here] = np.where(at >= 0, at + first, -1)
        # Out of the ranges that were over before, into the one around them.
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
        rank: the process's rank in NCCL's largest communicator, None where no payload tells.
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
