"""Data-parallel training: a healthy run, and runs whose communication costs time."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from traceprof.simulate import kernels
from traceprof.simulate.event_model import answers, lost_time
from traceprof.simulate.event_model.actions import Communicator, Stream
from traceprof.simulate.event_model.program_writer import Host, Rates
from traceprof.simulate.kernels import Kernel
from traceprof.simulate.scenarios.setup import Setup, finding

if TYPE_CHECKING:
    import numpy as np

    from traceprof.simulate.event_model.actions import Event
    from traceprof.simulate.event_model.answers import Ranks
    from traceprof.simulate.scenarios.setup import Finding

COMPUTE, COPY, NCCL, SIDE = 7, 13, 20, 27  # stream ids
WORLD = Communicator(0x5EED_0000_0000_0001, "0", (0, 1))

_FORWARD = (kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN)
_BACKWARD = (
    kernels.INPUT_GRADIENT, kernels.WEIGHT_GRADIENT, kernels.ATTENTION_BACKWARD,
    kernels.WEIGHT_GRADIENT,
)  # fmt: skip
_AVERAGE = Kernel(
    "void at::native::vectorized_elementwise_kernel<4, at::native::LerpScalarFunctor<float>, "
    "std::array<char *, 3>>(int, T2, T3)",
    "aten::lerp_", 65536, 1, 128, 32, 0, 0, 160_000,
)  # fmt: skip
_MIB = 1 << 20
_SLOWED_STEPS = 6


def stream(host: Host, number: int) -> Stream:
    """Return a stream of the host's own device."""
    return Stream(host.process, host.process, number)


BATCH_MARK, LOSS_MARK = "batch is there", "loss is read"


def healthy(rng: np.random.Generator, *, marks: bool = False) -> Setup:
    """Return a run in which everything is hidden and the GPU is always busy.

    The host reads each loss a step late, so that its wait never makes the GPU wait; the running
    average of the weights, which does not need the gradients, hides the last bucket.

    Args:
        rng: for variations of durations.
        marks: whether each step's batch, and each loss that is read, gets a mark.
    """
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, copy, nccl = (stream(host, number) for number in (COMPUTE, COPY, NCCL))
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
                    host.operator(compute, "aten::linear", *_FORWARD * 2)
                with host.range("backward"):
                    for size in (100, 100, 100, 14):
                        host.operator(compute, "aten::mm", *_BACKWARD)
                        host.collective("all_reduce", WORLD, nccl, size * _MIB, after=compute)
                with host.range("optimizer"):
                    host.operator(compute, "aten::lerp_", _AVERAGE, _AVERAGE)
                    host.follow(compute, nccl)
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
    hosts = tuple(Host(rank, rng, Rates(nccl=Fraction(100))) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(_SLOWED_STEPS):
            with host.step(step):
                for reduces in (False, True):
                    host.to_device(compute, 2 * _MIB)
                    with host.range("forward"):
                        host.operator(compute, "aten::linear", *_FORWARD * 2)
                    with host.range("backward"):
                        host.operator(compute, "aten::mm", *_BACKWARD)
                        for size in (95, 95, 50):
                            host.operator(compute, "aten::mm", *_BACKWARD)
                            if reduces:
                                host.collective(
                                    "all_reduce", WORLD, nccl, size * _MIB, after=compute
                                )
                        # Activation checkpointing: the forward's kernels again.
                        host.operator(compute, "aten::linear", *_FORWARD)
                        host.follow(compute, nccl)
                with host.range("optimizer"):
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM, kernels.ADAM)
                host.synchronize(compute)
    return Setup(hosts, _slowed_down, slowdown=Fraction(3, 2))


def _slowed_down(ranks: Ranks) -> list[Finding]:
    return [
        finding("overlap-slowdown", rank, **answers.overlap_slowdown(operations, 2 * _SLOWED_STEPS))
        for rank, operations in enumerate(ranks.operations)
    ]


def compute_stream_collective(rng: np.random.Generator) -> Setup:
    """Return a run with synchronous all-reduces, which torch 2.8 runs on the compute stream."""
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute = stream(host, COMPUTE)
        for step in range(8):
            with host.step(step):
                host.to_device(compute, 2 * _MIB)
                with host.range("forward"):
                    for _ in range(4):
                        # Tensor parallelism: the layer's output is reduced before the next one.
                        host.operator(compute, "aten::linear", *_FORWARD)
                        host.collective("all_reduce", WORLD, compute, 32 * _MIB)
                with host.range("backward"):
                    for _ in range(4):
                        host.operator(compute, "aten::mm", *_BACKWARD)
                        host.collective("all_reduce", WORLD, compute, 32 * _MIB)
                with host.range("optimizer"):
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM)
    return Setup(hosts, partial(exposed_for, "same_stream_ns"))


