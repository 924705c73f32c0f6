"""Data-parallel training: healthy, with costly communication, and with several problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers, lost_time
from sample_traces.simulator.event_model.actions import Communicator, Event
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.program_writer import COPY, SIDE, Host, Rates
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import A100_PCIE, HOST_TABLES
from sample_traces.simulator.scenarios.setup import Finding, Scenario, Setup, finding
from traceprof.trace.nsight import schema

WORLD = Communicator(0x5EED_0000_0000_0001, "0", (0, 1))

_AVERAGE = Kernel(
    "void at::native::vectorized_elementwise_kernel<4, at::native::LerpScalarFunctor<float>, "
    "std::array<char *, 3>>(int, T2, T3)",
    "aten::lerp_", 65536, 1, 128, 32, 0, 0, 160_000,
)  # fmt: skip
_MIB = 1 << 20
_SLOWED_STEPS = 6


def programs(
    rng: np.random.Generator,
    num_steps: int,
    step: Callable[[Host], None],
    rates: Rates | None = None,
    *,
    processes: Sequence[int] = WORLD.processes,
    is_grouped: bool = True,
) -> tuple[Host, ...]:
    """Return programs of ranks that take this number of steps."""
    hosts = tuple(Host(rank, rng, rates, is_grouped=is_grouped) for rank in processes)
    for host in hosts:
        for number in range(num_steps):
            with host.step(number):
                step(host)
    return hosts


def reduce_beside(host: Host, size: int) -> None:
    """Reduce the gradients computed since the last reduction, at the same time as later work."""
    host.collective("all_reduce", WORLD, host.nccl, size, after=host.compute)


def optimize(host: Host, num: int = 1) -> None:
    """Run this number of kernels of an optimizer."""
    with host.range("optimizer"):
        host.operator(host.compute, "aten::_fused_adamw_", *[kernels.ADAM] * num)


def of_each_rank(name: str, metrics: Callable[..., dict[str, Any]], ranks: Ranks) -> list[Finding]:
    """Return a finding of every rank, with metrics from its operations."""
    return [
        finding(name, rank, **metrics(operations))
        for rank, operations in enumerate(ranks.operations)
    ]


BATCH_MARK, LOSS_MARK = "batch is there", "loss is read"


def healthy(rng: np.random.Generator, *, marks: bool = False) -> Setup:
    """Return a run in which everything is hidden and the GPU is always busy.

    The host reads each loss a step late, so that its wait never makes the GPU wait; the running
    average of the weights, which does not need the gradients, hides the last bucket.
    """
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, copy = host.compute, host.stream(COPY)
        losses: list[Event] = []
        host.to_device(copy, 4 * _MIB)
        loaded = host.record(copy)
        for step in range(8):
            with host.step(step):
                host.wait(compute, loaded)
                host.to_device(copy, 4 * _MIB)
                loaded = host.record(copy)
                if marks:
                    host.mark(BATCH_MARK)
                with host.range("forward"):
                    host.operator(compute, "aten::linear", *kernels.FORWARD * 2)
                with host.range("backward"):
                    for size in (100, 100, 100, 14):
                        host.operator(compute, "aten::mm", *kernels.BACKWARD)
                        reduce_beside(host, size * _MIB)
                with host.range("optimizer"):
                    host.operator(compute, "aten::lerp_", _AVERAGE, _AVERAGE)
                    host.follow(compute, host.nccl)
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM, kernels.ADAM)
                    host.memset(compute, 4 * _MIB)
                host.to_host(compute, 4)
                losses.append(host.record(compute))
                if step:
                    host.synchronize(losses[-2])
                    if marks:
                        host.mark(f"{LOSS_MARK} {step - 1}")
    return Setup(hosts, lambda _: [])


def overlap_slowdown(rng: np.random.Generator) -> Setup:
    """Return a run whose kernels take 1.5 times as long while NCCL runs beside them.

    Gradients accumulate over two micro-batches, in the first of which the same kernels run alone.
    """

    def step(host: Host) -> None:
        for reduces in (False, True):
            host.to_device(host.compute, 2 * _MIB)
            with host.range("forward"):
                host.operator(host.compute, "aten::linear", *kernels.FORWARD * 2)
            with host.range("backward"):
                host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
                for size in (95, 95, 50):
                    host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
                    if reduces:
                        reduce_beside(host, size * _MIB)
                # Activation checkpointing: the forward's kernels again.
                host.operator(host.compute, "aten::linear", *kernels.FORWARD)
                host.follow(host.compute, host.nccl)
        optimize(host, 2)
        host.synchronize(host.compute)

    hosts = programs(rng, _SLOWED_STEPS, step, Rates(nccl=Fraction(100)))
    metrics = partial(answers.overlap_slowdown, num_passes=2 * _SLOWED_STEPS)
    findings = partial(of_each_rank, "overlap-slowdown", metrics)
    return Setup(hosts, findings, slowdown=Fraction(3, 2))


def compute_stream_collective(rng: np.random.Generator) -> Setup:
    """Return a run with synchronous all-reduces, which torch 2.8 runs on the compute stream."""

    def step(host: Host) -> None:
        host.to_device(host.compute, 2 * _MIB)
        with host.range("forward"):
            for _ in range(4):
                # Tensor parallelism: the layer's output is reduced before the next one.
                host.operator(host.compute, "aten::linear", *kernels.FORWARD)
                host.collective("all_reduce", WORLD, host.compute, 32 * _MIB)
        with host.range("backward"):
            for _ in range(4):
                host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
                host.collective("all_reduce", WORLD, host.compute, 32 * _MIB)
        optimize(host)

    return Setup(programs(rng, 8, step), partial(exposed_for, "same_stream_ns"))


def late_all_reduce(rng: np.random.Generator) -> Setup:
    """Return a run with one gradient bucket, which is reduced after the backward."""

    def step(host: Host) -> None:
        host.to_device(host.compute, 2 * _MIB)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD * 2)
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 4)
            reduce_beside(host, 320 * _MIB)
            host.follow(host.compute, host.nccl)
        optimize(host, 2)

    return Setup(programs(rng, 6, step), _late)


def _late(ranks: Ranks) -> list[Finding]:
    """Return the time of all-reduces after the backward's kernels, without the first step."""
    findings = exposed(ranks)
    for rank, operations in enumerate(ranks.operations):
        kernel_ends = [
            operation.end_ns for operation in operations if answers.class_of(operation) == "compute"
        ]
        tails = [
            operation.end_ns - max(end for end in kernel_ends if end <= operation.start_ns)
            for operation in operations
            if answers.class_of(operation) == "communication"
        ]
        metrics = {"tail_ns": sum(tails[1:]), "num_buckets": 1, "model_tails_ns": tails}
        findings.append(finding("late-allreduce", rank, **metrics))
    return findings


