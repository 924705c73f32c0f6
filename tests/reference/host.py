"""An independent reference for host-sync and pageable-copy, for tests only.

It walks over the plain lists of `tests.reference.nsight_export`. What the waits cost is in
`tests.reference.idle_causes`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from tests.reference.breakdown import step_ranges
from tests.reference.nsight_export import (
    COPY,
    LOW_24_BITS,
    PAGEABLE,
    Call,
    Export,
    NamedSpan,
    Operation,
)
from tests.reference.spans import NEVER, Span, covered, union, without

TOLERANCE, LARGE = 1_000_000, 65_536
PINNED, UNKNOWN = 1, 7  # of Nsight's ENUM_CUDA_MEM_KIND, whose ids never changed
WAITING = {
    "cudaDeviceSynchronize", "cudaThreadSynchronize", "cudaStreamSynchronize",
    "cudaEventSynchronize", "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize",
}  # fmt: skip


class Answer(NamedTuple):
    """What the package must say of one rank; ns and counts."""

    idle: int
    num_syncs: int
    blocked: int
    api: str | None
    blocked_per_step: int | None
    copies: tuple[int, int, int | None, int]  # number, bytes, host blocked, cost


def is_waiting(name: str) -> bool:
    if "Async" in name:
        return False
    copies = name.startswith(("cudaMemcpy", "cuMemcpy")) and "emcpyPeer" not in name
    return name in WAITING or copies


def is_read(operation: Operation) -> bool:
    """Say whether it copies to pageable memory."""
    return operation.memory is not None and operation.memory[1] == PAGEABLE


class RankReference:
    def __init__(self, export: Export, process: int, device: int) -> None:
        self.has_calls = "CUPTI_ACTIVITY_KIND_RUNTIME" in export.tables
        self.operations = export.ranks[process, device]
        calls = [call for call in export.calls.get(process, []) if call.correlation >= 0]
        self.calls = sorted(calls, key=lambda call: (call.correlation, call))
        self.busy = union((operation.start, operation.end) for operation in self.operations)
        reads = {operation.call for operation in self.operations if is_read(operation)}
        self.waits = [call for call in self.calls if is_waiting(call.name) or call in reads]
        named = [span._replace(thread=0) for span in export.ranges.get(process, [])]
        self.steps = [(step.start, step.end) for step, _ in step_ranges(sorted(named), None)]

    def window(self) -> Span:
        first = min(operation.start for operation in self.operations)
        return first, max(operation.end for operation in self.operations)

    def clocks_disagree(self) -> bool:
        launched = [(op, op.call) for op in self.operations if op.call]
        early = [op for op, call in launched if call.start - op.start > TOLERANCE]
        reads = [(op, call) for op, call in launched if is_read(op)]
        late = [read for read, call in reads if read.end - call.end > TOLERANCE]
        return len(early) > 0.01 * len(launched) or len(late) > 0.01 * len(reads)

    def answer(self, steady: list[Span], part: Span | None = None) -> Answer:
        """Answer of a part of the recording, by default of all of it, with its steady steps."""
        window = part or self.window()
        idle = window[1] - window[0] - covered(self.busy, *window)
        copies = self.copies(window, is_all=part is None)
        if not self.has_calls or self.clocks_disagree():
            return Answer(idle, 0, 0, None, None, copies)
        return Answer(idle, *self.syncs(window), self.per_step(window, steady), copies)

    def chosen(self, window: Span) -> set[Call]:
        """The synchronizing calls that host-sync judges."""
        threads = {operation.call.thread for operation in self.operations if operation.call}
        waits = [
            call
            for call in self.waits
            if window[0] <= call.start < window[1]
            and call.thread in threads
            and (not self.steps or any(low <= call.start < high for low, high in self.steps))
        ]
        # What lies within another one of its thread is a part of that call.
        outer: set[Call] = set()
        reach: dict[int, int] = {}
        order = {call: place for place, call in enumerate(self.calls)}
        for call in sorted(waits, key=lambda call: (call.start, -call.end, order[call])):
            if call.end > reach.get(call.thread, -NEVER):
                outer.add(call)
                reach[call.thread] = call.end
        return outer

    def syncs(self, window: Span) -> tuple[int, int, str | None]:
        chosen = self.chosen(window)
        spans: dict[int, list[Span]] = defaultdict(list)
        spent: dict[str, int] = defaultdict(int)
        number = 0
        for call in self.calls:
            if call in chosen:
                number += 1
                spans[call.thread].append((call.start, call.end))
                spent[call.name or "unnamed call"] += call.end - call.start
        for thread in spans:
            made = [call for call in self.calls if call.thread == thread]
            made.sort(key=lambda call: (call.start, call.end))  # whatever the order of the ids
            place = {call: index for index, call in enumerate(made)}
            calls = [call for call in made if call in chosen]
            for call, after in pairwise(calls):
                between = made[place[call] + 1 : place[after]]
                at_once = place[after] > place[call] and len(between) <= 2
                at_once = at_once and all(inner.end <= call.end for inner in between)
                number -= at_once and "emcpy" in call.name and after.name.endswith("Synchronize")
        blocked = sum(end - start for span in spans.values() for start, end in union(span))
        took_time = filter(spent.get, spent)
        api = min(took_time, key=lambda name: (-spent[name], name), default=None)
        return number, blocked, api

    def per_step(self, window: Span, steady: list[Span]) -> int | None:
        judged = self.chosen(window)
        chosen = [call for call in self.calls if call in judged]
        times = [
            sum(call.end - call.start for call in chosen if low <= call.start < high)
            for low, high in steady
        ]
        return round(mean(times)) if times else None

    def copies(self, window: Span, *, is_all: bool) -> tuple[int, int, int | None, int]:
        chosen = []
        # An operation without length may end the recording.
        limit = window[1] + 1 if is_all else window[1]
        for op in self.operations:
            ends = op.memory
            if ends is None or op.kind != COPY or not window[0] <= op.start < limit:
                continue
            hosts = [end for end in ends if end in (PAGEABLE, PINNED)]
            known = not {None, UNKNOWN} & set(ends)
            if op.bytes > LARGE and known and hosts == [PAGEABLE]:
                chosen.append(op)
        calls = {copy.call for copy in chosen if copy.call}
        blocked = sum(call.end - call.start for call in calls) if calls or not chosen else None
        kernels = [
            (operation.start, operation.end)
            for operation in self.operations
            if operation.kind != COPY
        ]
        cost = without(union((copy.start, copy.end) for copy in chosen), union(kernels))
        if self.has_calls and not self.clocks_disagree():
            own = [(window[0], window[1])]
            idle = without(own, self.busy)
            inside = union((call.start, call.end) for call in calls)
            cost = union([*cost, *without(idle, without(own, inside))])
        return (
            len(chosen),
            sum(copy.bytes for copy in chosen),
            blocked if self.has_calls else None,
            covered(cost, *window),
        )


WAIT_CALL = re.compile(
    r"cuda(Device|Thread|Stream|Event)Synchronize\Z|cu(Ctx|Stream|Event)Synchronize\Z"
)
COPY_CALL = re.compile(r"cu(da)?Memcpy")
OVERHEAD_NS = 15_000
MIN_BLOCKING_NS = 20_000


class Debt(NamedTuple):
    start: int
    taken_ns: int
    thread: int
    call: Call


def incurred_debts(export: Export, process: int, device: int) -> list[Debt]:
    """The debts of a process's waits as a device of it sees them, by start."""
    passed = {
        call: call.end - call.start
        for call in export.calls.get(process, [])
        if WAIT_CALL.match(call.name)
    }
    for (owner, place), operations in export.ranks.items():
        for op in operations if owner == process else ():
            call = op.call
            if call is None or op.copy_kind is None or not COPY_CALL.match(call.name):
                continue
            length = call.end - call.start
            if "Async" not in call.name or (op.pageable and length > MIN_BLOCKING_NS):
                until = min(op.start, call.end) if place == device else call.end
                passed[call] = max(passed.get(call, 0), until - call.start)
    return sorted(
        Debt(call.start, ns - OVERHEAD_NS, call.thread, call)
        for call, ns in passed.items()
        if ns > OVERHEAD_NS
    )


