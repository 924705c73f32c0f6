"""Host code by thread: named ranges, operators, Python functions, and sleep."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np

from traceprof import intervals
from traceprof.intervals import BEYOND_NS, NO_NUMBERS, Int64, Intervals
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, named_sums
from traceprof.trace.model.host import HostActivity, HostCode, ThreadSpans
from traceprof.trace.model.ranges import NamedRanges
from traceprof.trace.model.trace import Trace

SETUP_CALL = re.compile(
    # contexts, and access to other devices
    r"cuInit|cu(?:da)?Ctx(?:Create|Destroy|EnablePeer)"
    r"|cuDevicePrimaryCtx(?:Retain|Reset|Release)"
    r"|cuda(?:SetDevice|InitDevice|DeviceReset|DeviceEnablePeerAccess)\Z"
    # loading of modules and libraries, compilation, graphs
    r"|cu(?:da)?(?:Module|Library|Link)[A-Z]|cuKernelGetFunction|cuFuncLoad|cuFuncIsLoaded"
    r"|cudaFuncGetAttributes|cudaGetFuncBySymbol|cuGetProcAddress|cudaGetDriverEntryPoint"
    r"|hipModule(?:Load|GetFunction)|__(?:cuda|hip)Register|nvrtc"
    # streams, events, graphs
    r"|(?:cuda|cu|hip)(?:Ext)?(?:Stream|Event|Graph)Create|(?:cuda|cu|hip)Graph(?:Instantiate|Upload|Add)"
    r"|(?:cuda|cu|hip)Stream(?:Begin|End)Capture"
    # registration of memory, also of other processes' memory
    r"|cu(?:da)?(?:Mem)?Host(?:Register|Unregister)|cu(?:da)?Ipc(?:Open|Close)"
)
"""API calls, matched from their beginning, that prepare something once."""

SETUP_RANGE = re.compile(
    r"\Anccl(?:CommInit|CommSplit|CommShrink|CommRegister|CommWindowRegister|GetUniqueId)"
    r"|\A(?:cublas|cublasLt|cudnn|cusolver\w*|cusparse|cufft)Create"
    r"|\b(?:init_process_group|compile_fx|nvrtc)\b|dynamo_timed"
    r"|(?i:\bwarm[ _-]?up\b|\b(?:jit[ _-]?)?(?:compile|compilation|compiling)\b)"
)
"""Ranges and library calls for set-up: communicators, handles, compilation, warm-up."""

SETUP_WORK = re.compile(r"Module Loading|Function Loading|JIT", re.IGNORECASE)
"""Work inside a call, as CUDA reports it, that is set-up."""

ALLOCATION_CALL = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree)"
    r"|cuMem(?:Alloc|Free|HostAlloc|Create|Release|Map|Unmap|Address|SetAccess)"
    r"|cu(?:da)?MemPool|cuArray(?:3D)?(?:Create|Destroy)|cuMipmappedArray(?:Create|Destroy)"
)
"""API calls, matched from their beginning, that allocate, free, map or unmap memory."""

MPI_RANGE = re.compile(r"\AMPI_[A-Z]|\Agloo:|\Auc[pxc]_")
"""Ranges that MPI, PyTorch's Gloo and UCX open around their calls."""

BLOCKING_SYSTEM_CALL = re.compile(
    r"(?:futex|sem_(?:timed|clock)?wait|p?poll|p?select|epoll_p?wait2?|(?:clock_)?nanosleep"
    r"|u?sleep|pause|pthread_(?:cond_(?:timed|clock)?wait|mutex_(?:(?:timed|clock)?lock)|join"
    r"|barrier_wait|rwlock_(?:timed|clock)?(?:rd|wr)lock)|sigwait\w*|sigsuspend"
    r"|wait(?:id|pid|[34])?|flock|lockf|p?(?:read|write)v?(?:64|2|64v2)?"
    r"|f(?:read|gets|getc|write|sync|datasync|flush)|f?getc(?:har)?|recv(?:from|m?msg)?"
    r"|send(?:to|m?msg|file)?|accept4?|connect|msg(?:rcv|snd)|semop|io_getevents)\Z"
)
"""System calls in which a thread sleeps; others, such as `ioctl` and `mmap`, work in the kernel."""

OVER_BY_ITSELF = re.compile(
    r"(?:(?:clock_)?nanosleep|u?sleep|p?writev?(?:64|2|64v2)?|f(?:write|sync|datasync|flush))\Z"
)
"""System calls, matched from their beginning, that nobody else ends: sleeps, writing of files."""

