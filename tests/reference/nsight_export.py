"""The rows of an Nsight export in plain lists, for references only.

Shares no code with ``traceprof``. Times are ns of the file's own clock, spans are half-open.
A missing table is an empty one, a missing column is NULL, a row without what it needs is left out;
what ends before it starts, or was never closed, is of length 0 (a call) or lasts for ever.

* operation: a row of KERNEL, MEMCPY, MEMSET or GRAPH_TRACE with a process, a device, start <= end.
* launch call of an operation: of the calls of its process with its correlation id the latest that
  begins by the operation's start, else the earliest.
* communication: a kernel with such a name, a peer-to-peer copy or one between two devices; compute:
  every other kernel and CUDA graphs; copy: every other memcpy and memset.
* record: a row of CUDA_EVENT whose correlation id has an API call: event and stream, at that call.
* wait: a call whose name begins with `cudaStreamWaitEvent` or `cuStreamWaitEvent`, joined with
  SYNCHRONIZATION on (process, correlation id): stream and event. The row's syncType means other
  things in other versions and is not looked at.
* An NVTX range belongs to the thread that ended it.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.reference.kept import kept
from tests.reference.spans import NEVER

KINDS = COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
OPERATIONS = ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET")
LOW_24_BITS = 0xFFFFFF
NO_STREAM = 4294967295  # the exporter's stand-in for "no stream"
# ids of Nsight's ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, which never changed
HOST_TO_DEVICE, PAGEABLE = (1, 3), 0
PUSH_POP_RANGE, START_END_RANGE = 59, 60

Key = tuple[int, int]  # (globalPid, deviceId)


class Call(NamedTuple):
    start: int
    end: int
    correlation: int  # -1 where it has none
    thread: int
    name: str  # without its version
    row: int


class Operation(NamedTuple):
    start: int
    end: int
    kind: str
    table: str
    stream: int  # -1 where none is known
    call: Call | None
    correlation: int | None = None
    device: int = 0
    short: str = ""  # names of a kernel
    demangled: str = ""
    name: str | None = None  # of a kernel, demangled where that is known
    shape: tuple[int | None, ...] = ()  # grid and block of a kernel
    bytes: int = 0
    copy_kind: int | None = None  # of a copy
    memory: tuple[int | None, int | None] | None = None  # of a copy, from and to
    devices: tuple[int | None, int | None] = (None, None)  # of a copy, from and to

    @property
    def is_copy(self) -> bool:
        return self.table in {"MEMCPY", "MEMSET"}

    @property
    def pageable(self) -> bool:
        return PAGEABLE in (self.memory or ())

    @property
    def order(self) -> tuple[int, ...]:
        """Where it stands in its stream: by its call, of one call by its start."""
        return (*(self.call[:3] if self.call else ()), self.start, self.end)


class StreamEvent(NamedTuple):
    """An event record or a stream wait."""

    call: Call
    stream: int
    event: int


class NamedSpan(NamedTuple):
    start: int
    end: int
    thread: int
    name: str


@cache
def function_name(demangled: str) -> str:
    """The qualified function name: no return type, template arguments or parameters."""
    kept, depth = "", 0
    for char in demangled.replace("(anonymous namespace)", "{anonymous}").replace("->", ""):
        if char == "(" and depth == 0:
            break
        kept += char if depth == 0 and char not in "<>" else ""
        depth += (char == "<") - (char == ">")
    return kept.split()[-1] if kept.strip() else ""


@cache
def default_is_communication(short: str | None, demangled: str | None) -> bool:
    """NCCL, RCCL, symmetric-memory and custom all-reduce, NVSHMEM and DeepEP kernels, by name."""
    pattern = (
        r"nccl|rccl|nvshmem|cross_device_reduce_[12]stage|msccl"
        r"|(one_shot|two_shot|multimem)_(\w*_)?all_?(reduce|gather)"
    )
    names = (short or "", function_name(demangled or ""))
    return any(
        name.startswith("deep_ep::")
        or re.search(r"\b(inter|intra)node(_ll)?::", name)
        or re.match(pattern, name)
        or re.match(pattern, last)
        for name in names
        for last in name.split("::")[-1:]
    )


def rows(db: sqlite3.Connection, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The table's rows: None for an absent column; no rows for an absent table."""
    present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    wanted = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
    if present:
        yield from db.execute(f"SELECT {wanted} FROM {table}")


