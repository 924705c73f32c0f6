"""Copies that nothing hides: the GPU copies, and neither computes nor communicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.exposed_copy import attribution
from traceprof.analyses.remedies import DATA_REGION
from traceprof.analyses.results import CostResult, facts_of
from traceprof.errors import one_line
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.host.host_waits import copies_for_kernels
from traceprof.host.places import PlaceKind, places, places_of_calls
from traceprof.intervals import Int32
from traceprof.run.concurrency import DIRECTIONS, KindBeside, concurrency
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import covered_per_step, only_step
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import MemoryKind, copy_label
from traceprof.units import duration, percent, size_text, times

_SHARDED = (PlaceKind.FSDP, PlaceKind.DEEPSPEED)


class CopyPart(Record, frozen=True):
    """Exposed copies of one kind."""

    direction: str  # one of `DIRECTIONS`
    memory: MemoryKind  # memory of the host's side; `UNKNOWN` if there is none or it is not known
    is_same_stream: bool  # whether the next compute is on the copy's stream
    is_gradient: bool  # whether they copy gradients out of the buckets in which they were reduced
    # whether a framework of sharded parameters launched them: those that it keeps on the host
    is_offload: bool
    exposed_ns: int  # how long they ran while nothing else did
    num_copies: int  # the number of copies that own a part of it
    bytes: int  # the bytes of these copies
    gb_per_s: float | None  # bytes over the union of these copies; None if no time passed
    place: str | None  # the range around most of their launches, by exposed time
    # the parts of these copies in the window that are exposed longest, longest first
    evidence: tuple[Evidence, ...]


def copy_parts(rank: Rank, window: Window, owners: attribution.CopyOwners) -> tuple[CopyPart, ...]:
    """Return the exposed copies by kind, the longest exposed first."""
    is_gradient = owners.direction == DIRECTIONS.index("d2d")
    if is_gradient.any():
        is_gradient &= is_in(owners.copy, attribution.gradient_copies(rank))
    known, at = places(rank), _places(rank, owners)
    is_sharded = np.array([*(kind in _SHARDED for kind in known.kinds), False], np.bool_)
    is_offload = is_sharded[at] & (owners.direction <= DIRECTIONS.index("d2h"))
    is_same = owners.is_same_stream
    keys = (owners.direction, owners.memory, is_same, is_gradient, is_offload)
    kinds, number = np.unique(np.array(keys, np.int64), axis=1, return_inverse=True)
    parts = []
    for part, (direction, memory, same, gradient, offload) in enumerate(kinds.T.tolist()):
        chosen = np.flatnonzero(number == part)
        longest = chosen[intervals.largest(owners.exposed_ns[chosen], MAX_EVIDENCE)]
        size = intervals.total(owners.bytes[chosen])
        busy = intervals.union(owners.start_ns[chosen], owners.end_ns[chosen]).measure_ns
        parts.append(
            CopyPart(
                DIRECTIONS[direction],
                MemoryKind(memory),
                is_same_stream=bool(same),
                is_gradient=bool(gradient),
                is_offload=bool(offload),
                exposed_ns=int(owners.exposed_ns[chosen].sum()),
                num_copies=len(chosen),
                bytes=size,
                gb_per_s=size / busy if busy else None,
                place=known.most_of(at[chosen], owners.exposed_ns[chosen]),
                evidence=tuple(
                    Evidence(
                        max(int(owners.start_ns[index]), window.start_ns),
                        min(int(owners.end_ns[index]), window.end_ns),
                        _label(rank, owners, index),
                    )
                    for index in longest.tolist()
                ),
            )
        )
    return tuple(sorted(parts, key=lambda part: -part.exposed_ns))


def _places(rank: Rank, owners: attribution.CopyOwners) -> Int32:
    """Return the place of each owner's launch, int32[n]."""
    _, copies, memsets, _ = rank.launched_by
    is_memset = owners.direction == DIRECTIONS.index("memset")
    call = np.full(len(owners), -1, np.int64)
    call[is_memset] = memsets[owners.copy[is_memset]]
    call[~is_memset] = copies[owners.copy[~is_memset]]
    return places_of_calls(rank, call)


