"""NCCL's own NVTX ranges: functions, times and payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nccl.payloads import PayloadReader
from traceprof.trace.nsight.nvtx.events import Events, portions
from traceprof.trace.nsight.strings import read_strings
from traceprof.trace.sqlite.numbered_texts import UNKEPT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from traceprof.intervals import Int64
    from traceprof.trace.model.communication_calls import Fields
    from traceprof.trace.sqlite.database import Database

NCCL_DOMAIN = "NCCL"


class NcclRanges(Record, frozen=True):
    """The ranges of NCCL in one process, by thread, start and nesting.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n], not before the start; the largest int64 if still open.
        thread: int64[n] (Nsight's globalTid).
        name: int64[n], indices into `names`.
        names: functions of NCCL.
        field_index: int64[n], indices into `fields`.
        fields: the facts in payloads.
    """

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    name: Int64
    names: Sequence[str]
    field_index: Int64
    fields: Sequence[Fields]


def read_nccl_ranges(
    events: Events, domains: Mapping[tuple[int, int], str], names: AbstractSet[str]
) -> dict[int, NcclRanges]:
    """Return the push/pop ranges of NCCL by process (globalPid).

    Args:
        events: of the export.
        domains: names of NVTX domains by process and id.
        names: requested functions of NCCL, in addition to those that create communicators.

    Raises:
        TraceFormatError: the file is damaged.
    """
    columns = events.columns

    def is_requested(name: str) -> bool:
        return name in names or name.startswith("ncclComm")

    pushed = events.is_range & columns.kind.isin([schema.NVTX_PUSH_POP])
    rows = events.named(is_requested, is_requested, np.flatnonzero(pushed))
    process = schema.process_of_thread(columns.thread(rows))
    rows = rows[_are_of_nccl(process, columns.domain.at(rows), domains)]
    start, end, thread = columns.starts.at(rows), events.ends(rows), columns.thread(rows)
    order = np.lexsort((-end, start, thread))  # stable: equal rows keep their order
    rows, start, end, thread = rows[order], start[order], end[order], thread[order]
    name, functions = events.numbered_names(rows)
    payload, payloads = _payloads(events, rows)
    process = schema.process_of_thread(thread)
    by_process = {}
    for number in distinct_values(process).tolist():
        part = slice(*np.searchsorted(process, [number, number + 1]).tolist())
        by_process[number] = NcclRanges(
            start[part],
            np.maximum(start, end)[part],
            thread[part],
            name[part],
            functions,
            payload[part],
            payloads,
        )
    return by_process


def _are_of_nccl(
    process: Int64, domain: Int64, domains: Mapping[tuple[int, int], str]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which ranges with names of NCCL's functions are in its domain, bool[n]."""
    key, pairs = _distinct(process, domain)
    # An export may lack the row that names a domain; NCCL's functions have unique names.
    of_pair = [
        domains.get((int(process), int(domain)), NCCL_DOMAIN if domain != 0 else "") == NCCL_DOMAIN
        for process, domain in pairs
    ]
    return np.array(of_pair, np.bool_)[key]


def _payloads(events: Events, rows: Int64) -> tuple[Int64, list[Fields]]:
    """Return the index of each row's facts, int64[n], and the distinct facts."""
    reader, columns = PayloadReader(events.database), events.columns
    binary, text = columns.binary.at(rows), columns.json.at(rows)
    json_id = columns.json_id.at(rows)
    field_index, kinds = _distinct(columns.domain.at(rows), binary, text, json_id)
    known = [*columns.payloads, None, None]  # for NULL and for payloads that were not kept
    of_id = read_strings(events.database, {text_id for *_, text_id in kinds if text_id != NULL})
    fields = []
    for domain, of_binary, of_text, key in kinds:
        digits, json = known[of_binary], known[of_text]
        digits = digits.hex() if isinstance(digits, bytes) else digits
        json = json if isinstance(json, str) else of_id.get(key)
        fields.append(reader.read(domain, digits, json))
    alone = np.flatnonzero((binary == UNKEPT) | (text == UNKEPT))
    if len(alone):
        # Payloads beyond the kept ones are read one by one.
        read = _payloads_of(events.database, columns.rowid(rows[alone]).tolist())
        domain = columns.domain.at(rows[alone]).tolist()
        field_index[alone] = len(fields) + np.arange(len(alone))
        fields += [reader.read(number, *read[index]) for index, number in enumerate(domain)]
    return field_index, fields


def _payloads_of(database: Database, rowids: Sequence[int]) -> list[tuple[str | None, str | None]]:
    """Return payloads of rows in hexadecimal digits and as JSON."""
    table, rowid = schema.NVTX.name, database.rowid(schema.NVTX.name)
    names = [name for name in ("binaryData", "jsonText") if database.has(table, name)]
    by_number = {}
    for some in portions(rowids):
        query = (
            f"SELECT {rowid}, {', '.join(names)} FROM {table}"  # noqa: S608
            f" WHERE {rowid} IN ({', '.join(map(str, some))})"
        )
        with database.damage_reported():
            for number, *values in database.connection.execute(query):
                of = dict(zip(names, values, strict=True))
                binary, text = of.get("binaryData"), of.get("jsonText")
                digits = binary.hex() if isinstance(binary, bytes) else binary
                by_number[number] = (digits, text if isinstance(text, str) else None)
    return [by_number.get(row, (None, None)) for row in rowids]


def _distinct(*columns: Int64) -> tuple[Int64, list[tuple[int, ...]]]:
    """Return the number of each row's values among the distinct ones, and these."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, number = np.unique(column, return_inverse=True)
        key = key * (int(number.max(initial=0)) + 1) + number.reshape(-1)
        _, key = np.unique(key, return_inverse=True)
        key = key.reshape(-1)
    _, first = np.unique(key, return_index=True)
    return key, list(zip(*(column[first].tolist() for column in columns), strict=True))