def integers(*values: object) -> list[int | None]:
    return [value if isinstance(value, int) else None for value in values]


@contextmanager
def opened(
    path: Path, *, has_strings: bool = True
) -> Iterator[tuple[sqlite3.Connection, dict[Any, str]]]:
    """An export that is only read, and its strings by their ids."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        yield db, dict(rows(db, "StringIds", "id", "value")) if has_strings else {}


def operation_rows(
    db: sqlite3.Connection, *columns: str, tables: tuple[str, ...] = OPERATIONS
) -> Iterator[tuple[Any, ...]]:
    """Table, start, end, process, device and these columns of each GPU operation of the file."""
    for table in tables:
        place = ("start", "end", "globalPid", "deviceId")
        for row in rows(db, f"CUPTI_ACTIVITY_KIND_{table}", *place, *columns):
            start, end, process, device, *more = integers(*row)
            if start is None or end is None or process is None or device is None or end < start:
                continue
            yield table, start, end, process, device, *more


def believed_ends(operations: Sequence[Operation]) -> dict[int, int]:
    """The ends of kernels of a rank whose recorded ones are wrong, by index: where the next begin.

    Such a kernel lasts while three others of its stream, which runs one kernel after the other,
    begin and end; it has a launch of its own; and it takes over 20 times as long as its like.
    """
    kernels = {place: op for place, op in enumerate(operations) if op.table == "KERNEL"}
    ascending = sorted(kernels, key=lambda index: kernels[index][:2])
    streams, alike = defaultdict[Any, list[int]](list), defaultdict[Any, list[int]](list)
    for index in ascending:
        kernel = kernels[index]
        streams[kernel.stream].append(index)
        alike[kernel.demangled, kernel.shape].append(kernel.end - kernel.start)
    followers = dict[int, list[int]]()
    for index in sorted(ascending, key=lambda one: kernels[one].start - kernels[one].end)[:64]:
        kernel, stream = kernels[index], streams[kernels[index].stream]
        later = stream[stream.index(index) + 1 :]
        covered = [kernels[one] for one in later if kernels[one].end <= kernel.end]
        if sum(one.start < one.end for one in covered) >= 3:
            followers[index] = later
    ends = {}
    for index, later in followers.items():
        kernel, stream = kernels[index], streams[kernels[index].stream]
        lengths = alike[kernel.demangled, kernel.shape]
        is_usual = len(lengths) >= 3 and kernel.end - kernel.start <= 20 * median(lengths)
        rest = [kernels[one] for one in stream if one not in followers]
        num_overlaps = sum(next_.start < one.end for one, next_ in pairwise(rest))
        is_serial = num_overlaps <= len(rest) / 100
        is_alone = sum(kernels[one].correlation == kernel.correlation for one in stream) == 1
        if is_serial and is_alone and not is_usual:
            ends[index] = kernels[later[0]].start
    return ends


def numbered(name: Any, number: int | None) -> Any:
    """A range's name, with its payload where `instrument` leaves the running number to it."""
    takes_number = isinstance(name, str) and re.fullmatch("(cut )?step |.* seq=", name)
    return f"{name}{number}" if takes_number and number is not None and number >= 0 else name


@cache
def without_version(name: str) -> str:
    return re.sub(r"_v\d+(_ptsz|_ptds)?$", "", name)


