"""Communication calls on the host, from NVTX ranges of NCCL and `instrument`.

NCCL opens a range around each of its functions, in the domain `NCCL`, whose payload has the bytes,
the communicator and the peer (since 2.16; the communicator since 2.25). `instrument` has the same
for PyTorch's functions, in the domain `traceprof`, in the grammar of `traceprof.labels`. All facts
are optional: -1 stands for unknown ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.communication_calls import (
    NO_CALLS,
    OPERATIONS,
    CommunicationCalls,
    ProcessCalls,
)
from traceprof.trace.model.nested_calls import labelled_calls, nested_calls
from traceprof.trace.model.special_values import UNKNOWN
from traceprof.trace.nsight.nccl.groups import grouped
from traceprof.trace.nsight.nccl.ranges import read_nccl_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.model.ranges import LabelRanges
    from traceprof.trace.nsight.nccl.ranges import NcclRanges
    from traceprof.trace.nsight.nvtx.events import Events

_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_FUNCTIONS = {f"nccl{name}": name for name in OPERATIONS[:10]} | {"ncclBcast": "Broadcast"}
_NAMES = {*_FUNCTIONS, _GROUP_START, _GROUP_END}


def read_communication_calls(
    events: Events, domains: Mapping[tuple[int, int], str], label_ranges: Mapping[int, LabelRanges]
) -> dict[int, ProcessCalls]:
    """Return the communication calls of each process (globalPid) that has any.

    Args:
        events: of the export.
        domains: names of NVTX domains by process and id.
        label_ranges: ranges of `instrument` by process.

    Raises:
        TraceFormatError: the file is damaged.
    """
    nccl = read_nccl_ranges(events, domains, _NAMES)
    labelled = {process: labelled_calls(ranges) for process, ranges in label_ranges.items()}
    sizes = _world_sizes(nccl.values())
    return {
        process: ProcessCalls(
            _in_groups(nccl[process], sizes) if process in nccl else NO_CALLS,
            nested_calls(labelled.get(process, [])),
            _rank_in_largest(nccl[process]) if process in nccl else None,
        )
        for process in sorted({*nccl, *(number for number, calls in labelled.items() if calls)})
    }


# -- labels --------------------------------------------------------------------------------------


def _rank_in_largest(ranges: NcclRanges) -> int | None:
    """Return the rank in the largest communicator of the process; None if ambiguous."""
    fields = [ranges.fields[index] for index in distinct_values(ranges.field_index).tolist()]
    sizes_and_ranks = {(facts.world_size, facts.rank) for facts in fields if facts.rank >= 0}
    largest = [rank for size, rank in sizes_and_ranks if size == max(sizes_and_ranks)[0]]
    return largest[0] if len(largest) == 1 else None


# -- launch ranges --------------------------------------------------------------------------------


def _world_sizes(processes: Iterable[NcclRanges]) -> dict[str, int]:
    """Return the number of ranks of each communicator, from its creation and destruction."""
    return {
        payload.communicator: payload.world_size
        for ranges in processes
        for payload in (
            ranges.fields[index] for index in distinct_values(ranges.field_index).tolist()
        )
        if payload.communicator is not None and payload.world_size > 0
    }


def _in_groups(ranges: NcclRanges, world_sizes: Mapping[str, int]) -> CommunicationCalls:
    """Put NCCL's calls into the launch ranges: their own, or the end of the outermost group."""
    operations = {name: index for index, name in enumerate(OPERATIONS)}
    of_name = np.array(
        [operations.get(_FUNCTIONS.get(name, ""), UNKNOWN) for name in ranges.names], np.int64
    )
    begins, closes = (
        np.array([name == function for name in ranges.names], np.bool_)[ranges.name]
        for function in (_GROUP_START, _GROUP_END)
    )
    operation = of_name[ranges.name]
    call, launch, launch_of_call = grouped(
        ranges.start_ns, ranges.end_ns, ranges.thread, operation != UNKNOWN, begins, closes
    )
    field_index = ranges.field_index[call]
    used, first, number = np.unique(field_index, return_index=True, return_inverse=True)
    fields = [ranges.fields[index] for index in used.tolist()]
    in_order = [fields[index].communicator for index in np.argsort(first).tolist()]
    names = [name for name in dict.fromkeys(in_order) if name]
    known_sizes = [world_sizes.get(field.communicator or "", UNKNOWN) for field in fields]
    sizes = [
        payload.world_size if payload.world_size >= 0 else size
        for payload, size in zip(fields, known_sizes, strict=True)
    ]

    def of_call(values: Iterable[int]) -> Int64:
        column: Int64 = np.array([*values], np.int64)[number.reshape(-1)]
        return column

    members = np.flatnonzero(launch_of_call >= 0)
    return CommunicationCalls(
        start_ns=ranges.start_ns[call],
        end_ns=ranges.end_ns[call],
        thread=ranges.thread[call],
        operation=operation[call],
        bytes=of_call(field.bytes for field in fields),
        communicator=of_call(
            names.index(field.communicator) if field.communicator else UNKNOWN for field in fields
        ),
        peer=of_call(field.peer for field in fields),
        world_size=of_call(sizes),
        sequence=of_call(field.sequence for field in fields),
        launch_start_ns=ranges.start_ns[launch],
        launch_end_ns=ranges.end_ns[launch],
        launch_thread=ranges.thread[launch],
        launch_parent=np.full(len(launch), UNKNOWN, np.int64),
        first_member=np.searchsorted(launch_of_call[members], np.arange(len(launch) + 1)),
        members=members,
        communicators=tuple(names),
    )
