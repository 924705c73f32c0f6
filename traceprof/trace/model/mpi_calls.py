"""Calls of MPI that communicate; -1 stands for unknown values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record

if TYPE_CHECKING:
    from traceprof.intervals import Int64


class MpiCalls(Record, frozen=True):
    """The n calls of one process by which MPI communicates, ordered by start.

    A call that does not block, such as `MPI_Irecv`, lasts until the `MPI_Wait` for its request
    returns; without such a wait it lasts as long as it took itself.

    Attributes:
        start_ns: int64[n].
        blocked_ns: int64[n], when the host began to wait for it: the start of the call, or of the
            `MPI_Wait` for its request.
        end_ns: int64[n], not before `blocked_ns`; the largest int64 if it never ended.
        operation: int64[n], indices into `communication_calls.OPERATIONS`, after them a barrier.
        bytes: int64[n], of one rank's message as NCCL counts it; of a receive -1, since the size of
            its buffer is recorded.
        communicator: int64[n], indices into `communicators`.
        peer: int64[n], the other rank of a send or receive, in the world.
        root: int64[n], the root of a collective, in the world.
        tag: int64[n], of a send or receive.
        world_size: int64[n], the ranks of the communicator.
        communicators: names, equal on all members.
    """

    start_ns: Int64
    blocked_ns: Int64
    end_ns: Int64
    operation: Int64
    bytes: Int64
    communicator: Int64
    peer: Int64
    root: Int64
    tag: Int64
    world_size: Int64
    communicators: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


_NOTHING = np.empty(0, np.int64)
NO_MPI_CALLS = MpiCalls(
    *(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    *(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING),
    (),
)