# Names that people and frameworks give a range in which the training thread waits for its batch:
# `dataloader next`, `data_loading`, `load_batch`, `get_batch`, `next(loader)`, PyTorch's
# `enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__`, Lightning's
# `[_TrainingEpochLoop].train_dataloader_next`, Megatron's `batch-generator`, and DALI's readers.
DATA_LOADING = re.compile(
    r"data[ _-]?load|load[ _-]?(?:data|batch)"
    r"|(?:fetch|get|next|load)[ _-]?batch|batch[ _-]?(?:fetch|load|generator|wait)"
    r"|fetch[ _-]?data|data[ _-]?(?:fetch|wait|iter|next)|\bnext\(|\Adata\Z"
    r"|\A\[DALI\]\[(?:Loader|DataReader)\]",
    re.IGNORECASE,
)
"""Ranges in which data is loaded."""

PYTHON_LOADING = re.compile(
    r"(?:\A|/)(?:[^/(]*(?:data|loader)[^/(]*\.py|(?:dali|datapipes|torchdata|webdataset)/[^(]*)"
    r"\(\d+\): __next__"
)
"""Functions of Python that return the next item of a data loader."""

PYTHON_SETUP = re.compile(
    r"(?:\A|/)torch/(?:distributed/(?:distributed_c10d|device_mesh)\.py\(\d+\): init_\w+"
    r"|_inductor/compile_fx\.py\(\d+\): compile_fx\w*)\Z"
    r"|(?:\A|/)triton/compiler/compiler\.py\(\d+\): compile\Z"
)
"""Functions of Python that create communicators or compile."""

PYTHON_SLEEP = re.compile(
    r"<(?:built-in )?(?:method|function) '?(?:sleep|acquire|select|poll|epoll|wait|waitpid|recv\w*"
    r"|accept)\b"
)
"""Functions of Python in C that wait: for time, a lock, a socket, another process."""

GARBAGE_COLLECTION = re.compile(
    r"(?i:\A(?:python[ _-]?)?gc\Z|\APython GC\b|\bgc[ _.-]collect|\bgarbage[ _-]?collect)"
    r"|\A<built-in (?:function|method) collect\b"
)
"""Ranges and functions of garbage collection."""

HOST_WORK = re.compile(
    GARBAGE_COLLECTION.pattern
    + r"|(?i:(?<![a-z])(?:save|write|store|stage)[ _-]?(?:checkpoint|state_dict)"
    r"|(?<![a-z])checkpoint[ _-]?(?:sav|writ|stor|stag))|\btorch\.save\b"
    r"|torch/serialization\.py\(\d+\): save\Z"
    r"|distributed/checkpoint/\w+\.py\(\d+\): (?:async_)?save\Z"
)
"""Ranges and functions of garbage collection and of checkpoints that are written."""

LOADER_STAGE = re.compile(r"\A(?:\[DALI\])?\[Executor\] Run(CPU|Mixed|GPU)\Z")
"""What a stage of a pipeline of NVIDIA DALI does for one batch, on a thread of its own."""

HOST_RANGE = re.compile(
    "|".join(
        (SETUP_RANGE.pattern, MPI_RANGE.pattern, HOST_WORK.pattern, f"(?i:{DATA_LOADING.pattern})")
    )
)
"""Ranges of any of these kinds."""


class Nested(Record, frozen=True):
    """Spans of one thread, ordered by start, longer ones first."""

    start_ns: Int64
    end_ns: Int64  # int64[n], after the start: a span without length has one nanosecond
    parent: Int64  # int64[n], index of the innermost span around each, -1 for none
    depth: Int64  # int64[n], how many spans are around each

    @property
    def self_ns(self) -> Int64:
        """Time of each span without its children, int64[n]."""
        self_ns = self.end_ns - self.start_ns
        inner = np.flatnonzero(self.parent >= 0)
        outer = self.parent[inner]
        inside = np.minimum(self.end_ns[inner], self.end_ns[outer]) - self.start_ns[inner]
        np.subtract.at(self_ns, outer, inside)
        self_ns[self_ns < 0] = 0
        return self_ns

    def inherited(self, own: Int64) -> Int64:
        """Return the value of each span, else of the nearest one around it; -1 is none."""
        values = own.copy()
        if own.max(initial=-1) < 0:
            return values
        order = np.argsort(self.depth, kind="stable")
        edges = np.flatnonzero(np.diff(self.depth.take(order))) + 1
        for rows in np.split(order, edges)[1:]:
            above = values[self.parent[rows]]
            values[rows] = np.where((own[rows] < 0) & (self.parent[rows] >= 0), above, own[rows])
        return values

    def innermost(self) -> tuple[Int64, Int64, Int64]:
        """Consecutive segments (starts, ends), each with the innermost span."""
        num = len(self.start_ns)
        index = np.arange(num)
        time = np.concatenate((self.end_ns, self.start_ns))
        span = np.concatenate((self.parent, index))
        # Of equal times: inner ends, outer ends, outer starts, inner starts.
        order = np.lexsort((np.concatenate((-index, index)), np.arange(2 * num) >= num, time))
        time, span = time.take(order), span.take(order)
        start, end, span = time[:-1], time[1:], span[:-1]
        counts = (end > start) & (span >= 0)
        return start[counts], end[counts], span[counts]