def _label(rank: Rank, owners: attribution.CopyOwners, index: int) -> str:
    num_bytes = int(owners.bytes[index])
    size = f", {size_text(num_bytes)}" if num_bytes else ""
    if DIRECTIONS[owners.direction[index]] == "memset":
        return f"memset{size}"
    kind = copy_label(int(rank.operations.copies.kind[owners.copy[index]]))
    memory = MemoryKind(int(owners.memory[index]))
    known = "" if memory is MemoryKind.UNKNOWN else f", {memory.label.lower()}"
    return f"{kind} copy{size}{known}"


def exposed_ns(parts: Iterable[CopyPart]) -> int:
    """Return for how long copies are exposed, ns."""
    return sum(part.exposed_ns for part in parts)


MIN_FRACTION = 0.1
"""Of what is exposed: smaller parts get no advice of their own."""


class CopyCause(Record, frozen=True):
    """A cause of exposed copies, with its advice."""

    name: str  # a description of the copies, to follow their duration in a sentence
    why: str  # whether they could be hidden, and why not
    torch: str  # what to do in a PyTorch program
    other: str = ""  # what to do in another program; empty if no recording ever asked for it


GRADIENTS = CopyCause(
    "of gradients, out of the buckets of DistributedDataParallel",
    "they need not be made",
    "DistributedDataParallel(..., gradient_as_bucket_view=True) (torch 1.7 and later)",
)
OFFLOAD = CopyCause(
    "of parameters and gradients that are kept in host memory (FSDP, DeepSpeed)",
    "each module's are copied when it needs them: no batches",
    "keep what fits on the GPU: no CPUOffloadPolicy, or only for some modules (DeepSpeed:"
    " stage3_max_live_parameters); pin the rest (CPUOffloadPolicy(pin_memory=True)), and fetch the"
    " next module's during this one: set_modules_to_forward_prefetch (PyTorch 2.6)",
)
_PIN = "pin it (cudaMallocHost, or cudaHostRegister once), then cudaMemcpyAsync on a second stream"
_LAUNCH_FIRST = "launch the next kernels before you wait for the copy"
_PREFETCH = (
    "cudaMemPrefetchAsync on a second stream before they are needed, cudaMemAdvise for what is read"
    " only"
)
UNIFIED = CopyCause(
    "of unified memory",
    "they are pages, which the driver moves when they are first accessed",
    _PREFETCH,
    _PREFETCH,
)
UNKNOWN_HOST = CopyCause(
    "between host and GPU, of a kind of memory that is not in the report",
    "they cannot be hidden if it is pageable",
    "pin it (DataLoader(pin_memory=True)), and copy on a stream of its own with non_blocking=True",
    _PIN,
)
MEMSETS = CopyCause(
    "of setting memory",
    "they are not needed where a kernel writes all of the memory",
    "optimizer.zero_grad(set_to_none=True) (the default from torch 2.0 on), torch.empty for what is"
    " overwritten",
    "let the kernel that fills the memory write all of it",
)
_OF_COPIES = {
    # direction, then memory or stream
    ("h2d", "same"): CopyCause(
        "from pinned host memory, on the stream of the compute after it",
        "they cannot be hidden on that stream",
        "copy the next batch on a torch.cuda.Stream() of its own while this one is computed;"
        " wait_stream() and record_stream() before its use",
        "copy with cudaMemcpyAsync on a second stream into a second buffer meanwhile, and"
        " cudaStreamWaitEvent before its use",
    ),
    ("h2d", "other"): CopyCause(
        "from pinned host memory, on another stream than the compute after it",
        "they could be hidden",
        "start them earlier (DALI: prefetch_queue_depth; DataLoader: prefetch_factor), copy fewer"
        " bytes",
        "start them earlier, with one more buffer, and copy fewer bytes",
    ),
    ("h2d", "pageable"): CopyCause(
        "from pageable host memory",
        "they cannot be hidden, because the host waits for them",
        "DataLoader(pin_memory=True) and .to(device, non_blocking=True), on a stream of its own",
        _PIN,
    ),
    ("d2h", "same"): CopyCause(
        "to pinned host memory, on the stream of the compute after it",
        "they cannot be hidden on that stream",
        "read results late: copy on a stream of its own with non_blocking=True while the next step"
        " computes, and wait for its event a step later",
        "copy with cudaMemcpyAsync on a second stream while the next kernels run, and read the"
        " result after them",
    ),
    ("d2h", "other"): CopyCause(
        "to pinned host memory, on another stream than the compute after it",
        "they could be hidden",
        _LAUNCH_FIRST,
        _LAUNCH_FIRST,
    ),
    ("d2h", "pageable"): CopyCause(
        "to pageable host memory",
        "they cannot be hidden, because the host waits for them",
        "read results late and rarely: keep losses on the GPU for many steps; copy into pinned"
        " memory with non_blocking=True, and read it a step later",
        "pin it (cudaMallocHost), cudaMemcpyAsync on a second stream, and read it after the next"
        " kernels were launched",
    ),
    ("d2d", "same"): CopyCause(
        "within the GPU, on the stream of the compute after it",
        "they cannot be hidden on that stream",
        "avoid .contiguous(), .clone(), torch.cat and .copy_() of large tensors: write into views"
        " of one buffer (out=), or let torch.compile (2.0) fuse them",
    ),
    ("d2d", "other"): CopyCause(
        "within the GPU, on another stream than the compute after it",
        "they could be hidden, but take memory bandwidth",
        "avoid .contiguous(), .clone(), torch.cat and .copy_() of large tensors",
    ),
}
CAUSES = (GRADIENTS, OFFLOAD, *_OF_COPIES.values(), MEMSETS, UNIFIED, UNKNOWN_HOST)
"""All causes, in the order of the page."""


