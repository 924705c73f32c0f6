"""Events of the ranks of a run as frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct
from numpy.ma import masked_equal

from traceprof.communication.messages import ONE_SIDED, ROOTED, messages
from traceprof.frames.results import Numbers, Part, TextColumn, names_at, names_of_kinds
from traceprof.host.places import places, places_of_calls
from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.kernel_names.categories import kernel_kind
from traceprof.run.rank import CpuRank, Rank
from traceprof.trace.columns import pack
from traceprof.trace.grouping import is_in, numbered
from traceprof.trace.model.host import NO_API_CALLS, HostCode
from traceprof.trace.model.kinds import UNIFIED_COPIES, CopyKind, MemoryKind
from traceprof.trace.model.special_values import NULL, OPEN_END, UNKNOWN

_PEER_COPY, _MEMSET, _WITHIN_HOST = "p2p", "memset", "h2h"
_PEER_COPY_NAME = "peer copy"
_NO_OPERATORS = HostCode(*(pack(NO_NUMBERS),) * 4, None, None, None, np.empty((0, 3), np.int64), ())
_OF_OPERATORS = ("external_id", "sequence_number", "flops")
_COPY_KINDS: dict[int, str | None] = {
    **{int(kind): kind.direction for kind in CopyKind},
    CopyKind.HOST_TO_HOST: _WITHIN_HOST,
    CopyKind.PEER_TO_PEER: _PEER_COPY,
    max(CopyKind) + 1: _MEMSET,
}
_MEMORY_KINDS: dict[int, str | None] = {
    int(kind): kind.name.lower() for kind in MemoryKind if kind is not MemoryKind.UNKNOWN
}


class _Timed(Struct):
    rank: int
    start_ns: int
    end_ns: int
    duration_ns: int


class Kernel(_Timed):
    """The kernels, including communication kernels."""

    stream: int
    name: str
    category: str
    precision: str | None
    tensor_cores: bool | None
    operation: Annotated[str | None, "what a communication kernel does"]
    grid: str | None
    block: Annotated[str | None, "`108x1x1`"]
    correlation: Annotated[int | None, "the number of the API call that launched it"]
    place: Annotated[
        str | None, "the innermost range of the program or its framework around that call"
    ]


class Copy(_Timed):
    """The memory copies, including copies between GPUs, and the memory sets."""

    stream: int
    kind: Annotated[str, "h2d, d2h, d2d, p2p, h2h, memset"]
    is_unified: Annotated[bool, "pages of unified memory"]
    bytes: int | None
    source_memory: str | None
    destination_memory: Annotated[str | None, "`pageable`, …"]
    source_device: int | None
    destination_device: Annotated[int | None, "of copies between GPUs"]
    correlation: int | None
    place: str | None


class ApiCall(_Timed):
    """The CUDA API calls of the rank's process."""

    duration_ns: Annotated[int, "0 if the capture ended before the call did"]
    thread: Annotated[int, "the operating system's number"]
    name: str
    correlation: int
    place: str | None


class Range(Struct):
    """The NVTX ranges of the rank's process."""

    rank: int
    start_ns: int
    end_ns: int | None
    duration_ns: Annotated[
        int | None, "missing if the range was still open at the end of the capture"
    ]
    thread: int
    name: str
    nests: Annotated[bool, "whether it was pushed and popped"]


class Operator(_Timed):
    """The operators of the rank's process, as recorded by torch.profiler."""

    thread: int
    name: str
    external_id: Annotated[int | None, "shared with the API calls inside it"]
    sequence_number: Annotated[int | None, "shared by forward and backward"]
    flops: Annotated[
        int | None,
        "multiplications and additions, where its shapes are recorded and it has a formula",
    ]


class Mark(Struct):
    """The moments that the rank's process named: NVTX marks, instant events."""

    rank: int
    time_ns: int
    thread: Annotated[int, "the operating system's number"]
    name: str


class Communication(_Timed):
    """The communication: kernels, and copies between GPUs."""

    stream: int | None
    operation: Annotated[str | None, "missing for a copy"]
    name: Annotated[str, "of the kernel, else `peer copy`, or what the range says"]
    communicator: str | None
    peer: int | None
    root: Annotated[int | None, "by labels, in the world"]
    num_ranks: int | None
    bytes: Annotated[int | None, "as NCCL counts a message"]


EVENTS: dict[str, type[Struct]] = {
    "kernels": Kernel,
    "copies": Copy,
    "api_calls": ApiCall,
    "ranges": Range,
    "operators": Operator,
    "marks": Mark,
    "communication": Communication,
}
"""Tables with a row for each event, by the method of `RunFrames`: their columns."""


