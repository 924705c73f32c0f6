"""The parts that an Nsight export holds, and how to record and export the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.trace.grouping import median_of
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.read_columns import has_rows

if TYPE_CHECKING:
    from traceprof.trace.model.operations import Counters
    from traceprof.trace.model.trace import Trace
    from traceprof.trace.sqlite.database import Database

_DENSE_NS = 20_000  # between samples: 50 kHz; Nsight's usual 10 kHz are 100 µs
# The export holds a part if one of these tables has a row.
_TABLES = {
    Part.GPU_OPERATIONS: tuple(table.name for table in schema.GPU_OPERATIONS),
    Part.KERNELS: (schema.KERNEL.name,),
    Part.COPIES: (schema.MEMCPY.name,),
    Part.API_CALLS: (schema.API_CALL.name,),
    Part.SYNCHRONIZATIONS: (schema.WAIT.name,),
    Part.EVENT_RECORDS: (schema.EVENT_RECORD.name,),
    Part.STALL_RECORDS: (schema.DRIVER_OVERHEAD.name,),
    Part.RANGES: (schema.NVTX.name,),
    Part.HOST_CODE: (schema.OS_CALLS, schema.SAMPLES),
    Part.THREAD_SWITCHES: (schema.SWITCHES,),
    Part.SYSTEM_CALLS: (schema.OS_CALLS,),
    Part.SAMPLES: (schema.CALL_CHAINS,),
    Part.MPI_CALLS: (
        "MPI_P2P_EVENTS",
        "MPI_COLLECTIVES_EVENTS",
        "MPI_START_WAIT_EVENTS",
        "MPI_OTHER_EVENTS",
    ),
    Part.LINK_COUNTERS: (schema.GPU_METRICS,),
    Part.NETWORK_COUNTERS: (schema.NIC_METRICS,),
}

RE_EXPORT = "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
"""What to do about a damaged export."""

_WITH_BLOBS = "nsys export --type=sqlite --include-blobs=true"

HOW_TO_COLLECT = HowToCollect(
    "Nsight Systems",
    {
        Part.GPU_OPERATIONS: "nsys profile --trace=cuda,nvtx …",
        Part.KERNELS: "nsys profile --trace=cuda,nvtx …",
        Part.COPIES: "nsys profile --trace=cuda,nvtx …",
        Part.COPY_MEMORY: (
            "export the .nsys-rep again with a newer Nsight Systems (srcKind and dstKind of"
            f" {schema.MEMCPY.name})"
        ),
        Part.EVERY_OPERATION: (
            "record fewer steps: nsys profile --capture-range=cudaProfilerApi …; a long recording"
            " keeps more with --cuda-flush-interval=10000, and CUDA graphs need fewer records with"
            " --cuda-graph-trace=graph"
        ),
        Part.END: "export it again: nsys export --type=sqlite …",
        Part.GRAPH_KERNELS: "nsys profile --cuda-graph-trace=node …",
        Part.API_CALLS: "nsys profile --trace=cuda …",
        Part.SYNCHRONIZATIONS: "nsys profile --trace=cuda …",
        Part.EVENT_RECORDS: "--cuda-event-trace=true",
        Part.STALL_RECORDS: (
            "export the .nsys-rep again with Nsight Systems 2026.1 or later:"
            " nsys export -t sqlite -o REPORT.sqlite REPORT.nsys-rep"
        ),
        Part.RANGES: "nsys profile --trace=cuda,nvtx …",
        Part.COMMUNICATION_CALLS: (
            "nsys profile --trace=cuda,nvtx … (without NCCL_NVTX_DISABLE), then"
            f" {_WITH_BLOBS}; or record with python -m instrument, which names every call"
        ),
        Part.MESSAGE_SIZES: (
            f"export the same report with {_WITH_BLOBS}, from"
            " Nsight Systems 2024.5 on (NCCL records sizes from 2.16 on); or record with"
            " python -m instrument, which names every call"
        ),
        Part.COMMUNICATORS: (
            "NCCL 2.25 or later"
            f" (PyTorch 2.7), nsys profile --trace=cuda,nvtx and {_WITH_BLOBS},"
            " from Nsight Systems 2024.5 on; or record with python -m instrument,"
            " which names every call with its peer and group"
        ),
        Part.HOST_CODE: "nsys profile --trace=cuda,nvtx,osrt --python-sampling=true …",
        Part.THREAD_SWITCHES: "nsys profile --cpuctxsw=process-tree …",
        Part.SYSTEM_CALLS: "nsys profile --trace=cuda,nvtx,osrt …",
        Part.SAMPLES: "nsys profile --sample=process-tree …",
        Part.MPI_CALLS: "nsys profile --trace=cuda,nvtx,mpi …",
        Part.LINK_COUNTERS: f"nsys profile {schema.GPU_METRICS_FLAG} …",
        Part.NETWORK_COUNTERS: (
            f"nsys profile {schema.GPU_METRICS_FLAG} {schema.NIC_METRICS_FLAG} …"
        ),
        Part.DENSE_COUNTERS: "nsys profile --gpu-metrics-frequency=100000 … (up to 200000 Hz)",
        Part.COUNTED_GPUS: (
            "export again with Nsight Systems 2025.1 or later, which maps ordinals to GPUs"
        ),
    },
)
"""Advice for exports of every version; it names the required versions."""

assert HOW_TO_COLLECT.texts.keys() == set(Part)  # noqa: S101  (no part may be forgotten)


def holds(trace: Trace, database: Database, part: Part) -> bool:
    """Return whether an export holds a part."""
    if part in _TABLES:
        return any(has_rows(database, name) for name in _TABLES[part])
    if part is Part.COPY_MEMORY:
        return database.has(schema.MEMCPY.name, "srcKind", "dstKind")
    if part is Part.END:
        return True  # a database that is cut short cannot be read
    if part is Part.GRAPH_KERNELS:
        return not has_rows(database, schema.GRAPH.name)
    if part in {Part.COUNTED_GPUS, Part.DENSE_COUNTERS}:
        return _holds_counters(trace.counters, part)
    return _holds_calls(trace, part)


def _holds_counters(counters: Counters, part: Part) -> bool:
    if part is Part.COUNTED_GPUS:
        return bool(counters.gpu_of_rank)
    series = [samples for several in counters.by_gpu.values() for samples in several]
    return any(median_of(samples.end_ns - samples.start_ns) <= _DENSE_NS for samples in series)


def _holds_calls(trace: Trace, part: Part) -> bool:
    calls = [
        source
        for process in {key.process for key in trace.operations}
        for source in trace.communication_calls(process)[:2]
    ]
    if part is Part.COMMUNICATION_CALLS:
        return any(len(source) for source in calls)
    column = {Part.MESSAGE_SIZES: "bytes", Part.COMMUNICATORS: "communicator"}[part]
    return any((getattr(source, column) >= 0).any() for source in calls)


def check_is_export(database: Database) -> None:
    """Reject a database that is not Nsight Systems export.

    Raises TraceFormatError: it is of another program.
    """
    columns = database.columns
    views = sorted(database.views & {*schema.EVENT_TABLES, schema.STRINGS})
    if views:
        raise database.damaged(f"{views[0]} is a view where Nsight writes a table")
    known = any(name in columns for name in schema.EVENT_TABLES)
    if database.has(schema.STRINGS, "id", "value") and (
        known or any(mark in columns for mark in schema.MARKS)
    ):
        return
    if any(name.startswith("rocpd_") for name in columns):
        raise database.damaged(
            "it was written by rocprofv3, whose databases are not read",
            "record the program with torch.profiler",
        )
    names = ", ".join(sorted(columns)[:5]) or "no table"
    raise database.damaged(
        f"an SQLite database, but no Nsight Systems export (it holds {names})",
        "give the .sqlite file that `nsys export --type=sqlite` writes",
    )
