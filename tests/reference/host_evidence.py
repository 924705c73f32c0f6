"""What a process's threads did, by kind, from the rows of an export, for tests only.

* set-up: calls that create contexts, streams, events and graphs, load modules and libraries,
  compile, instantiate graphs, register memory (`SETUP_CALL`); captures of graphs; CUPTI's records
  of loading and compiling; ranges of communicators, library handles, compilation and warm-up
  (`SETUP_RANGE`); and a call of over 1 ms that launched a kernel's function for the first time on
  its device.
* allocation: calls that allocate, free, map and unmap memory (`ALLOCATION_CALL`).
* MPI: rows of the MPI and UCX tables, and ranges named like MPI's, Gloo's or UCX's functions.
* asleep: off the CPU, from a row of SCHED_EVENTS with ``isSchedIn = 0`` to the thread's next one
  with 1, if there is none for ever. Before its first row a thread is known only if that row takes
  it off the CPU: then it ran. A thread without such rows is asleep in those OSRT calls that block
  (`BLOCKING_OS_CALL`; `ioctl`, `mmap` and the like work in the kernel), and runs otherwise.
  Of a thread with rows in neither table nothing is known, but that it ran in ranges of garbage
  collection and of checkpoints (`HOST_WORK_RANGE`).
* markers: its CUDA calls, and the ends of its ranges.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.reference.breakdown import LOW_24_BITS, NEVER
from tests.reference.nsight_export import Call, Export, NamedSpan
from tests.reference.spans import Span, union

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
    r"\APython GC\b|\bgc[ _.-]collect|\bgarbage[ _-]?collect|\btorch\.save\b"
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

    # -- details, which decide nothing --------------------------------------------------------

    def functions(self, thread: int, spans: list[Span]) -> Counter[str]:
        """How often which functions of a thread were sampled within spans."""
        samples, seen = self.export.samples.get(thread, []), Counter[str]()
        for low, high in spans:
            inside = samples[bisect_left(samples, (low, "")) : bisect_left(samples, (high, ""))]
            seen.update(name for _, name in inside)
        return seen
