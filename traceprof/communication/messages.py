"""Messages of a rank's communication kernels, from their calls on the host: size, peer, group.

A kernel is linked to the calls whose launch range (see `CommunicationCalls`) holds its own launch.
NCCL launches a group as one kernel for each communicator; if an export leaves open which calls a
kernel belongs to, only what all these calls agree on is known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import field

from traceprof import intervals
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.patterns import lazy
from traceprof.structs import Record
from traceprof.trace.columns import Column, pack
from traceprof.trace.grouping import is_in
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Spans, Window
    from traceprof.trace.model.communication_calls import CommunicationCalls

FROM_ROOT, TO_ROOT = ("Broadcast", "Scatter"), ("Reduce", "Gather")
ROOTED = (*FROM_ROOT, *TO_ROOT)
"""Operations from one rank to all others, or from all others to one."""
EXCHANGE = "SendRecv"
"""The name of NCCL's kernels for a send, a receive, or both together."""
ONE_SIDED = ("Send", "Recv")
"""The two sides of an exchange, where calls distinguish them."""
BETWEEN_TWO = (EXCHANGE, *ONE_SIDED)
SENDS, RECEIVES = 1, 2
"""Bits of the direction of a message."""
_COMPOSED = ("AlltoAll", "Gather", "Scatter")
EXCHANGES = (*BETWEEN_TWO, *_COMPOSED)
"""Operations that NCCL makes of sends and receives: their kernels have one name."""


class Messages(Record, frozen=True):
    """Communication kernels of one rank in order of start; -1 is unknown."""

    kernel: Int64  # int64[n], indices into the rank's kernels
    operation: Int64  # int64[n], indices into `operations`
    has_call: Mask  # bool[n], whether a call of NCCL's or a label that launched it was found
    called_ns: Int64  # int64[n], when the launching call began; -1 if the capture has none
    launch_ns: Int64  # int64[n], when that call returned; -1 if the capture has none
    # int64[n], as NCCL counts a message: what one rank sends in an AllGather, receives in a
    # ReduceScatter; of sends and receives, the larger direction
    bytes: Int64
    communicator: Int64  # int64[n], indices into `communicators`, from NCCL's records
    group: Int64  # int64[n], indices into `groups`, from labels
    peer: Int64  # int64[n], the only other rank of a send or receive, from labels (in the world)
    # int64[n], the rank that all others send to or receive from, from labels (in the world)
    root: Int64
    # int64[n], the only other rank of a send or receive, from NCCL's records (in the communicator)
    peer_in_communicator: Int64
    direction: Int64  # int64[n], 1 sends, 2 receives, 3 both
    world_size: Int64  # int64[n], the number of ranks that take part
    sequence: Int64  # int64[n], the call's number in its group, from labels
    operations: tuple[str, ...]  # names, from kernel names, or from calls where these say more
    communicators: tuple[str, ...]  # NCCL's ids in hexadecimal digits, equal on all ranks
    groups: tuple[str, ...]  # names of PyTorch's process groups
    # descriptions of these groups by name, where the user gave one
    descriptions: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kernel)

    def communicator_name(self, index: int) -> str | None:
        """Return the communicator of a message: NCCL's id, else PyTorch's group, else None."""
        if self.communicator[index] >= 0:
            return self.communicators[int(self.communicator[index])]
        if self.group[index] >= 0:
            return f"group {self.groups[int(self.group[index])]}"
        return None

    def description(self, index: int) -> str | None:
        """Return the user's description of a message's group; None if that is unknown."""
        group = int(self.group[index])
        return self.descriptions.get(self.groups[group]) if group >= 0 else None

    def readable_communicator(self, index: int) -> str | None:
        """Return the communicator's name for people: the group's name before NCCL's id."""
        if self.group[index] >= 0:
            return f"group {self.groups[int(self.group[index])]}"
        name = self.communicator_name(index)
        return name and f"communicator {name}"

    def peer_text(self, index: int) -> str:
        """Return ` to 2`, ` from 0` or ` with 1`; empty if there is no single known peer."""
        peer = self.peer[index] if self.peer[index] >= 0 else self.peer_in_communicator[index]
        if peer < 0 or self.direction[index] < 0:
            return ""
        return f" {('to', 'from', 'with')[int(self.direction[index]) - 1]} {peer}"


def messages(rank: Rank) -> Messages:
    """Return the messages of a rank's communication kernels; found once for each rank."""
    return rank.cache.get(_read, rank)


