"""The analyses in order: those of each rank, then those of the whole run."""

from __future__ import annotations

from traceprof.analyses import (
    breakdown,
    collectives,
    exposed_communication,
    exposed_copy,
    full_precision_matmul,
    gpu_idle,
    host_stall,
    host_sync,
    late_allreduce,
    launch_queue,
    link_limits,
    nccl_serialization,
    overlap_slowdown,
    pageable_copy,
    peer_transfers,
    pipeline_bubble,
    process_group_scaling,
    straggler,
    uneven_kernels,
    unfused_kernels,
)
from traceprof.analyses.measurements.registration import Analysis

ANALYSES = (
    Analysis.of(breakdown, is_for_cpu=True),
    Analysis.of(
        exposed_communication,
        is_for_cpu=True,
        is_listed=True,
        refined=exposed_communication.refined,
    ),
    Analysis.of(gpu_idle, refined=gpu_idle.refined),
    Analysis.of(nccl_serialization),
    Analysis.of(overlap_slowdown),
    Analysis.of(full_precision_matmul),
    Analysis.of(unfused_kernels),
    Analysis.of(launch_queue),
    Analysis.of(link_limits, is_listed=True),
    Analysis.of(peer_transfers),
    Analysis.of(exposed_copy),
    Analysis.of(pageable_copy),
    Analysis.of(host_sync),
    Analysis.of(collectives, is_listed=True, refined=collectives.refined),
    Analysis.of(late_allreduce, refined=late_allreduce.refined),
    Analysis.of(process_group_scaling),
    Analysis.of(straggler),
    Analysis.of(pipeline_bubble),
    Analysis.of(host_stall),
    Analysis.of(uneven_kernels),
)
FINDINGS = {id_: kind for analysis in ANALYSES for id_, kind in analysis.findings.items()}
"""All kinds of findings, by id."""
FINDING_IDS = tuple(FINDINGS)
