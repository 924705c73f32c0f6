"""NCCL in an Nsight export: its NVTX ranges, their payloads, and the communication calls."""

from __future__ import annotations

import base64
import json
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_rows, distinct_values
from traceprof.trace.model.communication_calls import (
    NO_CALLS,
    OPERATIONS,
    CommunicationCalls,
    Fields,
    ProcessCalls,
)
from traceprof.trace.model.ranges import LabelRanges, labelled_calls, nested_calls
from traceprof.trace.model.special_values import MAX_BYTES, NULL, UNKNOWN
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx import Events
from traceprof.trace.nsight.rows import of_processes, read_strings
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.numbering import Text

Places = list[tuple[str, int, str]]


def grouped(
    start_ns: Int64, end_ns: Int64, thread: Int64, is_call: Mask, begins: Mask, closes: Mask
) -> tuple[Int64, Int64, Int64]:
    """Calls and the launch range of each: its own, or the end of its group.

    k ranges, by thread, start and nesting. `begins`: it is an ncclGroupStart. `closes`: it is an
    ncclGroupEnd.

    Returns the ranges that are calls, ascending int64[n]; those that launch operations, ascending
    int64[m]; for each call the index into these, int64[n], -1 if the capture ended before.
    """
    calls, launches, launch_of_call = [NO_NUMBERS], [NO_NUMBERS], [NO_NUMBERS]
    num_launches = 0
    _, edges = np.unique(thread, return_index=True)
    for first, stop in zip(edges, [*edges[1:], len(thread)], strict=False):
        of_thread = slice(first, stop)
        # A call inside a call is a part of it.
        reach = np.maximum.accumulate(np.where(is_call[of_thread], end_ns[of_thread], NULL))
        outer = np.append(True, start_ns[of_thread][1:] >= reach[:-1])
        row = first + np.flatnonzero(outer)
        change = begins[row].astype(np.int64) - closes[row]
        # A group may have begun before the capture: its end cannot lead below depth 0.
        level = np.cumsum(change)
        depth = level - np.minimum.accumulate(np.minimum(level, 0))
        launches_here = (is_call[row] | closes[row]) & (depth == 0)
        launch = row[launches_here]
        # The launch range of a call in a group is the next one.
        of_row = np.cumsum(launches_here) - launches_here
        of_call = of_row[is_call[row]]
        calls.append(row[is_call[row]])
        launches.append(launch)
        launch_of_call.append(np.where(of_call < len(launch), of_call + num_launches, -1))
        num_launches += len(launch)
    return np.concatenate(calls), np.concatenate(launches), np.concatenate(launch_of_call)


_HEADER = struct.Struct("<IIIIQQ")
# nvToolsExtPayload.h: type to struct's code. An enumeration's type is the id of its own schema.
_CODES = {**dict(enumerate("bBhHiIqQqQbBhHiIqQfd", 1)), 22: "Q", 23: "Q"}
_ENUMERATION = "i"

# Names of fields in lower case, with their meaning.
_NAMES = {
    "nccl communicator id": "communicator",
    "message size [bytes]": "bytes",
    "bytes": "bytes",  # of ncclSend and ncclRecv before 2.25
    "peer rank": "peer",
    "peer": "peer",
    "no. of ranks": "world_size",
    "rank": "rank",
}


def _of_binary(payload: Text, places: Mapping[int, Places]) -> dict[str, int] | None:
    """Facts in a payload, bytes or their hexadecimal digits; None if it cannot be read.

    `places`: the known fields by schema.
    """
    if isinstance(payload, str):
        try:
            payload = bytes.fromhex(payload.removeprefix("0x"))
        except ValueError:
            return None
    if len(payload) < _HEADER.size:
        return None
    _, _, layout, _, size, _ = _HEADER.unpack_from(payload)
    body = payload[_HEADER.size :]
    if layout not in places or size > len(body):
        return None
    return {
        meaning: struct.unpack_from(f"<{code}", body, offset)[0]
        for meaning, offset, code in places[layout]
        if offset + struct.calcsize(f"<{code}") <= size
    }


