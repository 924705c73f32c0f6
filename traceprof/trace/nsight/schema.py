"""Names of tables, columns and values of Nsight Systems, which only this module spells.

Seen in exports of 2020 (no metadata) to 2026.3 (schema 3.27.0). A table that is absent means "no
rows": Nsight creates tables lazily.
"""

from __future__ import annotations

from typing import TypeVar

from traceprof.intervals import Int64
from traceprof.structs import Record
from traceprof.trace.model.kinds import CopyKind, MemoryKind

IntOrArray = TypeVar("IntOrArray", int, "Int64")


class Table(Record, frozen=True):
    """A table of events."""

    name: str  # the table's name in the export
    # columns without which its rows are unusable; every schema version has them
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()  # columns that some versions lack


_GPU_OPERATION = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")

GRID = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
KERNEL = Table("CUPTI_ACTIVITY_KIND_KERNEL", _GPU_OPERATION, ("demangledName", "shortName", *GRID))
MEMCPY = Table(
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    (*_GPU_OPERATION, "bytes", "copyKind"),
    ("srcDeviceId", "dstDeviceId", "srcKind", "dstKind"),
)
MEMSET = Table("CUPTI_ACTIVITY_KIND_MEMSET", (*_GPU_OPERATION, "bytes"), ("memKind",))
# One row per launched graph under `--cuda-graph-trace=graph`: the kernels inside are not recorded.
GRAPH = Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _GPU_OPERATION)
# Runtime and driver API calls; the ones that launch GPU work share its correlationId.
API_CALL = Table(
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    ("start", "end", "globalTid", "correlationId"),
    ("nameId", "returnValue"),
)
# Waits of the host and of streams. A stream's wait is recorded at the call. Only the name of the
# API call shows the kind of a wait: syncType differs from version to version.
WAIT = Table(
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    ("start", "end", "streamId", "correlationId", "globalPid"),
    ("eventId", "eventSyncId", "deviceId"),
)
# Recordings of CUDA events, without their time. In captures up to about 2024 by default, since then
# with `--cuda-event-trace=true`.
EVENT_RECORD = Table(
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    ("streamId", "correlationId", "globalPid", "eventId"),
    ("eventSyncId", "deviceId"),
)
# Overhead of CUPTI and the driver, from Nsight Systems 2026.1 on.
DRIVER_OVERHEAD = Table(
    "CUPTI_ACTIVITY_KIND_OVERHEAD",
    ("start", "end", "globalTid", "correlationId"),
    ("nameId", "overheadType"),
)
NVTX = Table(
    "NVTX_EVENTS", ("start", "end", "eventType", "globalTid"), ("text", "textId", "domainId")
)
GPU_OPERATIONS = (KERNEL, MEMCPY, MEMSET, GRAPH)
# Tables whose rows `traceprof info` counts, with what a row is.
EVENT_TABLES = {
    KERNEL.name: "kernel",
    MEMCPY.name: "memory copy",
    MEMSET.name: "memory set",
    GRAPH.name: "whole CUDA graph",
    API_CALL.name: "CUDA API call",
    WAIT.name: "CUDA synchronization",
    EVENT_RECORD.name: "CUDA event",
    DRIVER_OVERHEAD.name: "overhead record",
    NVTX.name: "NVTX event",
    "GPU_METRICS": "sampled GPU metric",
    "NET_NIC_METRIC": "sampled NIC metric",
    "OSRT_API": "OS runtime call",
    "MPI_P2P_EVENTS": "MPI point-to-point call",
    "MPI_COLLECTIVES_EVENTS": "MPI collective",
    "MPI_START_WAIT_EVENTS": "MPI wait",
    "MPI_OTHER_EVENTS": "other MPI call",
    "SCHED_EVENTS": "thread switch",
    "COMPOSITE_EVENTS": "thread sample",
}

# NVTX_EVENTS.eventType
NVTX_PUSH_POP = 59
NVTX_START_END = 60
NVTX_THREAD_NAME = 39
NVTX_MARK = 34
NVTX_INTEGER = "int64Value"
"""The column of payloads that are signed integers of 64 bits."""
NVTX_DOMAIN = 75

