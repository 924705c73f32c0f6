"""Advice on idle time, by its cause and for the program that ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain

from traceprof.analyses import remedies
from traceprof.analyses.results import look_at
from traceprof.findings import bullets
from traceprof.host.idle_causes import IdleCause
from traceprof.host.idle_gaps import MAX_TURNAROUND_NS
from traceprof.host.places import PlaceKind, kind_of
from traceprof.host.thread_evidence import CallCounts
from traceprof.run.program import Program
from traceprof.run.steady_steps import OnlyStep
from traceprof.structs import Record
from traceprof.trace.model.parts import HowToCollect, Part

Advice = dict[IdleCause, tuple[str, ...]]

_ANY_PROGRAM: Advice = {
    IdleCause.TURNAROUND: (
        (
            "Launch fewer, larger kernels: the GPU takes up to"
            f" {MAX_TURNAROUND_NS // 1000} µs from one operation to the next, which CUDA graphs"
            " shorten; the host had launched in time: there is nothing to do there"
        ),
    ),
    IdleCause.MPI: (
        (
            "Let MPI go on while the GPU works: start MPI_Isend and MPI_Irecv (or MPI_Iallreduce),"
            " launch what does not need their result, and MPI_Wait after that"
        ),
        (
            "Take the host out of it: NCCL's calls are launched to a stream like kernels, so that"
            " the host runs on; with CUDA-aware MPI the data at least need not pass through it"
        ),
        "Where ranks wait for one that comes late, balance the work between them",
    ),
    IdleCause.SETUP: (
        (
            "Set-up happens once: look at the time after it, or record later, and run everything"
            " once before the part that must be fast"
        ),
    ),
    IdleCause.STALLED: (remedies.CORES, remedies.THREADS),
    IdleCause.WAITING: (remedies.SLEEPS_FOR,),
    IdleCause.HOST_CODE: (
        (
            "The host works on something else before it launches: move that work to the GPU or to"
            " another thread, or do it after the next kernels have been launched"
        ),
    ),
}
_BECAUSE = {
    IdleCause.LAUNCH_BOUND: "the GPU was quicker than the host could launch",
    IdleCause.TURNAROUND: "the GPU takes time between operations, even those launched in time",
    IdleCause.QUEUED: "work that had been launched waited for something else than the host",
    IdleCause.SYNC: "the host had waited for the GPU and could not launch ahead",
    IdleCause.DATA_LOADING: "the host waited for data to be loaded",
    IdleCause.MPI: "the host was in MPI",
    IdleCause.SETUP: "the host set something up for the first time",
    IdleCause.ALLOCATION: "the host allocated or freed memory",
    IdleCause.STALLED: "the host was held up in something that is usually quick",
    IdleCause.WAITING: "the launching thread slept",
    IdleCause.HOST_CODE: "the host ran code of its own",
    IdleCause.UNKNOWN: "of something that the report does not show",
}
_OF_PAGES = "the host ran code of its own between accesses to unified memory"
_PAGES = (
    (
        "Move the pages before the host reads them: cudaMemPrefetchAsync(pointer, bytes,"
        " cudaCpuDeviceId, stream) moves all at once; or let a kernel do what the host reads them"
        " for"
    ),
)
_PROFILER = (
    "torch.profiler itself takes time on the host, operator by operator, which counts as launching"
    " here: time a step that is not recorded first"
)
_LET_LOAD = (
    "Let more processes load: DataLoader(num_workers=…, prefetch_factor=4, persistent_workers=True)"
)
_DALI = (
    (
        "DALI: let its pipeline run further ahead (prefetch_queue_depth) with more threads"
        " (num_threads), and give the readers more of them"
    ),
    (
        "DALI: move what its CPU operators do to the GPU (device='mixed' of the decoders, .gpu()),"
        " or store preprocessed samples on local disks"
    ),
)
_FUSE = (
    "Launch fewer, larger kernels: torch.compile fuses them, and a larger batch gives each more to"
    " do"
)
_PYTORCH: Advice = {
    IdleCause.LAUNCH_BOUND: (remedies.GRAPHS, _FUSE),
    IdleCause.SYNC: (remedies.TAKE_OUT, remedies.READ_LATE),
    IdleCause.DATA_LOADING: (_LET_LOAD, remedies.PIN, remedies.LOAD_CHEAPER),
    IdleCause.WAITING: (
        (
            "If this is a data loader's queue, record with python -m instrument, which names data"
            " loading and steps"
        ),
    ),
    IdleCause.STALLED: (remedies.COLLECT,),
    IdleCause.HOST_CODE: (
        (
            "Logging, checkpoints and Python between launches hold the GPU up: do them every N"
            " steps, or in another process; gc.freeze() after the first step makes garbage"
            " collection short"
        ),
    ),
}
_KEEP_POOL = (
    "Let the pool of memory keep what is freed: cudaMemPoolSetAttribute(pool,"
    " cudaMemPoolAttrReleaseThreshold, …) with a large value (CUDA 11.2). By default it returns its"
    " memory at each synchronization, and the next cudaMallocAsync asks the driver for it anew"
)
_OTHER: Advice = {
    IdleCause.DATA_LOADING: (remedies.LOAD_CHEAPER,),
    IdleCause.LAUNCH_BOUND: (remedies.CUDA_GRAPH, remedies.LARGER_KERNELS),
    IdleCause.SYNC: (
        (
            "Let streams wait for each other, not the host: cudaEventRecord and cudaStreamWaitEvent"
            " in the place of synchronize calls between launches"
        ),
        (
            "Copy with cudaMemcpyAsync, launch what does not need the result, and wait after that;"
            " the host waits all the same where memory is not pinned"
        ),
    ),
    IdleCause.ALLOCATION: (
        (
            "Allocate before the loop and reuse the memory: cudaMalloc and cudaFree take long, and"
            " cudaFree waits for the GPU"
        ),
        (
            "Otherwise use cudaMallocAsync and cudaFreeAsync (CUDA 11.2), with"
            " cudaMemPoolAttrReleaseThreshold raised so that the pool keeps its memory"
        ),
    ),
}
_CACHE_IS_EMPTY = (
    (
        "PyTorch's allocator ran out of what it keeps:"
        " {platform}_ALLOC_CONF=expandable_segments:True (PyTorch 2.1), a smaller batch, no"
        " torch.cuda.empty_cache() in the loop"
    ),
    "In the first steps this is normal: they allocate memory that later steps reuse",
)
_CACHE_IS_OFF = (
    (
        "PyTorch's cache of memory is off: operations call {malloc} for what they need. Unset"
        " {variable}, which debuggers of memory set, too; with the cache, memory is allocated in"
        " the first steps only"
    ),
)
_WORKERS_SLOW = (
    "The loader's workers are slower than the GPU: profile __getitem__ and collate_fn (decode and"
    " augment on the GPU, NVIDIA DALI or torchvision.transforms.v2; store preprocessed samples)"
)
_KEEP_WORKERS = (
    "persistent_workers=True keeps the workers from one epoch to the next, prefetch_factor=4 evens"
    " out batches of unequal length; more workers help only where cores idle (`traceprof doctor`"
    " counts them)"
)
SINGLE, MULTI = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
BY_LOADER: dict[str, tuple[str, ...]] = {
    SINGLE: (_LET_LOAD, remedies.LOAD_CHEAPER),
    MULTI: (_WORKERS_SLOW, _KEEP_WORKERS),
}
"""What to do by the class of the iterator that the training waited for."""
BY_PLACE: dict[PlaceKind, tuple[str, ...]] = {
    PlaceKind.CHECKPOINT: (remedies.SAVE_BESIDE,),
    PlaceKind.EVALUATION: (remedies.EVALUATE_ELSEWHERE,),
    PlaceKind.COLLECTION: (remedies.COLLECT,),
    PlaceKind.COMPILE: (
        (
            "Find out why it compiles anew: TORCH_LOGS=recompiles (PyTorch 2.1); sizes that change"
            " are torch._dynamo.mark_dynamic's"
        ),
    ),
}
"""What to do about code of the host in PyTorch programs, by the place in which it ran longest."""
_RARE = (PlaceKind.CHECKPOINT, PlaceKind.EVALUATION, PlaceKind.COLLECTION)
_FROM_POOL = re.compile(r"cudaMalloc(?:FromPool)?Async|cuMemAlloc(?:FromPool)?Async")
_PINNED = re.compile(r"(?:cuda|hip)(?:HostAlloc|MallocHost|HostMalloc|FreeHost|HostFree|HostReg)")
_PIN_ONCE = (
    "Pin memory once, before the loop, and copy from there, or DataLoader(pin_memory=True): pinned"
    " memory is allocated and freed in each step"
)
_SLEEPS = re.compile(r"(?:clock_)?nanosleep|u?sleep\b")
_LOADS = re.compile(r"first launches|Loading|Module|Library")
_LOADING = (
    "Functions are loaded when they are first launched:"
    " CUDA_MODULE_LOADING=EAGER (CUDA 11.7) loads them all at the start"
)
_COMMUNICATORS = (
    "NCCL creates a communicator when it is first needed: run a small"
    " collective on each before the part that must be fast"
)
_BOTH_NEEDED = (
    "Waits for the GPU and sleep add to each other here: a host that is not"
    " ahead of the GPU cannot hide its sleep, and a host that sleeps cannot"
    " get ahead. Removing one alone may gain little, both together more"
)
_ONCE = "Look at what the program does {}: {}; record several steps, to see whether it recurs"
_MAY_BE = {
    IdleCause.WAITING: "a sleep, a lock, a file, a barrier",
    IdleCause.UNKNOWN: "a sleep, a lock, a file, a barrier",
    IdleCause.HOST_CODE: "set-up, a file, a loop on the host",
}
_SILENT = (
    "Record when the host's threads were on a CPU: {}; that shows whether they worked or slept in"
    " the unknown time"
)
_OWN_SLEEP = (
    "Take the sleep out ({}: the program sleeps for a fixed time, or polls): wait for what it needs"
    " itself, such as an event of the GPU or a condition variable"
)
_STACKS = (
    "Record the host's Python, too: torch.profiler.profile(…, with_stack=True) names its lines"
)
_QUEUED = (
    "Look on the timeline for what {} waited for, launched in time and on a stream that was free:"
    " an event of another device or rank, a copy, a function on the host"
)
_EVENTS = "Which event a stream waited for is not in the report: {}"
_UNLAUNCHED = (
    "Look on the timeline at the operations after these gaps: the calls that launched them are not"
    " in the report, or begin later. The capture may have begun after them, pages of unified memory"
    " may have moved by page faults, or the clocks of host and GPU disagree"
)


def because(cause: IdleCause, *, reads_pages: bool) -> str:
    """Return the words for a cause, after `because`.

    `reads_pages`: whether most code of the host runs before pages that it accesses.
    """
    return _OF_PAGES if cause is IdleCause.HOST_CODE and reads_pages else _BECAUSE[cause]


class HostFacts(Record, frozen=True):
    """The facts about a program, its host and its report by which advice is chosen."""

    program: Program
    is_of_profiler: bool  # whether torch.profiler recorded it
    has_pageable: bool  # whether data may be copied to the GPU from pageable memory
    held: frozenset[Part]  # the parts that the report holds, of those that show what the host did
    how_to_collect: HowToCollect  # how to record a part that the report lacks
    calls: CallCounts  # allocations, launches and waits
    num_steps: int  # the steps that are judged, in which something may recur
    # whether most code of the host runs before pages of unified memory that it accesses
    reads_pages: bool
    launches_graphs: bool  # whether most kernels belong to CUDA graphs
    only_steps: Mapping[IdleCause, OnlyStep]  # causes that happened in one step only, of several


def advice(
    causes: Sequence[IdleCause],
    facts: HostFacts,
    longest: Mapping[IdleCause, str],
    once: Mapping[IdleCause, str],
) -> list[str]:
    """Return what to do about the causes that matter, given largest first; UNKNOWN has its own.

    `longest`: where the host was longest, by cause: a range, an operator, a call. `once`: where and
    for how long the host slept or ran code at once, for most of that time.
    """
    program, calls = facts.program, facts.calls
    # These are rare by nature: their remedies are for that.
    host_code = IdleCause.HOST_CODE
    is_rare = program.is_pytorch and kind_of(longest.get(host_code, "")) in _RARE
    once_only = {*facts.only_steps} - ({host_code} if is_rare else set())
    looks = [
        look_at(facts.only_steps[cause], because(cause, reads_pages=facts.reads_pages))
        for cause in causes
        if cause in once_only
    ]
    causes = [cause for cause in causes if cause not in once_only]
    if calls.is_uncached:  # a graph of kernels cannot hold allocations between them
        causes.sort(key=lambda cause: cause is not IdleCause.ALLOCATION)
    lines = looks + [
        remedies.GRAPH_BREAKS if line == _FUSE and program.is_compiled else line
        for cause in causes
        for line in _remedies(cause, facts, longest.get(cause, ""), once.get(cause, ""))
        if facts.has_pageable or line != remedies.PIN
        if not facts.launches_graphs or line not in {remedies.GRAPHS, remedies.CUDA_GRAPH}
    ]
    if IdleCause.QUEUED in causes and Part.EVENT_RECORDS not in facts.held:
        lines.append(_EVENTS.format(facts.how_to_collect(Part.EVENT_RECORDS)))
    setup = longest.get(IdleCause.SETUP, "") if IdleCause.SETUP in causes else ""
    if setup.startswith("nccl"):
        lines.append(_COMMUNICATORS)
    elif _LOADS.search(setup):
        lines.append(_LOADING)
    asleep = {IdleCause.DATA_LOADING, IdleCause.WAITING}.intersection(causes)
    if IdleCause.SYNC in causes and asleep:
        lines.append(_BOTH_NEEDED)
    if IdleCause.WAITING in causes and Part.SYSTEM_CALLS not in facts.held:
        how = facts.how_to_collect(Part.SYSTEM_CALLS)
        lines.append(f"In which system call it slept is not in the report: {how}")
    if (
        IdleCause.HOST_CODE in causes
        and Part.SAMPLES not in facts.held
        and IdleCause.HOST_CODE not in longest
    ):
        lines.append(f"What it ran is not in the report: {facts.how_to_collect(Part.SAMPLES)}")
    return [*dict.fromkeys(lines)]


def unknown_advice(unlaunched_ns: int, silent_ns: int, facts: HostFacts, once: str) -> list[str]:
    """Return what to do to know more about the largest part of unknown idle time.

    In it an operation without a launch ends the time, or the host did something unknown
    (`silent_ns`); `once`: where and for how long that was at once, for most of it.
    """
    if silent_ns < unlaunched_ns:
        return [_UNLAUNCHED]
    lines = [_ONCE.format(once, _MAY_BE[IdleCause.UNKNOWN])] if once else []
    if Part.THREAD_SWITCHES in facts.held:
        return [*lines, "For the unknown time the report shows nothing about the launching thread"]
    stacks = [_STACKS] if facts.is_of_profiler else []
    return [*lines, *stacks, _SILENT.format(facts.how_to_collect(Part.THREAD_SWITCHES))]


def page_advice() -> str:
    """Return all advice for the page of the finding."""
    each, few = (CallCounts(num, num, 0, is_hip=False) for num in (1000, 1))
    own = {
        IdleCause.SETUP: (_LOADING, _COMMUNICATORS),
        IdleCause.HOST_CODE: (*_PAGES, _ONCE.format(_LONGEST, _MAY_BE[IdleCause.HOST_CODE])),
        IdleCause.QUEUED: (_QUEUED.format("each operation after a gap"),),
        IdleCause.WAITING: (
            _OWN_SLEEP.format("nanosleep"),
            _ONCE.format(_LONGEST, _MAY_BE[IdleCause.WAITING]),
        ),
        IdleCause.ALLOCATION: (_KEEP_POOL,),
        IdleCause.LAUNCH_BOUND: (
            _of_blocking(is_hip=False),
            remedies.DIRECTIVES,
            remedies.DATA_REGION,
        ),
    }
    of_torch = {
        IdleCause.ALLOCATION: (
            *_of_cache(each, recurs=True),
            *_of_cache(few, recurs=True),
            _PIN_ONCE,
        ),
        IdleCause.DATA_LOADING: BY_LOADER[MULTI],
        IdleCause.HOST_CODE: tuple(chain.from_iterable(BY_PLACE.values())),
    }
    beside_torch = {
        IdleCause.DATA_LOADING: _DALI,
        IdleCause.LAUNCH_BOUND: (remedies.GRAPH_BREAKS, _PROFILER),
    }
    parts = []
    for cause in IdleCause:
        if cause is IdleCause.UNKNOWN:
            continue
        lines = [*_ANY_PROGRAM.get(cause, ()), *own.get(cause, ())]
        torch = (*_PYTORCH.get(cause, ()), *of_torch.get(cause, ()))
        lines += [*(f"{line} (PyTorch)" for line in torch), *beside_torch.get(cause, ())]
        lines += (f"{line} (other programs)" for line in _OTHER.get(cause, ()))
        parts.append(f"`{cause.value}_ns`:\n\n{bullets(lines)}")
    return "\n\n".join(parts)


_LONGEST = "in the longest gap"


def _of_blocking(*, is_hip: bool) -> str:
    return (
        f"Unset {'HIP' if is_hip else 'CUDA'}_LAUNCH_BLOCKING, which debugging sets: each launch"
        " waits until its kernel is over"
    )


def _of_cache(calls: CallCounts, *, recurs: bool) -> tuple[str, ...]:
    platform, malloc = ("HIP", "hipMalloc") if calls.is_hip else ("CUDA", "cudaMalloc")
    variable = f"PYTORCH_NO_{platform}_MEMORY_CACHING"
    lines = _CACHE_IS_OFF if calls.is_uncached else _CACHE_IS_EMPTY
    if not calls.is_uncached and not (recurs and calls.num_allocations):
        lines = _CACHE_IS_EMPTY[1:]
    return tuple(
        line.format(platform=f"PYTORCH_{platform}", malloc=malloc, variable=variable)
        for line in lines
    )


def _own(cause: IdleCause, facts: HostFacts, name: str) -> tuple[str, ...]:
    """Return what to do about what the host was in longest, if that has remedies of its own."""
    program = facts.program
    if cause is IdleCause.ALLOCATION:
        return _of_allocation(facts, name)
    if cause is IdleCause.LAUNCH_BOUND and facts.calls.launches_block:
        return (_of_blocking(is_hip=facts.calls.is_hip),)
    if cause is IdleCause.DATA_LOADING and program.uses_dali:
        return _DALI
    if cause is IdleCause.WAITING and _SLEEPS.match(name):
        return (_OWN_SLEEP.format(name),)
    if cause is IdleCause.DATA_LOADING and program.is_pytorch:
        return next((lines for loader, lines in BY_LOADER.items() if loader in name), ())
    is_code = cause is IdleCause.HOST_CODE and program.is_pytorch
    kind = kind_of(name) if is_code else PlaceKind.OTHER
    return BY_PLACE.get(kind, ()) if kind in _RARE or facts.num_steps > 1 else ()


def _of_allocation(facts: HostFacts, name: str) -> tuple[str, ...]:
    if not facts.program.is_pytorch:
        return (_KEEP_POOL,) if _FROM_POOL.match(name) else ()
    return (_PIN_ONCE,) if facts.num_steps > 1 and _PINNED.match(name) else ()


def _remedies(cause: IdleCause, facts: HostFacts, name: str, once: str) -> tuple[str, ...]:
    """Return what to do about a cause.

    `name`: what the host was in longest. `once`: where it was at once for most of the cause.
    """
    program, calls = facts.program, facts.calls
    own = _own(cause, facts, name)
    if cause is IdleCause.ALLOCATION and program.is_pytorch:
        return own or _of_cache(calls, recurs=facts.num_steps > 1)
    if cause is IdleCause.HOST_CODE and facts.reads_pages:
        return _PAGES
    if once and not own:
        return (_ONCE.format(once, _MAY_BE[cause]),)
    if cause is IdleCause.QUEUED:
        return (_QUEUED.format(name or "each operation after a gap"),)
    is_launching = cause is IdleCause.LAUNCH_BOUND
    if program.uses_directives:  # kernels of OpenACC and OpenMP are no graph's
        region = (remedies.DATA_REGION,) if calls.is_uncached else ()
        if is_launching:
            waits = (remedies.DIRECTIVES,) if calls.waits_for_each else ()
            return (*region, *waits, remedies.LARGER_KERNELS)
        if cause is IdleCause.ALLOCATION:
            own = region
    of_program = _PYTORCH if program.is_pytorch else _OTHER
    usual = own or (*_ANY_PROGRAM.get(cause, ()), *of_program.get(cause, ()))
    return (_PROFILER, *usual) if is_launching and facts.is_of_profiler else usual
