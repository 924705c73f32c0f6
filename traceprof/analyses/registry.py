"""The analyses in order: those of each rank, then those of the whole run."""

from __future__ import annotations

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
    unified_memory,
)
from traceprof.analyses.measurements.registration import Registration

ANALYSES = (
    Registration.of(breakdown, is_for_cpu=True),
    Registration.of(
        exposed_communication,
        is_for_cpu=True,
        is_listed=True,
        refined=exposed_communication.refined,
    ),
    Registration.of(gpu_idle, refined=gpu_idle.refined),
    Registration.of(nccl_serialization),
    Registration.of(overlap_slowdown),
    Registration.of(full_precision_matmul),
    Registration.of(unfused_kernels),
    Registration.of(few_blocks),
    Registration.of(unified_memory),
    Registration.of(launch_queue),
    Registration.of(link_limits, is_listed=True),
    Registration.of(peer_transfers),
    Registration.of(exposed_copy),
    Registration.of(pageable_copy),
    Registration.of(host_sync),
    Registration.of(collectives, is_listed=True, refined=collectives.refined),
    Registration.of(late_allreduce, refined=late_allreduce.refined),
    Registration.of(process_group_scaling),
    Registration.of(straggler),
    Registration.of(pipeline_bubble),
    Registration.of(host_stall),
    Registration.of(uneven_kernels),
)
FINDINGS = {id_: kind for analysis in ANALYSES for id_, kind in analysis.findings.items()}
"""All kinds of findings, by id."""
FINDING_IDS = tuple(FINDINGS)
