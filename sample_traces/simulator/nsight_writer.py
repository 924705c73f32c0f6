"""Writer of SQLite files in the schema of Nsight Systems' exports, for simulations and tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from typing_extensions import Self

from traceprof.intervals import Int64
from traceprof.structs import Record
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

# Tables and values of Nsight Systems that the analyzer does not read.
CUDA_STREAMS = "TARGET_INFO_CUDA_STREAM"
EVENT_TYPES = "ENUM_NSYS_EVENT_TYPE"
SYNC_TYPES = "ENUM_CUPTI_SYNC_TYPE"
PAYLOAD_SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
PAYLOAD_ENUMS = "NVTX_PAYLOAD_ENUMS"
PAYLOAD_ENUM_ENTRIES = "NVTX_PAYLOAD_ENUM_ENTRIES"
VM_ID = 1 << 48  # bits 48 to 55 of every global id: the machine, 1 in exports of one machine
SYNC_EVENT = 1  # SYNCHRONIZATION.syncType
SYNC_STREAM_WAIT_EVENT = 2
SYNC_STREAM = 3
SYNC_CONTEXT = 4
MEM_PAGEABLE = 0  # MEMCPY.srcKind, .dstKind and MEMSET.memKind
MEM_PINNED = 1
MEM_DEVICE = 2
OVERHEAD_CLASS = 103  # OVERHEAD.eventClass

Scalar = int | str | None
Column = Int64 | Sequence[Scalar] | Scalar

_COPY_NAMES = (
    "UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP",
    "UVM_HTOD", "UVM_DTOH", "UVM_DTOD",
)  # fmt: skip
_MEMORY_LABELS = (
    "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static",
    "Unknown",
)  # fmt: skip
# Rows of the enumerations: id to name and label.
ENUMERATIONS = {
    schema.MEMCPY_KINDS: {
        number: (f"CUDA_MEMCPY_KIND_{name}", schema.COPY_KINDS[number])
        for number, name in enumerate(_COPY_NAMES)
    },
    schema.MEM_KINDS: {
        number: (f"CUDA_MEMOPR_MEMORY_KIND_{label.upper().replace(' ', '_')}", label)
        for number, label in enumerate(_MEMORY_LABELS)
    },
    EVENT_TYPES: {
        number: (name, name)
        for number, name in (
            (schema.NVTX_MARK, "NvtxMark"),
            (schema.NVTX_THREAD_NAME, "NvtxThread"),
            (schema.NVTX_PUSH_POP, "NvtxPushPopRange"),
            (schema.NVTX_START_END, "NvtxStartEndRange"),
            (schema.NVTX_DOMAIN, "NvtxDomainCreate"),
        )
    },
    SYNC_TYPES: {
        1: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        2: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        3: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        4: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    },
    schema.OVERHEAD_TYPES: {
        6: ("OVERHEAD_RUNTIME_TRIGGERED_MODULE_LOADING", "Runtime module loading (CUDA)"),
        7: ("OVERHEAD_LAZY_FUNCTION_LOADING", "Lazy function loading (CUDA)"),
        8: ("OVERHEAD_COMMAND_BUFFER_FULL", "Command buffer full (CUDA)"),
    },
}

# Activity of the host.
MPI_CALLS = "MPI_OTHER_EVENTS"
MPI_COLLECTIVES = "MPI_COLLECTIVES_EVENTS"
MPI_POINT_TO_POINT = "MPI_P2P_EVENTS"
MPI_WAITS = "MPI_START_WAIT_EVENTS"
OS_CALL_CLASS = 27  # OSRT_API.eventClass
LIBRARY_LOADING = {"Runtime Triggered Module Loading": 6, "Lazy Function Loading": 7}
"""Names to overheadType of `schema.DRIVER_OVERHEAD.name`."""
RUNNING = 1  # COMPOSITE_EVENTS.threadState

# The Nsight Systems that writes each schema version that the writer knows.
PRODUCTS = {"2.9.1": "2022.1.3.3", "3.7.2": "2023.4.4.54", "3.25.0": "2026.2.1.210"}
# In 3.25.0, not yet in 3.7.2.
LATER_TABLES = (
    schema.DRIVER_OVERHEAD.name, schema.OVERHEAD_TYPES, schema.CUDA_DEVICES, PAYLOAD_SCHEMAS,
    schema.PAYLOAD_ENTRIES, PAYLOAD_ENUMS, PAYLOAD_ENUM_ENTRIES,
)  # fmt: skip

# In 3.7.2, not yet in 2.9.1, which has another name for the table of its metadata.
LATER_THAN_2 = (schema.EXPORT_METADATA[0], schema.CAPTURE_METADATA, *ENUMERATIONS)

# The columns of each table in their order, as exports of 3.25.0 declare them: an INTEGER, after a
# colon `T` text or `R` a real number, `!` NOT NULL, `P` the primary key, `+` not yet in 3.7.2,
# `~` not yet in 2.9.1, `-` no longer in 3.25.0.
_GPU_COLUMNS = (
    "start:! end:! deviceId:! contextId:! greenContextId:~ streamId:! correlationId globalPid"
)
_MPI_COLUMNS = "start:! end globalTid textId"
_ENUMERATION_COLUMNS = "id:!P name:T label:T"
LAYOUTS = {
    schema.KERNEL.name: f"{_GPU_COLUMNS}"
    " demangledName:! shortName:! mangledName launchType cacheConfig"
    " registersPerThread:! gridX:! gridY:! gridZ:! blockX:! blockY:! blockZ:! staticSharedMemory:!"
    " dynamicSharedMemory:! localMemoryPerThread:! localMemoryTotal:! gridId:! sharedMemoryExecuted"
    " graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone:+ qmdPreexitDone:+ qmdLastCtaDone:+"
    " graphId:+ clusterX:+ clusterY:+ clusterZ:+ clusterSchedulingPolicy:+"
    " maxPotentialClusterSize:+ maxActiveClusters:+ sharedMemoryRequestedPercentage:+"
    " tensorSizeMinusOneElements:!T+",
    schema.MEMCPY.name: f"{_GPU_COLUMNS}"
    " bytes:! copyKind:! deprecatedSrcId srcKind dstKind srcDeviceId"
    " srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount:+",
    schema.MEMSET.name: f"{_GPU_COLUMNS} value:! bytes:! graphNodeId memKind",
    schema.GRAPH.name: f"{_GPU_COLUMNS} graphId:! graphExecId:!",
    schema.WAIT.name: f"{_GPU_COLUMNS} deprecatedSyncType:+ syncType:! eventId:! eventSyncId:+",
    schema.API_CALL.name: "start:!"
    " end:! eventClass:! globalTid correlationId nameId:! returnValue:!"
    " callchainId",
    schema.DRIVER_OVERHEAD.name: "start:! end:! eventClass:! globalTid correlationId nameId"
    " overheadType:!",
    schema.NVTX.name: "start:!"
    " end eventType:! rangeId category color text:T globalTid endGlobalTid textId"
    " domainId uint64Value int64Value doubleValue:R uint32Value int32Value floatValue:R jsonTextId"
    " jsonText:T binaryData:T+",
    schema.STRINGS: "id:!P value:!T",
    **dict.fromkeys(schema.EXPORT_METADATA, "name:!T value:T"),
    schema.CAPTURE_METADATA: "name:!T value:T",
    schema.ANALYSIS_DETAILS: "globalVid:! duration:! startTime:! stopTime:!",
    schema.PROCESSES: "globalPid pid name:T",
    schema.THREAD_NAMES: "nameId:! priority globalTid",
    schema.MPI_RANKS: "globalTid rank",
    schema.MPI_COMMUNICATORS: "rank timestamp commHandle parentHandle localRank size groupRoot"
    " groupRootUid members:T",
    schema.SESSION_START: "utcEpochNs utcTime:T localTime:T systemClockNs:+",
    schema.SYSTEM_ENVIRONMENT: "globalVid devStateName:!T name:!T nameEnum:! value:!T",
    schema.CUDA_DEVICES: "gpuId cudaId:! pid:! uuid:T numMultiprocessors",
    schema.GPU_INFO: "vmId:!"
    " id:! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth"
    " clockRate smCount pwGpuId uuid:T luid chipName:T cuDevice ctxswDevPath:T ctrlDevPath:T"
    " revision nodeMask constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock"
    " maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines"
    " maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ"
    " maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor",
    PAYLOAD_SCHEMAS: "domainId schemaId name:T type flags numEntries payloadSize alignTo",
    schema.PAYLOAD_ENTRIES: "domainId:! schemaId:! idx:! flags type name:T description:T"
    " arrayOrUnionDetail offset",
    PAYLOAD_ENUMS: "domainId schemaId name:T numEntries size",
    PAYLOAD_ENUM_ENTRIES: "domainId:! schemaId:! idx:! name:T value isFlag",
    # From 2026.4 on there is rawTimestamp, too.
    schema.GPU_METRICS: "timestamp typeId:! metricId:! value:!",
    schema.GPU_METRIC_NAMES: "typeId:! sourceId:! typeName:!T metricId:! metricName:!T",
    schema.NIC_INFO: "GUID:! stateName:!T nicId:! name:!T deviceId:! vendorId:! linkLayer:!",
    # From the user guide; no real export with rows was found.
    schema.NIC_METRICS: "start:! end globalId:! metricsListId:! metricsIdx:! value:!",
    schema.NIC_METRIC_NAMES: "metricsListId:! metricsIdx:! name:!T description:!T unit:!T",
    schema.NIC_IDS: "nicId:! globalId:!",
    schema.EVENT_RECORD.name: "timestamp:+ deviceId:! contextId:! greenContextId:~ streamId:!"
    " correlationId globalPid eventId:! eventSyncId:+",
    # No export of 3.25.0 with these four was found: from exports of 3.24.7.
    schema.SWITCHES: "start:! cpu:! isSchedIn:! globalTid threadState:+ threadBlock:+",
    schema.SAMPLES: "id:!P start:! cpu threadState globalTid cpuCycles:!",
    schema.CALL_CHAINS: "id:!P symbol:! module:! kernelMode thumbCode unresolved specialEntry"
    " originalIP unwindMethod stackDepth:!P",
    schema.OS_CALLS: "start:! end:! eventClass:! globalTid nameId:! returnValue:! nestingLevel"
    " callchainId:! argumentsId:!+",
    MPI_CALLS: _MPI_COLUMNS,
    MPI_COLLECTIVES: f"{_MPI_COLUMNS} commHandle rootRank size recvSize requestHandle",
    MPI_POINT_TO_POINT: f"{_MPI_COLUMNS} commHandle tag remoteRank size requestHandle",
    MPI_WAITS: f"{_MPI_COLUMNS} requestHandle",
    schema.PROFILER_OVERHEAD: "start:! end:! globalTid nameId:! returnValue:!- overheadType:!+",
    CUDA_STREAMS: "streamId:! hwId:! vmId:! processId:! contextId:! priority:! flag:!",
    **dict.fromkeys(ENUMERATIONS, _ENUMERATION_COLUMNS),
}


# Rows that exist as Python objects at the same time; more are not faster.
_ROWS_PER_SLICE = 16_384
# A simulated run uses some ten statements for each of its processes in every step.
_CACHED_STATEMENTS = 1024


class NsightWriter:
    """Writer of one new export, a context manager.

    The common tables of all exports are there from the beginning: version, enumerations, strings.
    Other tables are created when rows are first added.

    Attributes:
        path: the file.
        schema_version: a key of `PRODUCTS`.
    """

    def __init__(self, path: Path, schema_version: str = "3.25.0") -> None:
        self.path = path
        self.schema_version = schema_version
        self._is_latest = schema_version == next(reversed(PRODUCTS))
        self._is_oldest = schema_version == next(iter(PRODUCTS))
        self._columns: dict[str, list[_Column]] = {}
        self._string_ids: dict[str, int] = {}

    def __enter__(self) -> Self:
        """Create the file, which must not exist."""
        self.path.open("xb").close()
        self._connection = sqlite3.connect(
            self.path, isolation_level=None, cached_statements=_CACHED_STATEMENTS
        )
        self._begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._connection.execute("COMMIT")
        self._connection.close()

    def string(self, text: str) -> int:
        """Return the StringIds.id of `text`, which is added if it is new."""
        known = self._string_ids.get(text)
        if known is not None:
            return known
        number = self._string_ids[text] = len(self._string_ids) + 1
        self.add(schema.STRINGS, {"id": number, "value": text})
        return number

    def create(self, table: str) -> None:
        """Create a table if it is missing, empty as in exports with `--lazy=false`.

        Raises:
            ValueError: no version of the schema has it.
        """
        if table not in self._columns:
            self._columns[table] = self._declare(table)

    def add(self, table: str, columns: Mapping[str, Column]) -> None:
        """Add rows to a table.

        A column is an array or a sequence with a value for each row, or one value for all of them;
        if all columns are single values, there is one row. Missing columns are NULL, or 0 or empty
        text if the schema forbids NULL. Tables and columns that only later versions of the schema
        have are left out.

        Raises:
            ValueError: no version of the schema has the table or the column, or lengths differ.
        """
        self.create(table)
        declared = self._columns[table]
        unknown = columns.keys() - {column.name for column in declared}
        if unknown:
            raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
        values: list[str] = []
        per_row: list[Int64 | Sequence[Scalar]] = []
        for column in declared:
            if not column.written:
                continue
            given = columns.get(column.name)
            if column.name not in columns:
                values.append(column.default)
            elif given is None or isinstance(given, int):
                # A constant of the statement costs no Python object for each row.
                values.append("NULL" if given is None else str(int(given)))
            else:
                values.append("?")
                per_row.append(given)
        if values:
            statement = f"INSERT INTO {quote(table)} VALUES ({', '.join(values)})"  # noqa: S608
            self._insert(statement, per_row)

    def columns(self, table: str) -> list[str]:
        return [column.name for column in self._columns[table] if column.written]

    def execute(self, statement: str, values: Mapping[str, int] | None = None) -> None:
        """Run a statement of SQL on what has been written so far."""
        self._connection.execute(statement, values or {})

    def _insert(self, statement: str, columns: Sequence[Int64 | Sequence[Scalar]]) -> None:
        lengths = {len(column) for column in columns if not isinstance(column, str)}
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        count = lengths.pop() if lengths else 1
        for first in range(0, count, _ROWS_PER_SLICE):
            rows = slice(first, min(first + _ROWS_PER_SLICE, count))
            values = [_values(column, rows) for column in columns]
            if values:
                self._connection.executemany(statement, zip(*values, strict=True))
            else:
                self._connection.execute(statement)

    def _begin(self) -> None:
        for name, value in (
            ("journal_mode", "OFF"),
            ("synchronous", "OFF"),
            ("locking_mode", "EXCLUSIVE"),
        ):
            self._connection.execute(f"PRAGMA {name} = {value}")
        self._connection.execute("BEGIN")
        self.create(schema.STRINGS)
        self.create(schema.CAPTURE_METADATA)
        product = PRODUCTS[self.schema_version]
        facts = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            schema.PRODUCT_VERSION: product,
            schema.SCHEMA_VERSION: self.schema_version,
            schema.TIME_NORMALIZED: "false",
        }
        for table in schema.EXPORT_METADATA:  # this version has one of them
            self.add(table, {"name": list(facts), "value": list(facts.values())})
        for table, rows in ENUMERATIONS.items():
            names, labels = zip(*rows.values(), strict=True)
            self.add(table, {"id": list(rows), "name": names, "label": labels})

    def _declare(self, table: str) -> list[_Column]:
        if table not in LAYOUTS:
            raise ValueError(f"no version of the schema has a table {table}")
        missing = "-" if self._is_latest else "+~" if self._is_oldest else "+"
        columns = [
            _column(word, in_version=self._has(table), missing=missing)
            for word in LAYOUTS[table].split()
        ]
        present = [column for column in columns if column.written]
        keys = [quote(column.name) for column in present if column.in_key]
        declarations = [
            f"{column.declaration} PRIMARY KEY"
            if keys == [quote(column.name)]
            else column.declaration
            for column in present
        ]
        if len(keys) > 1:
            declarations.append(f"PRIMARY KEY ({', '.join(keys)})")
        if declarations:
            self._connection.execute(f"CREATE TABLE {quote(table)} ({', '.join(declarations)})")
        return columns

    def _has(self, table: str) -> bool:
        if table == schema.EXPORT_METADATA[1]:
            return self._is_oldest
        if self._is_oldest and table in LATER_THAN_2:
            return False
        return self._is_latest or table not in LATER_TABLES


class _Column(Record, frozen=True):
    name: str  # in the schema
    declaration: str  # in SQL
    default: str  # the value of rows without one, in SQL
    written: bool  # whether the written version has the column
    in_key: bool  # whether it is part of the primary key


def _column(word: str, *, in_version: bool, missing: str) -> _Column:
    """Parse a column of `LAYOUTS`; those with a mark of `missing` are left out."""
    name, _, marks = word.partition(":")
    kind = "TEXT" if "T" in marks else "REAL" if "R" in marks else "INTEGER"
    required = " NOT NULL" if "!" in marks else ""
    default = "NULL" if not required else "''" if kind == "TEXT" else "0"
    written = in_version and not set(missing) & set(marks)
    in_key = written and "P" in marks
    return _Column(name, f"{quote(name)} {kind}{required}", default, written, in_key)


def _values(column: Int64 | Sequence[Scalar], rows: slice) -> Sequence[Scalar]:
    if isinstance(column, str):
        return [column] * (rows.stop - rows.start)
    if isinstance(column, np.ndarray):
        values: list[Scalar] = column[rows].tolist()
        return values
    return column[rows]
