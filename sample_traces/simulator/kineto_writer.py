"""Writer of reports of any format as traces of torch.profiler, for simulations and tests.

The text has Kineto's layout. Ranges named `aten::…` become operators, those named as functions of
Python such (`a/b.py(7): f`, `<built-in function f>`), all others annotations; NCCL's ranges become
the operators `record_param_comms`, unless there are labels of `instrument` for the same calls.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from traceprof.intervals import Int64
from traceprof.trace.grouping import distinct_values
from traceprof.trace.kineto.records import COPY_KINDS, MEMORY_KINDS
from traceprof.trace.model.communication_calls import OPERATIONS
from traceprof.trace.model.kinds import SynchronizationKind
from traceprof.trace.model.operations import Copies, Operations, RankKey
from traceprof.trace.model.special_values import NULL, OPEN_END, UNKNOWN
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import open_trace

_BASE_BEFORE_NS = 86_400_000_000_000  # times of events count from a day before the session
_GZIP_LEVEL = 6
_OPERATOR, _NCCL = "aten::", "nccl"
_PYTHON = re.compile(r"\S+\.py\(\d+\): |<built-in |nn\.Module: ")
_FUNCTIONS = {
    "AllReduce": "allreduce", "AllGather": "_allgather_base", "Broadcast": "broadcast",
    "ReduceScatter": "_reduce_scatter_base", "Reduce": "reduce", "Send": "send", "Recv": "recv",
    "AlltoAll": "all_to_all", "Gather": "gather", "Scatter": "scatter",
}  # fmt: skip
_ENDS = {"send": "Dst", "recv": "Src"}
_WAITS = {
    SynchronizationKind.HOST_FOR_EVENT: "Event Sync",
    SynchronizationKind.STREAM_FOR_EVENT: "Stream Wait Event",
    SynchronizationKind.HOST_FOR_STREAM: "Stream Sync",
    SynchronizationKind.HOST_FOR_DEVICE: "Context Sync",
}


def write_trace(
    trace: Trace, process: int, path: Path, *, ranks: Mapping[int, int], with_waits: bool = True
) -> None:
    """Write one process of a report.

    Args:
        trace: the report.
        process: of the report.
        path: the file, which must not exist; it is compressed if its name ends with `.gz`.
        ranks: of each process of the report in its run.
        with_waits: whether waits are written, as with torch.profiler's `enable_cuda_sync_events`.
    """
    with path.open("xb") as plain, ExitStack() as stack:
        file: IO[bytes] = plain
        if path.suffix == ".gz":
            packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, plain, mtime=0)
            file = cast("IO[bytes]", stack.enter_context(packed))
        writer = _Writer(trace, process, ranks, with_waits=with_waits)
        file.write(writer.head().encode())
        first = True
        for events in writer.events():
            text = ",\n".join(events)
            if text:
                file.write((text if first else f",\n{text}").encode())
                first = False
        file.write(f'\n  ],\n  "traceName": {json.dumps(path.name)}\n}}\n'.encode())


class _Writer:
    def __init__(
        self, trace: Trace, process: int, ranks: Mapping[int, int], *, with_waits: bool
    ) -> None:
        self._trace, self._process, self._with_waits = trace, process, with_waits
        self._ranks = ranks
        self._pid = trace.pid(process)
        self._keys = [key for key in trace.operations if key.process == process]
        start_ns = trace.session.start_utc_ns or 0
        self._base_ns = max(start_ns - _BASE_BEFORE_NS, 0)
        self._shift_ns = start_ns - self._base_ns

    def head(self) -> str:
        """Return the document up to its first event."""
        rank, num_ranks = self._ranks[self._process], max(self._ranks.values()) + 1
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": num_ranks}
        facts: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [self._device(key) for key in self._keys],
            "distributedInfo": {
                "backend": "nccl" if self._keys else "gloo",
                "rank": rank,
                "world_size": num_ranks,
                "pg_count": 1,
                "pg_config": [{**group, "ranks": [*range(num_ranks)]}],
            },
            "baseTimeNanoseconds": self._base_ns,
            "displayTimeUnit": "ms",
        }
        if self._trace.session.host is not None:
            facts["host_name"] = self._trace.session.host
        members = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(facts[key])}" for key in facts)
        return f'{{\n  {members},\n  "traceEvents": [\n'

    def events(self) -> Iterator[Iterable[str]]:
        """Yield the texts of events, kind by kind."""
        yield self._span()
        yield self._ranges()
        yield self._marks()
        if not len(self._trace.communication_calls(self._process).labelled):
            yield self._nccl_calls()
        yield self._api_calls()
        for key in self._keys:
            yield self._kernels(key)
            yield self._copies(key)
        if self._with_waits:
            yield self._waits()
        yield self._stalls()
        yield self._names()

    def _device(self, key: RankKey) -> dict[str, Any]:
        major, minor = self._trace.compute_capability(key) or (0, 0)
        name = self._trace.gpu_name(key) or ""
        return {"id": key.device, "name": name, "computeMajor": major, "computeMinor": minor}

    def _times(self, start_ns: Int64, end_ns: Int64) -> Iterator[tuple[str, str]]:
        """Yield starts and durations in Kineto's form, in microseconds."""
        lengths = end_ns - start_ns
        for start, length in zip(
            (start_ns + self._shift_ns).tolist(), lengths.tolist(), strict=True
        ):
            yield f"{start // 1000}.{start % 1000:03d}", f"{length // 1000}.{length % 1000:03d}"

    def _event(
        self, category: str, name: str, place: tuple[Any, Any], times: tuple[str, str], args: str
    ) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{category}", "name": {name}, "pid": {place[0]},'
            f' "tid": {place[1]},\n    "ts": {times[0]}, "dur": {times[1]},\n'
            f'    "args": {{\n      {args}\n    }}\n  }}'
        )

    def _flow(self, phase: str, number: int, place: tuple[Any, Any], time: str) -> str:
        bound = ', "bp": "e"' if phase == "f" else ""
        return (
            f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {place[0]}, "tid": {place[1]},'
            f' "ts": {time},\n    "cat": "ac2g", "name": "ac2g"{bound}\n  }}'
        )

    def _span(self) -> Iterator[str]:
        """Yield the recording itself, from time 0 of the report to its end."""
        session = self._trace.session
        end_ns = session.end_ns or max(
            (self._trace.operations[key].span_ns[1] for key in self._keys), default=0
        )
        ((start, length),) = self._times(np.zeros(1, np.int64), np.array([end_ns], np.int64))
        place = '"Spans"', '"PyTorch Profiler"'
        yield self._event(
            "Trace", '"PyTorch Profiler (0)"', place, (start, length), '"Op count": 0'
        )
        ((end, _),) = self._times(*[np.array([end_ns], np.int64)] * 2)
        yield (
            '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
            f'    "pid": "", "tid": "", "ts": {end}\n  }}'
        )

    def _ranges(self) -> Iterator[str]:
        table = self._trace.range_table(self._process)
        is_open = table.end_ns == OPEN_END
        last = max(self._trace.session.end_ns or 0, int(table.start_ns.max(initial=0)))
        end = np.where(is_open, last, table.end_ns)
        numbers = distinct_values(table.name).tolist()
        names = {number: json.dumps(table.names[number]) for number in numbers}
        categories = {number: _category(table.names[number]) for number in numbers}
        rows = zip(
            table.name.tolist(),
            table.thread.tolist(),
            is_open.tolist(),
            self._times(table.start_ns, np.maximum(end, table.start_ns)),
            strict=True,
        )
        for index, (number, thread, never_ended, times) in enumerate(rows):
            name = names[number]
            if name.startswith(f'"{_NCCL}'):
                continue
            category = categories[number]
            args = f'"External id": {index + 1},"Record function id": 0, "Ev Idx": {index}'
            args += ', "finished": false' if never_ended else ""
            yield self._event(category, name, self._host_place(thread), times, args)

    def _marks(self) -> Iterator[str]:
        marks = self._trace.marks(self._process)
        rows = zip(
            marks.name.tolist(),
            marks.thread.tolist(),
            self._times(marks.time_ns, marks.time_ns),
            strict=True,
        )
        for name, thread, (time, _) in rows:
            pid, tid = self._host_place(thread)
            yield (
                '  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t",'
                f' "name": {json.dumps(marks.names[name])}, "pid": {pid}, "tid": {tid},\n'
                f'    "ts": {time}, "args": {{}}\n  }}'
            )

    def _nccl_calls(self) -> Iterator[str]:
        calls = self._trace.communication_calls(self._process).nccl
        columns = (
            calls.thread, calls.operation, calls.bytes, calls.communicator, calls.world_size,
            calls.peer,
        )  # fmt: skip
        groups = self._groups(calls.communicators)
        # PyTorch's operator holds the end of the group, too, that launches a call of its own.
        alone = np.diff(calls.first_member) == 1
        end_ns = calls.end_ns.copy()
        end_ns[calls.members[calls.first_member[:-1][alone]]] = calls.launch_end_ns[alone]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for (thread, operation, size, group, num_ranks, peer), times in zip(
            rows, self._times(calls.start_ns, end_ns), strict=True
        ):
            function = _FUNCTIONS.get(OPERATIONS[operation])
            if function is None:
                continue
            args = f'"Collective name": "{function}", "dtype": "Byte"'
            if size != UNKNOWN:
                # This is the size for all ranks; NCCL counts that for one of them.
                number = size * max(num_ranks, 1) if function == "all_to_all" else size
                args += f', "In msg nelems": {number}, "Out msg nelems": {number}'
            if group != UNKNOWN:
                args += groups[group]
            if peer != UNKNOWN and function in _ENDS:
                args += f', "{_ENDS[function]} Rank": {peer}'
            if num_ranks != UNKNOWN:
                args += f', "Group size": {num_ranks}'
            place = self._host_place(thread)
            yield self._event("cpu_op", '"record_param_comms"', place, times, args)

    def _groups(self, names: Sequence[str]) -> list[str]:
        """Return the arguments of these communicators: name, and ranks of the members."""
        of_process = {
            rank: self._trace.communication_calls(process).nccl.communicators
            for process, rank in sorted(self._ranks.items(), key=itemgetter(1))
        }
        members = [[rank for rank, known in of_process.items() if name in known] for name in names]
        return [
            f', "Process Group Name": "{name}", "Group size": {len(ranks)}'
            f', "Process Group Ranks": "{ranks}"'
            for name, ranks in zip(names, members, strict=True)
        ]

    def _api_calls(self) -> Iterator[str]:
        calls = self._trace.api_calls(self._process)
        if calls is None:
            return
        names = {number: json.dumps(name) for number, name in self._trace.api_names.items()}
        launched: set[int] = set()
        for key in self._keys:
            for group in self._trace.operations[key].groups:
                launched.update(group.correlation.tolist())
        rows = zip(
            calls.correlation.tolist(),
            calls.thread.tolist(),
            calls.name.tolist(),
            self._times(calls.start_ns, calls.end_ns),
            strict=True,
        )
        for number, thread, name, times in rows:
            place = self._host_place(thread)
            args = f'"External id": {number},\n      "cbid": 211, "correlation": {number}'
            yield self._event("cuda_runtime", names[name], place, times, args)
            yield self._flow("s" if number in launched else "f", number, place, times[0])

    def _gpu_rows(
        self, key: RankKey, operations: Operations, places: Iterable[str] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield stream, correlation id, times and the arguments that all operations have.

        `places` are the arguments for device and context, where they differ.
        """
        usual = repeat(f'"device": {key.device}, "context": 1')
        for stream, number, times, place in zip(
            operations.stream.tolist(),
            operations.correlation.tolist(),
            self._times(operations.start_ns, operations.end_ns),
            places or usual,
            strict=False,
        ):
            args = f'"External id": {number},\n      {place},\n      "stream": {stream}'
            if number != NULL:
                args += f', "correlation": {number}'
            yield stream, number, times, args

    def _kernels(self, key: RankKey) -> Iterator[str]:
        kernels = self._trace.operations[key].kernels
        signatures = self._trace.signatures
        shapes = [
            "" if NULL in shape else f',\n      "grid": {shape[:3]}, "block": {shape[3:]}'
            for shape in signatures.shape.tolist()
        ]
        names = [json.dumps(self._trace.kernel_names[name]) for name in signatures.name.tolist()]
        rows = zip(self._gpu_rows(key, kernels), kernels.signature.tolist(), strict=True)
        for (stream, number, times, args), signature in rows:
            place = key.device, stream
            more = f',\n      "registers per thread": 32, "shared memory": 0{shapes[signature]}'
            yield self._event("kernel", names[signature], place, times, f"{args}{more}")
            yield self._flow("f", number, place, times[0])

    def _copies(self, key: RankKey) -> Iterator[str]:
        operations = self._trace.operations[key]
        for category, group in (
            ("gpu_memcpy", operations.copies),
            ("gpu_memset", operations.memsets),
        ):
            columns = (group.kind, group.source_memory, group.destination_memory, group.bytes)
            facts = zip(*(column.tolist() for column in columns), strict=True)
            places = _places(key.device, group)
            for (stream, number, times, args), (*kinds, size) in zip(
                self._gpu_rows(key, group, places), facts, strict=True
            ):
                place = key.device, stream
                name = json.dumps(_copy_name(*kinds))
                yield self._event(category, name, place, times, f'{args}, "bytes": {size}')
                yield self._flow("f", number, place, times[0])

    def _waits(self) -> Iterator[str]:
        waits = self._trace.synchronizations(self._process)
        if waits is None:
            return
        device = self._keys[0].device if self._keys else 0
        columns = (
            waits.stream, waits.correlation, waits.kind, waits.event, waits.recording, waits.device,
        )  # fmt: skip
        rows = zip(*(column.tolist() for column in columns), strict=True)
        producers = _Producers(self._trace, self._process)
        for (stream, number, kind, event, recording, of_device), times, start in zip(
            rows, self._times(waits.start_ns, waits.end_ns), waits.start_ns.tolist(), strict=True
        ):
            if kind not in _WAITS:
                continue
            name, shown = _WAITS[kind], -1 if stream == NULL else stream
            recorded_in, record = producers.of(event, recording, start)
            device = device if of_device == NULL else of_device
            args = f'"cuda_sync_kind": "{name}", "stream": {shown}, "correlation": {number}'
            args += f', "device": {device}, "context": 1'
            if kind in {SynchronizationKind.HOST_FOR_EVENT, SynchronizationKind.STREAM_FOR_EVENT}:
                args += f',\n      "wait_on_stream": {recorded_in}'
                args += f', "wait_on_cuda_event_record_corr_id": {record}'
                args += f', "wait_on_cuda_event_id": {-1 if event == NULL else event}'
            yield self._event("cuda_sync", f'"{name}"', (device, shown), times, args)

    def _stalls(self) -> Iterator[str]:
        stalls = self._trace.launch_stalls(self._process)
        if stalls is None:
            return
        rows = zip(
            stalls.thread.tolist(),
            stalls.correlation.tolist(),
            self._times(stalls.start_ns, stalls.end_ns),
            strict=True,
        )
        for thread, number, times in rows:
            place = self._host_place(thread)
            args = f'"correlation": {number}'
            yield self._event("overhead", '"Command Buffer Full"', place, times, args)

    def _names(self) -> Iterator[str]:
        names = {self._trace.thread_number(thread): name
                 for thread, name in self._trace.thread_names.items()}  # fmt: skip
        for thread, name in names.items():
            yield _metadata("thread_name", self._pid, thread, f"thread {thread} ({name})")
        program = self._trace.program(self._process)
        if program is not None:
            yield _metadata("process_name", self._pid, 0, program)

    def _host_place(self, thread: int) -> tuple[int, int]:
        return self._pid, self._trace.thread_number(thread)


def _places(device: int, copies: Copies) -> Iterator[str]:
    """Yield the arguments of each copy for its device, and for both where there are two."""
    ends = zip(copies.source_device.tolist(), copies.destination_device.tolist(), strict=True)
    for source, destination in ends:
        if NULL in {source, destination}:
            yield f'"device": {device}, "context": 1'
        else:
            yield f'"fromDevice": {source}, "inDevice": {device}, "toDevice": {destination}'


def _category(name: str) -> str:
    if name.startswith(_OPERATOR):
        return "cpu_op"
    return "python_function" if _PYTHON.match(name) else "user_annotation"


class _Producers:
    """The calls that recorded the events that waits are for."""

    def __init__(self, trace: Trace, process: int) -> None:
        records = trace.event_records(process)
        self._by_event: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        if records is None:
            return
        columns: Sequence[Int64] = (
            records.event, records.recording, records.asked_ns, records.stream,
            records.correlation,
        )  # fmt: skip
        for event, recording, *facts in zip(*(column.tolist() for column in columns), strict=True):
            self._by_event.setdefault((event, recording), []).append((*facts,))

    def of(self, event: int, recording: int, start_ns: int) -> tuple[int, int]:
        """Return stream and correlation id of the last recording before, -1 each for none."""
        for begin, stream, correlation in reversed(self._by_event.get((event, recording), ())):
            if begin <= start_ns:
                return stream, correlation
        return -1, -1


def _metadata(kind: str, process: int, thread: int, name: str) -> str:
    return (
        f'  {{\n    "name": "{kind}", "ph": "M", "ts": 0, "pid": {process}, "tid": {thread},\n'
        f'    "args": {{\n      "name": {json.dumps(name)}\n    }}\n  }}'
    )


def _copy_name(kind: int, source_memory: int, destination_memory: int) -> str:
    source, destination = map(_MEMORY_NAMES.get, (source_memory, destination_memory))
    if kind == NULL:
        return f"Memset ({destination or 'Unknown'})"
    ends = f"{source or 'Unknown'} -> {destination or 'Unknown'}"
    return f"Memcpy {_COPY_NAMES.get(kind, 'Unknown')} ({ends})"


_COPY_NAMES: dict[int, str] = {kind: name for name, kind in COPY_KINDS.items()}
_MEMORY_NAMES: dict[int, str] = {memory: name for name, memory in MEMORY_KINDS.items()}


def write_traces(
    export: Path, folder: Path, name: str, suffix: str = ".json", *, with_waits: bool = True
) -> list[Path]:
    """Write each process of a report as a trace.

    Args:
        export: the report.
        folder: of the traces.
        name: of a single trace; of several, each followed by its rank.
        suffix: `.json` or `.json.gz`.
        with_waits: whether waits are written, as with torch.profiler's `enable_cuda_sync_events`.

    Returns:
        The traces, in order of the processes.
    """
    trace = open_trace(export)
    try:
        processes = list(dict.fromkeys(key.process for key in trace.operations))
        processes += [process for process in trace.label_ranges if process not in processes]
        paths = [
            folder / (f"{name}-rank{rank}{suffix}" if len(processes) > 1 else f"{name}{suffix}")
            for rank in range(len(processes))
        ]
        ranks = dict(zip(processes, _ranks(trace, processes), strict=True))
        for process, path in zip(processes, paths, strict=True):
            write_trace(trace, process, path, ranks=ranks, with_waits=with_waits)
    finally:
        trace.close()
    return paths


def _ranks(trace: Trace, processes: Sequence[int]) -> list[int]:
    """Return the rank of each process from the report, else in order."""
    ranks = [trace.global_rank(process) for process in processes]
    known = [rank for rank in ranks if rank is not None]
    return known if len(set(known)) == len(processes) else [*range(len(processes))]
