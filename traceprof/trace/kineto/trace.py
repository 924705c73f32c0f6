"""A trace of torch.profiler as a `Trace`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from traceprof.intervals import Int64
from traceprof.kernel_names.categories import forget_names
from traceprof.progress import Progress
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.trace.kineto import records
from traceprof.trace.kineto.content import Content, only_process
from traceprof.trace.kineto.events import Kind
from traceprof.trace.kineto.file import TraceFile
from traceprof.trace.model.communication_calls import NO_CALLS, NO_PROCESS_CALLS, ProcessCalls
from traceprof.trace.model.host import (
    NO_ACTIVITY,
    NO_API_CALLS,
    ApiCalls,
    EventRecords,
    HostActivity,
    HostCode,
    LaunchStalls,
    Synchronizations,
)
from traceprof.trace.model.operations import RankKey, RankOperations, Signatures
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.trace.model.ranges import (
    NO_MARKS,
    NO_RANGES,
    LabelRanges,
    Marks,
    NamedRanges,
    RangeTable,
    labelled_calls,
    longest_names,
    nested_calls,
)
from traceprof.trace.model.special_values import FIRST_UTC_NS, OPEN_END
from traceprof.trace.model.trace import KINETO_FORMAT, UNREAD, Session, Trace
from traceprof.trace.model.trace import Content as Table
from traceprof.units import counted

_PROFILE = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
_WHOLE = (
    "call torch.cuda.synchronize() before torch.profiler ends, and run no other profiler beside it"
    " (the host called CUDA or HIP, but no operation was written)"
)
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
        Part.EVERY_OPERATION: (
            f"{_PROFILE} around fewer steps, with torch.cuda.synchronize() before its end, to the"
            " end of the job"
        ),
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
# No loss is reported, and a graph's kernels are recorded one by one.
_ALWAYS = (Part.EVERY_OPERATION, Part.GRAPH_KERNELS)


_AMD = "AMD"
_ROCM_MARKS = ("roctracer_version", "hip_runtime_version", "hip_driver_version")
_VERSIONS = (
    *("cuda_runtime_version", "cuda_driver_version", "cupti_version", "nccl_version"),
    *("hip_runtime_version", "hip_driver_version", "roctracer_version"),
    *("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules"),
)
_MAX_INTEGER = 1 << 62


class _Device(Record, frozen=True):
    name: str | None  # its name
    capability: tuple[int, int] | None  # its compute capability, major and minor
    num_sms: int | None  # its multiprocessors


class KinetoTrace(Trace):
    """A trace that is read as a whole on first use.

    A trace is of one process; times count from its first event. Correlation ids connect GPU
    operations with the calls that launched them. Flows between them (`ac2g`) are not read: those
    with both ends join equal ids, and the others lack the same end as the ids.
    """

    format = KINETO_FORMAT

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        """Read the trace.

        Raises:
            TraceFileError: it cannot be read.
            TraceFormatError: it is damaged, holds no complete event, or is of several processes.
        """
        self.path = path
        self._file = TraceFile(path)
        try:
            self._content = Content(self._file, progress)
            self._process = only_process(self._content, path)
        except BaseException:
            self.close()
            raise
        self.moved: Mapping[RankKey, int] = {}
        self.product_version = None
        version = _integer(self._content.facts.get("schemaVersion"))
        self.schema_version = None if version is None else str(version)

    @property
    def in_use(self) -> AbstractContextManager[None]:
        """Do nothing: the file has been read."""
        return nullcontext()

    def close(self) -> None:
        self._file.close()
        forget_names()

    # -- what was recorded -----------------------------------------------------------------------

    def pid(self, process: int) -> int:
        return process

    def thread_number(self, thread: int) -> int:
        return thread

    @property
    def origin(self) -> str:
        return "torch.profiler"

    def holds(self, part: Part) -> bool:
        if part is Part.END:
            return not self._content.is_cut
        if part is Part.COPY_MEMORY:
            copies = [operations.copies for operations in self.operations.values()]
            memory = [kind for of in copies for kind in (of.source_memory, of.destination_memory)]
            return any((kinds > 0).any() for kinds in memory)
        if part is Part.EVENT_RECORDS:
            return self._event_records is not None
        kinds = _KINDS.get(part, ())
        return part in _ALWAYS or any(kind in self._content.num_events for kind in kinds)

    @property
    def has_unread_accelerator(self) -> bool:
        return bool(self._content.num_unread)

    @cached_property
    def notes(self) -> Sequence[str]:
        notes = []
        if self._content.is_cut:
            notes.append(
                "the file is cut short: it ends in the middle, as after a killed job; the part"
                " before that is analysed"
            )
        if self._content.num_repaired:
            events = counted(self._content.num_repaired, "event")
            notes.append(
                f"{events} with backslashes or quotes that the profiler did not escape: repaired,"
                " names are read as they stand"
            )
        if self._content.num_unusable:
            events = counted(self._content.num_unusable, "event")
            notes.append(
                f"{events} left out: without a time, a process or a device, or with an end before"
                " the start"
            )
        if self._content.num_unread:
            unread = self._content.num_unread
            notes.append(
                f"{counted(sum(unread.values()), 'event')} of an accelerator"
                f" ({', '.join(sorted(unread))}) not read: what it did is unknown"
            )
        unknown = records.num_of_unknown_size(self._content)
        if unknown:
            notes.append(f"{counted(unknown, 'memory copy')} without a size: counted as 0 bytes")
        return notes

    @property
    def losses(self) -> Sequence[str]:
        """The file's end, where it is cut."""
        return ("the file is cut short",) if self._content.is_cut else ()

    @cached_property
    def operations(self) -> Mapping[RankKey, RankOperations]:
        return records.read_operations(self._content, self._process)

    def move_operations(self, key: RankKey, by_ns: int) -> None:
        moved = {**self.operations, key: self.operations[key].moved(by_ns)}
        vars(self)["operations"] = moved
        self.moved = {**self.moved, key: by_ns}

    @cached_property
    def signatures(self) -> Signatures:
        return records.read_signatures(self._content)

    @cached_property
    def kernel_names(self) -> Mapping[int, str]:
        return {number: self._content.names[number] for number, *_ in self._content.signatures}

    @cached_property
    def api_names(self) -> Mapping[int, str]:
        calls = self._api_calls or NO_API_CALLS
        return {key: self._content.names[key] for key in calls.packed_name.distinct.tolist()}

    def api_calls(self, process: int) -> ApiCalls | None:
        is_own = process == self._process or self._api_calls is None
        return self._api_calls if is_own else NO_API_CALLS

    @cached_property
    def how_to_collect(self) -> HowToCollect:
        """How to record each part; of calls without operations, what keeps these out."""
        if self.operations or not self.holds(Part.API_CALLS):
            return HOW_TO_COLLECT
        texts = {**HOW_TO_COLLECT.texts, Part.GPU_OPERATIONS: _WHOLE}
        return HowToCollect(HOW_TO_COLLECT.format_name, texts)

    def synchronizations(self, process: int) -> Synchronizations | None:
        return self._synchronizations if process == self._process else None

    def event_records(self, process: int) -> EventRecords | None:
        return self._event_records if process == self._process else None

    def launch_stalls(self, process: int) -> LaunchStalls | None:
        return records.read_launch_stalls(self._content, process)

    def host_activity(self, process: int) -> HostActivity:
        """Return CUDA's and the profiler's own work inside calls: nothing else is recorded."""
        return self._activity if process == self._process else NO_ACTIVITY

    def operators(self, process: int) -> HostCode | None:
        return self._operators if process == self._process else None

    def python_functions(self, process: int) -> HostCode | None:
        return self._python_functions if process == self._process else None

    def communication_calls(self, process: int) -> ProcessCalls:
        return self._calls if process == self._process else NO_PROCESS_CALLS

    @cached_property
    def label_ranges(self) -> Mapping[int, LabelRanges]:
        ranges = records.read_labels(self._annotations)
        return {} if ranges is None else {self._process: ranges}

    def ranges(
        self,
        matching: re.Pattern[str],
        process: int | None = None,
        until: re.Pattern[str] | None = None,
    ) -> dict[int, NamedRanges]:
        if process not in {None, self._process}:
            return {}
        ranges = records.matching(self._annotations, matching, until)
        return {self._process: ranges} if len(ranges) else {}

    def range_ends(self, process: int) -> tuple[Int64, Int64]:
        annotations = self.range_table(process)
        is_over = annotations.end_ns != OPEN_END
        return annotations.end_ns[is_over], annotations.thread[is_over]

    def range_table(self, process: int) -> RangeTable:
        return self._annotations if process == self._process else NO_RANGES

    def marks(self, process: int) -> Marks:
        return self._marks if process == self._process else NO_MARKS

    @property
    def thread_names(self) -> Mapping[int, str]:
        return self._content.thread_names

    def longest_ranges(self, limit: int) -> list[str]:
        table = self._annotations
        return longest_names(table.name, table.end_ns - table.start_ns, table.names, limit)

    def gpu_name(self, key: RankKey) -> str | None:
        of_device = self._device(key.device)
        return of_device.name if of_device else None

    def compute_capability(self, key: RankKey) -> tuple[int, int] | None:
        is_of_amd = any(mark in self._content.facts for mark in _ROCM_MARKS)
        if is_of_amd or any(name.startswith(_AMD) for name in self.gpus):
            return None
        of_device = self._devices.get(key.device)
        return of_device.capability if of_device else None

    def num_sms(self, key: RankKey) -> int | None:
        of_device = self._device(key.device)
        return of_device.num_sms if of_device else None

    def _device(self, device: int) -> _Device | None:
        """Return the properties of a device.

        AMD's GPUs are numbered otherwise in events than among those that the process sees: where it
        sees one kind, it is that.
        """
        of_device, kinds = self._devices.get(device), set(self._devices.values())
        return kinds.pop() if of_device is None and len(kinds) == 1 else of_device

    def distributed_rank(self, process: int) -> int | None:
        rank = _integer(self._distributed.get("rank"))
        is_rank = process == self._process and rank is not None and 0 <= rank < 1 << 31
        return rank if is_rank else None

    @property
    def world_size(self) -> int | None:
        return _integer(self._distributed.get("world_size"))

    @cached_property
    def session(self) -> Session:
        first_ns, end_ns = self._content.first_ns, self._content.end_ns
        facts = self._content.facts
        software = {**self._distributed, **facts}
        start_ns = (_integer(facts.get("baseTimeNanoseconds")) or 0) + first_ns
        return Session(
            host=_text(facts.get("host_name")),
            num_cores=None,
            start_utc_ns=start_ns if start_ns >= FIRST_UTC_NS else None,
            is_utc=False,
            command_line=(),
            environment={},
            end_ns=None if end_ns is None else end_ns - first_ns,
            versions={
                name.replace("_", " "): str(software[name])
                for name in _VERSIONS
                if software.get(name)
            },
        )

    def num_threads(self, process: int) -> int | None:
        calls, ranges = self._api_calls, self._annotations
        if process != self._process or (calls is None and not len(ranges)):
            return None
        threads = [ranges.thread, *([] if calls is None else [calls.packed_thread.distinct])]
        return len(distinct_values(np.concatenate(threads)))

    def contents(self) -> Sequence[Table]:
        num, unread = self._content.num_events, self._content.num_unread
        return [
            *(Table(*_TABLES[kind], num[kind]) for kind in num if kind in _TABLES),
            *(Table(name, UNREAD, unread[name]) for name in unread),
        ]

    @property
    def gpus(self) -> Sequence[str]:
        return tuple(device.name for device in self._devices.values() if device.name)

    def program(self, process: int) -> str | None:
        return self._content.process_names.get(process)

    # -- reading ---------------------------------------------------------------------------------

    @cached_property
    def _distributed(self) -> Mapping[str, Any]:
        return _mapping(self._content.facts.get("distributedInfo"))

    @cached_property
    def _devices(self) -> dict[int, _Device]:
        listed = self._content.facts.get("deviceProperties")
        devices = {}
        for properties in map(_mapping, listed if isinstance(listed, list) else ()):
            device = _integer(properties.get("id"))
            major, minor = (
                _integer(properties.get(key)) for key in ("computeMajor", "computeMinor")
            )
            if device is not None:
                capability = None if major is None or minor is None else (major, minor)
                num_sms = _integer(properties.get("numSms")) or None
                devices[device] = _Device(_text(properties.get("name")), capability, num_sms)
        return devices

    @cached_property
    def _api_calls(self) -> ApiCalls | None:
        return records.read_api_calls(self._content)

    @cached_property
    def _synchronizations(self) -> Synchronizations | None:
        return records.read_synchronizations(self._content)

    @cached_property
    def _event_records(self) -> EventRecords | None:
        return records.read_event_records(self._content, self._api_calls)

    @cached_property
    def _activity(self) -> HostActivity:
        return replace(NO_ACTIVITY, driver_work=records.read_overhead(self._content))

    @cached_property
    def _operators(self) -> HostCode | None:
        return records.read_host_code(self._content, self._process, Kind.HOST_OPERATOR)

    @cached_property
    def _python_functions(self) -> HostCode | None:
        return records.read_host_code(self._content, self._process, Kind.PYTHON)

    @cached_property
    def _annotations(self) -> RangeTable:
        return records.read_annotations(self._content)

    @cached_property
    def _marks(self) -> Marks:
        return records.read_marks(self._content, self._process)

    @cached_property
    def _calls(self) -> ProcessCalls:
        ranges = self.label_ranges.get(self._process)
        labels = [] if ranges is None else labelled_calls(ranges)
        calls = records.read_calls(self._content, labels)
        return ProcessCalls(NO_CALLS, nested_calls(calls))


def _integer(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INTEGER:
        return value
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
