"""An independent reference for what communication kernels carried and who waited, for tests only.

It shares no code with ``traceprof``: it reads the file itself, walks lists, and follows the
definitions of `traceprof explain` to the letter. Times are ns.
"""

import json
import re
import sqlite3
import struct
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from tests.reference.kept import kept
from tests.reference.nsight_export import COMMUNICATION, LOW_24_BITS, opened, rows
from tests.reference.streams import read

COLLECTIVES = "AllReduce AllGatherV AllGather ReduceScatter Broadcast Reduce SendRecv AlltoAll"
EXCHANGES = {"Send", "Recv", "SendRecv", "AlltoAll", "Gather", "Scatter"}
OF_ALL = {"AllGather", "ReduceScatter", "AlltoAll"}
WIDTHS = {5: 4, 6: 4, 17: 8, 18: 8, 22: 8}
FIELDS = {"NCCL communicator ID": "communicator", "Message size [bytes]": "bytes",
          "Bytes": "bytes", "Peer rank": "peer", "No. of ranks": "size"}  # fmt: skip


def kind(operation: str) -> str:
    return "SendRecv" if operation in EXCHANGES else operation


def operation_of(name: str) -> str:
    """The operation that a kernel's name tells."""
    for collective in COLLECTIVES.split():
        if re.match(
            rf"nccl(Symk?Dev|Dev|)(Kernel_)?{collective}(?![a-z])", name.rpartition(" ")[2]
        ):
            return collective
    return "Unknown"


def payload_of(
    blob: bytes | str | None, places: dict[int, list[tuple[str, int, int]]]
) -> dict[str, int]:
    if isinstance(blob, str):
        blob = bytes.fromhex(blob.removeprefix("0x"))
    if not blob:
        return {}
    schema = struct.unpack_from("<I", blob, 8)[0]
    payload = {}
    for name, offset, width in places.get(schema, []):
        if name in FIELDS and 32 + offset + width <= len(blob):
            at = 32 + offset
            payload[FIELDS[name]] = int.from_bytes(blob[at : at + width], "little")
    return payload


def read_ranges(db: sqlite3.Connection, strings: dict[Any, str]) -> dict[int, list[dict[str, Any]]]:
    """NCCL's ranges of each thread, in order of start, the outer ones first."""
    places: dict[int, dict[int, tuple[str, int, int]]] = defaultdict(dict)
    for schema, index, type_, name, offset in rows(
        db, "NVTX_PAYLOAD_SCHEMA_ENTRIES", "schemaId", "idx", "type", "name", "offset"
    ):
        places[schema][index] = (name, offset or 0, WIDTHS.get(type_, 4))
    layouts = {schema: list(entries.values()) for schema, entries in places.items()}
    columns = ("start", "end", "eventType", "globalTid", "domainId", "text", "textId",
               "binaryData", "jsonText")  # fmt: skip
    events = list(rows(db, "NVTX_EVENTS", *columns))
    domains = {
        (thread >> 24, domain): text or strings.get(text_id, "")
        for _, _, type_, thread, domain, text, text_id, *_ in events
        if type_ == 75 and thread is not None
    }
    calls: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for start, end, type_, thread, domain, text, text_id, blob, said in events:
        name = text if text is not None else strings.get(text_id, "")
        if type_ != 59 or None in (start, thread) or not name.startswith("nccl"):
            continue
        if domains.get((thread >> 24, domain), "NCCL" if domain else "") != "NCCL":
            continue
        call = {"start": start, "end": 1 << 63 if end is None else end, "name": name[4:]}
        facts = json.loads(said) if said else {}
        call |= {FIELDS[key]: value for key, value in facts.items() if key in FIELDS}
        calls[thread].append(call | payload_of(blob, layouts))
    for of_thread in calls.values():
        of_thread.sort(key=lambda call: (call["start"], -call["end"]))
    return calls


def calls_at(ranges: list[dict[str, Any]], start: int, end: int) -> tuple[int, list[Any]] | None:
    """The range from which something was launched, and the calls that it stands for."""
    for index, range_ in enumerate(ranges):
        if not (range_["start"] <= start and end <= range_["end"]):
            continue
        if range_["name"] != "GroupEnd":
            if kind(range_["name"]) in {*COLLECTIVES.split()}:
                return index, [range_]
            continue
        depth = 1
        members: list[dict[str, Any]] = []
        for before in reversed(ranges[:index]):
            depth += (before["name"] == "GroupEnd") - (before["name"] == "GroupStart")
            if depth == 0:
                return index, members[::-1]
            if kind(before["name"]) in {*COLLECTIVES.split()}:
                members.append(before)
        return index, []
    return None