FIRST_LAUNCH_NS = 1_000_000

SETUP_CALL = re.compile(
    # context creation, and access to other devices
    r"cuInit|cu(da)?Ctx(Create|Destroy|EnablePeer)|cuDevicePrimaryCtx(Retain|Reset|Release)"
    r"|cuda(SetDevice|InitDevice|DeviceReset|DeviceEnablePeerAccess)\Z"
    # loading of modules and libraries, compilation
    r"|cu(da)?(Module|Library|Link)[A-Z]|cuKernelGetFunction|cuFuncLoad|cuFuncIsLoaded"
    r"|cudaFuncGetAttributes|cudaGetFuncBySymbol|cuGetProcAddress|cudaGetDriverEntryPoint"
    r"|__cudaRegister|nvrtc"
    # creation of streams, events and graphs; capture
    r"|cu(da)?(Stream|Event|Graph)Create|cu(da)?Graph(Instantiate|Upload|Add)"
    r"|cu(da)?Stream(Begin|End)Capture"
    # registration of memory, also of other processes' memory
    r"|cu(da)?(Mem)?Host(Register|Unregister)|cu(da)?Ipc(Open|Close)"
)
SETUP_RANGE = re.compile(
    r"\Anccl(CommInit|CommSplit|CommShrink|CommRegister|CommWindowRegister|GetUniqueId)"
    r"|\A(cublas|cublasLt|cudnn|cusolver\w*|cusparse|cufft)Create"
    r"|\b(init_process_group|compile_fx|nvrtc)\b|dynamo_timed"
    r"|(?i:\bwarm[ _-]?up\b|\b(jit[ _-]?)?(compile|compilation|compiling)\b)"
)
SETUP_OVERHEAD = re.compile(r"Module Loading|Function Loading|JIT", re.IGNORECASE)
ALLOCATION_CALL = re.compile(
    r"cuda(Malloc|Free|HostAlloc)|cuMem(Alloc|Free|HostAlloc|Create|Release|Map|Unmap|Address"
    r"|SetAccess)|cu(da)?MemPool|cuArray(3D)?(Create|Destroy)|cuMipmappedArray(Create|Destroy)"
)
MPI_RANGE = re.compile(r"\AMPI_[A-Z]|\Agloo:|\Auc[pxc]_")
BLOCKING_OS_CALL = re.compile(
    r"\A(futex|sem_(timed|clock)?wait|p?poll|p?select|epoll_p?wait2?|(clock_)?nanosleep|u?sleep"
    r"|pause|pthread_(cond_(timed|clock)?wait|mutex_((timed|clock)?lock)|join|barrier_wait"
    r"|rwlock_(timed|clock)?(rd|wr)lock)|sigwait\w*|sigsuspend|wait(id|pid|[34])?|flock|lockf"
    r"|p?(read|write)v?(64|2|64v2)?|f(read|gets|getc|write|sync|datasync|flush)|f?getc(har)?"
    r"|recv(from|m?msg)?|send(to|m?msg|file)?|accept4?|connect|msg(rcv|snd)|semop|io_getevents)\Z"
)
HOST_WORK_RANGE = re.compile(
    r"(?i:\A(python[ _-]?)?gc\Z|\APython GC\b|\bgc[ _.-]collect|\bgarbage[ _-]?collect)"
    r"|\btorch\.save\b"
    r"|(?i:\b(save|write|store|stage)[ _-]?(checkpoint|state_dict))"
    r"|(?i:\bcheckpoint[ _-]?(sav|writ|stor|stag))"
)
DATA_LOADING_RANGE = re.compile(
    r"data[ _-]?load|load[ _-]?(data|batch)|(fetch|get|next|load)[ _-]?batch"
    r"|batch[ _-]?(fetch|load|generator|wait)|fetch[ _-]?data|data[ _-]?(fetch|wait|iter|next)"
    r"|\bnext\(|\Adata\Z|\A\[DALI\]\[(Loader|DataReader)\]",
    re.IGNORECASE,
)