# Metadata: META_DATA_EXPORT from schema 3.4, EXPORT_META_DATA before, none in 2020 and 2021.
EXPORT_METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
CAPTURE_METADATA = "META_DATA_CAPTURE"
PRODUCT_VERSION = "EXPORT_PRODUCT_VERSION"
SCHEMA_VERSION = "EXPORT_SCHEMA_VERSION"
TIME_NORMALIZED = "EXPORT_PARAM_TIME_NORMALIZE"

STRINGS = "StringIds"
PROCESSES = "PROCESSES"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
GPU_INFO = "TARGET_INFO_GPU"
GPU_INFO_2020 = "TARGET_INFO_CUDA_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
CUDA_CONTEXTS = "TARGET_INFO_CUDA_CONTEXT_INFO"
SESSION_START = "TARGET_INFO_SESSION_START_TIME"
SYSTEM_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
MPI_RANKS = "MPI_RANKS"
MPI_COMMUNICATORS = "MPI_COMMUNICATORS"
MEMCPY_KINDS = "ENUM_CUDA_MEMCPY_OPER"

# Labels of ENUM_CUDA_MEMCPY_OPER by MEMCPY.copyKind, for exports without the enumeration (before
# 2022). If the export has it, its own labels count.
COPY_KINDS = {int(kind): kind.label for kind in CopyKind}  # Nsight's numbers are ours
# Labels of ENUM_CUDA_MEM_KIND by MEMCPY.srcKind and dstKind, for the same exports.
MEMORY_KINDS = {number: kind.label for number, kind in enumerate([*MemoryKind][1:])} | {
    7: MemoryKind.UNKNOWN.label
}

# Every export has the string table and at least one of these.
MARKS = (*EXPORT_METADATA, "ANALYSIS_DETAILS", PROCESSES, GPU_INFO, GPU_INFO_2020, "ThreadNames")

MEM_KINDS = "ENUM_CUDA_MEM_KIND"
OVERHEAD_TYPES = "ENUM_CUPTI_OVERHEAD_TYPE"
ANALYSIS_DETAILS = "ANALYSIS_DETAILS"
THREAD_NAMES = "ThreadNames"

# Activity of threads outside of CUDA: context switches, and spans, whose names are strings, in
# tables of MPI in another column.
SWITCHES = "SCHED_EVENTS"
SAMPLES = "COMPOSITE_EVENTS"
CALL_CHAINS = "SAMPLING_CALLCHAINS"
OS_CALLS = "OSRT_API"
LIBRARY_CALLS = ("CUBLAS_EVENTS", "CUDNN_EVENTS")
PROFILER_OVERHEAD = "PROFILER_OVERHEAD"  # Nsight's own work in threads of the program
JIT = "CUPTI_ACTIVITY_KIND_JIT"
SPAN_NAME = "nameId"
MPI_NAME = "textId"

PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
GPU_METRICS = "GPU_METRICS"
GPU_METRIC_NAMES = "TARGET_INFO_GPU_METRICS"
NIC_METRICS = "NET_NIC_METRIC"
NIC_METRIC_NAMES = "TARGET_INFO_NETWORK_METRICS"
NIC_INFO = "TARGET_INFO_NIC_INFO"
NIC_IDS = "NIC_ID_MAP"
COMMAND_BUFFER_FULL = 8  # OVERHEAD.overheadType
COMMAND_BUFFER_FULL_NAME = "Command Buffer Full"

NO_ID = 0xFFFFFFFF  # SYNCHRONIZATION.eventId without an event, .streamId without a stream

GPU_METRICS_FLAG = "--gpu-metrics-devices=cuda-visible (--gpu-metrics-device=… before 2024)"
NIC_METRICS_FLAG = "--nic-metrics=lf (=true before 2026)"

_THREAD_BITS = (1 << 24) - 1


def process_of_thread(global_tid: IntOrArray) -> IntOrArray:
    """Return the globalPid of a globalTid: the id with the 24 thread bits cleared."""
    return global_tid & ~_THREAD_BITS


def thread_number(global_tid: int) -> int:
    """Return the operating system's thread id, the last 24 bits of a globalTid."""
    return global_tid & _THREAD_BITS


def pid_of_process(global_pid: int) -> int:
    """Return the operating system's process id, bits 24 to 47 of a globalPid."""
    return (global_pid >> 24) & _THREAD_BITS


def gpu_of_type(type_id: int) -> int:
    """Return the number of the GPU whose metrics have this typeId: its low eight bits."""
    return type_id & 0xFF