def late_all_reduce(rng: np.random.Generator) -> Setup:
    """Return a run with one gradient bucket, which is reduced after the backward."""
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(6):
            with host.step(step):
                host.to_device(compute, 2 * _MIB)
                with host.range("forward"):
                    host.operator(compute, "aten::linear", *_FORWARD * 2)
                with host.range("backward"):
                    host.operator(compute, "aten::mm", *_BACKWARD * 4)
                    host.collective("all_reduce", WORLD, nccl, 320 * _MIB, after=compute)
                    host.follow(compute, nccl)
                with host.range("optimizer"):
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM, kernels.ADAM)
    return Setup(hosts, _late)


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
    hosts = tuple(Host(rank, rng, is_grouped=False) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(2):
            with host.step(step):
                host.to_device(compute, 2 * _MIB)
                with host.range("forward"):
                    host.operator(compute, "aten::linear", *_FORWARD * 2)
                with host.range("backward"):
                    host.operator(compute, "aten::mm", *_BACKWARD)
                    for number in range(100):
                        size = sizes[number % len(sizes)]
                        host.collective("all_reduce", WORLD, nccl, size, after=compute)
                    host.follow(compute, nccl)
                with host.range("optimizer"):
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM)
    return Setup(hosts, _small)


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
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        for step in range(6):
            with host.step(step):
                with host.range("forward"):
                    for _ in range(4):
                        host.operator(host.compute, "aten::linear", kernels.SGEMM[0])
                        host.operator(host.compute, "aten::gelu", kernels.GELU)
                with host.range("backward"):
                    for _ in range(4):
                        host.operator(host.compute, "aten::mm", *kernels.SGEMM)
                        host.collective(
                            "all_reduce", WORLD, host.nccl, 32 * _MIB, after=host.compute
                        )
                    host.operator(host.compute, "aten::mm", *kernels.SGEMM)
                    host.follow(host.compute, host.nccl)
                with host.range("optimizer"):
                    host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)
    return Setup(hosts, _in_full_precision)


def _in_full_precision(ranks: Ranks) -> list[Finding]:
    return [
        finding(
            "full-precision-matmul", rank, **lost_time.full_precision(operations, kernels.SGEMM)
        )
        for rank, operations in enumerate(ranks.operations)
    ]


def unfused(rng: np.random.Generator) -> Setup:
    """Return a run of chains of kernels that are bound by memory, and of an unfused optimizer."""
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(6):
            with host.step(step):
                with host.range("forward"):
                    for _ in range(4):
                        host.operator(compute, "aten::linear", kernels.UP)
                        host.operator(compute, "aten::native_layer_norm", *kernels.UNFUSED_NORM)
                with host.range("backward"):
                    for _ in range(4):
                        host.operator(compute, "aten::mm", *_BACKWARD)
                        host.collective("all_reduce", WORLD, nccl, 16 * _MIB, after=compute)
                    host.operator(compute, "aten::mm", *_BACKWARD)
                    host.follow(compute, nccl)
                with host.range("optimizer"):
                    for kernel in kernels.UNFUSED_ADAM:
                        host.operator(compute, kernel.operator, kernel)
    return Setup(hosts, _in_chains)


def _in_chains(ranks: Ranks) -> list[Finding]:
    chains = (kernels.UNFUSED_NORM, kernels.UNFUSED_ADAM)
    return [
        finding(
            "unfused-kernels", rank, **lost_time.unfused(operations, chains, kernels.UNFUSED_ADAM)
        )
        for rank, operations in enumerate(ranks.operations)
    ]


def exposed(ranks: Ranks) -> list[Finding]:
    """Return `exposed-communication` of every rank, without its reasons."""
    names = ("exposed_ns", "fraction", "overlap_efficiency")
    return [
        {**exposure, "metrics": {name: exposure["metrics"][name] for name in names}}
        for exposure in exposed_for("unknown_ns", ranks)
    ]


def exposed_for(reason: str, ranks: Ranks) -> list[Finding]:
    """Return `exposed-communication` of every rank, all of it waits or one reason."""
    return [
        finding(
            "exposed-communication", rank, **lost_time.exposed_communication(operations, reason)
        )
        for rank, operations in enumerate(ranks.operations)
    ]
