"""Payloads of NCCL's ranges that only `nsys export --type=json` writes, put into an SQLite export.

This is for Nsight Systems before 2024.5. The JSON has no schemas: the layouts of NCCL 2.16 to 2.24
are known by the number of the schema, and only payloads that match in number, name and size count.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any

from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DOMAIN = "NCCL"
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
    """Return whether an export holds ranges of NCCL, but cannot hold their payloads.

    Args:
        export: the SQLite file.
    """
    with closing(sqlite3.connect(export)) as connection:
        columns = {row[1] for row in connection.execute(f"PRAGMA table_info({schema.NVTX.name})")}
        if not {"jsonText", "textId", "domainId"} <= columns or "binaryData" in columns:
            return False
        query = (
            f"SELECT EXISTS (SELECT 1 FROM {schema.NVTX.name} LEFT JOIN {schema.STRINGS}"  # noqa: S608
            " ON id = textId WHERE eventType = ? AND coalesce(text, value) = ?)"
        )
        return bool(connection.execute(query, (schema.NVTX_DOMAIN, _DOMAIN)).fetchone()[0])


def add_payloads(export: Path, document: Path) -> int:
    """Put the payloads of NCCL's ranges into an export of the same report, as JSON.

    Args:
        export: the SQLite file, which is changed.
        document: the output of `nsys export --type=json`.

    Returns:
        The number of ranges that got a payload.
    """
    with closing(sqlite3.connect(export)) as connection, connection:
        connection.execute(
            "CREATE TEMP TABLE payloads (start, end, globalTid, domainId, name, fields,"
            " PRIMARY KEY (start, globalTid, domainId, name, end))"
        )
        with document.open(encoding="utf-8", errors="replace") as lines:
            connection.executemany(
                "INSERT OR IGNORE INTO payloads VALUES (?, ?, ?, ?, ?, ?)",
                (payload for line in lines if _MARK in line for payload in _payloads(line)),
            )
        name = f"coalesce(e.text, (SELECT value FROM {schema.STRINGS} WHERE id = e.textId))"  # noqa: S608
        updated = connection.execute(
            f"UPDATE {schema.NVTX.name} AS e SET jsonText = p.fields FROM payloads AS p"  # noqa: S608
            " WHERE p.start = e.start AND p.globalTid = e.globalTid AND p.domainId = e.domainId"
            f" AND p.end = e.end AND p.name = {name} AND e.eventType = ? AND e.domainId IN"
            f" (SELECT e.domainId FROM {schema.NVTX.name} AS e WHERE e.eventType = ?"
            f" AND {name} = ?)",
            (schema.NVTX_PUSH_POP, schema.NVTX_DOMAIN, _DOMAIN),
        )
        return updated.rowcount


def _payloads(line: str) -> Iterator[tuple[Any, ...]]:
    """Yield start, end, thread, domain, name and fields of a range whose payload is known."""
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
