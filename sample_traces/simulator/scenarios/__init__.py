"""The registry of scenarios, and writing one as an export with its truth."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.records import Records
from sample_traces.simulator.machine import HOST_TABLES, Machine
from sample_traces.simulator.nsight_writer import PRODUCTS, NsightWriter
from sample_traces.simulator.scenarios import (
    copies,
    counters,
    idle,
    pipelines,
    ranks,
    stages,
    training,
)
from sample_traces.simulator.scenarios.setup import FINDINGS, Scenario, all_but
from sample_traces.simulator.truth import check_at_least, new_truth, write_truth
from traceprof.errors import UsageError
from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSIONS = tuple(PRODUCTS)
"""Versions of exports that can be written, oldest first."""
_OTHERS_OF_IDLE = ("launch-queue-stall", "overlap-slowdown", "nccl-serialization")
_OTHERS_OF_EXPOSED = ("launch-queue-stall", "overlap-slowdown", "pageable-copy")

SCENARIOS: dict[str, Scenario] = {
    "training": Scenario(
        "Two ranks of DDP that lose time to communication, copies, and a full queue.",
        training.training,
        host_tables=HOST_TABLES - {schema.SAMPLES},
    ),
    "healthy": Scenario(
        "No problem: everything is hidden, the GPU is always busy.",
        training.healthy,
        silent=FINDINGS,
    ),
    "marks": Scenario(
        "The same, with NVTX marks for each batch that arrives and each loss read.",
        partial(training.healthy, marks=True),
        silent=FINDINGS,
    ),
    "nccl-serialization": Scenario(
        "Sends to two peers wait behind each other on one stream.",
        stages.nccl_serialization,
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
    ),
    "pipeline-sends": Scenario(
        "A pipeline of four ranks whose sends wait behind those to another rank.",
        partial(stages.nccl_pipeline, num_steps=3),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
        host_tables=HOST_TABLES,
    ),
    "pipeline-copies": Scenario(
        "The same pipeline in one process, whose copies wait for nothing.",
        partial(stages.copying_pipeline, num_steps=3),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "nccl-serialization"),
        host_tables=HOST_TABLES,
    ),
    "pipeline-bubble": Scenario(
        "Three stages, one of them slower; the first waits for data in each step.",
        pipelines.scenario(
            pipelines.Plan("1f1b", 3, 4, (1.0, 1.3, 1.0), num_steps=2, late_ns=3_000_000)
        ),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
    ),
    "compute-stream-collective": Scenario(
        "Synchronous all-reduces on the compute stream, as torch 2.8 runs them.",
        training.compute_stream_collective,
        silent=all_but("exposed-communication"),
    ),
    "overlap-slowdown": Scenario(
        "Kernels take 1.5 times as long while NCCL runs beside them.",
        training.overlap_slowdown,
        silent=all_but("overlap-slowdown", "exposed-communication", "late-allreduce"),
    ),
    "launch-queue-stall": Scenario(
        "A full launch queue blocks the thread that must start a send.",
        idle.launch_queue_stall,
        silent=("overlap-slowdown", "pageable-copy", "host-sync", "nccl-serialization"),
    ),
    "launch-queue-stall-unexported": Scenario(
        "The same, in an export that dropped the Command Buffer Full records.",
        idle.launch_queue_stall,
        silent=("overlap-slowdown", "pageable-copy", "host-sync", "nccl-serialization"),
        has_overhead_rows=False,
    ),
    "launch-queue-full-healthy": Scenario(
        "A launch queue that is full because the GPU is busy.",
        idle.launch_queue_full_healthy,
        silent=FINDINGS,
    ),
    "pageable-copy": Scenario(
        "Batches come from pageable memory, so that host and GPU wait.",
        copies.pageable_copy,
        silent=("launch-queue-stall", "overlap-slowdown", "nccl-serialization"),
    ),
    "exposed-copy": Scenario(
        "Batches on the compute stream, and gradients copied out of their buckets.",
        copies.exposed_copy,
        silent=all_but("exposed-copy", "exposed-communication", "late-allreduce", "gpu-idle"),
    ),
    "peer-copy-through-host": Scenario(
        "Copies from device to device go through the host.",
        copies.peer_copy_through_host,
        silent=("pageable-copy", "launch-queue-stall", "nccl-p2p-slower-than-copy"),
    ),
    "peer-copies": Scenario(
        "Copies from device to device go straight over NVLink.",
        copies.peer_copies,
        silent=("peer-copy-through-host", "pageable-copy", "nccl-p2p-slower-than-copy"),
    ),
    "p2p-slower-than-copy": Scenario(
        "NCCL sends at 2.5 GB/s where a copy engine reaches 6.9.",
        copies.p2p_slower_than_copy,
        silent=("peer-copy-through-host", "pageable-copy", "overlap-slowdown"),
    ),
    "published-copies": Scenario(
        "Copies of a published experiment on RTX 3090: one stream, two, beside compute.",
        copies.published_copies,
        silent=("pageable-copy", "launch-queue-stall", "nccl-p2p-slower-than-copy"),
        is_sample=False,
    ),
    "published-sends": Scenario(
        "The same by NCCL: sends and compute, alone and beside each other.",
        copies.published_sends,
        silent=("pageable-copy", "launch-queue-stall", "peer-copy-through-host"),
        is_sample=False,
    ),
    "host-sync": Scenario(
        "Numbers are read in the middle of steps, and the GPU runs dry.",
        idle.host_sync,
        silent=("pageable-copy", "launch-queue-stall", "overlap-slowdown", "nccl-serialization"),
    ),
    "launch-bound": Scenario(
        "Kernels are over before the host has launched the next.",
        idle.launch_bound,
        silent=("launch-queue-stall", "host-sync", "pageable-copy", "nccl-serialization"),
    ),
    "data-loading": Scenario(
        "The GPU waits for the data loader.",
        idle.data_loading,
        silent=("launch-queue-stall", "host-sync", "pageable-copy", "nccl-serialization"),
    ),
    "small-collectives": Scenario(
        "Hundreds of all-reduces of 4 to 64 kB.",
        training.small_collectives,
        silent=("launch-queue-stall", "pageable-copy", "overlap-slowdown", "link-underused"),
    ),
    "late-allreduce": Scenario(
        "One gradient bucket, reduced after the backward.",
        training.late_all_reduce,
        silent=("launch-queue-stall", "pageable-copy", "overlap-slowdown", "small-collectives"),
        has_json_payloads=True,
    ),
    "link-counters": Scenario(
        "Sampled counters: PCIe at its limit, NVLink far below it.",
        counters.link_counters,
        silent=("launch-queue-stall", "pageable-copy", "overlap-slowdown", "nccl-serialization"),
    ),
    **{
        name: Scenario(summary, build, silent=_OTHERS_OF_IDLE, host_tables=tables)
        for name, summary, build, tables in (
            ("sleeping-loader", "The main thread sleeps until the next batch arrives.",
             idle.sleeping_loader, HOST_TABLES),
            ("sleeping-checkpoint", "The main thread sleeps until a checkpoint is on the disk.",
             idle.sleeping_checkpoint, frozenset({schema.OS_CALLS})),
            ("initialisation", "Libraries are loaded and NCCL starts in the first step.",
             idle.initialisation, HOST_TABLES),
            ("allocation-in-steps", "Memory is freed and allocated again in each step.",
             idle.allocation, HOST_TABLES),
            ("lost-run-ahead", "A number is read before short kernels, which the host then chases.",
             idle.lost_run_ahead, HOST_TABLES),
            ("busy-python", "The main thread makes the next batch itself, in Python.",
             idle.busy_python, HOST_TABLES),
        )
    },
    "warm-up": Scenario(
        "The model is uploaded and warmed up before a training without problems.",
        idle.warm_up,
        silent=FINDINGS,
        host_tables=HOST_TABLES,
    ),
    "mpi-wait": Scenario(
        "A solver without PyTorch waits in MPI for its slower rank.",
        idle.mpi_wait,
        silent=_OTHERS_OF_IDLE,
        host_tables=HOST_TABLES,
    ),
    "turnaround": Scenario(
        "Short kernels, launched far ahead: only the GPU's own time lies between them.",
        idle.turnaround,
        silent=all_but("unfused-kernels"),
        host_tables=HOST_TABLES,
    ),
    **{
        f"exposed-{name}": Scenario(
            summary, build, silent=_OTHERS_OF_EXPOSED, host_tables=HOST_TABLES
        )
        for name, summary, build in (
            ("late-launch", "All-reduces are launched long after their input is ready.",
             training.late_launch),
            ("queued", "A bucket waits behind another one while the backward could hide it.",
             training.queued),
            ("needed-at-once", "Each layer's input is gathered only when the layer needs it.",
             training.needed_at_once),
            ("late-input", "The last bucket is ready only after the backward.",
             training.late_input),
            ("waiting", "One rank has more work, and the other one waits for it.",
             training.waiting),
        )
    },
    "host-stall": Scenario(
        "Some launches of one rank take milliseconds: its thread is held up.",
        idle.one_rank,
        silent=("launch-queue-stall", "host-sync", "pageable-copy", "nccl-serialization"),
    ),
    "uneven-clock": Scenario(
        "All kernels of one rank take longer: its clock is slower.",
        partial(ranks.slower_clock, num_ranks=3, num_layers=1),
        silent=all_but("uneven-kernels", "straggler", "exposed-communication", "gpu-idle"),
    ),
    "uneven-experts": Scenario(
        "Another rank has most work in each layer, as experts have.",
        partial(ranks.uneven_experts, num_ranks=3, num_layers=2),
        silent=all_but("uneven-kernels", "exposed-communication", "gpu-idle"),
    ),
    "full-precision-matmul": Scenario(
        "Matrices are multiplied in FP32 without tensor cores.",
        training.full_precision,
        silent=all_but("full-precision-matmul"),
        host_tables=HOST_TABLES,
    ),
    "few-blocks": Scenario(
        "Norms of activations are computed by 4 blocks, on 108 multiprocessors.",
        training.few_blocks,
        silent=all_but("few-blocks", "late-allreduce"),
        host_tables=HOST_TABLES,
        is_sample=False,
    ),
    "unfused-kernels": Scenario(
        "Chains of kernels that are bound by memory, and an optimizer that is not fused.",
        training.unfused,
        silent=all_but("unfused-kernels"),
        host_tables=HOST_TABLES,
    ),
}  # fmt: skip

_WITHOUT_OVERHEAD = ("2.9.1", "3.7.2")


def simulate_scenario(
    name: str, path: Path, *, seed: int = 0, schema_version: str = "3.25.0"
) -> Path:
    """Write the export of a scenario, and the truth about it.

    Args:
        name: a key of `SCENARIOS`.
        path: the export to write, such as `healthy.sqlite`; the truth goes to
            `healthy.truth.json`.
        seed: of the jitter. The same arguments make the same export.
        schema_version: of the export, one of `SCHEMA_VERSIONS`. Exports of 3.7.2 have neither
            Command Buffer Full records nor NCCL's payloads.

    Returns:
        The path of the truth: the arguments; `breakdown` and `steps` as `traceprof analyze
        --format json` must find them, exactly; `links`, the copied bytes; `findings` with the
        metrics that the model knows; `silent`, the findings that must not be reported above info;
        and `marks`, if there are any.

    Raises:
        UsageError: there is no such scenario or schema version, or one of the files exists.
        TraceFileError: the disk is full.
    """
    if name not in SCENARIOS:
        raise UsageError(
            f"cannot simulate {name!r}", "there is no such scenario", f"try {', '.join(SCENARIOS)}"
        )
    check_at_least("seed", seed, 0)
    truth_path = new_truth(path)
    scenario = SCENARIOS[name]
    setup = scenario.build(np.random.default_rng(seed))
    arguments = {"seed": seed, "schema_version": schema_version}
    machine = Machine(
        f"python -m sample_traces.simulator {name} --seed {seed} --schema-version {schema_version}",
        setup.board,
        setup.devices_of_processes,
        has_overhead_rows=scenario.has_overhead_rows,
        has_json_payloads=scenario.has_json_payloads,
        host_tables=scenario.host_tables,
        thread_names=setup.thread_names,
        mpi_size=len(setup.hosts) if setup.mpi_program else 0,
    )
    ranks = answers.Ranks(setup.run())
    findings = setup.findings(ranks)
    has_overhead_rows = scenario.has_overhead_rows and schema_version not in _WITHOUT_OVERHEAD
    for finding in findings:
        if finding["id"] == "launch-queue-stall":
            finding["metrics"]["source"] = "overhead-records" if has_overhead_rows else "inferred"
    with NsightWriter(path, schema_version) as writer:
        Records(writer, machine).write(ranks.result)
        if setup.write_more is not None:
            setup.write_more(writer, ranks)
    _shrink(path)
    facts = {
        **ranks.breakdown(),
        "links": [*answers.links(ranks), *(setup.more_links(ranks) if setup.more_links else ())],
        "findings": findings,
        "silent": scenario.silent,
    }
    if ranks.result.marks:
        facts["marks"] = answers.marks(ranks)
    return write_truth(truth_path, name, arguments, facts)


def _shrink(path: Path) -> None:
    """Rewrite the file with small pages: most of its tables have a few rows each."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA synchronous = OFF")  # as when it was written
        database.execute("PRAGMA page_size = 1024")
        database.execute("VACUUM")