def _read(rank: Rank) -> Messages:
    kernel = np.flatnonzero(rank.is_communication_kernel)
    names = (*OPERATIONS, *sorted({*rank.communication_operations.values()} - {*OPERATIONS}))
    number = {name: index for index, name in enumerate(names)}
    ids = np.array(sorted(rank.communication_operations), np.int64)
    of_id = [number[rank.communication_operations[name]] for name in ids.tolist()]
    at = np.searchsorted(ids, rank.operations.kernels.name[kernel])
    operation = np.array(of_id, np.int64)[at]

    calls, launched_by = rank.calls, rank.launched_by[0][kernel]
    known = launched_by >= 0
    start, end, thread = (np.full(len(kernel), UNKNOWN, np.int64) for _ in range(3))
    if calls is not None:
        launching = launched_by[known]
        start[known], end[known] = calls.start_ns[launching], calls.ends(launching)
        thread[known] = calls.packed_thread.at(launching)
    known_calls = rank.trace.communication_calls(rank.process)
    order = np.argsort(start, kind="stable")
    nccl, labelled = (
        _facts(
            source, operation, source.launch_ranges_of(start, end, thread), order, rank.num_devices
        )
        for source in (known_calls.nccl, known_calls.labelled)
    )
    by_call = _first_known(nccl.operation, labelled.operation)
    operation = np.where(operation != _ANY, operation, by_call)
    function = _first_known(nccl.function, labelled.function)
    # The kernel of a composed operation has the name of its parts.
    operation = np.where((operation == _EXCHANGE) & _IS_COMPOSED[function], function, operation)
    return Messages(
        kernel=kernel,
        operation=np.where(operation >= 0, operation, _ANY),
        has_call=(nccl.operation != UNKNOWN) | (labelled.operation != UNKNOWN),
        called_ns=start,
        launch_ns=end,
        bytes=_first_known(nccl.bytes, labelled.bytes),
        communicator=nccl.communicator,
        group=labelled.communicator,
        peer=labelled.peer,
        root=labelled.root,
        peer_in_communicator=nccl.peer,
        direction=_first_known(nccl.direction, labelled.direction),
        world_size=_first_known(nccl.world_size, labelled.world_size),
        sequence=labelled.sequence,
        operations=names,
        communicators=known_calls.nccl.communicators,
        groups=known_calls.labelled.communicators,
        descriptions=known_calls.labelled.descriptions,
    )


def _first_known(first: Int64, second: Int64) -> Int64:
    return np.where(first >= 0, first, second)


# -- kernels and calls ----------------------------------------------------------------------------


class _Facts(Record, frozen=True):
    """Facts about n kernels from one source, int64[n] each; -1 if unknown.

    The operation is a name of kernels, the function a name of calls.
    """

    operation: Int64
    function: Int64
    bytes: Int64
    communicator: Int64
    peer: Int64
    root: Int64
    direction: Int64
    world_size: Int64
    sequence: Int64