def kernels(rank: Rank) -> Part:
    """Return the kernels of a rank by start, including communication kernels."""
    rows = rank.operations.kernels
    ids = rows.name_of_signature.tolist() if len(rows) else []
    of_id = {id_: rank.kernel_names[id_] for id_ in set(ids)}
    kind_of_id = {
        id_: kernel_kind(name, communicates=id_ in rank.communication_operations)
        for id_, name in of_id.items()
    }
    kinds = [kind_of_id[id_] for id_ in ids]
    shapes = rank.trace.signatures.shape.tolist() if len(rows) else []
    which = rows.packed_signature.kept
    on_tensor_cores = np.array([kind.tensor_cores is True for kind in kinds], np.bool_)
    is_told = np.array([kind.tensor_cores is not None for kind in kinds], np.bool_)
    return {
        "rank": np.broadcast_to(np.int32(rank.rank), len(rows)),
        "start_ns": lambda: rows.starts.values,
        "end_ns": lambda: rows.packed_length.add_to(rows.starts.values),
        "stream": lambda: rows.stream,
        "name": TextColumn(which, [of_id[id_] for id_ in ids]),
        "category": TextColumn(which, [str(kind.category) for kind in kinds]),
        "precision": TextColumn(which, [kind.precision for kind in kinds]),
        "tensor_cores": np.ma.array(on_tensor_cores[which], mask=~is_told[which]),
        "operation": TextColumn(which, [rank.communication_operations.get(id_) for id_ in ids]),
        "grid": TextColumn(which, [_shape_text(shape[:3]) for shape in shapes]),
        "block": TextColumn(which, [_shape_text(shape[3:]) for shape in shapes]),
        "correlation": lambda: masked_equal(rows.correlation, NULL),
        "place": _places(rank, rank.launched_by[0]),
    }


def copies(rank: Rank) -> Part:
    """Return the memory copies of a rank, including peer copies, and its memory sets, by start."""
    groups = rank.operations.copies, rank.operations.memsets
    kind = groups[0].kind.copy()
    kind[rank.is_peer_copy] = CopyKind.PEER_TO_PEER
    kind = np.concatenate([kind, np.full(len(groups[1]), max(CopyKind) + 1)])
    start, end = _both(*(group.start_ns for group in groups)), _both(*(g.end_ns for g in groups))
    order = np.lexsort((end, start))

    def column(name: str) -> Int64:
        return _both(*(getattr(group, name) for group in groups))[order]

    return {
        **_times(rank, start[order], end[order]),
        "stream": column("stream"),
        "kind": names_of_kinds(kind[order], _COPY_KINDS),
        "is_unified": is_in(kind[order], UNIFIED_COPIES),
        "bytes": masked_equal(column("bytes"), NULL),
        "source_memory": names_of_kinds(column("source_memory"), _MEMORY_KINDS),
        "destination_memory": names_of_kinds(column("destination_memory"), _MEMORY_KINDS),
        "source_device": masked_equal(column("source_device"), NULL),
        "destination_device": masked_equal(column("destination_device"), NULL),
        "correlation": masked_equal(column("correlation"), NULL),
        "place": _places(rank, _both(*rank.launched_by[1:3])[order]),
    }


def _places(rank: Rank, call: Int64) -> TextColumn:
    """Return the innermost range of the program or its framework around each call."""
    return TextColumn(places_of_calls(rank, call), places(rank).names)


def api_calls(rank: Rank) -> Part:
    """Return the API calls of a rank's process by start."""
    calls = None if isinstance(rank, CpuRank) and not rank.trace.api_names else rank.calls
    calls = calls or NO_API_CALLS
    order = np.argsort(calls.start_ns, kind="stable")
    keys, threads = calls.packed_name.distinct, calls.packed_thread.distinct
    numbers = [rank.trace.thread_number(thread) for thread in threads.tolist()]
    return {
        **_times(rank, calls.start_ns[order], calls.end_ns[order]),
        "thread": np.array(numbers, np.int64)[calls.packed_thread.places_in(threads)[order]],
        "name": TextColumn(
            calls.packed_name.places_in(keys)[order],
            [rank.trace.api_names[key] for key in keys.tolist()],
        ),
        "correlation": calls.correlation[order],
        "place": _places(rank, order),
    }


def ranges(rank: Rank) -> Part:
    """Return the NVTX ranges of a rank's process by start; open ones have no end."""
    table = rank.trace.range_table(rank.process)
    return {
        **_times(rank, table.start_ns, table.start_ns),
        "end_ns": masked_equal(table.end_ns, OPEN_END),
        "thread": _thread_numbers(rank, table.thread),
        "name": names_at(table.name, table.names),
        "nests": table.nests,
    }


