"""Rows of exports as Nsight Systems writes them, for one event or for many.

Many events are given as columns: sequences of one length, or one value for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sample_traces.simulator import nsight_writer
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.nsight_writer import NsightWriter
from traceprof.intervals import Int64
from traceprof.trace.nsight import schema

Value = int | Int64
Row = tuple[str, dict[str, Any]]


def kernel_columns(writer: NsightWriter, kernels: Sequence[Kernel]) -> dict[str, list[int]]:
    """Return the columns that identify kernels."""
    return {
        "demangledName": [writer.string(kernel.name) for kernel in kernels],
        "shortName": [writer.string(kernel.short_name) for kernel in kernels],
        "registersPerThread": [kernel.registers for kernel in kernels],
        "gridX": [kernel.grid_x for kernel in kernels],
        "gridY": [kernel.grid_y for kernel in kernels],
        "blockX": [kernel.block_x for kernel in kernels],
        "staticSharedMemory": [kernel.static_bytes for kernel in kernels],
        "dynamicSharedMemory": [kernel.dynamic_bytes for kernel in kernels],
    }


def operation(
    place: Mapping[str, int], start: Value, end: Value, stream: Value, correlation: Value
) -> dict[str, Any]:
    """Return the columns that all GPU operations have."""
    times = {"start": start, "end": end}
    return {**place, **times, "streamId": stream, "correlationId": correlation}


def kernel(where: Mapping[str, Any], number: Value, columns: Mapping[str, Any]) -> Row:
    """Return kernels."""
    constant = dict.fromkeys(("gridZ", "blockY", "blockZ", "launchType", "cacheConfig"), 1)
    constant |= dict.fromkeys(("clusterX", "clusterY", "clusterZ"), 0)
    row = {**where, "gridId": number, **columns, **constant, "tensorSizeMinusOneElements": "[]"}
    return schema.KERNEL.name, row


def copy(
    where: Mapping[str, Any], kind: int, size: Value, source_kind: int, destination_kind: int
) -> Row:
    """Return copies between two kinds of memory."""
    kinds = {"copyKind": kind, "srcKind": source_kind, "dstKind": destination_kind}
    return schema.MEMCPY.name, {**where, "bytes": size, **kinds, "copyCount": 1}


def memset(where: Mapping[str, Any], size: Value) -> Row:
    """Return memory sets of device memory."""
    row = {**where, "value": 0, "bytes": size, "memKind": nsight_writer.MEM_DEVICE}
    return schema.MEMSET.name, row


def call(thread: Value, start: Value, end: Value, correlation: Value, name: Value) -> Row:
    """Return API calls; the name is the id of a string."""
    row = {"start": start, "end": end, "eventClass": 0, "globalTid": thread}
    return schema.API_CALL.name, {
        **row,
        "correlationId": correlation,
        "nameId": name,
        "returnValue": 0,
    }


def mark(thread: Value, time: Value, domain: int, text: Value) -> Row:
    """Return NVTX marks; the text is the id of a string."""
    row = {"start": time, "end": None, "eventType": schema.NVTX_MARK, "globalTid": thread}
    return schema.NVTX.name, {**row, "textId": text, "domainId": domain}


def pushed_range(thread: Value, start: Value, end: Value, domain: int, text: Value) -> Row:
    """Return NVTX ranges that nest; the text is the id of a string."""
    row = {"start": start, "end": end, "eventType": schema.NVTX_PUSH_POP, "globalTid": thread}
    return schema.NVTX.name, {**row, "textId": text, "domainId": domain}
