"""The parts that a trace of torch.profiler holds, and how to record the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.trace.kineto.events import Kind
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.trace import Content as Table

if TYPE_CHECKING:
    from traceprof.trace.kineto.content import Content

_PROFILE = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
_SYNC = (
    "torch.profiler.profile(…, experimental_config="
    "torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))"
)
_NSYS = "Nsight Systems, for torch.profiler does not record it: nsys profile"

HOW_TO_COLLECT = HowToCollect(
    "torch.profiler",
    {
        Part.GPU_OPERATIONS: _PROFILE,
        Part.KERNELS: _PROFILE,
        Part.COPIES: _PROFILE,
        Part.COPY_MEMORY: f"{_NSYS} --trace=cuda,nvtx …",
        Part.EVERY_OPERATION: f"{_PROFILE} around fewer steps, to the end of the job",
        Part.END: f"{_PROFILE} around fewer steps, to the end of the job",
        Part.GRAPH_KERNELS: _PROFILE,
        Part.API_CALLS: _PROFILE,
        Part.SYNCHRONIZATIONS: _SYNC,
        Part.EVENT_RECORDS: _SYNC,
        Part.STALL_RECORDS: f"{_PROFILE} in PyTorch 2.1 or later",
        Part.RANGES: f"{_PROFILE} and torch.profiler.record_function(NAME) around your code",
        Part.COMMUNICATION_CALLS: f"{_PROFILE} in PyTorch 2.3 or later",
        Part.MESSAGE_SIZES: f"{_PROFILE} in PyTorch 2.3 or later",
        Part.COMMUNICATORS: f"{_PROFILE} in PyTorch 2.4 or later",
        Part.HOST_CODE: f"{_NSYS} --trace=cuda,nvtx,osrt --python-sampling=true …",
        Part.THREAD_SWITCHES: f"{_NSYS} --cpuctxsw=process-tree …",
        Part.SYSTEM_CALLS: f"{_NSYS} --trace=cuda,nvtx,osrt …",
        Part.SAMPLES: f"{_NSYS} --sample=process-tree …",
        Part.MPI_CALLS: f"{_NSYS} --trace=cuda,nvtx,mpi …",
        Part.LINK_COUNTERS: f"{_NSYS} --gpu-metrics-devices=all …",
        Part.NETWORK_COUNTERS: f"{_NSYS} --gpu-metrics-devices=all --nic-metrics=true …",
        Part.DENSE_COUNTERS: f"{_NSYS} --gpu-metrics-frequency=100000 …",
        Part.COUNTED_GPUS: f"{_NSYS} --gpu-metrics-devices=all …",
    },
)
"""Advice for every trace; for parts that torch.profiler cannot record, another recorder."""

assert HOW_TO_COLLECT.texts.keys() == set(Part)  # noqa: S101  (no part may be forgotten)

_TABLES = {
    Kind.KERNEL: ("kernel", "kernel"),
    Kind.COPY: ("gpu_memcpy", "memory copy"),
    Kind.MEMORY_SET: ("gpu_memset", "memory set"),
    Kind.API_CALL: ("cuda_runtime", "API call"),
    Kind.SYNCHRONIZATION: ("cuda_sync", "synchronization"),
    Kind.ANNOTATION: ("user_annotation", "annotation"),
    Kind.MARK: ("instant events", "mark"),
    Kind.HOST_OPERATOR: ("cpu_op", "operator"),
    Kind.PYTHON: ("python_function", "Python function"),
}

_KINDS = {
    Part.GPU_OPERATIONS: (Kind.KERNEL, Kind.COPY, Kind.MEMORY_SET),
    Part.KERNELS: (Kind.KERNEL,),
    Part.COPIES: (Kind.COPY,),
    Part.API_CALLS: (Kind.API_CALL,),
    Part.SYNCHRONIZATIONS: (Kind.SYNCHRONIZATION,),
    Part.STALL_RECORDS: (Kind.OVERHEAD,),
    Part.RANGES: (Kind.ANNOTATION,),
}


def holds(content: Content, part: Part) -> bool:
    """Return whether a trace holds a part that is one of its tables."""
    if part is Part.END:
        return not content.is_cut
    if part in {Part.EVERY_OPERATION, Part.GRAPH_KERNELS}:
        return True  # no loss is reported; a graph's kernels are always recorded one by one
    return any(kind in content.num_events for kind in _KINDS.get(part, ()))


def contents(content: Content) -> list[Table]:
    """Return the categories of events that are not empty, with their counts."""
    num, unread = content.num_events, content.num_unread
    return [
        *(Table(*_TABLES[kind], num[kind]) for kind in num if kind in _TABLES),
        *(Table(name, "unread accelerator event", unread[name]) for name in unread),
    ]