def operators(rank: Rank) -> Part:
    """Return the operators of a rank's process by start."""
    table = rank.trace.operators(rank.process) or _NO_OPERATORS
    unknown = np.full(len(table), NULL)
    ids = [unknown if ids is None else ids.values for ids in (table.external, table.sequence)]
    flops, *_ = table.work_of(slice(None))
    return {
        **_times(rank, table.start_ns, table.end_ns),
        "thread": _thread_numbers(rank, table.packed_thread.values),
        "name": names_at(table.packed_name.values, table.names),
        **{
            name: masked_equal(values, NULL)
            for name, values in zip(_OF_OPERATORS, (*ids, flops), strict=True)
        },
    }


def marks(rank: Rank) -> Part:
    """Return the marks of a rank's process by time."""
    table = rank.trace.marks(rank.process)
    return {
        "rank": np.broadcast_to(np.int32(rank.rank), len(table)),
        "time_ns": table.time_ns,
        "thread": _thread_numbers(rank, table.thread),
        "name": names_at(table.name, table.names),
    }


def communication(rank: Rank) -> Part:
    """Return the communication of a rank by start: kernels and peer copies, or else operations."""
    return _cpu_operations(rank) if isinstance(rank, CpuRank) else _messages(rank)


def _messages(rank: Rank) -> Part:
    sent = messages(rank)
    rows, peer_copies = rank.operations.kernels, np.flatnonzero(rank.is_peer_copy)
    copied = rank.operations.copies
    num = len(peer_copies)
    communicator = np.where(
        sent.communicator >= 0,
        sent.communicator,
        np.where(sent.group >= 0, sent.group + len(sent.communicators), UNKNOWN),
    )
    communicators = [*sent.communicators, *(f"group {group}" for group in sent.groups)]
    start = _both(rows.start_ns[sent.kernel], copied.start_ns[peer_copies])
    end = _both(rows.ends(sent.kernel), copied.ends(peer_copies))
    order = np.lexsort((end, start))
    unknown = np.full(num, UNKNOWN, np.int64)
    kernel_name = names_at(rows.name[sent.kernel], rank.kernel_names)

    def column(of_kernels: Int64) -> Numbers:
        return masked_equal(_both(of_kernels, unknown)[order], UNKNOWN)

    is_copy = np.full(num, len(kernel_name.texts), np.int64)
    return {
        **_times(rank, start[order], end[order]),
        "stream": masked_equal(
            _both(rows.stream[sent.kernel], copied.stream[peer_copies])[order], NULL
        ),
        "operation": TextColumn(_both(sent.operation, unknown)[order], sent.operations),
        "name": TextColumn(
            _both(kernel_name.index, is_copy)[order], [*kernel_name.texts, _PEER_COPY_NAME]
        ),
        "communicator": TextColumn(_both(communicator, unknown)[order], communicators),
        "peer": column(sent.peer),
        "root": column(sent.root),
        "num_ranks": column(sent.world_size),
        "bytes": masked_equal(
            _both(sent.bytes, np.maximum(copied.bytes[peer_copies], UNKNOWN))[order], UNKNOWN
        ),
    }


def _cpu_operations(rank: CpuRank) -> Part:
    work = rank.work
    operations, labels = work.operations, rank.trace.label_ranges[rank.process]

    def fact(name: str, operation: Collection[str] | None = None) -> Numbers:
        values = [
            UNKNOWN
            if call is None or (operation is not None and call.operation not in operation)
            else getattr(call.fields, name)
            for call in work.calls
        ]
        return masked_equal(np.array(values, np.int64)[operations.kind], UNKNOWN)

    groups = [None if call is None else call.fields.communicator for call in work.calls]
    return {
        **_times(rank, operations.start_ns, operations.end_ns),
        "stream": masked_equal(np.full(len(operations), NULL), NULL),
        "operation": TextColumn(operations.kind, [call and call.operation for call in work.calls]),
        "name": names_at(operations.text, labels.texts),
        "communicator": TextColumn(
            operations.kind, [None if group is None else f"group {group}" for group in groups]
        ),
        "peer": fact("peer", ONE_SIDED),
        "root": fact("peer", ROOTED),
        "num_ranks": fact("world_size"),
        "bytes": fact("bytes"),
    }


def _times(rank: Rank, start_ns: Int64, end_ns: Int64) -> Part:
    return {
        "rank": np.broadcast_to(np.int32(rank.rank), len(start_ns)),
        "start_ns": start_ns,
        "end_ns": end_ns,
    }


def _thread_numbers(rank: Rank, threads: Int64) -> Int64:
    """Return the operating system's numbers of threads, int64[n]."""
    distinct, index = numbered(threads)
    numbers = [rank.trace.thread_number(thread) for thread in distinct.tolist()]
    return np.array(numbers, np.int64)[index]


def _both(first: Int64, second: Int64) -> Int64:
    return np.concatenate([first, second])


def _shape_text(shape: Sequence[int]) -> str | None:
    return None if NULL in shape else "x".join(map(str, shape))