def cause_of(part: CopyPart, *, is_pytorch: bool) -> CopyCause:
    """Return why copies of one kind are not hidden; only in PyTorch can gradients be views."""
    if part.is_gradient and is_pytorch:
        return GRADIENTS
    if part.is_offload:
        return OFFLOAD
    if part.memory is MemoryKind.MANAGED:
        return UNIFIED
    if part.direction == "memset":
        return MEMSETS
    path = "same" if part.is_same_stream else "other"
    if part.direction in {"h2d", "d2h"}:
        if part.memory is MemoryKind.UNKNOWN:
            return UNKNOWN_HOST
        path = "pageable" if part.memory is MemoryKind.PAGEABLE else path
    return _OF_COPIES[part.direction, path]


def by_cause(
    parts: Iterable[CopyPart], *, is_pytorch: bool
) -> list[tuple[CopyCause, list[CopyPart]]]:
    """Return the exposed copies by what can be done about them, longest first."""
    causes = by_key(parts, lambda part: cause_of(part, is_pytorch=is_pytorch))
    return sorted(causes.items(), key=lambda item: -exposed_ns(item[1]))


def advice(parts: Sequence[CopyPart], hideable_ns: int, *, is_pytorch: bool) -> tuple[str, ...]:
    """Return advice, each piece with its copies, costliest first.

    `hideable_ns`: the most of the exposed copies that other work could hide.
    """
    lines: list[str] = []
    to_hide_ns, all_ns = 0, exposed_ns(parts)
    causes = by_cause(parts, is_pytorch=is_pytorch)
    for cause, copies in causes:
        exposed = exposed_ns(copies)
        if cause is not GRADIENTS:
            to_hide_ns += exposed
        if lines and exposed < MIN_FRACTION * all_ns:
            continue
        how_often = times(sum(part.num_copies for part in copies))
        do = "; ".join(filter(None, (cause.why, cause.torch if is_pytorch else cause.other)))
        lines.append(f"{duration(exposed)} {cause.name} ({how_often}): {do}")
    if 2 * to_hide_ns > all_ns and 2 * hideable_ns < to_hide_ns:
        # What is kept in host memory has advice of its own on copying less.
        lines.insert(
            int(causes[0][0] is OFFLOAD),
            "Copy less, less often or fewer bytes: other work to hide them behind takes"
            f" {duration(hideable_ns)} in all, {percent(hideable_ns / to_hide_ns)} of them",
        )
    return tuple(lines)