def nested(start_ns: Int64, end_ns: Int64) -> Nested:
    """Spans of one thread with their parents, from int64[n] starts and ends in order of start.

    Of equal starts the longer spans come first.
    """
    num, end = len(start_ns), np.maximum(end_ns, start_ns + 1)
    parent, depth = np.full(num, -1), np.zeros(num, np.int64)
    # Most calls are one after the other: only spans around others, or inside, are looked at.
    is_inside = start_ns[1:] < np.maximum.accumulate(end[:-1])
    rows = np.flatnonzero(np.append(False, is_inside) | np.append(is_inside, False))
    start, stop = start_ns[rows], end[rows]
    # Ends are nearly in order: a stable sort is quick.
    level = np.arange(len(rows)) - np.searchsorted(np.sort(stop, kind="stable"), start, "right")
    by_level = np.argsort(level, kind="stable")
    keys = level.take(by_level) * len(rows) + by_level
    place = np.empty(len(rows), np.int64)
    place[by_level] = by_level[np.searchsorted(keys, keys - len(rows)) - 1]
    is_inner = (level > 0) & (stop[place] > start)  # others overlap, but do not nest
    parent[rows] = np.where(is_inner, rows[place], -1)
    depth[rows] = np.where(is_inner, level, 0)
    return Nested(start_ns, end, parent, depth)


class Sleep(Record, frozen=True):
    """When a thread was asleep and when it was awake. Any other time is unknown."""

    asleep: Intervals
    awake: Intervals


def sleep_of(activity: HostActivity, thread: int) -> Sleep:
    """When a thread slept.

    With recorded thread switches, it sleeps while it is off the CPU. Before the first switch it was
    awake if that switch takes it off the CPU; otherwise its state is unknown. Without switches it
    sleeps in blocking system calls and is awake otherwise. Without either, nothing is known.
    """
    switches = activity.switches
    rows = np.flatnonzero(switches.thread == thread)
    if len(rows) == 0:
        return _sleep_in_calls(activity.system_calls, thread)
    time, is_on = switches.time_ns[rows], switches.is_on[rows]
    changes = np.append(True, is_on[1:] != is_on[:-1])
    changes[0] = not is_on[0]  # when it went off the CPU is not known
    time, is_on = time[changes], is_on[changes]
    end = time[is_on]
    start = time[~is_on]
    if len(end) < len(start):
        end = np.append(end, BEYOND_NS)
    asleep = intervals.union(start, end)
    known_from = int(switches.time_ns[rows[0]]) if switches.is_on[rows[0]] else -BEYOND_NS
    return Sleep(asleep, _without(known_from, asleep))


def _sleep_in_calls(calls: ThreadSpans, thread: int) -> Sleep:
    rows = np.flatnonzero(calls.thread == thread)
    if len(rows) == 0:
        return Sleep(intervals.empty(), intervals.empty())
    blocks = np.array([bool(BLOCKING_SYSTEM_CALL.match(name)) for name in calls.names], np.bool_)
    rows = rows[blocks[calls.name[rows]]]
    asleep = intervals.union(calls.start_ns[rows], np.minimum(calls.end_ns[rows], BEYOND_NS))
    return Sleep(asleep, _without(-BEYOND_NS, asleep))


def _without(start_ns: int, asleep: Intervals) -> Intervals:
    start, end = np.array([start_ns], np.int64), np.array([BEYOND_NS], np.int64)
    return intervals.subtract(Intervals(start, end), asleep)


MAX_BETWEEN_MARKERS_NS = 500_000
"""The markers of a thread are its calls and the ends of its ranges; so far apart, a run ends."""


