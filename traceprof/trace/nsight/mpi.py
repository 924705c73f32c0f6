"""MPI in an Nsight export: its processes, and the calls that communicate.

Peers, roots, tags, sizes and communicators are recorded since Nsight Systems 2021; before, and for
calls of other tables, only names and times are. Handles of communicators are addresses of one
process: the table of communicators says which are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from traceprof.intervals import NO_NUMBERS, Int64
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, numbered
from traceprof.trace.model.communication_calls import BARRIER, OPERATIONS, MpiCalls
from traceprof.trace.model.special_values import NULL, OPEN_END, UNKNOWN
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import check_times, read_rows, read_strings
from traceprof.trace.sqlite.database import Database

Columns = dict[str, Int64]

WORLD = "MPI_COMM_WORLD"
ONLY = "MPI"
"""The name of the only communicator that a process is known to use, if nothing else is known."""

_EVENTS = re.compile(r"MPI_\w*EVENTS\Z")
_NAME = re.compile(r"P?MPI_(\w+?)(?:_c)?_*\Z", re.IGNORECASE)
_KINDS = {
    "AllReduce": "allreduce",
    "AllGather": "allgather allgatherv",
    "ReduceScatter": "reduce_scatter reduce_scatter_block",
    "Broadcast": "bcast",
    "Reduce": "reduce",
    "AlltoAll": "alltoall alltoallv alltoallw",
    "Gather": "gather gatherv",
    "Scatter": "scatter scatterv",
    "Send": "send bsend ssend rsend",
    "Recv": "recv",
    "SendRecv": "sendrecv sendrecv_replace",
    BARRIER: "barrier",
}
_NUMBERS = {
    f"{nonblocking}{name}": (*OPERATIONS, BARRIER).index(kind)
    for kind, names in _KINDS.items()
    for name in names.split()
    for nonblocking in ("", "i")
}
_OF_TWO = tuple(OPERATIONS.index(name) for name in ("Send", "Recv", "SendRecv"))
_RECEIVE, _SCATTERED = OPERATIONS.index("Recv"), OPERATIONS.index("ReduceScatter")
# The sizes of these are not known to be of one rank's message.
_OTHER_SIZES = tuple(OPERATIONS.index(name) for name in ("AlltoAll", "Gather", "Scatter"))
_WAITING = re.compile(r"P?MPI_Wait", re.IGNORECASE)
_NO_CALL = -2
_MPICH_WORLD = 0x44000000  # MPI_COMM_WORLD in the ABI of MPICH, equal in all processes
_COLUMNS = ("commHandle", "tag", "remoteRank", "rootRank", "size", "recvSize", "requestHandle")


class _Communicator(Record, frozen=True):
    """A communicator of one process: its name, equal on all members, and its size."""

    name: str
    size: int


def mpi_processes(database: Database) -> frozenset[int]:
    """Return the processes (globalPid) with calls of MPI, or with a rank in MPI."""
    tables = [name for name in database.columns if _EVENTS.match(name)]
    threads = set()
    for table in (*tables, schema.MPI_RANKS):
        if database.has(table, "globalTid"):
            query = f'SELECT DISTINCT globalTid FROM "{table}"'  # noqa: S608
            threads |= {
                row["globalTid"] for row in database.query(query, table, {"globalTid": int})
            }
    return frozenset(schema.process_of_thread(thread) for thread in threads if thread is not None)


def read_mpi_calls(database: Database, ranks: Mapping[int, int]) -> dict[int, MpiCalls]:
    """Communicating calls of MPI, by process (globalPid).

    `ranks`: the known ranks in MPI of the processes.
    """
    tables = [name for name in sorted(database.columns) if _EVENTS.match(name)]
    events = _read(database, tables)
    is_wait = events["kind"] == UNKNOWN
    rows, waits = (
        {name: values[chosen] for name, values in events.items()} for chosen in (~is_wait, is_wait)
    )
    known = _communicators(database)
    return {
        process: _calls(
            {name: values[rows["process"] == process] for name, values in rows.items()},
            {name: values[waits["process"] == process] for name, values in waits.items()},
            known.get(ranks.get(process, UNKNOWN), {}),
        )
        for process in distinct_values(rows["process"]).tolist()
    }


def _read(database: Database, tables: list[str]) -> Columns:
    """Rows of tables by start: communicating calls, and waits; int64[n] each.

    `kind` is the number of the operation, unknown for a wait.
    """
    parts: dict[str, list[Int64]] = {
        name: [NO_NUMBERS] for name in ("start", "end", "process", "kind", *_COLUMNS)
    }
    for table in tables:
        optional = ("end", schema.MPI_NAME, *_COLUMNS)
        rows = read_rows(database, table, ("start", "globalTid"), optional)
        rows["kind"] = _kinds(database, rows[schema.MPI_NAME])
        rows = {name: values[rows["kind"] != _NO_CALL] for name, values in rows.items()}
        end = np.maximum(rows["start"], rows["end"])
        check_times(database, table, rows["start"], end)
        rows["end"] = np.where(rows["end"] == NULL, OPEN_END, end)
        rows["process"] = schema.process_of_thread(rows["globalTid"])
        for name, of_tables in parts.items():
            of_tables.append(rows[name])
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    order = np.lexsort((columns["end"], columns["start"]))
    return {name: values[order] for name, values in columns.items()}


def _kinds(database: Database, ids: Int64) -> Int64:
    """Operation of each name, unknown for a wait, `_NO_CALL` for others; int64[n]."""
    distinct, place = numbered(ids)
    names = read_strings(database, [name for name in distinct.tolist() if name != NULL])
    kinds = np.full(len(distinct), _NO_CALL, np.int64)
    for index, name in enumerate(distinct.tolist()):
        text = names.get(name, "")
        function = _NAME.match(text)
        if _WAITING.match(text):
            kinds[index] = UNKNOWN
        elif function is not None:
            kinds[index] = _NUMBERS.get(function[1].lower(), _NO_CALL)
    return kinds[place]


def _communicators(database: Database) -> dict[int, dict[int, _Communicator]]:
    columns = dict.fromkeys(
        ("rank", "timestamp", "commHandle", "parentHandle", "size", "groupRoot", "groupRootUid"),
        int,
    )
    communicators: dict[int, dict[int, _Communicator]] = {}
    rows = database.rows(schema.MPI_COMMUNICATORS, columns)
    for row in sorted(rows, key=lambda row: row["timestamp"] or 0):
        root, number = row["groupRoot"], row["groupRootUid"]
        if row["rank"] is None or row["commHandle"] is None:
            continue
        if root is not None and number is not None:
            name = f"MPI communicator {number} of rank {root}"
        elif not row["parentHandle"]:
            name = WORLD
        else:
            continue
        size = UNKNOWN if row["size"] is None else row["size"]
        communicators.setdefault(row["rank"], {})[row["commHandle"]] = _Communicator(name, size)
    return communicators


def _calls(rows: Columns, waits: Columns, handles: Mapping[int, _Communicator]) -> MpiCalls:
    rows = _without_null_peers(rows)
    blocked, end = _until_waited(rows, waits)
    kind = rows["kind"]
    names, communicator, world_size = _communicators_of(rows["commHandle"], handles)
    is_world = is_in(communicator, [names.index(name) for name in names if name == WORLD])
    of_two = is_in(kind, _OF_TWO)
    size = np.where(kind == _SCATTERED, rows["recvSize"], rows["size"])
    has_size = (kind < len(OPERATIONS)) & (kind != _RECEIVE) & ~is_in(kind, _OTHER_SIZES)

    facts = {
        "bytes": np.where(has_size, size, UNKNOWN),
        "communicator": communicator,
        "peer": np.where(of_two & is_world, rows["remoteRank"], UNKNOWN),
        "root": np.where(is_world & ~of_two, rows["rootRank"], UNKNOWN),
        "tag": np.where(of_two, rows["tag"], UNKNOWN),
        "world_size": world_size,
    }
    is_over = end != OPEN_END
    known = {name: np.maximum(fact[is_over], UNKNOWN) for name, fact in facts.items()}
    return MpiCalls(
        start_ns=rows["start"][is_over],
        blocked_ns=blocked[is_over],
        end_ns=end[is_over],
        operation=kind[is_over],
        communicators=names,
        **known,
    )


def _without_null_peers(rows: Columns) -> Columns:
    """Calls without those to or from the null process, which do nothing.

    Its number differs between implementations, as does that of any source: only the null process is
    ever a destination.
    """
    is_send, peer = rows["kind"] == OPERATIONS.index("Send"), rows["remoteRank"]
    nobody = distinct_values(peer[is_send & (peer < 0) & (peer != NULL)])
    keep = ~(is_in(rows["kind"], _OF_TWO) & is_in(peer, nobody))
    return {name: values[keep] for name, values in rows.items()}


def _communicators_of(
    handles: Int64, known: Mapping[int, _Communicator]
) -> tuple[tuple[str, ...], Int64, Int64]:
    """Names of communicators, and for each call the index of its own and its size."""
    distinct, place = numbered(handles)
    own = [_communicator(handle, distinct.tolist(), known) for handle in distinct.tolist()]
    names = tuple(dict.fromkeys(comm.name for comm in own if comm is not None))
    of_handle = [UNKNOWN if comm is None else names.index(comm.name) for comm in own]
    sizes = [UNKNOWN if comm is None else comm.size for comm in own]
    return names, np.array(of_handle, np.int64)[place], np.array(sizes, np.int64)[place]


def _communicator(
    handle: int, handles: list[int], known: Mapping[int, _Communicator]
) -> _Communicator | None:
    """Communicator of a handle; None if it may be one of several."""
    if handle in known:
        return known[handle]
    if handle == _MPICH_WORLD:
        return _Communicator(WORLD, UNKNOWN)
    shared = {comm for comm in known.values() if comm.size != 1}
    if len(shared) == 1 and handle == NULL:
        return next(iter(shared))
    return _Communicator(ONLY, UNKNOWN) if len(handles) == 1 and not known else None


def _until_waited(rows: Columns, waits: Columns) -> tuple[Int64, Int64]:
    """When the host began to wait for each call, and when it ended, int64[n] each.

    Handles of requests are used again: the last wait before the next use counts.
    """
    blocked, end = rows["start"].copy(), rows["end"].copy()
    posted = np.flatnonzero((rows["requestHandle"] != NULL) & (rows["requestHandle"] != 0))
    handle = np.concatenate((rows["requestHandle"][posted], waits["requestHandle"]))
    start = np.concatenate((rows["start"][posted], waits["start"]))
    is_wait = np.arange(len(handle)) >= len(posted)
    order = np.lexsort((is_wait, start, handle))
    if not len(posted):
        return blocked, end
    # By handle and start: a request's events go from its post to the next post or handle.
    is_first = ~is_wait[order] | (np.diff(handle[order], prepend=handle[order][0]) != 0)
    post = np.flatnonzero(~is_wait[order])
    begins = np.flatnonzero(is_first)
    last = np.append(begins, len(order))[np.searchsorted(begins, post, side="right")] - 1
    post, wait = order[post[last > post]], order[last[last > post]] - len(posted)
    blocked[posted[post]] = np.maximum(waits["start"][wait], end[posted[post]])
    end[posted[post]] = np.maximum(waits["end"][wait], blocked[posted[post]])
    return blocked, end
