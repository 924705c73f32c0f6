"""Layouts of the tables of an export, for the writer: columns by version."""

from __future__ import annotations

from traceprof.trace.nsight import schema

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
    schema.EVENT_TYPES: {
        number: (name, name)
        for number, name in (
            (schema.NVTX_MARK, "NvtxMark"),
            (schema.NVTX_THREAD_NAME, "NvtxThread"),
            (schema.NVTX_PUSH_POP, "NvtxPushPopRange"),
            (schema.NVTX_START_END, "NvtxStartEndRange"),
            (schema.NVTX_DOMAIN, "NvtxDomainCreate"),
        )
    },
    schema.SYNC_TYPES: {
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
"""Names to overheadType of `schema.OVERHEAD`."""
RUNNING = 1  # COMPOSITE_EVENTS.threadState

# The Nsight Systems that writes each schema version that the writer knows.
PRODUCTS = {"2.9.1": "2022.1.3.3", "3.7.2": "2023.4.4.54", "3.25.0": "2026.2.1.210"}
# In 3.25.0, not yet in 3.7.2.
LATER_TABLES = (
    schema.OVERHEAD, schema.OVERHEAD_TYPES, schema.CUDA_DEVICES, schema.PAYLOAD_SCHEMAS,
    schema.PAYLOAD_ENTRIES, schema.PAYLOAD_ENUMS, schema.PAYLOAD_ENUM_ENTRIES,
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
    schema.SYNCHRONIZATION: f"{_GPU_COLUMNS}"
    " deprecatedSyncType:+ syncType:! eventId:! eventSyncId:+",
    schema.API_CALL.name: "start:!"
    " end:! eventClass:! globalTid correlationId nameId:! returnValue:!"
    " callchainId",
    schema.OVERHEAD: "start:! end:! eventClass:! globalTid correlationId nameId overheadType:!",
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
    schema.PAYLOAD_SCHEMAS: "domainId schemaId name:T type flags numEntries payloadSize alignTo",
    schema.PAYLOAD_ENTRIES: "domainId:! schemaId:! idx:! flags type name:T description:T"
    " arrayOrUnionDetail offset",
    schema.PAYLOAD_ENUMS: "domainId schemaId name:T numEntries size",
    schema.PAYLOAD_ENUM_ENTRIES: "domainId:! schemaId:! idx:! name:T value isFlag",
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
    schema.CUDA_STREAMS: "streamId:! hwId:! vmId:! processId:! contextId:! priority:! flag:!",
    **dict.fromkeys(ENUMERATIONS, _ENUMERATION_COLUMNS),
}
