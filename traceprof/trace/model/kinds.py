"""Kinds of copies, memory, API calls and waits, for all formats."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cache


class MemoryKind(IntEnum):
    """The kind of memory that a copy reads or writes; columns hold NULL if unknown."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    ARRAY = 4
    MANAGED = 5
    DEVICE_STATIC = 6
    MANAGED_STATIC = 7

    @property
    def label(self) -> str:
        """The kind in words, such as `Pinned` or `Device Static`."""
        return self.name.replace("_", " ").title()


HOST_MEMORY = (MemoryKind.PAGEABLE, MemoryKind.PINNED)
"""Kinds of memory of the host; managed memory may be there, or on a GPU."""
DEVICE_MEMORY = (MemoryKind.DEVICE, MemoryKind.DEVICE_STATIC, MemoryKind.ARRAY)
"""Kinds of memory on a GPU."""


class CopyKind(IntEnum):
    """The direction of a copy; columns hold NULL for memory sets."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    HOST_TO_ARRAY = 3
    ARRAY_TO_HOST = 4
    ARRAY_TO_ARRAY = 5
    ARRAY_TO_DEVICE = 6
    DEVICE_TO_ARRAY = 7
    DEVICE_TO_DEVICE = 8
    HOST_TO_HOST = 9
    PEER_TO_PEER = 10
    UNIFIED_HOST_TO_DEVICE = 11
    UNIFIED_DEVICE_TO_HOST = 12
    UNIFIED_DEVICE_TO_DEVICE = 13

    @property
    def label(self) -> str:
        """The kind in words, such as `Host-to-Device` or `Unified Host-to-Device`."""
        words = self.name.title().replace("_To_", "-to-").replace("_", " ")
        return str(words)

    @property
    def direction(self) -> str | None:
        """`h2d`, `d2h` or `d2d`; None within the host, between GPUs, and if unknown."""
        source, _, destination = self.name.removeprefix("UNIFIED_").partition("_TO_")
        if self is CopyKind.PEER_TO_PEER or not destination or source == destination == "HOST":
            return None
        return f"{'h' if source == 'HOST' else 'd'}2{'h' if destination == 'HOST' else 'd'}"


UNIFIED_COPIES = (
    CopyKind.UNIFIED_HOST_TO_DEVICE,
    CopyKind.UNIFIED_DEVICE_TO_HOST,
    CopyKind.UNIFIED_DEVICE_TO_DEVICE,
)
"""Pages of unified memory, which the driver moves."""


def copy_label(kind: int) -> str:
    """Return the label of a value of `Copies.kind`, `unknown` for other values."""
    return CopyKind(kind).label if kind in _COPY_KINDS else "unknown"


def memory_label(kind: int) -> str | None:
    """Return the label of a value of `Copies.source_memory`, None for other values."""
    return MemoryKind(kind).label if kind in _MEMORY_KINDS else None


_COPY_KINDS = frozenset(CopyKind)
_MEMORY_KINDS = frozenset(MemoryKind)


class ApiCallKind(IntEnum):
    """The kind of an API call: what decides how long it takes."""

    OTHER = 0
    LAUNCH = 1  # of kernels and graphs
    SYNCHRONIZE = 2  # waits for the GPU, and does nothing else
    COPY = 3
    MEMORY_SET = 4
    ALLOCATE = 5  # or free
    EVENT_RECORD = 6
    STREAM_WAIT = 7  # makes a stream wait for an event


_KINDS_OF_CALLS = (
    (ApiCallKind.SYNCHRONIZE, r"(?:cuda|hip)(?:Device|Thread|Stream|Event)Synchronize"),
    (ApiCallKind.SYNCHRONIZE, r"cu(?:Ctx|Stream|Event)Synchronize"),
    (ApiCallKind.STREAM_WAIT, r"(?:cuda|cu|hip)StreamWaitEvent\w*"),
    (ApiCallKind.EVENT_RECORD, r"(?:cuda|cu|hip)EventRecord\w*"),
    (ApiCallKind.COPY, r"(?:cuda|cu|hip)Memcpy\w*"),
    (ApiCallKind.MEMORY_SET, r"(?:cuda|cu|hip)Memset\w*"),
    (ApiCallKind.ALLOCATE, r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree)\w*"),
    (ApiCallKind.ALLOCATE, r"cuMem(?:Alloc|Free|HostAlloc)\w*"),
    (ApiCallKind.LAUNCH, r"(?:cuda|cu|hip)(?:Graph)?Launch(?!HostFunc)\w*"),
    # ROCm: hipExtModuleLaunchKernel, hipModuleLaunchKernel, hipExtLaunchKernel
    (ApiCallKind.LAUNCH, r"hip(?:Ext)?(?:Module)?Launch\w*"),
)

BEGIN_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture")
END_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")
"""API calls between which a thread captures a graph: nothing that it launches runs."""

_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS_OF_CALLS)
_RETURNS_AT_ONCE = re.compile(r"Async|\A(?:cuda|cu)MemcpyPeer")


@cache
def api_call_kind(name: str) -> ApiCallKind:
    """Kind of an API call by its name without a version, such as `cudaLaunchKernel`."""
    return next((kind for kind, pattern in _PATTERNS if pattern.fullmatch(name)), ApiCallKind.OTHER)


def waits_for_gpu(name: str) -> bool:
    """Return whether an API call waits for the GPU, by its name alone.

    Allocating and freeing memory, on the device or pinned, synchronizes, too (CUDA's programming
    guide, implicit synchronization). `cudaEventQuery` and `cudaStreamQuery`, which NCCL's watchdog
    calls, do not wait. An asynchronous copy to pageable memory does, but its name does not show it.
    """
    kind = api_call_kind(name)
    if kind is ApiCallKind.SYNCHRONIZE:
        return True
    may_wait = kind in {ApiCallKind.COPY, ApiCallKind.ALLOCATE}
    return may_wait and _RETURNS_AT_ONCE.search(name) is None


class SynchronizationKind(IntEnum):
    """The kind of a wait: the waiting and the awaited side."""

    UNKNOWN = 0  # the call is not in the report, or does more than wait
    HOST_FOR_EVENT = 1
    STREAM_FOR_EVENT = 2  # recorded at the call, not while the stream waits
    HOST_FOR_STREAM = 3
    HOST_FOR_DEVICE = 4


_WAITS = {
    "EventSynchronize": SynchronizationKind.HOST_FOR_EVENT,
    "StreamWaitEvent": SynchronizationKind.STREAM_FOR_EVENT,
    "StreamSynchronize": SynchronizationKind.HOST_FOR_STREAM,
    "DeviceSynchronize": SynchronizationKind.HOST_FOR_DEVICE,
    "ThreadSynchronize": SynchronizationKind.HOST_FOR_DEVICE,
    "CtxSynchronize": SynchronizationKind.HOST_FOR_DEVICE,
}
_WAIT = re.compile(rf"(?:cuda|cu|hip)({'|'.join(_WAITS)})(?:WithFlags)?")


def synchronization_kind(name: str) -> SynchronizationKind:
    """Kind of the waits of an API call (`cudaStreamWaitEvent`): formats number them differently."""
    match = _WAIT.fullmatch(name)
    return _WAITS[match[1]] if match else SynchronizationKind.UNKNOWN