class HostRanges(Record, frozen=True):
    """Named ranges of a report, by which the activity of its threads is known."""

    named: Mapping[int, NamedRanges]  # ranges that name set-up, MPI or data loading, by process
    # ends of ranges less than `MAX_BETWEEN_MARKERS_NS` apart, by thread, for threads that call CUDA
    ends: Mapping[int, Intervals]


# Several ranks share a report, and several analyses need its ranges: they are read once.
_RANGES: WeakKeyDictionary[Trace, HostRanges] = WeakKeyDictionary()


def host_ranges(trace: Trace) -> HostRanges:
    """Return the ranges of the threads of a report's processes with GPU work."""
    if trace not in _RANGES:
        ends: dict[int, Intervals] = {}
        for process in sorted({key.process for key in trace.operations}):
            calls = trace.api_calls(process)
            if calls is None or not len(calls):
                continue
            time, by = trace.range_ends(process)
            for thread in calls.packed_thread.distinct.tolist():
                if len(ended := time[by == thread]):
                    ends[thread] = joined_markers(ended, ended)
        _RANGES[trace] = HostRanges(trace.ranges(HOST_RANGE), ends)
    return _RANGES[trace]


def joined_markers(start_ns: Int64, end_ns: Int64) -> Intervals:
    """Join markers, or runs of markers, to runs: int64[n] starts and ends."""
    return intervals.joined(start_ns, end_ns, MAX_BETWEEN_MARKERS_NS - 1)


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LINE = re.compile(r"(?:.*/)?([^/]+/[^/]+\(\d+\): .*)")
_OF_FRAMEWORK = re.compile(r"(?:.*/)?(?:torch|torch_\w+|functorch)/|nn\.Module: |<|\[")
_AUTOGRAD = "autograd::engine::evaluate_function: "


def code_of_threads(trace: Trace, process: int, threads: Collection[int]) -> Intervals:
    """Return when threads were in any operator or function of Python."""
    covered = []
    for code in (trace.operators(process), trace.python_functions(process)):
        if code is not None:
            rows = np.flatnonzero(code.packed_thread.isin(threads))
            covered.append(intervals.union(code.start_ns[rows], code.ends(rows)))
    return intervals.merge(*covered)


def code_within(
    trace: Trace, process: int, threads: Iterable[int], idle: Intervals
) -> Mapping[str, int]:
    """Code that threads ran during idle time, in ns by name.

    A nanosecond counts for the outermost operator at that time, named with the innermost line of
    Python around it that is not the framework's.
    """
    spent: Counter[str] = Counter()
    tables = (trace.operators(process), trace.python_functions(process))
    kinds = [(code, code is tables[0]) for code in tables if code is not None]
    for thread in threads:
        parts = [(code, is_op, _rows_within(code, thread, idle)) for code, is_op in kinds]
        if any(len(rows) for *_, rows in parts):
            spent += _of_thread(parts, idle)
    return spent


def innermost_code(
    trace: Trace, process: int, times: Intervals, collections: Intervals
) -> Mapping[str, int]:
    """Operators that threads ran at these times, in ns by name, and garbage collections.

    A nanosecond counts for the innermost operator, unless garbage was collected.
    """
    collected = intervals.covered_within(collections, times.start_ns, times.end_ns).sum()
    spent = +Counter({"garbage collection": int(collected)})
    code = trace.operators(process)
    if code is None:
        return spent
    times = intervals.subtract(times, collections)
    for thread in code.packed_thread.distinct.tolist():
        rows = _rows_within(code, thread, times)
        start, end, name = code.start_ns[rows], code.ends(rows), code.packed_name.at(rows)
        order = np.lexsort((-end, start))
        begin, stop, inner = nested(start[order], end[order]).innermost()
        covered = intervals.covered_within(times, begin, stop)
        spent += named_sums(name[order][inner], covered, lambda key: _text(code.names[key], ""))
    return spent