ID = "exposed-copy"
_OTHER_QUEUE = (
    "OpenACC: update async(another queue) into a second array, and wait(that queue) async before"
    " its use; OpenMP: target update nowait with depend"
)


class ExposedCopyMetrics(f.Metrics):
    """Numbers of `exposed-copy`."""

    exposed_ns: Annotated[
        f.Ns,
        "how long copies or memory sets ran while neither compute nor"
        " communication did: the impact",
    ]
    fraction: Annotated[f.Fraction, "the exposed share of the time in which copies ran"]
    h2d_ns: Annotated[f.Ns, "the exposed part in copies from the host to the GPU"]
    d2h_ns: Annotated[f.Ns, "the exposed part in copies from the GPU to the host"]
    d2d_ns: Annotated[f.Ns, "the exposed part in all other copies, most of them within the GPU"]
    memset_ns: Annotated[f.Ns, "the exposed part in memory sets. These four sum to `exposed_ns`"]
    pageable_ns: Annotated[
        f.Ns | None,
        "the exposed part in copies from or to pageable host memory; null if"
        " no copy has a known kind of memory",
    ]
    same_stream_ns: Annotated[
        f.Ns,
        "the exposed part in copies on the same stream as the compute that"
        " follows: they cannot overlap with it there",
    ]
    gradient_ns: Annotated[
        f.Ns,
        "the exposed part in copies of gradients out of the buckets in which they were reduced: at"
        f" least {attribution.MIN_COPIES} consecutive copies within the GPU on the compute stream,"
        " of the same sizes in every step, after its last AllReduce and before the optimizer",
    ]
    hideable_ns: Annotated[
        f.Ns,
        "the most that overlap could hide: the time in which compute or communication runs without"
        " a copy, or all exposed time if that is less",
    ]
    bytes: Annotated[f.Count, "bytes of all copies that are exposed at least in part"]
    num_copies: Annotated[f.Count, "the number of copies and memory sets that are exposed"]
    per_step_ns: Annotated[
        f.Ns | None, "exposed time in the mean steady step; null where no step was found"
    ]
    coverage: Annotated[
        f.Fraction, "the share of the exposed time in copies with a known kind of host memory"
    ]


FINDINGS = {
    ID: f.FindingKind(
        ExposedCopyMetrics,
        part="exposed copies",
        removed_by=("copies-hidden",),
        needs=f.Sight.OPERATIONS,
    )
}


_MAX_PLACE = 60


class ExposedCopyResult(CostResult, frozen=True):
    """The copies of one rank that neither compute nor communication hides."""

    metrics: ExposedCopyMetrics  # the numbers of its finding
    copy_ns: int  # the time in which copies ran
    parts: tuple[CopyPart, ...]  # the exposed copies by kind, longest first
    # which kinds of work ran at the same time, one row for each kind
    beside: tuple[KindBeside, ...]
    uses_directives: bool  # whether the program is one of OpenACC or OpenMP
    copies_for_kernels: bool  # whether directives copy for most kernels


