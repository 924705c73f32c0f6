"""Communication calls on the host; -1 and None stand for unknown values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import field

from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.labels import Label
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.special_values import MAX_BYTES, whole_number

BARRIER = "Barrier"
OPERATIONS = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "Broadcast",
    "Reduce",
    "Send",
    "Recv",
    "AlltoAll",
    "Gather",
    "Scatter",
    "SendRecv",
    "Unknown",
)
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


class CommunicationCalls(Rows, frozen=True):
    """Calls of one process that communicate, ordered by thread, then start.

    In a *launch range* the host launches the operations of calls: the call's own range, or the
    `ncclGroupEnd` that closes the group, or a label around others (`batch_isend_irecv`). Launch
    ranges are ordered by thread, then start.
    """

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]; the largest int64 if the range was still open at the capture's end
    thread: Int64  # int64[n], the calling thread
    operation: Int64  # int64[n], indices into `OPERATIONS`
    # int64[n], one rank's message as NCCL counts it (the sent data in an AllGather, the received
    # data in a ReduceScatter); -1 if unknown, as for all attributes below
    bytes: Int64
    communicator: Int64  # int64[n], indices into `communicators`
    # int64[n], of a send or receive: its rank in the communicator; in labels, in the world
    peer: Int64
    world_size: Int64  # int64[n], the ranks of the communicator
    sequence: Int64  # int64[n], the call's number in its group
    launch_start_ns: Int64  # int64[m]
    launch_end_ns: Int64  # int64[m]
    launch_thread: Int64  # int64[m]
    launch_parent: Int64  # int64[m], the launch range around it, -1 for none
    # int64[m + 1], the beginning of the calls of each launch range in `members`
    first_member: Int64
    members: Int64  # int64[k], indices of calls, in their order
    # NCCL's id in hexadecimal digits, or the name of PyTorch's group
    communicators: tuple[str, ...]
    # the user's descriptions of groups (`group_desc`), by name
    descriptions: Mapping[str, str] = field(default_factory=dict)

    def launch_ranges_of(self, start_ns: Int64, end_ns: Int64, thread: Int64) -> Int64:
        """Innermost launch range around each of k API calls, int64[k], -1 for none."""
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
    """The calls of one process."""

    nccl: CommunicationCalls  # NCCL's ranges
    labelled: CommunicationCalls  # the labels of `instrument`
    rank: int | None = None  # the process's rank in NCCL's largest communicator; None if unknown


NO_CALLS = CommunicationCalls(*(NO_NUMBERS,) * 13, np.zeros(1, np.int64), NO_NUMBERS, ())
NO_PROCESS_CALLS = ProcessCalls(NO_CALLS, NO_CALLS)


# Calls around others, each with a label of its own.
_CONTAINERS = {"batch_isend_irecv": "SendRecv", "coalesced": "Unknown"}
# Beginnings of the names of PyTorch's functions, the longer one first where one begins another:
# `all_gather_into_tensor`, `reduce_scatter_single` and `broadcast_object_list` among them.
_FUNCTIONS = (
    ("all_reduce", "AllReduce"),
    ("all_gather", "AllGather"),
    ("reduce_scatter", "ReduceScatter"),
    ("all_to_all", "AlltoAll"),
    ("broadcast", "Broadcast"),
    ("reduce", "Reduce"),
    ("isend", "Send"),
    ("send", "Send"),
    ("irecv", "Recv"),
    ("recv", "Recv"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
    ("barrier", BARRIER),
    ("monitored_barrier", BARRIER),
)
_UNKNOWN = NOTHING.bytes
_FACTS = {"bytes", "group", "seq", "dst", "src"}


class CallLabel(NamedTuple):
    """The facts about a call in its label."""

    operation: str  # in NCCL's spelling, `Barrier`, or `Unknown`
    is_container: bool  # whether it encloses calls that have labels of their own
    fields: Fields  # -1 and None if unknown. The peer is a rank of the world


def operation_of(function: str) -> str | None:
    """Operation of a function of PyTorch; None if it does not communicate."""
    word = function.lstrip("_")
    return next((operation for begin, operation in _FUNCTIONS if word.startswith(begin)), None)


def read_call(label: Label) -> CallLabel | None:
    """Facts in the label of a call; None if it is not communication."""
    facts = label.facts
    container = _CONTAINERS.get(label.operation)
    # A range of the user's own has no facts, whatever its name.
    if _FACTS.isdisjoint(facts) and container != "SendRecv":
        return None
    operation = container or operation_of(label.operation)
    if operation is None:
        if not {"bytes", "group"} <= facts.keys():
            return None
        operation = "Unknown"
    numbers = [number_of(facts.get(key)) for key in ("bytes", "size", "seq")]
    size, world_size, sequence = numbers
    if size >= MAX_BYTES:
        size = _UNKNOWN
    if operation == "AlltoAll" and size > 0 and world_size > 0:
        size //= world_size  # the label has the size for all ranks, NCCL counts that for one
    peer = number_of(facts.get("dst", facts.get("src")))
    fields = Fields(
        facts.get("group"), size, peer, world_size, sequence, description=facts.get("desc")
    )
    return CallLabel(operation, container is not None, fields)


def rank_of(labels: Iterable[Label]) -> int | None:
    """Rank of a process from the labels of its calls; None if they differ."""
    numbers = {
        number_of(label.facts.get("rank")) for label in labels if read_call(label) is not None
    }
    numbers.discard(_UNKNOWN)
    return numbers.pop() if len(numbers) == 1 else None


def number_of(text: str | None) -> int:
    """Number in a fact; -1 if there is none."""
    number = whole_number(text)
    return _UNKNOWN if number is None else number


class MpiCalls(Rows, frozen=True):
    """The n calls of one process by which MPI communicates, ordered by start.

    A call that does not block, such as `MPI_Irecv`, lasts until the `MPI_Wait` for its request
    returns; without such a wait it lasts as long as it took itself.
    """

    start_ns: Int64  # int64[n]
    # int64[n], when the host began to wait for it: the start of the call, or of the `MPI_Wait` for
    # its request
    blocked_ns: Int64
    end_ns: Int64  # int64[n], not before `blocked_ns`; the largest int64 if it never ended
    # int64[n], indices into `communication_calls.OPERATIONS`, after them a barrier
    operation: Int64
    # int64[n], of one rank's message as NCCL counts it; of a receive -1, since the size of its
    # buffer is recorded
    bytes: Int64
    communicator: Int64  # int64[n], indices into `communicators`
    peer: Int64  # int64[n], the other rank of a send or receive, in the world
    root: Int64  # int64[n], the root of a collective, in the world
    tag: Int64  # int64[n], of a send or receive
    world_size: Int64  # int64[n], the ranks of the communicator
    communicators: tuple[str, ...]  # names, equal on all members


NO_MPI_CALLS = MpiCalls(*(NO_NUMBERS,) * 10, ())
