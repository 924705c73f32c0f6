"""Messages of a rank's communication kernels, from their calls on the host: size, peer, group.

A kernel is linked to the calls whose launch range (see `CommunicationCalls`) holds its own launch.
NCCL launches a group as one kernel for each communicator; if an export leaves open which calls a
kernel belongs to, only what all these calls agree on is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import numpy as np
from msgspec import field

from traceprof import intervals
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.intervals import NO_NUMBERS, Float64, Int64, Mask
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.run.rank import Rank, Spans, Window
from traceprof.run.steady_steps import share_per_step
from traceprof.structs import Record
from traceprof.trace.columns import Column, Rows, pack
from traceprof.trace.grouping import distinct_values, is_in, median_of
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS, CommunicationCalls
from traceprof.trace.model.special_values import UNKNOWN
from traceprof.units import size_text

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


def are_one_of(operation: Int64, operations: Sequence[str], names: Sequence[str]) -> Mask:
    """Return which operations (indices into `operations`) have one of these names, bool[n]."""
    return is_in(operation, [operations.index(name) for name in names if name in operations])


class Communicators(Rows, frozen=True):
    """The communicators of n operations; -1 is unknown."""

    communicator: Int64  # int64[n], indices into `communicators`, from records of NCCL and MPI
    group: Int64  # int64[n], indices into `groups`, from labels
    # NCCL's ids in hexadecimal digits, equal on all ranks, and names of MPI's
    communicators: tuple[str, ...]
    groups: tuple[str, ...]  # names of PyTorch's process groups

    def communicator_name(self, index: int) -> str | None:
        """Return the communicator of one: NCCL's id, else PyTorch's group, else None."""
        if self.communicator[index] >= 0:
            return self.communicators[int(self.communicator[index])]
        if self.group[index] >= 0:
            return f"group {self.groups[int(self.group[index])]}"
        return None


class Messages(Communicators, frozen=True):
    """Communication kernels of one rank in order of start; -1 is unknown."""

    kernel: Int64  # int64[n], indices into the rank's kernels
    operation: Int64  # int64[n], indices into `operations`
    has_call: Mask  # bool[n], whether a call of NCCL's or a label that launched it was found
    called_ns: Int64  # int64[n], when the launching call began; -1 if the capture has none
    launch_ns: Int64  # int64[n], when that call returned; -1 if the capture has none
    # int64[n], as NCCL counts a message: what one rank sends in an AllGather, receives in a
    # ReduceScatter; of sends and receives, the larger direction
    bytes: Int64
    peer: Int64  # int64[n], the only other rank of a send or receive, from labels (in the world)
    # int64[n], the rank that all others send to or receive from, from labels (in the world)
    root: Int64
    # int64[n], the only other rank of a send or receive, from NCCL's records (in the communicator)
    peer_in_communicator: Int64
    direction: Int64  # int64[n], 1 sends, 2 receives, 3 both
    world_size: Int64  # int64[n], the number of ranks that take part
    sequence: Int64  # int64[n], the call's number in its group, from labels
    operations: tuple[str, ...]  # names, from kernel names, or from calls where these say more
    # descriptions of the groups by name, where the user gave one
    descriptions: Mapping[str, str] = field(default_factory=dict)

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
    columns = (NO_NUMBERS,) * 3
    if calls is not None:
        columns = calls.start_ns, calls.end_ns, calls.thread
    start, end, thread = (np.append(column, UNKNOWN)[launched_by] for column in columns)
    known_calls = rank.trace.communication_calls(rank.process)
    nccl, labelled = (
        _facts(source, operation, source.launch_ranges_of(start, end, thread), rank.num_devices)
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


def _facts(calls: CommunicationCalls, operation: Int64, launch: Int64, num_devices: int) -> _Facts:
    """Return the facts about kernels that their calls give.

    `operation`: int64[n], the operation of each kernel. `launch`: int64[n], its launch range,
    -1 for none. `num_devices`: of the process; only the kernels of one device are given.
    """
    num = len(operation)
    # A call that never returned has no launch range if a group was open around it.
    if len(calls.launch_start_ns) == 0 or num == 0:
        return _Facts(*[np.full(num, UNKNOWN, np.int64)] * 9)
    kind, call_kind = _kinds(operation), _kinds(calls.operation)
    # Every pair of a kernel and a call of its launch range, in order of the kernels.
    first = calls.first_member[launch]
    last = np.where(launch >= 0, calls.first_member[launch + 1], first)
    kernel, member = intervals.pairs(first, last)
    call = calls.members[member]
    fits = (kind[kernel] == call_kind[call]) | (kind[kernel] == _ANY) | (call_kind[call] == _ANY)
    has_fitting = np.bincount(kernel[fits], minlength=num) > 0
    keep = fits | ~has_fitting[kernel]
    kernel, call = kernel[keep], call[keep]
    _, alike, num_alike = np.unique(
        launch * (len(OPERATIONS) + 1) + kind, return_inverse=True, return_counts=True
    )
    is_alone = num_alike[alike.reshape(-1)] == 1
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
        result[self._used] = function.reduceat(of_call.take(self.call), self._first)
        return result


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
    return ((of_calls & ~of_kernels) != 0)[launch]


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
    kernels, copies = rank.operations.kernels, rank.operations.copies
    for group, at, place in rank.operations.parts(index):
        alike, operations = place * 0, rank.operations.groups[group]
        if operations is kernels:
            alike = kernels.name_of_signature[kernels.packed_signature.kept[place]]
        elif operations is copies:
            alike = copies.kind[place]
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


_LIKE_COMMUNICATION = re.compile(
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


# From this size on, a message's rate says something about the link: at 25 GB/s it takes 42 µs,
# several times the 7 to 20 µs that NCCL needs for a message of any size.
LARGE_BYTES = 1 << 20
# Up to this size latency is most of a message's time on any link from PCIe 3.0 on: its transfer
# takes 5 µs.
SMALL_BYTES = 64 << 10
DISTINCT_SIZES = 4
"""The least ratio of the largest to the smallest size with which latency and rate can be separated.
"""
# By NCCL's own model (src/graph/tuning.cc) a tree over a network needs 14 µs and 4 µs for each of
# its steps (1024 GPUs take 20): longer times include waiting for another rank.
MAX_LATENCY_NS = 100_000

_PAUSE_NS = 20_000  # messages that follow within this time are one stretch


class SmallMessages(Record, frozen=True):
    """Communication kernels of a rank whose time is latency more than bandwidth."""

    num_operations: int  # kernels whose time is at least half latency
    median_bytes: int | None  # the median size of these, None without any
    # latency of all kernels of known size over their own time, both without waiting for other
    # ranks, 0 to 1; None if they took no time
    latency_share: float | None
    avoidable_ns: int  # wall time that the latency of these kernels takes while nothing computes
    # what the mean steady step would gain at most without them, the window without any
    most_ns: int
    stretches: tuple[Evidence, ...]  # times in which many of them follow each other, longest first


def small_messages(
    rank: Rank, window: Window, sent: Messages, sized: Int64, row: Int64
) -> tuple[SmallMessages, Int64, int]:
    """Return the communication kernels of a rank whose time is latency, judged by their sizes.

    Also returned: their indices among the rank's kernels, int64[n], and their wait in the mean step
    while nothing computes, in ns. `most_ns` counts their latency alone.

    `row`: int64[n], numbers that are equal for one operation on one communicator.
    """
    kernels = rank.operations.kernels
    start, end = kernels.start_ns[sent.kernel[sized]], kernels.ends(sent.kernel[sized])
    size, best, latency = sent.bytes[sized], np.zeros(len(sized)), np.zeros(len(sized))
    for number in distinct_values(row[sized]).tolist():
        alike = row[sized] == number
        best[alike], latency[alike] = best_time_and_latency(size[alike], (end - start)[alike])
    is_small = (2 * latency >= best) & (best > 0)
    few = np.flatnonzero(is_small)

    exposed = window.clip(rank.exposed)
    of_each = intervals.covered_within(exposed, start[few], end[few])
    together = intervals.intersect(intervals.union(start[few], end[few]), exposed)
    avoidable = min(int(np.minimum(of_each, latency[few]).sum()), together.measure_ns)
    took = float(best.sum())
    names = [sent.operations[kind] for kind in distinct_values(sent.operation[sized[few]]).tolist()]
    waiting = together.measure_ns - min(
        int(np.minimum(of_each, best[few]).sum()), together.measure_ns
    )
    share = share_per_step(rank, window, together)
    of_step = 1 if share is None else share
    small = SmallMessages(
        num_operations=len(few),
        median_bytes=int(median_of(size[few])) if len(few) else None,
        latency_share=float(latency.sum()) / took if took else None,
        avoidable_ns=avoidable,
        most_ns=ceil(avoidable * of_step),
        stretches=_stretches(start[few], end[few], size[few], ", ".join(names)),
    )
    return small, sent.kernel[sized[few]], ceil(waiting * of_step)


def best_time_and_latency(size: Int64, duration_ns: Int64) -> tuple[Float64, Float64]:
    """Return how long messages take without waiting for other ranks, and the latency in that time.

    The model is NCCL's: time = latency + size ÷ rate, for one operation on one communicator. A
    message's best time is the fastest decile of those of its size. The rate is the run's own: the
    best of the messages from 1 MiB on; without any, by how much the best times of the smallest and
    the largest size differ, if the sizes differ fourfold. Without that either, messages up to
    64 KiB are latency alone and others have none. Latency is at most 100 µs: longer times include
    waiting even in the fastest message, and the excess is left out of the best time as well.

    `size`: int64[n], in bytes. `duration_ns`: int64[n].

    Returns:
        Best time and latency of each message, float64[n], in ns.
    """
    order = np.lexsort((duration_ns, size))
    sizes, first, at, count = np.unique(
        size[order], return_index=True, return_inverse=True, return_counts=True
    )
    fastest = duration_ns[order][first + (count - 1) // 10].astype(np.float64)
    large = (sizes >= LARGE_BYTES) & (fastest > 0)
    transfer: Float64
    if large.any():
        transfer = sizes.astype(np.float64) / float((sizes[large] / fastest[large]).max())
    elif sizes[-1] >= DISTINCT_SIZES * max(int(sizes[0]), 1):
        slope = max(float(fastest[-1] - fastest[0]), 0.0) / float(sizes[-1] - sizes[0])
        transfer = sizes.astype(np.float64) * slope
    else:
        transfer = np.where(sizes <= SMALL_BYTES, 0.0, fastest)
    best = np.minimum(fastest, transfer + MAX_LATENCY_NS)
    latency = np.clip(best - transfer, 0.0, None)
    of_message = np.empty(len(size), np.int64)
    of_message[order] = at.reshape(-1)
    return best[of_message], latency[of_message]


def _stretches(start: Int64, end: Int64, size: Int64, names: str) -> tuple[Evidence, ...]:
    if len(start) == 0:
        return ()
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] - reach[:-1] > _PAUSE_NS))
    stop = np.append(first[1:], len(start))
    length = reach[stop - 1] - start[first]
    worst = intervals.largest(length, MAX_EVIDENCE)
    return tuple(
        Evidence(
            int(start[first[index]]),
            int(reach[stop[index] - 1]),
            f"{stop[index] - first[index]} × {names} of"
            f" {size_text(int(median_of(size[first[index] : stop[index]])))} at the median",
        )
        for index in worst.tolist()
    )