def small_collectives(rng: np.random.Generator) -> Setup:
    """Return a run that all-reduces every gradient by itself: 4 to 64 kB, mostly latency.

    It calls NCCL without groups, as other programs may: the launch is inside the range.
    """
    sizes = (4096, 65536, 8192, 16384, 4096, 32768)

    def step(host: Host) -> None:
        host.to_device(host.compute, 2 * _MIB)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD * 2)
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            for number in range(100):
                reduce_beside(host, sizes[number % len(sizes)])
            host.follow(host.compute, host.nccl)
        optimize(host)

    return Setup(programs(rng, 2, step, is_grouped=False), _small)


def _small(ranks: Ranks) -> list[Finding]:
    findings = exposed(ranks)
    latency = Rates().nccl_latency_ns
    for rank, operations in enumerate(ranks.operations):
        works = [
            answers.communication(operation)
            for operation in operations
            if answers.class_of(operation) == "communication"
        ]
        sizes = sorted(work.bytes for work in works)
        metrics = {
            "num_operations": len(works),
            "median_bytes": (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) // 2,
            "latency_share": latency * len(works) / sum(work.transfer_ns for work in works),
        }
        findings.append(finding("small-collectives", rank, **metrics))
    return findings


def full_precision(rng: np.random.Generator) -> Setup:
    """Return a run that multiplies matrices in FP32 without tensor cores."""

    def step(host: Host) -> None:
        with host.range("forward"):
            for _ in range(4):
                host.operator(host.compute, "aten::linear", kernels.SGEMM[0])
                host.operator(host.compute, "aten::gelu", kernels.GELU)
        with host.range("backward"):
            for _ in range(4):
                host.operator(host.compute, "aten::mm", *kernels.SGEMM)
                reduce_beside(host, 32 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.SGEMM)
            host.follow(host.compute, host.nccl)
        optimize(host)

    metrics = partial(lost_time.full_precision, slow=kernels.SGEMM)
    return Setup(programs(rng, 6, step), partial(of_each_rank, "full-precision-matmul", metrics))


