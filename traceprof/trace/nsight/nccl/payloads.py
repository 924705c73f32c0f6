"""The payloads of NCCL's NVTX ranges: bytes laid out by schemas that the export holds, or JSON.

A payload is 32 bytes of header, `<IIIIQQ`: domain, 0, schema, 0, its size, its size with the
header; then the fields. The numbers of schemas and the places of fields change between versions of
NCCL; the fields' names do not.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from traceprof.trace.model.communication_calls import Fields
from traceprof.trace.model.limits import MAX_BYTES
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from traceprof.trace.sqlite.database import Database

_HEADER = struct.Struct("<IIIIQQ")
# nvToolsExtPayload.h: type to struct's code. An enumeration's type is the id of its own schema.
_CODES = {
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b",
    12: "B", 13: "h", 14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 19: "f", 20: "d", 22: "Q",
    23: "Q",
}  # fmt: skip
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


class PayloadReader:
    """Reads the payloads of one export."""

    def __init__(self, database: Database) -> None:
        """Read the schemas, which each process repeats."""
        self._places = _places(database)
        self._seen: dict[tuple[int, str], Fields] = {}

    def read(self, domain: int, binary: str | None, text: str | None) -> Fields:
        """Return the facts in a payload.

        Args:
            domain: of the range.
            binary: the payload in hexadecimal digits.
            text: the payload as JSON, which older exports may have instead.
        """
        key = (domain, binary or text or "")
        if key not in self._seen:
            fields = self._of_binary(domain, binary) if binary else None
            if fields is None and isinstance(text, str):
                fields = _of_json(text)
            self._seen[key] = _fields(fields or {})
        return self._seen[key]

    def _of_binary(self, domain: int, digits: str) -> dict[str, int] | None:
        try:
            payload = bytes.fromhex(digits.removeprefix("0x"))
        except (ValueError, AttributeError, TypeError):
            return None
        if len(payload) < _HEADER.size:
            return None
        _, _, layout, _, size, _ = _HEADER.unpack_from(payload)
        places = self._places.get((domain, layout))
        body = payload[_HEADER.size :]
        if places is None or size > len(body):
            return None
        return {
            meaning: struct.unpack_from(f"<{code}", body, offset)[0]
            for meaning, offset, code in places
            if offset + struct.calcsize(f"<{code}") <= size
        }


def _places(database: Database) -> dict[tuple[int, int], list[tuple[str, int, str]]]:
    """Return meaning, offset and code of the known fields, by domain and schema."""
    rows = database.rows(
        schema.PAYLOAD_ENTRIES,
        {"domainId": int, "schemaId": int, "idx": int, "type": int, "name": str, "offset": int},
    )
    entries: dict[tuple[int, int], dict[int, tuple[str, int, int | None]]] = defaultdict(dict)
    for row in rows:
        if None not in (row["domainId"], row["schemaId"], row["idx"], row["type"]):
            entry = (row["name"] or "", row["type"], row["offset"])
            entries[row["domainId"], row["schemaId"]].setdefault(row["idx"], entry)
    places = {}
    for key, of_schema in entries.items():
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
        places[key] = fields
    return places


def _of_json(text: str) -> dict[str, int] | None:
    import json  # noqa: PLC0415  (payloads of few versions)

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