def run(rank: Rank, window: Window) -> ExposedCopyResult:
    """Measure the copies that nothing hides in the window."""
    owners = attribution.copy_owners(rank, window)
    known_ns = int(owners.exposed_ns[attribution.is_memory_known(rank, owners)].sum())
    parts = copy_parts(rank, window, owners)
    beside = concurrency(rank, window)
    of_kind = {row.kind: row for row in beside}
    copy_ns, total_ns = of_kind["copy"].total_ns, exposed_ns(parts)
    by_direction = {
        direction: exposed_ns(part for part in parts if part.direction == direction)
        for direction in DIRECTIONS
    }
    with_host = by_direction["h2d"] + by_direction["d2h"]
    is_unknown = with_host > 0 and total_ns - known_ns == with_host
    work = sum(of_kind[kind].total_ns for kind in ("compute", "communication"))
    work -= of_kind["compute"].communication_ns
    exposed = intervals.subtract(rank.copy, rank.communication)
    exposed = intervals.subtract(exposed, rank.compute)
    metrics = ExposedCopyMetrics(
        exposed_ns=total_ns,
        fraction=f.share(total_ns, copy_ns),
        **{f"{direction}_ns": ns for direction, ns in by_direction.items()},
        pageable_ns=None
        if is_unknown
        else exposed_ns(part for part in parts if part.memory is MemoryKind.PAGEABLE),
        same_stream_ns=exposed_ns(part for part in parts if part.is_same_stream),
        gradient_ns=exposed_ns(part for part in parts if part.is_gradient),
        hideable_ns=min(total_ns, work - (copy_ns - total_ns)),
        bytes=sum(part.bytes for part in parts),
        num_copies=sum(part.num_copies for part in parts),
        per_step_ns=covered_per_step(rank, window, exposed),
        coverage=f.share(known_ns, total_ns),
    )
    return ExposedCopyResult(
        **facts_of(rank, window),
        metrics=metrics,
        copy_ns=copy_ns,
        parts=parts,
        beside=beside,
        uses_directives=rank.program.uses_directives,
        copies_for_kernels=copies_for_kernels(rank, window),
        only_step=only_step(rank, window, exposed),
    )


def findings(result: ExposedCopyResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the time in which copies kept the GPU from its work."""
    metrics = result.metrics
    if not metrics.exposed_ns:
        return []
    cause, parts = by_cause(result.parts, is_pytorch=result.is_pytorch)[0]
    longest = max(parts, key=lambda part: part.exposed_ns)
    of_program: tuple[str, ...] = ()
    if result.copies_for_kernels:
        of_program = (DATA_REGION,)
    elif result.uses_directives and 2 * metrics.hideable_ns >= metrics.exposed_ns:
        of_program = (_OTHER_QUEUE,)
    lines = advice(result.parts, metrics.hideable_ns, is_pytorch=result.is_pytorch)
    evidence = sorted(
        (item for part in parts for item in part.evidence),
        key=lambda item: (item.start_ns - item.end_ns, item.start_ns),
    )
    return result.finding(
        ID,
        _title(result, cause, parts),
        metrics.exposed_ns,
        metrics,
        (*of_program, *lines),
        evidence=tuple(evidence[: f.MAX_EVIDENCE]),
        place=longest.place,
    )


def _title(result: ExposedCopyResult, cause: CopyCause, parts: Sequence[CopyPart]) -> str:
    longest = max(parts, key=lambda part: part.exposed_ns)
    rate = f", at {longest.gb_per_s:.1f} GB/s" if longest.gb_per_s else ""
    total_ns = result.metrics.exposed_ns
    exposed, copied = duration(total_ns), duration(result.copy_ns)
    how_much = f"{exposed} of {copied} of copies is hidden by neither compute nor communication"
    if total_ns == result.copy_ns:
        how_much = f"{copied} of copies, none of it beside compute or communication"
    place = f", in {one_line(longest.place, _MAX_PLACE)}" if longest.place else ""
    return f"{how_much}: {duration(exposed_ns(parts))} {cause.name}{rate}{place}"


PAGE = {
    "min_copies": str(attribution.MIN_COPIES),
    "min_steps": str(attribution.MIN_STEPS),
    "advice": f.bullets(
        f"**{cause.name[0].upper()}{cause.name[1:]}**: {cause.why}. PyTorch: {cause.torch}"
        + (f". Elsewhere: {cause.other}" if cause.other else "")
        for cause in CAUSES
    ),
}