def few_blocks(rng: np.random.Generator) -> Setup:
    """Return a run that computes norms of activations by a few blocks."""

    def step(host: Host) -> None:
        norm = kernels.NORM_IN_FEW_BLOCKS
        with host.range("forward"):
            for _ in range(4):
                host.operator(host.compute, "aten::linear", kernels.UP)
                host.operator(host.compute, norm.operator, norm)
        with host.range("backward"):
            for _ in range(4):
                host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
                reduce_beside(host, 16 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            host.follow(host.compute, host.nccl)
        optimize(host)

    metrics = partial(lost_time.few_blocks, few=kernels.NORM_IN_FEW_BLOCKS)
    return Setup(programs(rng, 6, step), partial(of_each_rank, "few-blocks", metrics))


def unfused(rng: np.random.Generator) -> Setup:
    """Return a run of chains of kernels that are bound by memory, and of an unfused optimizer."""

    def step(host: Host) -> None:
        with host.range("forward"):
            for _ in range(4):
                host.operator(host.compute, "aten::linear", kernels.UP)
                host.operator(host.compute, "aten::native_layer_norm", *kernels.UNFUSED_NORM)
        with host.range("backward"):
            for _ in range(4):
                host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
                reduce_beside(host, 16 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            host.follow(host.compute, host.nccl)
        with host.range("optimizer"):
            for kernel in kernels.UNFUSED_ADAM:
                host.operator(host.compute, kernel.operator, kernel)

    chains = (kernels.UNFUSED_NORM, kernels.UNFUSED_ADAM)
    metrics = partial(lost_time.unfused, chains=chains, of_optimizer=kernels.UNFUSED_ADAM)
    return Setup(programs(rng, 6, step), partial(of_each_rank, "unfused-kernels", metrics))


def exposed_copies(ranks: Ranks) -> list[Finding]:
    return of_each_rank("exposed-copy", lost_time.exposed_copies, ranks)


def exposed(ranks: Ranks) -> list[Finding]:
    """Return `exposed-communication` of every rank, without its reasons."""
    names = ("exposed_ns", "fraction", "overlap_efficiency")
    return [
        {**exposure, "metrics": {name: exposure["metrics"][name] for name in names}}
        for exposure in exposed_for("unknown_ns", ranks)
    ]


def exposed_for(reason: str, ranks: Ranks) -> list[Finding]:
    """Return `exposed-communication` of every rank, all of it waits or one reason."""
    metrics = partial(lost_time.exposed_communication, reason=reason)
    return of_each_rank("exposed-communication", metrics, ranks)


# Three wide layers of a vision transformer, in bfloat16, and two micro-batches of 160 images.
_LAYERS, _SCALE, _STEPS, _LOGGED_STEP = 3, 8, 4, 1
_IMAGES_BYTES = 160 * 3 * 224 * 224 * 4
_BUCKET_BYTES, _STATISTICS_BYTES, _LOSS_BYTES = 176 << 20, 32 << 10, 4
_STATISTICS = Communicator(0x5EED_0000_0000_0002, "1", WORLD.processes)
_HISTOGRAMS = 1180  # four for each of 295 parameters
# Two A100 without NVLink. Recordings of A100 also show kernels that take 1.5 times as long beside
# all-reduces.
_RATES = Rates(nccl=Fraction(21), nccl_latency_ns=38_000)
_SLOWDOWN = Fraction(3, 2)


def _scaled(*launched: Kernel) -> tuple[Kernel, ...]:
    return tuple(replace(kernel, duration_ns=_SCALE * kernel.duration_ns) for kernel in launched)


_FORWARD = _scaled(kernels.LAYER_NORM, kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN)
_BACKWARD = _scaled(
    kernels.INPUT_GRADIENT, kernels.WEIGHT_GRADIENT, kernels.GELU_BACKWARD,
    kernels.ATTENTION_BACKWARD, kernels.WEIGHT_GRADIENT,
)  # fmt: skip


def training(rng: np.random.Generator) -> Setup:
    """Return a data-parallel run of two ranks on PCIe, whose gradients accumulate over two batches.

    Each batch is copied on the compute stream. The backward's kernels are slower beside the
    all-reduces of gradients, which only the second micro-batch has. The backward waits for small
    statistics of another group, which are reduced on the stream of the gradients and wait behind
    these. In one step rank 0 makes histograms of each gradient on a side stream: that fills the
    launch queue, the loss is reduced late, and rank 1 waits for it.
    """
    hosts = tuple(Host(rank, rng, _RATES) for rank in WORLD.processes)
    for host in hosts:
        for step in range(_STEPS):
            with host.step(step):
                for reduces in (False, True):
                    _micro_batch(host, reduces=reduces)
                with host.range("optimizer step"):
                    host.launch(host.compute, *_scaled(kernels.ADAM, kernels.ADAM))
                if step == _LOGGED_STEP and host.process == 0:
                    side = host.stream(SIDE)
                    with host.range("log histograms"):
                        host.follow(side, host.compute)
                        host.launch(side, *[kernels.HISTOGRAM] * _HISTOGRAMS)
                host.collective("all_reduce", WORLD, host.nccl, _LOSS_BYTES, after=host.compute)
                host.follow(host.compute, host.nccl)
                host.item(host.compute)
    return Setup(hosts, _findings, board=A100_PCIE, slowdown=_SLOWDOWN)


def _micro_batch(host: Host, *, reduces: bool) -> None:
    host.to_device(host.compute, _IMAGES_BYTES)
    with host.range("forward"):
        host.launch(host.compute, *_FORWARD * _LAYERS)
    with host.range("backward"):
        for layer in range(_LAYERS):
            host.launch(host.compute, *_BACKWARD[:4])
            if reduces and layer:
                host.collective(
                    "all_reduce", _STATISTICS, host.nccl, _STATISTICS_BYTES, after=host.compute
                )
                host.follow(host.compute, host.nccl)
            host.launch(host.compute, *_BACKWARD[4:])
            if reduces:
                host.collective("all_reduce", WORLD, host.nccl, _BUCKET_BYTES, after=host.compute)
        host.follow(host.compute, host.nccl)


def _findings(ranks: Ranks) -> list[Finding]:
    findings = exposed_copies(ranks)
    for rank, operations in enumerate(ranks.operations):
        findings += [
            finding("nccl-serialization", rank, **answers.nccl_serialization(operations)),
            finding("overlap-slowdown", rank, **answers.overlap_slowdown(operations, 2 * _STEPS)),
        ]
    calls = [call for call in ranks.result.calls if call.thread.process == 0]
    return [*findings, finding("launch-queue-stall", 0, **answers.launch_queue(calls))]


_MS = 1_000_000


def _training(rng: np.random.Generator, step: Callable[[Host], None], reason: str) -> Setup:
    """Return a run of six such steps, each with an optimizer at its end."""

    def whole(host: Host) -> None:
        step(host)
        optimize(host)

    return Setup(programs(rng, 6, whole), partial(exposed_for, reason))


def late_launch(rng: np.random.Generator) -> Setup:
    """Return a run whose gradients are ready long before the host launches their all-reduce."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            ready = host.record(host.compute)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 5)
            host.busy(3 * _MS, spread=0.02)
            host.wait(host.nccl, ready)
            host.collective("all_reduce", WORLD, host.nccl, 200 * _MIB)
            host.follow(host.compute, host.nccl)
        host.synchronize(host.compute)

    return _training(rng, step, "late_launch_ns")


def queued(rng: np.random.Generator) -> Setup:
    """Return a run whose second bucket is ready during the all-reduce of the first one."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            reduce_beside(host, 360 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD[:1])
            reduce_beside(host, 120 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 3)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, "queued_ns")


def needed_at_once(rng: np.random.Generator) -> Setup:
    """Return a run that gathers each layer's input when the layer needs it, with no prefetching."""

    def step(host: Host) -> None:
        with host.range("forward"):
            for _ in range(3):
                host.operator(host.compute, "aten::linear", *kernels.FORWARD * 3)
                reduce_beside(host, 64 * _MIB)
                host.follow(host.compute, host.nccl)

    return _training(rng, step, "needed_at_once_ns")


def late_input(rng: np.random.Generator) -> Setup:
    """Return a run whose last bucket is ready only after the last compute."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            reduce_beside(host, 48 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 2)
            reduce_beside(host, 160 * _MIB)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, "late_input_ns")


def waiting(rng: np.random.Generator) -> Setup:
    """Return a run whose second rank has more compute, so that the first one waits for it."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * (2 + host.process))
            reduce_beside(host, 16 * _MIB)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, "needed_at_once_ns")


