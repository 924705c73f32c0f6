"""The payloads of NCCL's NVTX ranges: size, communicator and peer of each operation.

As NCCL 2.25 and later write them (src/include/nvtx.h, nvtx_payload_schemas.h): static schemas whose
id is 0x1000000 + the operation's, with the fields one after the other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from sample_traces.simulator.machine import NCCL_DOMAIN
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sample_traces.simulator.nsight_writer import NsightWriter

COMMUNICATOR, SIZE = "NCCL communicator ID", "Message size [bytes]"
REDUCTION, PEER, ROOT = "Reduction operation", "Peer rank", "Root"
_REDUCTIONS = ("Sum", "Product", "Max", "Min", "Avg")

_FIRST_SCHEMA = 0x1000000
# nvToolsExtPayload.h; an enumeration's type is the id of its own schema.
_INT, _UINT64, _SIZE = 5, 18, 22
_REDUCTION_ENUM = _FIRST_SCHEMA + 24


@dataclass(frozen=True, slots=True)
class _Schema:
    """A payload's layout: field to type, in order."""

    id: int
    fields: tuple[tuple[str, int], ...]

    @property
    def offsets(self) -> list[int]:
        """The offset of each field, in bytes."""
        sizes = [8 if kind in (_UINT64, _SIZE) else 4 for _, kind in self.fields]
        return [sum(sizes[:index]) for index in range(len(sizes))]

    @property
    def size(self) -> int:
        """The size in bytes, in whole words of eight."""
        return -(-(self.offsets[-1] + 4) // 8) * 8


_MESSAGE = ((COMMUNICATOR, _UINT64), (SIZE, _SIZE))
_REDUCED = (*_MESSAGE, (REDUCTION, _REDUCTION_ENUM))
_SCHEMAS = {
    "ncclAllGather": _Schema(_FIRST_SCHEMA + 4, _MESSAGE),
    "ncclAllReduce": _Schema(_FIRST_SCHEMA + 5, _REDUCED),
    "ncclReduceScatter": _Schema(_FIRST_SCHEMA + 7, _REDUCED),
    "ncclSend": _Schema(_FIRST_SCHEMA + 9, (*_MESSAGE, (PEER, _INT))),
    "ncclRecv": _Schema(_FIRST_SCHEMA + 10, (*_MESSAGE, (PEER, _INT))),
}


def write_schemas(writer: NsightWriter) -> None:
    """Write the layouts of payloads; real exports repeat these rows for each process."""
    for layout in _SCHEMAS.values():
        where = {"domainId": NCCL_DOMAIN, "schemaId": layout.id}
        count = len(layout.fields)
        writer.add(
            schema.PAYLOAD_SCHEMAS,
            {**where, "type": 1, "numEntries": count, "payloadSize": layout.size},
        )
        writer.add(
            schema.PAYLOAD_ENTRIES,
            {
                **where,
                "idx": list(range(count)),
                "type": [kind for _, kind in layout.fields],
                "name": [name for name, _ in layout.fields],
                # Nsight omits that of the first one.
                "offset": [offset or None for offset in layout.offsets],
            },
        )
    enum = {"domainId": NCCL_DOMAIN, "schemaId": _REDUCTION_ENUM}
    writer.add(
        schema.PAYLOAD_ENUMS,
        {**enum, "name": "ncclRedOp_t", "numEntries": len(_REDUCTIONS), "size": 4},
    )
    writer.add(
        schema.PAYLOAD_ENUM_ENTRIES,
        {
            **enum,
            "idx": list(range(len(_REDUCTIONS))),
            "name": _REDUCTIONS,
            "value": list(range(len(_REDUCTIONS))),
            "isFlag": 0,
        },
    )


def binary(name: str, payload: Mapping[str, int]) -> str:
    """Return `binaryData` of the range of an NCCL function.

    It is bytes, which SQLite keeps unchanged in a TEXT column; the writer supports only texts.
    """
    layout = _SCHEMAS[name]
    code = "".join("Q" if kind in (_UINT64, _SIZE) else "i" for _, kind in layout.fields)
    fields = struct.pack(f"<{code}", *(payload[field] for field, _ in layout.fields))
    fields = fields.ljust(layout.size, b"\0")
    size = len(fields)
    header = struct.pack("<IIIIQQ", NCCL_DOMAIN, 0, layout.id, 0, size, 32 + size)
    return cast("str", header + fields)


def text(payload: Mapping[str, int]) -> str:
    """Return `jsonText` of the same: names to values, enumerations by name."""
    shown: dict[str, int | str] = dict(payload)
    if REDUCTION in shown:
        shown[REDUCTION] = _REDUCTIONS[payload[REDUCTION]]
    return json.dumps(shown)
