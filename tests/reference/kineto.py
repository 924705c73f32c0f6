"""An independent reference for traces of torch.profiler, for tests only.

It shares no code with ``traceprof``: the document is read whole with ``json``, and walked in loops.
Times are ns, made of the decimal digits of the text, and count from 1970 where the trace does.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.reference.breakdown import RankEvents, events_of, step_ranges
from tests.reference.nsight_export import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    Call,
    NamedSpan,
    Operation,
    default_is_communication,
)

ITEM_BYTES = {"Byte": 1, "Char": 1, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8,
              "Double": 8}  # fmt: skip
OPERATIONS = {"allreduce": "AllReduce", "broadcast": "Broadcast", "allgather": "AllGather",
              "_allgather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter",
              "all_to_all": "AlltoAll", "all_to_allv": "AlltoAll", "send": "Send",
              "recv": "Recv"}  # fmt: skip


def document(path: Path) -> dict[str, Any]:
    """The whole document; decimals stay as they are written."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    facts: dict[str, Any] = json.loads(data, parse_float=Decimal)
    return facts


def events(facts: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    """Complete events of these categories, with `start` and `end` in ns, in order of the start."""
    base = int(facts.get("baseTimeNanoseconds", 0))
    result = []
    for event in facts["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            start = base + nanoseconds(event["ts"])
            end = start + nanoseconds(event["dur"])
            result.append({**event, "start": start, "end": end, "args": event.get("args", {})})
    return sorted(result, key=lambda event: (event["start"], event["end"]))


def first_start(facts: dict[str, Any]) -> int:
    """The start of the first complete event, in ns."""
    return min(nanoseconds(event["ts"]) for event in facts["traceEvents"] if event["ph"] == "X")


def nanoseconds(time: Any) -> int:
    """The nearest ns: converters write more digits than there are ns."""
    return int((Decimal(time) * 1000).to_integral_value())


def kernels(facts: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Device, start, end, stream, correlation id, name, grid, block of every kernel."""
    return sorted(
        (args["device"], event["start"], event["end"], args["stream"], args["correlation"],
         event["name"], tuple(args.get("grid", ())), tuple(args.get("block", ())))
        for event in events(facts, "kernel")
        for args in [event["args"]]
    )  # fmt: skip


def copies(facts: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Device, start, end, stream, correlation id, bytes, kind, both kinds of memory of every copy.

    Of a memory set the kind is empty.
    """
    result = []
    for event in events(facts, "gpu_memcpy", "gpu_memset"):
        args, text = event["args"], event["name"].lower()
        kind = re.search(r"([hdp])to([hdp])", text)
        # AMD's names say "Host", which may be pageable or pinned.
        text = re.sub(r"\bhost\b", "", text)
        source = re.search(r"\((\w+) ->", text)
        target = re.search(r"(\w*)\)", text)
        size = args.get("bytes", 0)
        result.append(
            (args["device"], event["start"], event["end"], args["stream"], args["correlation"],
             size, kind[0] if kind else "", source[1] if source else "", target and target[1])
        )  # fmt: skip
    return sorted(result)


def api_calls(facts: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Correlation id, start, end, thread and name of every API call."""
    return sorted(
        (event["args"]["correlation"], event["start"], event["end"], event["tid"], event["name"])
        for event in events(facts, "cuda_runtime", "cuda_driver")
    )


def annotated(facts: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Start, end, thread and name of every annotation."""
    return sorted(
        (event["start"], event["end"], event["tid"], event["name"])
        for event in events(facts, "user_annotation")
    )


def calls(facts: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Start, operation, bytes of one rank, group and its size of every call that tells its name."""
    result = []
    for event in events(facts, "cpu_op"):
        args = event["args"]
        operation = OPERATIONS.get(args.get("Collective name", ""))
        if event["name"] == "record_param_comms" and operation:
            number = args["Out msg nelems" if operation == "ReduceScatter" else "In msg nelems"]
            group = args.get("Process Group Name", args.get("Process Group ID"))
            size = number * ITEM_BYTES[args["dtype"]]
            result.append((event["start"], operation, size, str(group), args["Group size"]))
    return sorted(result)


def main_process(facts: dict[str, Any]) -> int:
    """The process that most API calls, else most annotations, are of."""
    for category in ("cuda_runtime", "user_annotation"):
        counts = Counter(event["pid"] for event in events(facts, category))
        if counts:
            return int(counts.most_common(1)[0][0])
    return 0


def ranks(facts: dict[str, Any], origin_ns: int) -> list[RankEvents]:
    """What `tests.reference.breakdown` reads of an export, of a trace.

    Times count from the origin.
    """
    calls: dict[int, list[Call]] = defaultdict(list)
    for number, start, end, thread, name in api_calls(facts):
        calls[number].append(Call(start - origin_ns, end - origin_ns, number, thread, name, 0))
    by_device: dict[int, list[Operation]] = defaultdict(list)
    for event in events(facts, "kernel", "gpu_memcpy", "gpu_memset"):
        kind, table = COPY, "MEMCPY"
        if event["cat"] == "kernel":
            communicates = default_is_communication(None, event["name"])
            kind, table = COMMUNICATION if communicates else COMPUTE, "KERNEL"
        elif "PtoP" in event["name"]:
            kind = COMMUNICATION
        start, end = event["start"] - origin_ns, event["end"] - origin_ns
        args = event["args"]
        of_id = calls[args["correlation"]]
        begun = [call for call in of_id if call.start <= start]
        call = begun[-1] if begun else of_id[0] if of_id else None
        stream = args.get("stream", -1)
        by_device[args["device"]].append(Operation(start, end, kind, table, stream, call))
    named = [
        NamedSpan(start - origin_ns, end - origin_ns, 0, name)
        for start, end, _, name in annotated(facts)
    ]
    steps = [(number, step.start, step.end) for step, number in step_ranges(named, None)]
    return [
        events_of(main_process(facts), device, operations, steps)
        for device, operations in sorted(by_device.items())
    ]
