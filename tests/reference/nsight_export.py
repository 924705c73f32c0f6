"""The rows of an Nsight export that tell why a GPU idles, in sorted lists, for tests only.

Shares no code with ``traceprof``. Times are ns of the file's own clock, spans are half-open.
A missing table is an empty one, a missing column is NULL, a row without what it needs is left out;
what ends before it starts, or was never closed, is of length 0 (a call) or lasts for ever.

* launch call of an operation: of the calls of its process with its correlation id the latest that
  begins by the operation's start, else the earliest.
* communication: a kernel with such a name, a peer-to-peer copy or one between two devices.
* An NVTX range belongs to the thread that ended it.
* `samples`: when a thread was sampled, and the innermost function of its call chain.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.reference.breakdown import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    LOW_24_BITS,
    NEVER,
    SHAPE,
    Kernel,
    are_two,
    believed_ends,
    default_is_communication,
    integers,
    numbered,
    opened,
    operation_rows,
    rows,
)
from tests.reference.kept import kept

# ids of Nsight's ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, which never changed
HOST_TO_DEVICE, PEER, PAGEABLE = (1, 3), 10, 0
PUSH_POP_RANGE, START_END_RANGE = 59, 60


class Call(NamedTuple):
    start: int
    end: int
    thread: int
    name: str  # without its version
    row: int
    correlation: int | None


class Operation(NamedTuple):
    start: int
    end: int
    kind: int
    stream: int
    name: str | None  # of a kernel, demangled where that is known
    short_name: str | None
    shape: tuple[int | None, ...]  # grid and block of a kernel
    copy_kind: int | None  # of a copy
    memory: tuple[int | None, int | None] | None  # of a copy, from and to
    bytes: int
    call: Call | None
    table: str

    @property
    def pageable(self) -> bool:
        return PAGEABLE in (self.memory or ())


class NamedSpan(NamedTuple):
    start: int
    end: int
    thread: int
    name: str


@cache
def without_version(name: str) -> str:
    return re.sub(r"_v\d+(_ptsz|_ptds)?$", "", name)


class Export:
    """One export.

    Attributes:
        tables: that it has.
        ranks: the GPU operations of each (globalPid, deviceId), in any order.
        calls: the CUDA API calls of each process, by start.
        ranges: the NVTX ranges of each process, by start.
        mpi: calls of MPI and UCX.
        overheads: CUPTI's overhead records and compilations, by name.
        libraries: calls of cuBLAS and cuDNN.
        profiler: what Nsight itself did.
        os_calls: OSRT calls of each thread.
        switches: of each thread when it was scheduled in (true) or out, by time.
        samples: of each thread, by time.
    """

    def __init__(self, path: Path) -> None:
        with opened(path) as (db, self.strings):
            self.tables: set[str] = {
                name for (name,) in db.execute("SELECT name FROM sqlite_master")
            }
            self.calls: dict[int, list[Call]] = defaultdict(list)
            self._by_correlation: dict[tuple[int, int], list[Call]] = defaultdict(list)
            self._read_calls(db)
            self.ranks: dict[tuple[int, int], list[Operation]] = defaultdict(list)
            self._read_operations(db)
            self.ranges: dict[int, list[NamedSpan]] = defaultdict(list)
            self._read_ranges(db)
            mpi = [name for name in self.tables if re.match(r"(MPI|UCP|UCX)_\w*EVENTS$", name)]
            self.mpi = [span for name in mpi for span in self._named(db, name, "textId")]
            self.overheads = [
                *self._named(db, "CUPTI_ACTIVITY_KIND_OVERHEAD", "nameId"),
                *(s._replace(name="JIT") for s in self._named(db, "CUPTI_ACTIVITY_KIND_JIT", "id")),
            ]
            self.libraries = [
                *self._named(db, "CUBLAS_EVENTS", "nameId"),
                *self._named(db, "CUDNN_EVENTS", "nameId"),
            ]
            self.profiler = sorted(self._named(db, "PROFILER_OVERHEAD", "nameId"))
            self.os_calls: dict[int, list[NamedSpan]] = defaultdict(list)
            for span in self._named(db, "OSRT_API", "nameId"):
                self.os_calls[span.thread].append(span)
            self.switches: dict[int, list[tuple[int, bool]]] = defaultdict(list)
            self._read_switches(db)
            self.samples: dict[int, list[tuple[int, str]]] = defaultdict(list)
            self._read_samples(db)

    def _named(self, db: sqlite3.Connection, table: str, text: str) -> Iterator[NamedSpan]:
        for row in rows(db, table, "start", "end", "globalTid", text):
            start, end, thread, name = integers(*row)
            if start is not None and thread is not None:
                until = NEVER if end is None else max(start, end)
                yield NamedSpan(start, until, thread, self.strings.get(name, ""))

    def _read_calls(self, db: sqlite3.Connection) -> None:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for row, values in enumerate(rows(db, "CUPTI_ACTIVITY_KIND_RUNTIME", *columns)):
            start, end, thread, correlation, name = integers(*values)
            if start is None or thread is None:
                continue
            text = without_version(self.strings.get(name, ""))
            until = max(start, start if end is None else end)
            call = Call(start, until, thread, text, row, correlation)
            process = thread & ~LOW_24_BITS
            self.calls[process].append(call)
            if correlation is not None:
                self._by_correlation[process, correlation].append(call)
        for calls in (*self.calls.values(), *self._by_correlation.values()):
            calls.sort()

    def _call_of(self, process: int, correlation: int | None, start: int) -> Call | None:
        if correlation is None:
            return None
        calls = self._by_correlation.get((process, correlation), [])
        begun = [call for call in calls if call.start <= start]
        return begun[-1] if begun else calls[0] if calls else None

    def _read_operations(self, db: sqlite3.Connection) -> None:
        columns = ("streamId", "correlationId", "shortName", "demangledName", "copyKind",
                   "srcDeviceId", "dstDeviceId", "bytes", "srcKind", "dstKind", *SHAPE)  # fmt: skip
        kernels = defaultdict[tuple[int, int], dict[int, Kernel]](dict)
        for table, start, end, process, device, *more in operation_rows(db, *columns):
            is_copy, is_kernel = table == "MEMCPY", table == "KERNEL"
            stream, correlation, short_id, demangled_id, copy_kind, source, target, *rest = more
            size, from_memory, to_memory, *shape = rest
            short, demangled = self.strings.get(short_id), self.strings.get(demangled_id)
            kind = COPY if table in {"MEMCPY", "MEMSET"} else COMPUTE
            if is_kernel and default_is_communication(short, demangled):
                kind = COMMUNICATION
            if is_copy and (copy_kind == PEER or are_two(source, target)):
                kind = COMMUNICATION
            operation = Operation(
                start=start,
                end=end,
                kind=kind,
                stream=-1 if stream is None else stream,
                name=(short if demangled is None else demangled) if is_kernel else None,
                short_name=short if is_kernel else None,
                shape=tuple(shape) if is_kernel else (),
                copy_kind=copy_kind if is_copy else None,
                memory=(from_memory, to_memory) if is_copy else None,
                bytes=size or 0 if is_copy else 0,
                call=self._call_of(process, correlation, start),
                table=table,
            )
            if is_kernel:
                kernel = Kernel(start, end, stream, correlation, (demangled, *shape))
                kernels[process, device][len(self.ranks[process, device])] = kernel
            self.ranks[process, device].append(operation)
        for key, of_rank in kernels.items():
            for place, end in believed_ends([*of_rank.values()]).items():
                index = [*of_rank][place]
                self.ranks[key][index] = self.ranks[key][index]._replace(end=end)

    def _read_ranges(self, db: sqlite3.Connection) -> None:
        columns = ("text", "eventType", "start", "end", "globalTid", "endGlobalTid", "textId",
                   "int64Value")  # fmt: skip
        stops = [stop for (stop,) in rows(db, "ANALYSIS_DETAILS", "duration")]
        for text, *others in rows(db, "NVTX_EVENTS", *columns):
            kind, start, end, began, ended, text_id, number = integers(*others)
            name = numbered(text if text is not None else self.strings.get(text_id), number)
            is_range = kind in {PUSH_POP_RANGE, START_END_RANGE}
            if is_range and name is not None and start is not None and began is not None:
                is_open = end is None or any(start <= stop <= end for stop in stops)
                until = NEVER if end is None or is_open else max(start, end)
                # endGlobalTid is 0 or NULL where the range ended on the thread that began it.
                span = NamedSpan(start, until, ended or began, str(name))
                self.ranges[began & ~LOW_24_BITS].append(span)
        for ranges in self.ranges.values():
            ranges.sort()

    def _read_switches(self, db: sqlite3.Connection) -> None:
        for row in rows(db, "SCHED_EVENTS", "start", "isSchedIn", "globalTid"):
            start, is_in, thread = integers(*row)
            if start is not None and is_in is not None and thread is not None:
                self.switches[thread].append((start, is_in != 0))
        for switches in self.switches.values():
            switches.sort()

    def _read_samples(self, db: sqlite3.Connection) -> None:
        innermost = {
            sample: self.strings.get(symbol, "")
            for sample, symbol, depth in rows(
                db, "SAMPLING_CALLCHAINS", "id", "symbol", "stackDepth"
            )
            if depth == 0
        }
        for row in rows(db, "COMPOSITE_EVENTS", "id", "start", "globalTid"):
            sample, start, thread = integers(*row)
            if sample in innermost and start is not None and thread is not None:
                self.samples[thread].append((start, innermost[sample]))
        for samples in self.samples.values():
            samples.sort()


@kept
def export_of(path: Path) -> Export:
    """Read an export, one that no test changes once for neighbouring tests."""
    return Export(path)