class Export:
    """One export; what is not asked for is not read.

    Attributes:
        tables: that it has.
        calls: the CUDA API calls of each process, by start.
        ranks: the GPU operations of each (globalPid, deviceId), in any order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as (db, self.strings):
            self.tables: set[str] = {
                name for (name,) in db.execute("SELECT name FROM sqlite_master")
            }
            self.calls: dict[int, list[Call]] = defaultdict(list)
            self._by_correlation: dict[tuple[int, int], list[Call]] = defaultdict(list)
            self._read_calls(db)
            self.ranks: dict[Key, list[Operation]] = defaultdict(list)
            self._read_operations(db)

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a table, read anew."""
        with opened(self.path, has_strings=False) as (db, _):
            yield from rows(db, table, *columns)

    def named(self, table: str, text: str) -> list[NamedSpan]:
        """What a table says of threads, in the order of its rows."""
        spans = []
        for row in self.rows(table, "start", "end", "globalTid", text):
            start, end, thread, name = integers(*row)
            if start is not None and thread is not None:
                until = NEVER if end is None else max(start, end)
                spans.append(NamedSpan(start, until, thread, self.strings.get(name, "")))
        return spans

    @cached_property
    def mpi(self) -> list[NamedSpan]:
        """Calls of MPI and UCX."""
        tables = [name for name in self.tables if re.match(r"(MPI|UCP|UCX)_\w*EVENTS$", name)]
        return [span for name in tables for span in self.named(name, "textId")]

    @cached_property
    def overheads(self) -> list[NamedSpan]:
        """CUPTI's overhead records and compilations, by name."""
        compilations = self.named("CUPTI_ACTIVITY_KIND_JIT", "id")
        return [
            *self.named("CUPTI_ACTIVITY_KIND_OVERHEAD", "nameId"),
            *(span._replace(name="JIT") for span in compilations),
        ]

    @cached_property
    def libraries(self) -> list[NamedSpan]:
        """Calls of cuBLAS and cuDNN."""
        return [*self.named("CUBLAS_EVENTS", "nameId"), *self.named("CUDNN_EVENTS", "nameId")]

    @cached_property
    def profiler(self) -> list[NamedSpan]:
        """What Nsight itself did."""
        return sorted(self.named("PROFILER_OVERHEAD", "nameId"))

    @cached_property
    def os_calls(self) -> dict[int, list[NamedSpan]]:
        """OSRT calls of each thread."""
        calls: dict[int, list[NamedSpan]] = defaultdict(list)
        for span in self.named("OSRT_API", "nameId"):
            calls[span.thread].append(span)
        return calls

    def _read_calls(self, db: sqlite3.Connection) -> None:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for row, values in enumerate(rows(db, "CUPTI_ACTIVITY_KIND_RUNTIME", *columns)):
            start, end, thread, correlation, name = integers(*values)
            if start is None or thread is None:
                continue
            text = without_version(self.strings.get(name, ""))
            until = max(start, start if end is None else end)
            known = -1 if correlation is None else correlation
            call = Call(start, until, known, thread, text, row)
            process = thread & ~LOW_24_BITS
            self.calls[process].append(call)
            if correlation is not None:
                self._by_correlation[process, correlation].append(call)
        for calls in (*self.calls.values(), *self._by_correlation.values()):
            calls.sort()

    def call_of(self, process: int, correlation: int | None, start: int) -> Call | None:
        calls = self._by_correlation.get((process, -1 if correlation is None else correlation), [])
        begun = [call for call in calls if call.start <= start]
        return begun[-1] if begun else calls[0] if calls else None

    def _read_operations(self, db: sqlite3.Connection) -> None:
        peers = {10}
        for number, name, label in rows(db, "ENUM_CUDA_MEMCPY_OPER", "id", "name", "label"):
            if re.search("ptop|peer[- ]to[- ]peer", f"{name} {label}", re.IGNORECASE):
                peers.add(number)
        columns = ("streamId", "correlationId", "shortName", "demangledName", "copyKind",
                   "srcDeviceId", "dstDeviceId", "bytes", "srcKind", "dstKind", *SHAPE)  # fmt: skip
        for table, start, end, process, device, *more in operation_rows(db, *columns):
            is_copy, is_kernel = table == "MEMCPY", table == "KERNEL"
            stream, correlation, short_id, demangled_id, copy_kind, source, target, *rest = more
            size, from_memory, to_memory, *shape = rest
            short, demangled = self.strings.get(short_id), self.strings.get(demangled_id)
            kind = COPY if table in {"MEMCPY", "MEMSET"} else COMPUTE
            if is_kernel and default_is_communication(short, demangled):
                kind = COMMUNICATION
            is_between = None not in (source, target) and source != target
            if is_copy and (copy_kind in peers or is_between):
                kind = COMMUNICATION
            self.ranks[process, device].append(
                Operation(
                    start=start,
                    end=end,
                    kind=kind,
                    table=table,
                    stream=-1 if stream is None else stream,
                    call=self.call_of(process, correlation, start),
                    correlation=correlation,
                    device=device,
                    short=short or "",
                    demangled=demangled or "",
                    name=(short if demangled is None else demangled) if is_kernel else None,
                    shape=tuple(shape) if is_kernel else (),
                    bytes=size or 0,
                    copy_kind=copy_kind if is_copy else None,
                    memory=(from_memory, to_memory) if is_copy else None,
                    devices=(source, target),
                )
            )
        for operations in self.ranks.values():
            for index, end in believed_ends(operations).items():
                operations[index] = operations[index]._replace(end=end)

    @cached_property
    def ranges(self) -> dict[int, list[NamedSpan]]:
        """The NVTX ranges of each process, by start."""
        ranges: dict[int, list[NamedSpan]] = defaultdict(list)
        columns = ("text", "eventType", "start", "end", "globalTid", "endGlobalTid", "textId",
                   "int64Value")  # fmt: skip
        stops = [stop for (stop,) in self.rows("ANALYSIS_DETAILS", "duration")]
        for text, *others in self.rows("NVTX_EVENTS", *columns):
            kind, start, end, began, ended, text_id, number = integers(*others)
            name = numbered(text if text is not None else self.strings.get(text_id), number)
            is_range = kind in {PUSH_POP_RANGE, START_END_RANGE}
            if is_range and name is not None and start is not None and began is not None:
                is_open = end is None or any(start <= stop <= end for stop in stops)
                until = NEVER if end is None or is_open else max(start, end)
                # endGlobalTid is 0 or NULL where the range ended on the thread that began it.
                span = NamedSpan(start, until, ended or began, str(name))
                ranges[began & ~LOW_24_BITS].append(span)
        for of_process in ranges.values():
            of_process.sort()
        return ranges

    @cached_property
    def switches(self) -> dict[int, list[tuple[int, bool]]]:
        """Of each thread when it was scheduled in (true) or out, by time."""
        switches: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for row in self.rows("SCHED_EVENTS", "start", "isSchedIn", "globalTid"):
            start, is_in, thread = integers(*row)
            if start is not None and is_in is not None and thread is not None:
                switches[thread].append((start, is_in != 0))
        for of_thread in switches.values():
            of_thread.sort()
        return switches

    @cached_property
    def events(self) -> dict[Key, tuple[list[StreamEvent], list[StreamEvent]]]:
        """The event records and the stream waits of each rank, in order of their calls.

        Where a process has one device, all of its rows are that rank's, whatever device they name.
        """
        found: dict[Key, tuple[list[StreamEvent], list[StreamEvent]]]
        found = {key: ([], []) for key in self.ranks}
        columns = ("globalPid", "deviceId", "correlationId", "streamId", "eventId")
        for kind, table in enumerate(("CUDA_EVENT", "SYNCHRONIZATION")):
            for row in self.rows(f"CUPTI_ACTIVITY_KIND_{table}", *columns):
                process, device, correlation, stream, event = integers(*row)
                if process is None or stream is None or event is None:
                    continue
                call = self.call_of(process, correlation, NEVER)
                is_wait = call and re.match("(cuda|cu)StreamWaitEvent", call.name)
                if call is None or (kind and (stream == NO_STREAM or not is_wait)):
                    continue
                places = [place for owner, place in self.ranks if owner == process]
                for place in places:
                    if place == device or len(places) == 1:
                        found[process, place][kind].append(StreamEvent(call, stream, event))
        for of_rank in found.values():
            for events in of_rank:
                events.sort()
        return found


@kept
def export_of(path: Path) -> Export:
    """Read an export, one that no test changes once for neighbouring tests."""
    return Export(path)