@kept
def kernels_of(path: Path) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The communication kernels of each (pid, device), in order of start, and all that is known."""
    result: dict[tuple[int, int], list[dict[str, Any]]] = {}
    devices: dict[int, set[int]] = defaultdict(set)
    with opened(path) as (db, strings):
        ranges = read_ranges(db, strings)
    for rank in read(path):
        devices[rank.process].add(rank.device)
        kernels = result[(rank.process >> 24) & LOW_24_BITS, rank.device] = []
        for op in rank.operations:
            if op.table != "KERNEL":
                continue
            kernel: dict[str, Any] = {"start": op.start, "end": op.end, "stream": op.stream}
            kernel |= {"process": rank.process, "communicates": op.kind == COMMUNICATION}
            kernel |= {"operation": operation_of((op.demangled or op.short).partition("(")[0])}
            call = op.call
            kernel["launch"] = call and (call.start, call.end, call.thread)
            kernels.append(kernel)
    sizes = {
        call["communicator"]: call["size"]
        for of_thread in ranges.values()
        for call in of_thread
        if "size" in call and "communicator" in call
    }
    for of_rank in result.values():
        chosen = [member for member in of_rank if member["communicates"]]
        for kernel in chosen:
            launch = kernel["launch"]
            kernel["calls"] = launch and calls_at(ranges.get(launch[2], []), *launch[:2])
        for kernel in chosen:
            add_facts(kernel, chosen, len(devices[kernel["process"]]) > 1, sizes)
    return result


def add_facts(
    kernel: dict[str, Any], others: list[dict[str, Any]], shared: bool, sizes: dict[int, int]
) -> None:
    if not kernel["calls"]:
        return
    index, members = kernel["calls"]
    thread = kernel["launch"][2]
    here = [
        other for other in others
        if other["calls"] and other["calls"][0] == index and other["launch"][2] == thread
    ]  # fmt: skip
    own = [member for member in members if kind(member["name"]) == kind(kernel["operation"])]
    alike = [other for other in here if kind(other["operation"]) == kind(kernel["operation"])]
    alone = len(alike) == 1
    chosen = own or members
    strangers = {kind(member["name"]) for member in members} - {kind(e["operation"]) for e in here}
    for fact in ("communicator", "peer"):
        values = {call.get(fact) for call in chosen}
        kernel[fact] = values.pop() if len(values) == 1 else None
    if kind(kernel["operation"]) != "SendRecv":
        kernel["peer"] = None
    kernel["size"] = sizes.get(kernel["communicator"])
    complete = own and alone and not strangers and all("bytes" in call for call in own)
    if complete and (len(own) == 1 or not shared):
        received = sum(call["bytes"] for call in own if call["name"] == "Recv")
        kernel["bytes"] = max(received, sum(call["bytes"] for call in own) - received)
    names = {call["name"] for call in chosen}
    kernel["both_exchange"] = kind(kernel["operation"]) == "SendRecv" and names & {"Send", "Recv"}


def is_independent(one: dict[str, Any], other: dict[str, Any]) -> bool | None:
    """Whether two could run side by side: by communicators, else by peers; None: unknown."""
    ids = one.get("communicator"), other.get("communicator")
    peers = one.get("peer"), other.get("peer")
    both = one.get("both_exchange") and other.get("both_exchange")
    if None not in ids and ids[0] != ids[1]:
        return True
    if both and None not in peers and peers[0] != peers[1]:
        return True
    if None in ids or (both and None in peers):
        return None
    return False


def uses(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of operations and communicators, the longest-running first."""
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = defaultdict(list)
    for kernel in kernels:
        if kernel["communicates"]:
            groups[kernel["operation"], kernel.get("communicator")].append(kernel)
    table = []
    for (operation, communicator), members in groups.items():
        took = [member["end"] - member["start"] for member in members]
        sizes = [member.get("bytes") for member in members]
        row = {"operation": operation, "count": len(members), "total_ns": sum(took)}
        row |= {"communicator": None if communicator is None else f"0x{communicator:016x}"}
        row |= {"bytes": None if None in sizes else sum(filter(None, sizes))}
        row |= {"median_ns": int(median(took))}
        for name, bus in (("algbw_gb_per_s", False), ("busbw_gb_per_s", True)):
            pairs = [(rated(operation, member, bus=bus), ns) for member, ns in zip(members, took)]  # noqa: B905
            known = [(size, ns) for size, ns in pairs if size is not None]
            time = sum(ns for _, ns in known)
            row[name] = sum(size for size, _ in known) / time if time else None
        table.append(row)
    return sorted(table, key=lambda r: (-r["total_ns"], r["operation"], r["communicator"] or ""))


def rated(operation: str, kernel: dict[str, Any], *, bus: bool) -> float | None:
    size, ranks = kernel.get("bytes"), kernel.get("size")
    factors = {"Broadcast": 1.0, "Reduce": 1.0, "SendRecv": 1.0}
    if ranks:
        factors |= {"AllReduce": 2 * (ranks - 1) / ranks}
        factors |= dict.fromkeys(OF_ALL, (ranks - 1) / ranks)
    if size is None or (operation in OF_ALL and not ranks) or (bus and operation not in factors):
        return None
    total = size * (ranks if operation in OF_ALL else 1)
    return float(total * (factors[operation] if bus else 1))
