"""Copies that nothing hides: the GPU copies, and neither computes nor communicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.exposed_copy.advice import CopyCause, advice, by_cause, page_advice
from traceprof.analyses.exposed_copy.attribution import copy_owners, is_memory_known
from traceprof.analyses.exposed_copy.gradient_copies import MIN_COPIES, MIN_STEPS
from traceprof.analyses.exposed_copy.parts import CopyPart, copy_parts, exposed_ns
from traceprof.analyses.shape.results import RankResult
from traceprof.errors import one_line
from traceprof.run.concurrency import DIRECTIONS, KindBeside, concurrency
from traceprof.run.steady_steps import covered_per_step
from traceprof.trace.model.kinds import MemoryKind
from traceprof.trace.model.parts import Part
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.run.rank import Rank, Window

ID = "exposed-copy"
REQUIRES: tuple[Part, ...] = (Part.GPU_OPERATIONS,)
READS: tuple[str, ...] = ()


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
        f" least {MIN_COPIES} consecutive copies within the GPU on the compute stream, of the same"
        " sizes in every step, after its last AllReduce and before the optimizer",
    ]
    hideable_ns: Annotated[
        f.Ns,
        "the most that overlap could hide: the time in which compute or"
        " communication runs without a copy, or all exposed time if that is"
        " less",
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


class ExposedCopyResult(RankResult, frozen=True):
    """The copies of one rank that neither compute nor communication hides."""

    window_ns: int  # the window's length
    metrics: ExposedCopyMetrics  # the numbers of its finding
    copy_ns: int  # the time in which copies ran
    parts: tuple[CopyPart, ...]  # the exposed copies by kind, longest first
    # which kinds of work ran at the same time, one row for each kind
    beside: tuple[KindBeside, ...]
    is_pytorch: bool  # whether the program is known to be PyTorch


def run(rank: Rank, window: Window) -> ExposedCopyResult:
    """Measure the copies that nothing hides in the window."""
    owners = copy_owners(rank, window)
    known_ns = int(owners.exposed_ns[is_memory_known(rank, owners)].sum())
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
        rank=rank.rank,
        window_ns=window.length_ns,
        metrics=metrics,
        copy_ns=copy_ns,
        parts=parts,
        beside=beside,
        is_pytorch=rank.program.is_pytorch,
    )


def findings(result: ExposedCopyResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the time in which copies kept the GPU from its work."""
    metrics = result.metrics
    exposed = metrics.exposed_ns
    fraction = f.share(exposed, result.window_ns)
    severity = f.severity_of_cost(fraction)
    if severity is None:
        return []
    cause, parts = by_cause(result.parts, is_pytorch=result.is_pytorch)[0]
    longest = max(parts, key=lambda part: part.exposed_ns)
    evidence = sorted(
        (item for part in parts for item in part.evidence),
        key=lambda item: (item.start_ns - item.end_ns, item.start_ns),
    )
    return [
        f.Finding(
            ID,
            severity,
            result.rank,
            _title(result, cause, parts),
            exposed,
            fraction,
            metrics.by_name(),
            tuple(evidence[: f.MAX_EVIDENCE]),
            advice(result.parts, metrics.hideable_ns, is_pytorch=result.is_pytorch),
            place=longest.place,
        )
    ]


# -- judgement ------------------------------------------------------------------------------------


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
    "min_copies": str(MIN_COPIES),
    "min_steps": str(MIN_STEPS),
    "advice": f.bullets(page_advice()),
}