class Thread(NamedTuple):
    """What a thread did: disjoint, sorted spans; markers are only sorted."""

    mpi: list[Span]
    setup: list[Span]
    allocation: list[Span]
    loading: list[Span]
    calls: list[Span]
    asleep: list[Span]
    known: list[Span]  # when it is known whether it was asleep
    markers: list[Span]


def captures(calls: list[Call]) -> list[Span]:
    """From each call that begins the capture of a graph to the next end of a capture."""
    ends = sorted(call.end for call in calls if re.match(r"cu(da)?StreamEndCapture", call.name))
    spans = []
    for call in calls:
        if re.match(r"cu(da)?StreamBeginCapture", call.name):
            spans += [(call.start, end) for end in ends if end >= call.start][:1]
    return spans


class Evidence:
    """The threads of an export."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self._threads: dict[int, Thread] = {}
        self._first_launches: dict[int, list[Call]] = {}

    def thread(self, thread: int) -> Thread:
        if thread not in self._threads:
            self._threads[thread] = self._read(thread)
        return self._threads[thread]

    def _read(self, thread: int) -> Thread:
        export, process = self.export, thread & ~LOW_24_BITS
        calls = [call for call in export.calls.get(process, []) if call.thread == thread]
        ranges = [span for span in export.ranges.get(process, []) if span.thread == thread]

        def spans(events: Iterable[Call | NamedSpan], pattern: str | re.Pattern[str]) -> list[Span]:
            return [
                (event.start, event.end)
                for event in events
                if event.thread == thread and re.search(pattern, event.name)
            ]

        setup = [(call.start, call.end) for call in calls if SETUP_CALL.match(call.name)]
        setup += spans(ranges, SETUP_RANGE) + spans(export.libraries, SETUP_RANGE)
        setup += spans(export.overheads, SETUP_OVERHEAD)
        setup += captures(calls)
        setup += spans(self.long_first_launches(process), "")
        allocation = [(call.start, call.end) for call in calls if ALLOCATION_CALL.match(call.name)]
        markers = [(call.start, call.end) for call in calls]
        markers += [(span.end, span.end) for span in ranges if span.end < NEVER]
        asleep, known = self.sleep(thread)
        return Thread(
            mpi=union(spans(export.mpi, "") + spans(ranges, MPI_RANGE)),
            setup=union(setup),
            allocation=union(allocation),
            loading=union(spans(ranges, DATA_LOADING_RANGE)),
            calls=union((call.start, call.end) for call in calls),
            asleep=asleep,
            known=union(known + spans(ranges, HOST_WORK_RANGE)),
            markers=sorted(markers),
        )

    def long_first_launches(self, process: int) -> list[Call]:
        """The calls of over 1 ms that launched a function for the first time on a device."""
        if process not in self._first_launches:
            first: dict[tuple[int, str], Call] = {}
            for (owner, device), operations in self.export.ranks.items():
                for op in operations:
                    if owner == process and op.call is not None and op.name is not None:
                        key = (device, op.name)
                        first[key] = min(first.get(key, op.call), op.call)
            self._first_launches[process] = [
                call for call in first.values() if call.end - call.start > FIRST_LAUNCH_NS
            ]
        return self._first_launches[process]

    def sleep(self, thread: int) -> tuple[list[Span], list[Span]]:
        """Return when a thread was asleep, and when that is known."""
        switches = self.export.switches.get(thread)
        if not switches:
            calls = self.export.os_calls.get(thread, [])
            blocked = [(c.start, c.end) for c in calls if BLOCKING_OS_CALL.match(c.name)]
            return union(blocked), [(-NEVER, NEVER)] if calls else []
        asleep: list[Span] = []
        since: int | None = None
        for time, is_in in switches:
            if is_in and since is not None:
                asleep.append((since, time))
                since = None
            elif not is_in and since is None:
                since = time
        if since is not None:
            asleep.append((since, NEVER))
        first, was_switched_in = switches[0]
        return union(asleep), [(first if was_switched_in else -NEVER, NEVER)]
