"""NCCL's ranges with their payloads, for tests."""

import struct
from collections.abc import Sequence
from typing import Any

from tests.support.builders import TraceBuilder, global_tid

DOMAIN, LABELS = 5, 6
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_INT, _UINT64, _SIZE = 5, 18, 22
_COMMUNICATOR, _BYTES = ("NCCL communicator ID", _UINT64), ("Message size [bytes]", _SIZE)
# Numbered otherwise than in any NCCL: names must tell.
SCHEMAS: dict[int, tuple[tuple[str, int], ...]] = {
    901: (_COMMUNICATOR, _BYTES),
    902: (_COMMUNICATOR, _BYTES, ("Peer rank", _INT)),
    903: (_COMMUNICATOR, ("No. of ranks", _INT), ("Rank", _INT), ("CUDA device", _INT)),
    904: (_BYTES, ("Reduction operation", 905)),  # before 2.25
    906: (("Bytes", _SIZE), ("Peer rank", _INT)),
}


def prepare(
    builder: TraceBuilder, *, schemas: Sequence[int] = (901, 902), pid: int = 1000,
    offsets: bool = True,
) -> TraceBuilder:  # fmt: skip
    """Name the domains and lay out the payloads, as Nsight does for each process."""
    tid = global_tid(pid)
    for domain, name in ((DOMAIN, "NCCL"), (LABELS, "traceprof")):
        event = {"start": 0, "eventType": 75, "globalTid": tid, "domainId": domain, "text": name}
        builder.raw("NVTX_EVENTS", **event)
    for schema in schemas:
        offset = 0
        for index, (name, kind) in enumerate(SCHEMAS[schema]):
            where = {"domainId": DOMAIN, "schemaId": schema, "idx": index}
            known = offset if index and offsets else None
            builder.raw("NVTX_PAYLOAD_SCHEMA_ENTRIES", **where, name=name, type=kind, offset=known)
            offset += 8 if kind in (_UINT64, _SIZE) else 4
    return builder


def payload(schema: int, *values: int) -> bytes:
    codes = "".join("Q" if kind in (_UINT64, _SIZE) else "i" for _, kind in SCHEMAS[schema])
    body = struct.pack(f"<{codes}", *values).ljust(24, b"\0")
    return struct.pack("<IIIIQQ", DOMAIN, 0, schema, 0, 24, 56) + body


def call(
    builder: TraceBuilder, name: str, start: int, end: int | None, *values: int, schema: int = 901,
    pid: int = 1000, tid: int | None = None, domain: int = DOMAIN, **columns: Any,
) -> TraceBuilder:  # fmt: skip
    """Add a range of NCCL's, with the values of its payload's fields."""
    row: dict[str, Any] = {"start": start, "end": end, "eventType": 59, "domainId": domain}
    row |= {"globalTid": global_tid(pid, tid), "text": name}
    if values:
        row["binaryData"] = payload(schema, *values)
    return builder.raw("NVTX_EVENTS", **(row | columns))


def label(builder: TraceBuilder, text: str, start: int, end: int, **how: Any) -> TraceBuilder:
    return call(builder, text, start, end, domain=LABELS, **how)