def _places(database: Database) -> dict[int, dict[int, Places]]:
    """Meaning, offset and code of the known fields, by domain and schema."""
    rows = database.rows(
        schema.PAYLOAD_ENTRIES,
        {"domainId": int, "schemaId": int, "idx": int, "type": int, "name": str, "offset": int},
    )
    entries: dict[tuple[int, int], dict[int, tuple[str, int, int | None]]] = defaultdict(dict)
    for row in rows:
        if None not in (row["domainId"], row["schemaId"], row["idx"], row["type"]):
            entry = (row["name"] or "", row["type"], row["offset"])
            entries[row["domainId"], row["schemaId"]].setdefault(row["idx"], entry)
    places: dict[int, dict[int, Places]] = defaultdict(dict)
    for (domain, layout), of_schema in entries.items():
        fields, end = [], 0
        for index in sorted(of_schema):
            name, kind, offset = of_schema[index]
            code = _CODES.get(kind, _ENUMERATION)
            length = struct.calcsize(f"<{code}")
            # Nsight omits the offset 0 of the first field; without any offset, C's layout holds.
            start = -(-end // length) * length if offset is None else offset
            end = start + length
            meaning = _NAMES.get(name.strip().lower())
            if meaning is not None and code not in "fd" and start >= 0:
                fields.append((meaning, start, code))
        places[domain][layout] = fields
    return places


def _of_json(text: str) -> dict[str, int] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    values = {}
    for name, value in parsed.items():
        meaning = _NAMES.get(name.strip().lower())
        if isinstance(value, str):
            try:
                value = int(value, 0)  # noqa: PLW2901
            except ValueError:
                continue
        if meaning is not None and type(value) is int:
            values[meaning] = value
    return values


def _fields(values: dict[str, int]) -> Fields:
    communicator = values.get("communicator")
    numbers: dict[str, Any] = {
        name: values[name]
        for name in ("bytes", "peer", "world_size", "rank")
        if 0 <= values.get(name, -1) < MAX_BYTES
    }
    of_64_bits = None if communicator is None else f"0x{communicator & (1 << 64) - 1:016x}"
    return Fields(of_64_bits, **numbers)


NCCL_DOMAIN = "NCCL"
_MARK = '"BinaryData"'
_BYTES, _PEER = "Message size [bytes]", "Peer rank"
_SIZE, _SIZE_AND_MORE = struct.Struct("<Q"), struct.Struct("<QQ")
_SIZE_AND_PEER = struct.Struct("<Qi4x")
_FIRST_SCHEMA = 1 << 24  # of those that a program numbers itself
# By the number of the schema: the call, and the layout of its payload.
_LAYOUTS = {
    _FIRST_SCHEMA + 4: ("ncclAllGather", _SIZE, (_BYTES,)),
    _FIRST_SCHEMA + 5: ("ncclAllReduce", _SIZE_AND_MORE, (_BYTES,)),
    _FIRST_SCHEMA + 6: ("ncclBroadcast", _SIZE_AND_MORE, (_BYTES,)),
    _FIRST_SCHEMA + 7: ("ncclReduceScatter", _SIZE_AND_MORE, (_BYTES,)),
    _FIRST_SCHEMA + 8: ("ncclReduce", _SIZE_AND_MORE, (_BYTES,)),
    _FIRST_SCHEMA + 9: ("ncclSend", _SIZE_AND_PEER, (_BYTES, _PEER)),
    _FIRST_SCHEMA + 10: ("ncclRecv", _SIZE_AND_PEER, (_BYTES, _PEER)),
}


def lacks_payloads(export: Path) -> bool:
    """Whether an export holds ranges of NCCL, but cannot hold their payloads."""
    with closing(sqlite3.connect(export)) as connection:
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({schema.NVTX.name})")}
        if not {"jsonText", "textId", "domainId"} <= columns or "binaryData" in columns:
            return False
        query = (
            f"SELECT EXISTS (SELECT 1 FROM {schema.NVTX.name} LEFT JOIN {schema.STRINGS}"  # noqa: S608
            " ON id = textId WHERE eventType = ? AND coalesce(text, value) = ?)"
        )
        return bool(connection.execute(query, (schema.NVTX_DOMAIN, NCCL_DOMAIN)).fetchone()[0])


def add_payloads(export: Path, document: Path) -> int:
    """Put the payloads of NCCL's ranges into an export, which is changed, as JSON.

    `document`: the output of `nsys export --type=json` of the same report. Returns the number of
    ranges that got a payload.
    """
    with closing(sqlite3.connect(export)) as connection, connection:
        connection.execute(
            "CREATE TEMP TABLE payloads (start, end, globalTid, domainId, name, fields,"
            " PRIMARY KEY (start, globalTid, domainId, name, end))"
        )
        with document.open(encoding="utf-8", errors="replace") as lines:
            connection.executemany(
                "INSERT OR IGNORE INTO payloads VALUES (?, ?, ?, ?, ?, ?)",
                (payload for line in lines if _MARK in line for payload in _payload_texts(line)),
            )
        name = f"coalesce(e.text, (SELECT value FROM {schema.STRINGS} WHERE id = e.textId))"  # noqa: S608
        updated = connection.execute(
            f"UPDATE {schema.NVTX.name} AS e SET jsonText = p.fields FROM payloads AS p"  # noqa: S608
            " WHERE p.start = e.start AND p.globalTid = e.globalTid AND p.domainId = e.domainId"
            f" AND p.end = e.end AND p.name = {name} AND e.eventType = ? AND e.domainId IN"
            f" (SELECT e.domainId FROM {schema.NVTX.name} AS e WHERE e.eventType = ?"
            f" AND {name} = ?)",
            (schema.NVTX_PUSH_POP, schema.NVTX_DOMAIN, NCCL_DOMAIN),
        )
        return updated.rowcount


def _payload_texts(line: str) -> Iterator[tuple[Any, ...]]:
    """Start, end, thread, domain, name and fields of a range whose payload is known."""
    try:
        event = json.loads(line)["NvtxEvent"]
        if event.get("NsTime") is not True:
            return
        place = [int(event[key]) for key in ("Timestamp", "EndTimestamp", "GlobalTid", "DomainId")]
        for payload in event["Payload"]["BinaryData"]:
            layout = _LAYOUTS.get(int(payload["SchemaId"]))
            data = base64.b64decode(payload["Data"])
            if layout is None or len(data) != layout[1].size:
                continue
            name, form, fields = layout
            yield (*place, name, json.dumps(dict(zip(fields, form.unpack(data), strict=False))))
    except (ValueError, KeyError, TypeError, AttributeError):  # another kind of event, or damaged
        return


class NcclRanges(Rows, frozen=True):
    """The ranges of NCCL in one process, by thread, start and nesting."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n], not before the start; the largest int64 if still open
    thread: Int64  # int64[n] (Nsight's globalTid)
    name: Int64  # int64[n], indices into `names`
    names: Sequence[str]  # functions of NCCL
    field_index: Int64  # int64[n], indices into `fields`
    fields: Sequence[Fields]  # the facts in payloads


def read_nccl_ranges(
    events: Events, domains: Mapping[tuple[int, int], str], names: AbstractSet[str]
) -> dict[int, NcclRanges]:
    """Push/pop ranges of NCCL by process (globalPid).

    `names`: requested functions of NCCL, in addition to those that create communicators.
    """
    columns = events.columns

    def is_requested(name: str) -> bool:
        return name in names or name.startswith("ncclComm")

    pushed = events.is_range & columns.kind.isin([schema.NVTX_PUSH_POP])
    rows = events.named(is_requested, is_requested, np.flatnonzero(pushed))
    # An export may lack the row that names a domain; NCCL's functions have unique names.
    rows, start, end, thread = events.nested(
        rows,
        lambda process, domain: (
            domains.get((process, domain), NCCL_DOMAIN if domain else "") == NCCL_DOMAIN
        ),
    )
    name, functions = events.numbered_names(rows)
    payload, payloads = _payloads(events, rows)
    end = np.maximum(start, end)
    every = NcclRanges(start, end, thread, name, functions, payload, payloads)
    return of_processes(every, thread)


def _payloads(events: Events, rows: Int64) -> tuple[Int64, list[Fields]]:
    columns, places = events.columns, _places(events.database)
    binary, text = columns.binary.at(rows), columns.json.at(rows)
    field_index, kinds = distinct_rows(
        columns.domain.at(rows), binary, text, columns.json_id.at(rows)
    )
    of_id = read_strings(events.database, {text_id for *_, text_id in kinds if text_id != NULL})
    known = [*columns.payloads, None]  # for NULL
    fields = []
    for domain, of_binary, of_text, text_id in kinds:
        payload, json = known[of_binary], known[of_text]
        json = json if isinstance(json, str) else of_id.get(text_id)
        facts = _of_binary(payload, places.get(domain, {})) if payload else None
        if facts is None and json is not None:  # as older exports have it
            facts = _of_json(json)
        fields.append(_fields(facts or {}))
    return field_index, fields


_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_FUNCTIONS = {f"nccl{name}": name for name in OPERATIONS[:10]} | {"ncclBcast": "Broadcast"}
_CALL_NAMES = {*_FUNCTIONS, _GROUP_START, _GROUP_END}


def read_communication_calls(
    events: Events, domains: Mapping[tuple[int, int], str], label_ranges: Mapping[int, LabelRanges]
) -> dict[int, ProcessCalls]:
    """Communication calls of each process (globalPid) that has any."""
    nccl = read_nccl_ranges(events, domains, _CALL_NAMES)
    labelled = {process: labelled_calls(ranges) for process, ranges in label_ranges.items()}
    facts = {
        process: [ranges.fields[index] for index in distinct_values(ranges.field_index).tolist()]
        for process, ranges in nccl.items()
    }
    sizes = {  # of communicators, from their creation and destruction
        payload.communicator: payload.world_size
        for of_process in facts.values()
        for payload in of_process
        if payload.communicator is not None and payload.world_size > 0
    }
    return {
        process: ProcessCalls(
            _in_groups(nccl[process], sizes) if process in nccl else NO_CALLS,
            nested_calls(labelled.get(process, [])),
            _rank_in_largest(facts.get(process, [])),
        )
        for process in sorted({*nccl, *(number for number, calls in labelled.items() if calls)})
    }


def _rank_in_largest(fields: Sequence[Fields]) -> int | None:
    """Rank in the largest communicator of the process; None if ambiguous."""
    sizes_and_ranks = {(facts.world_size, facts.rank) for facts in fields if facts.rank >= 0}
    largest = [rank for size, rank in sizes_and_ranks if size == max(sizes_and_ranks)[0]]
    return largest[0] if len(largest) == 1 else None


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
        return np.array([*values], np.int64)[number.reshape(-1)]

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