def _facts(
    calls: CommunicationCalls, operation: Int64, launch: Int64, order: Int64, num_devices: int
) -> _Facts:
    """Return the facts about kernels that their calls give.

    `operation`: int64[n], the operation of each kernel. `launch`: int64[n], its launch range,
    -1 for none. `order`: int64[n], all kernels in launch order. `num_devices`: of the process;
    only the kernels of one device are given.
    """
    num = len(operation)
    # A call that never returned has no launch range if a group was open around it.
    if len(calls.launch_start_ns) == 0 or num == 0:
        return _Facts(*[np.full(num, UNKNOWN, np.int64)] * 9)
    kind, call_kind = _kinds(operation), _kinds(calls.operation)
    # Every pair of a kernel and a call of its launch range, in order of the kernels.
    first = calls.first_member[launch]
    count = np.where(launch >= 0, calls.first_member[launch + 1] - first, 0)
    kernel = np.repeat(np.arange(num), count)
    place = np.arange(len(kernel)) - np.repeat(np.cumsum(count) - count, count)
    call = calls.members[first[kernel] + place]

    fits = (kind[kernel] == call_kind[call]) | (kind[kernel] == _ANY) | (call_kind[call] == _ANY)
    has_fitting = np.bincount(kernel[fits], minlength=num) > 0
    keep = fits | ~has_fitting[kernel]
    kernel, call = kernel[keep], call[keep]
    is_alone = _num_alike(launch, kind) == 1
    if not is_alone[launch >= 0].all():
        chosen_communicator = _own_communicators(
            calls, kernel, call, (launch, kind, order), ~is_alone
        )
        keep = (chosen_communicator[kernel] < 0) | (
            chosen_communicator[kernel] == calls.communicator[call]
        )
        kernel, call = kernel[keep], call[keep]
        is_alone |= chosen_communicator >= 0

    pairs = _Pairs(kernel, call, num)
    is_exchange = kind == _EXCHANGE
    receives = calls.operation == OPERATIONS.index("Recv")
    received = pairs.total(np.where(receives, calls.bytes, 0))
    size = np.maximum(received, pairs.total(np.where(receives, 0, calls.bytes)))
    # Kernels of other devices may belong to the same calls. Calls of a kind that no kernel of the
    # range is named after were done by a kernel that is named after another kind.
    is_complete = has_fitting & is_alone & (pairs.least(calls.bytes) >= 0)
    is_complete &= ~_has_unnamed_calls(calls, launch, kind, call_kind)
    is_complete &= (pairs.count == 1) | (num_devices == 1)
    sends = calls.operation == OPERATIONS.index("Send")
    rooted = is_in(calls.operation, [OPERATIONS.index(name) for name in ROOTED])
    direction = (pairs.total(sends) > 0) + 2 * (pairs.total(receives) > 0)
    return _Facts(
        operation=pairs.common(call_kind),
        function=pairs.common(calls.operation),
        bytes=np.where(is_complete, size, UNKNOWN),
        communicator=pairs.common(calls.communicator),
        peer=np.where(is_exchange, pairs.common(calls.peer), UNKNOWN),
        root=pairs.common(np.where(rooted, calls.peer, UNKNOWN)),
        direction=np.where(is_exchange & (direction > 0), direction, UNKNOWN),
        world_size=pairs.common(calls.world_size),
        sequence=pairs.common(calls.sequence),
    )


class _Pairs:
    """Pairs of kernels and calls, in order of the kernels."""

    def __init__(self, kernel: Int64, call: Int64, num_kernels: int) -> None:
        self.call = call
        self.count = np.bincount(kernel, minlength=num_kernels)
        self._used = self.count > 0
        self._first = (np.cumsum(self.count) - self.count)[self._used]

    def total(self, of_call: Int64 | Mask) -> Int64:
        """Return the sum over each kernel's calls, 0 if it has none."""
        return self._spread(np.add, of_call.astype(np.int64), 0)

    def least(self, of_call: Int64) -> Int64:
        """Return the least of each kernel's calls, -1 if it has none."""
        return self._spread(np.minimum, of_call, UNKNOWN)

    def common(self, of_call: Int64) -> Int64:
        """Return the value that all calls of each kernel agree on, else -1."""
        least = self.least(of_call)
        return np.where(least == self._spread(np.maximum, of_call, UNKNOWN), least, UNKNOWN)

    def _spread(self, function: np.ufunc, of_call: Int64, otherwise: int) -> Int64:
        result = np.full(len(self.count), otherwise, np.int64)
        if len(self._first):
            result[self._used] = function.reduceat(of_call.take(self.call), self._first)
        return result


def _own_communicators(
    calls: CommunicationCalls,
    kernel: Int64,
    call: Int64,
    keys: tuple[Int64, Int64, Int64],
    shares: Mask,
) -> Int64:
    """Return the communicator of kernels that share a launch range with others of their kind.

    NCCL launches a group's communicators in the order in which they were first called. Unknown (-1)
    unless there is one kernel for each. It loops over such ranges, since they are rare.
    """
    launch, kind, order = keys
    communicator = np.full(len(launch), UNKNOWN, np.int64)
    sharing: dict[tuple[int, int], list[int]] = {}
    for index in order[(shares & (launch >= 0))[order]].tolist():
        sharing.setdefault((int(launch[index]), int(kind[index])), []).append(index)
    for alike in sharing.values():
        first, stop = np.searchsorted(kernel, [alike[0], alike[0] + 1])
        names = dict.fromkeys(calls.communicator[call[first:stop]].tolist())
        if len(names) == len(alike) and UNKNOWN not in names:
            communicator[alike] = list(names)
    return communicator


def _num_alike(launch: Int64, kind: Int64) -> Int64:
    keys = launch * (len(OPERATIONS) + 1) + kind
    _, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
    alike: Int64 = count[inverse.reshape(-1)]
    return alike


