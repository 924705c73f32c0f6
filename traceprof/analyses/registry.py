"""The analyses, in order: of each rank, then of the whole run."""

from __future__ import annotations

from traceprof.analyses import (
    breakdown,
    collectives,
    exposed_communication,
    exposed_copy,
    full_precision_matmul,
    gpu_idle,
    host_sync,
    late_allreduce,
    launch_queue,
    link_limits,
    nccl_serialization,
    overlap_slowdown,
    pageable_copy,
    peer_transfers,
    process_group_scaling,
    straggler,
)
from traceprof.analyses.measurements.registration import (
    RankAnalysis,
    RunAnalysis,
    all_ranks,
    gpu_ranks,
    listed_gpu_ranks,
    refined_gpu_ranks,
    refined_ranks,
    whole_run,
)

ANALYSES: tuple[RankAnalysis | RunAnalysis, ...] = (
    all_ranks(breakdown),
    refined_ranks(exposed_communication),
    gpu_ranks(gpu_idle),
    gpu_ranks(nccl_serialization),
    gpu_ranks(overlap_slowdown),
    gpu_ranks(full_precision_matmul),
    gpu_ranks(launch_queue),
    listed_gpu_ranks(link_limits),
    gpu_ranks(peer_transfers),
    gpu_ranks(exposed_copy),
    gpu_ranks(pageable_copy),
    gpu_ranks(host_sync),
    refined_gpu_ranks(collectives),
    gpu_ranks(late_allreduce),
    whole_run(process_group_scaling),
    whole_run(straggler),
)
RANK_ANALYSES = tuple(analysis for analysis in ANALYSES if isinstance(analysis, RankAnalysis))
RUN_ANALYSES = tuple(analysis for analysis in ANALYSES if isinstance(analysis, RunAnalysis))
FINDING_IDS = tuple(id_ for analysis in ANALYSES for id_ in analysis.ids)
METRICS = {id_: metrics for analysis in ANALYSES for id_, metrics in analysis.metrics.items()}
"""The numbers of each finding, by its id."""
