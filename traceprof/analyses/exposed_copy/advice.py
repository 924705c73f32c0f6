"""Advice about copies that nothing hides: by kind, by path, and for the program that ran."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceprof.analyses.exposed_copy.parts import exposed_ns
from traceprof.structs import Record
from traceprof.trace.model.kinds import MemoryKind
from traceprof.units import duration, percent, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.analyses.exposed_copy.parts import CopyPart

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
PAGEABLE_H2D = CopyCause(
    "from pageable host memory",
    "they cannot be hidden, because the host waits for them",
    "DataLoader(pin_memory=True) and .to(device, non_blocking=True), on a stream of its own",
    _PIN,
)
PAGEABLE_D2H = CopyCause(
    "to pageable host memory",
    "they cannot be hidden, because the host waits for them",
    "read results late and rarely: keep losses on the GPU for many steps; copy into pinned memory"
    " with non_blocking=True, and read it a step later",
    "pin it (cudaMallocHost), cudaMemcpyAsync on a second stream, and read it after the next"
    " kernels were launched",
)
SAME_STREAM_H2D = CopyCause(
    "from pinned host memory, on the stream of the compute after it",
    "they cannot be hidden on that stream",
    "prefetch: copy the next batch on a torch.cuda.Stream() of its own while this one is computed;"
    " wait_stream() and record_stream() before its use",
    "cudaMemcpyAsync on a second stream into a second buffer meanwhile, and cudaStreamWaitEvent"
    " before its use",
)
OTHER_STREAM_H2D = CopyCause(
    "from pinned host memory, on another stream than the compute after it",
    "they could be hidden",
    "start them earlier (DALI: prefetch_queue_depth; DataLoader: prefetch_factor), copy fewer"
    " bytes",
    "start them earlier, with one more buffer, and copy fewer bytes",
)
SAME_STREAM_D2H = CopyCause(
    "to pinned host memory, on the stream of the compute after it",
    "they cannot be hidden on that stream",
    "read results late: copy on a stream of its own with non_blocking=True while the next step"
    " computes, and wait for its event a step later",
    "cudaMemcpyAsync on a second stream while the next kernels run, and read the result after them",
)
_LAUNCH_FIRST = "launch the next kernels before you wait for the copy"
OTHER_STREAM_D2H = CopyCause(
    "to pinned host memory, on another stream than the compute after it",
    "they could be hidden",
    _LAUNCH_FIRST,
    _LAUNCH_FIRST,
)
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
SAME_STREAM_D2D = CopyCause(
    "within the GPU, on the stream of the compute after it",
    "they cannot be hidden on that stream",
    "avoid .contiguous(), .clone(), torch.cat and .copy_() of large tensors: write into views of"
    " one buffer (out=), or let torch.compile (2.0) fuse them",
)
OTHER_STREAM_D2D = CopyCause(
    "within the GPU, on another stream than the compute after it",
    "they could be hidden, but take memory bandwidth",
    "avoid .contiguous(), .clone(), torch.cat and .copy_() of large tensors",
)
MEMSETS = CopyCause(
    "of setting memory",
    "they are not needed where a kernel writes all of the memory",
    "optimizer.zero_grad(set_to_none=True) (the default from torch 2.0 on), torch.empty for what is"
    " overwritten",
    "let the kernel that fills the memory write all of it",
)
CAUSES = (
    GRADIENTS,
    OFFLOAD,
    SAME_STREAM_H2D,
    OTHER_STREAM_H2D,
    PAGEABLE_H2D,
    SAME_STREAM_D2H,
    OTHER_STREAM_D2H,
    PAGEABLE_D2H,
    SAME_STREAM_D2D,
    OTHER_STREAM_D2D,
    MEMSETS,
    UNIFIED,
    UNKNOWN_HOST,
)
"""All causes, in the order of the page."""


_BY_PATH = {
    # direction, whether the next compute is on the same stream
    ("h2d", True): SAME_STREAM_H2D,
    ("h2d", False): OTHER_STREAM_H2D,
    ("d2h", True): SAME_STREAM_D2H,
    ("d2h", False): OTHER_STREAM_D2H,
    ("d2d", True): SAME_STREAM_D2D,
    ("d2d", False): OTHER_STREAM_D2D,
    ("memset", True): MEMSETS,
    ("memset", False): MEMSETS,
}
_BY_MEMORY = {
    ("h2d", MemoryKind.PAGEABLE): PAGEABLE_H2D,
    ("d2h", MemoryKind.PAGEABLE): PAGEABLE_D2H,
    ("h2d", MemoryKind.UNKNOWN): UNKNOWN_HOST,
    ("d2h", MemoryKind.UNKNOWN): UNKNOWN_HOST,
}


def cause_of(part: CopyPart, *, is_pytorch: bool) -> CopyCause:
    """Return why copies of one kind are not hidden; only in PyTorch can gradients be views."""
    if part.is_gradient and is_pytorch:
        return GRADIENTS
    if part.is_offload:
        return OFFLOAD
    if part.memory is MemoryKind.MANAGED:
        return UNIFIED
    by_path = _BY_PATH[part.direction, part.is_same_stream]
    return _BY_MEMORY.get((part.direction, part.memory), by_path)


def by_cause(
    parts: Iterable[CopyPart], *, is_pytorch: bool
) -> list[tuple[CopyCause, list[CopyPart]]]:
    """Return the exposed copies by what can be done about them, longest first."""
    causes: dict[CopyCause, list[CopyPart]] = defaultdict(list)
    for part in parts:
        causes[cause_of(part, is_pytorch=is_pytorch)].append(part)
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


def page_advice() -> list[str]:
    """Return all pieces of advice, for the page."""
    return [
        f"**{cause.name[0].upper()}{cause.name[1:]}**: {cause.why}. PyTorch: {cause.torch}"
        + (f". Elsewhere: {cause.other}" if cause.other else "")
        for cause in CAUSES
    ]
