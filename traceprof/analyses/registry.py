"""The analyses in order: those of each rank, then those of the whole run."""

from __future__ import annotations

from collections.abc import Collection

from traceprof.analyses import (
    breakdown,
    collectives,
    exposed_communication,
    exposed_copy,
    few_blocks,
    full_precision_matmul,
    gpu_idle,
    host_stall,
    host_sync,
    late_allreduce,
    launch_queue,
    links,
    nccl_serialization,
    overlap_slowdown,
    pageable_copy,
    peer_transfers,
    pipeline_bubble,
    process_group_scaling,
    straggler,
    uneven_kernels,
    unfused_kernels,
    unified_memory,
)
from traceprof.analyses.measurements import MEASUREMENTS, Registration, Wanted
from traceprof.trace.model.parts import Part

ANALYSES = (
    Registration.of(breakdown, is_for_cpu=True),
    Registration.of(
        exposed_communication,
        is_for_cpu=True,
        reads=("arrivals", "overlap-slowdown"),
        is_listed=True,
        refined=exposed_communication.refined,
    ),
    Registration.of(gpu_idle),
    Registration.of(nccl_serialization),
    Registration.of(overlap_slowdown),
    Registration.of(full_precision_matmul),
    Registration.of(unfused_kernels),
    Registration.of(few_blocks),
    Registration.of(unified_memory),
    Registration.of(launch_queue, requires=(Part.API_CALLS,)),
    Registration.of(links, is_listed=True),
    Registration.of(peer_transfers),
    Registration.of(exposed_copy),
    Registration.of(pageable_copy),
    Registration.of(host_sync, requires=(Part.API_CALLS,)),
    Registration.of(collectives, reads=("arrivals",), is_listed=True, refined=collectives.refined),
    Registration.of(late_allreduce, reads=("arrivals",), refined=late_allreduce.refined),
    Registration.of_run(process_group_scaling, reads=("arrivals", "process_groups")),
    Registration.of_run(straggler, reads=("arrivals", "placed", "passes")),
    Registration.of_run(
        pipeline_bubble, reads=("arrivals", "passes", "exposed-communication", "gpu-idle")
    ),
    Registration.of_run(host_stall, reads=("arrivals", "stalls")),
    Registration.of_run(uneven_kernels, reads=("arrivals", "placed", "passes")),
)
FINDINGS = {id_: kind for analysis in ANALYSES for id_, kind in analysis.findings.items()}
"""All kinds of findings, by id."""
FINDING_IDS = tuple(FINDINGS)
READ_BY_REPLAY = (
    "arrivals",
    "passes",
    "placed",
    "full-precision-matmul",
    "gpu-idle",
    "launch-queue-stall",
    "nccl-serialization",
    "overlap-slowdown",
)
"""What the replay reads: measurements, and analyses by a finding of theirs."""
_OF_FINDING = {id_: analysis for analysis in ANALYSES for id_ in analysis.findings}


def wanted(ids: Collection[str], *, is_replayed: bool, has_several_reports: bool) -> Wanted:
    """Return what findings need: all that their analyses read, directly or through others.

    `is_replayed`: whether steps are to be replayed without them. With several reports clocks are
    compared.
    """
    asked = {_OF_FINDING[id_].name for id_ in ids}
    pending = [name for id_ in ids for name in (id_, *_OF_FINDING[id_].reads)]
    if is_replayed and any(FINDINGS[id_].removed_by for id_ in ids):
        pending += READ_BY_REPLAY
    if has_several_reports:
        pending.append("arrivals")
    reads: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in reads:
            reads.add(name)
            source = _OF_FINDING.get(name) or MEASUREMENTS[name]
            pending += source.reads
    # The breakdown, which makes no finding, is the answer itself.
    read = {breakdown.__name__, *(_OF_FINDING[name].name for name in reads if name in _OF_FINDING)}
    wholes = [FINDINGS[id_].part_of for id_ in ids]
    return Wanted(
        frozenset(asked),
        frozenset(read),
        frozenset({*read, *(_OF_FINDING[id_].name for id_ in wholes if id_ is not None)}),
        frozenset(reads & {*MEASUREMENTS}),
    )