def _has_unnamed_calls(
    calls: CommunicationCalls, launch: Int64, kind: Int64, call_kind: Int64
) -> Mask:
    of_kernels = np.zeros(len(calls.launch_start_ns), np.int64)
    of_calls = np.zeros(len(calls.launch_start_ns), np.int64)
    has = launch >= 0
    every = (1 << len(OPERATIONS)) - 1
    np.bitwise_or.at(of_kernels, launch[has], np.where(kind[has] == _ANY, every, 1 << kind[has]))
    within = np.repeat(np.arange(len(of_calls)), np.diff(calls.first_member))
    np.bitwise_or.at(
        of_calls, within, np.where(call_kind == _ANY, 0, 1 << call_kind)[calls.members]
    )
    strangers: Mask = ((of_calls & ~of_kernels) != 0)[launch]
    return strangers


def _kinds(operation: Int64) -> Int64:
    return _KIND[np.minimum(operation, len(OPERATIONS) - 1)]


_EXCHANGE, _ANY = OPERATIONS.index(EXCHANGE), OPERATIONS.index("Unknown")
_KIND = np.array(
    [_EXCHANGE if name in EXCHANGES else index for index, name in enumerate(OPERATIONS)], np.int64
)
_IS_COMPOSED = np.array([*(name in _COMPOSED for name in OPERATIONS), False])  # the last: unknown


class Names(Record, frozen=True):
    """Names of n operations."""

    packed: Column  # n indices into `names`, -1 if there is no operation
    names: tuple[str, ...]  # the distinct names

    @property
    def number(self) -> Int64:
        """The indices into `names`, int64[n]."""
        return self.packed.values

    def of(self, at: int) -> str | None:
        """Return the name of one operation, None if there is no operation."""
        number = int(self.packed.at(slice(at, at + 1))[0])
        return self.names[number] if number >= 0 else None


def operation_names(rank: Rank, index: Int64) -> Names:
    """Return the names of operations.

    `index`: int64[n], into all operations of the rank, its groups joined; -1 for none.
    """
    number = np.full(len(index), -1, np.int64)
    known: dict[str, int] = {}
    kernels, copies, *_ = rank.operations.groups
    first = 0
    for group, operations in enumerate(rank.operations.groups):
        at = np.flatnonzero((index >= first) & (index < first + len(operations)))
        place = index[at] - first
        first += len(operations)
        if not len(at):  # as on thousands of small ranks
            continue
        alike = place * 0
        if operations is kernels:
            signature = rank.operations.kernels.packed_signature.kept[place]
            alike = rank.operations.kernels.name_of_signature[signature]
        elif operations is copies:
            alike = rank.operations.copies.kind[place]
        _, first_of, inverse = np.unique(alike, return_index=True, return_inverse=True)
        names = [rank.operation_name(group, which) for which in place[first_of].tolist()]
        numbers = [known.setdefault(name, len(known)) for name in names]
        number[at] = np.array(numbers, np.int64)[inverse.reshape(-1)]
    return Names(pack(number), tuple(known))


def asynchronous_calls(operations: Iterable[str]) -> str:
    """Return in words the PyTorch calls that start these NCCL operations and return at once."""
    names = {*operations} - {BARRIER} or {UNKNOWN_OPERATION}
    texts = []
    if names.difference(BETWEEN_TWO):
        texts.append("collectives with async_op=True")
    if names.intersection((*BETWEEN_TWO, UNKNOWN_OPERATION)):
        texts.append("sends and receives with isend and irecv")
    return ", ".join(texts)


_LIKE_COMMUNICATION = lazy(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|bcast|send|recv|receive"
    r"|exchange|halo|shmem|symm_?mem|peer|remote|p2p|nccl|rccl",
    re.IGNORECASE,
)


def looks_like_communication(name: str) -> bool:
    """Return whether the name of a kernel without a category may mean communication."""
    return _LIKE_COMMUNICATION.search(name) is not None


def num_inside(spans: Spans, window: Window) -> int:
    """Count the operations that lie at least partly inside a window.

    `spans`: starts and ends of operations, int64[n] each, in groups.
    """
    start, end = np.array([window.start_ns]), np.array([window.end_ns])
    closed = np.array([window.is_whole])
    return sum(int(intervals.num_inside(*span, start, end, closed)[0]) for span in spans)