def _of_thread(parts: list[tuple[HostCode, bool, Int64]], idle: Intervals) -> Counter[str]:
    start = np.concatenate([code.start_ns[rows] for code, _, rows in parts])
    end = np.concatenate([code.ends(rows) for code, _, rows in parts])
    name = np.concatenate([code.packed_name.at(rows) for code, _, rows in parts])
    is_operator = np.concatenate([np.full(len(rows), is_op) for _, is_op, rows in parts])
    order = np.lexsort((is_operator, -end, start))
    name, is_operator = name[order], is_operator[order]
    spans = nested(start[order], end[order])
    texts = parts[0][0].names
    is_line = {key: is_own_line(texts[key]) for key in distinct_values(name).tolist()}
    own_line = np.array([is_line[key] for key in name.tolist()], np.bool_) & ~is_operator
    index = np.arange(len(name))
    function = spans.inherited(np.where(is_operator, -1, index))
    line = spans.inherited(np.where(own_line, index, -1))
    line = np.where(line >= 0, line, function)
    nearest = spans.inherited(np.where(is_operator, index, -1))
    # An operator counts where no operator is around it.
    around = np.where(spans.parent >= 0, nearest[spans.parent], -1)
    operator = spans.inherited(np.where(is_operator & (around < 0), index, -1))
    begin, stop, inner = spans.innermost()
    covered = intervals.covered_within(idle, begin, stop)
    width = len(texts) + 1
    names_of = [np.where(of >= 0, name[of], -1)[inner] + 1 for of in (operator, line)]
    return named_sums(
        names_of[0] * width + names_of[1],
        covered,
        lambda key: _text(*(texts[part - 1] if part else "" for part in divmod(key, width))),
    )


def is_own_line(name: str) -> bool:
    """Return whether a function of Python is not the framework's."""
    return not _OF_FRAMEWORK.match(name)


def line_text(name: str) -> str:
    """A Python function as readers see it: `a/b.py(7): f`."""
    match = _LINE.fullmatch(name)
    return _ADDRESS.sub("", match[1] if match else name)


def _text(operator: str, line: str) -> str:
    line = line_text(line)
    operator = operator.removeprefix(_AUTOGRAD)
    return f"{operator} in {line}" if operator and line else operator or line


def _rows_within(code: HostCode, thread: int, idle: Intervals) -> Int64:
    rows = np.flatnonzero(code.packed_thread.isin([thread]))
    return rows[intervals.covered_within(idle, code.start_ns[rows], code.ends(rows)) > 0]


class NamedSpans(Record, frozen=True):
    """Calls, ranges or functions of threads, with names."""

    start_ns: Int64
    end_ns: Int64
    name: Int64  # int64[n], keys of `names`
    names: Mapping[int, str]

    @property
    def covered(self) -> Intervals:
        """When any of them ran."""
        return intervals.union(self.start_ns, self.end_ns)


NO_SPANS = NamedSpans(NO_NUMBERS, NO_NUMBERS, NO_NUMBERS, {})


def functions_named(
    trace: Trace, process: int, matching: re.Pattern[str], threads: Collection[int] | None = None
) -> NamedSpans:
    """Return the functions of Python whose name matches, of all threads or of some."""
    code = trace.python_functions(process)
    if code is None:
        return NO_SPANS
    numbers = code.packed_name.distinct.tolist()
    names = {key: line_text(code.names[key]) for key in numbers if matching.search(code.names[key])}
    chosen = code.packed_name.isin(names)
    if threads is not None and names:
        chosen &= code.packed_thread.isin(threads)
    rows = np.flatnonzero(chosen)
    return NamedSpans(code.start_ns[rows], code.ends(rows), code.packed_name.at(rows), names)


def ranges_named(
    trace: Trace, process: int, matching: re.Pattern[str], threads: Collection[int] | None = None
) -> NamedSpans:
    """Return the `HOST_RANGE`s whose name matches, of all threads or those that ended on some."""
    ranges = host_ranges(trace).named.get(process)
    if ranges is None:
        return NO_SPANS
    ranges = ranges.named(matching.search)
    if threads is not None:
        ranges = ranges.chosen(is_in(ranges.end_thread, [*threads]))
    end = np.minimum(ranges.end_ns, BEYOND_NS)
    return NamedSpans(ranges.start_ns, end, ranges.name, dict(enumerate(ranges.names)))


def spans_named(
    spans: ThreadSpans, threads: Collection[int], matching: re.Pattern[str] | None = None
) -> NamedSpans:
    """Return the spans of threads whose name matches."""
    matches = [matching is None or bool(matching.search(name)) for name in spans.names]
    rows = np.flatnonzero(is_in(spans.thread, [*threads]) & np.array(matches, np.bool_)[spans.name])
    end = np.minimum(spans.end_ns[rows], BEYOND_NS)
    names = {number: name or "unnamed call" for number, name in enumerate(spans.names)}
    return NamedSpans(spans.start_ns[rows], end, spans.name[rows], names)