_PIPELINE_STREAM = 24
_THREE = Communicator(0x5EED_0000_0000_0010, "0", (0, 1, 2))
_TO_PEER = {
    peer: Communicator(0x5EED_0000_0000_0010 + peer, f"pp0{peer}", (0, peer)) for peer in (1, 2)
}
_ACTIVATIONS_BYTES = 256 << 20
_REDUCED_BYTES = 64 << 20


def nccl_serialization(rng: np.random.Generator) -> Setup:
    """Return a run whose first rank sends to two others on one stream.

    The sends are on communicators of two ranks each and could run at the same time; the second
    waits behind the first, and so does its receiver. The two gradient buckets wait on
    one communicator, whose order is NCCL's own.
    """

    def step(host: Host) -> None:
        pipeline = host.stream(_PIPELINE_STREAM)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD)
            if host.process == 0:
                for peer, pair in _TO_PEER.items():
                    size = _ACTIVATIONS_BYTES
                    host.send_recv("send", peer, pair, pipeline, size, after=host.compute)
            else:
                pair = _TO_PEER[host.process]
                host.send_recv("recv", 0, pair, pipeline, _ACTIVATIONS_BYTES)
            host.follow(host.compute, pipeline)
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.FORWARD)
            for _ in range(2):
                host.collective("all_reduce", _THREE, host.nccl, _REDUCED_BYTES, after=host.compute)
            host.operator(host.compute, "aten::mm", *kernels.FORWARD * 2)
            host.follow(host.compute, host.nccl)
        optimize(host)
        host.synchronize(host.compute)

    findings = partial(of_each_rank, "nccl-serialization", answers.nccl_serialization)
    return Setup(programs(rng, 8, step, processes=_THREE.processes), findings)


_OTHERS_OF_EXPOSED = ("launch-queue-stall", "overlap-slowdown", "pageable-copy")

SCENARIOS = {
    "training": Scenario(
        "Two ranks of DDP that lose time to communication, copies, and a full queue.",
        training,
        host_tables=HOST_TABLES - {schema.SAMPLES},
    ),
    "nccl-serialization": Scenario(
        "Sends to two peers wait behind each other on one stream.",
        nccl_serialization,
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
    ),
    "healthy": Scenario(
        "No problem: everything is hidden, the GPU is always busy.", healthy, only=()
    ),
    "marks": Scenario(
        "The same, with NVTX marks for each batch that arrives and each loss read.",
        partial(healthy, marks=True),
        only=(),
    ),
    "compute-stream-collective": Scenario(
        "Synchronous all-reduces on the compute stream, as torch 2.8 runs them.",
        compute_stream_collective,
        only=("exposed-communication",),
    ),
    "overlap-slowdown": Scenario(
        "Kernels take 1.5 times as long while NCCL runs beside them.",
        overlap_slowdown,
        only=("overlap-slowdown", "exposed-communication", "late-allreduce"),
    ),
    "small-collectives": Scenario(
        "Hundreds of all-reduces of 4 to 64 kB.",
        small_collectives,
        silent=("launch-queue-stall", "pageable-copy", "overlap-slowdown", "link-underused"),
    ),
    "late-allreduce": Scenario(
        "One gradient bucket, reduced after the backward.",
        late_all_reduce,
        silent=("launch-queue-stall", "pageable-copy", "overlap-slowdown", "small-collectives"),
        has_json_payloads=True,
    ),
    **{
        f"exposed-{name}": Scenario(
            summary, build, silent=_OTHERS_OF_EXPOSED, host_tables=HOST_TABLES
        )
        for name, summary, build in (
            (
                "late-launch",
                "All-reduces are launched long after their input is ready.",
                late_launch,
            ),
            (
                "queued",
                "A bucket waits behind another one while the backward could hide it.",
                queued,
            ),
            (
                "needed-at-once",
                "Each layer's input is gathered only when the layer needs it.",
                needed_at_once,
            ),
            ("late-input", "The last bucket is ready only after the backward.", late_input),
            ("waiting", "One rank has more work, and the other one waits for it.", waiting),
        )
    },
    "full-precision-matmul": Scenario(
        "Matrices are multiplied in FP32 without tensor cores.",
        full_precision,
        only=("full-precision-matmul",),
        host_tables=HOST_TABLES,
    ),
    "few-blocks": Scenario(
        "Norms of activations are computed by 4 blocks, on 108 multiprocessors.",
        few_blocks,
        only=("few-blocks", "late-allreduce"),
        host_tables=HOST_TABLES,
        is_sample=False,
    ),
    "unfused-kernels": Scenario(
        "Chains of kernels that are bound by memory, and an optimizer that is not fused.",
        unfused,
        only=("unfused-kernels",),
        host_tables=HOST_TABLES,
    ),
}
