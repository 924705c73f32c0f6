"""Copies that cost time: pageable, exposed and through the host."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import CopyWork, Stream
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.program_writer import COMPUTE, COPY, Host, Rates
from sample_traces.simulator.machine import A100, RTX_3090, Board
from sample_traces.simulator.scenarios.setup import Finding, Scenario, Setup, finding
from sample_traces.simulator.scenarios.training import (
    WORLD,
    exposed_copies,
    optimize,
    programs,
    reduce_beside,
)

_MIB = 1 << 20


def pageable_copy(rng: np.random.Generator) -> Setup:
    """Return a run whose batches come from pageable memory: the host waits for each copy.

    The copy is on the compute stream, so that the host waits for the kernels before it, too, and
    has no lead afterwards.
    """

    def step(host: Host) -> None:
        host.to_device(host.compute, 16 * _MIB, pageable=True)
        _passes(host, 25 * _MIB)
        optimize(host)

    return Setup(programs(rng, 8, step), _pageable)


def _passes(host: Host, size: int, copied: Sequence[int] = ()) -> None:
    """Run a forward and a backward, amid which gradients of a size are reduced, then copied."""
    with host.range("forward"):
        host.operator(host.compute, "aten::linear", *kernels.FORWARD * 2)
    with host.range("backward"):
        host.operator(host.compute, "aten::mm", *kernels.FORWARD)
        reduce_beside(host, size)
        host.operator(host.compute, "aten::mm", *kernels.FORWARD)
        host.follow(host.compute, host.nccl)
        for part in copied:
            host.copy_within(host.compute, part)


def _pageable(ranks: Ranks) -> list[Finding]:
    findings = exposed_copies(ranks)
    for rank, (process, _) in enumerate(ranks.places):
        calls = [call for call in ranks.result.calls if call.thread.process == process]
        findings.append(finding("pageable-copy", rank, **answers.pageable_copies(calls)))
    return findings


def exposed_copy(rng: np.random.Generator) -> Setup:
    """Return a run with exposed copies: batches, gradients and a loss.

    Batches come from pinned memory, but on the compute stream. Gradients are not views of their
    buckets, so they are copied out of the buckets after the last one has been reduced.
    """

    def step(host: Host) -> None:
        host.to_device(host.compute, 24 * _MIB)
        _passes(host, 50 * _MIB, [size * _MIB for size in (96, 64, 64, 32, 8, 1)])
        with host.range("optimizer"):
            host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)
            host.memset(host.compute, 64 * _MIB)
        host.to_host(host.compute, 4 * _MIB)

    return Setup(programs(rng, 8, step), _exposed)


def _exposed(ranks: Ranks) -> list[Finding]:
    findings = exposed_copies(ranks)
    for copied in findings:
        # The only copies within a device in this model are gradients.
        copied["metrics"]["gradient_ns"] = copied["metrics"]["d2d_ns"]
    return findings


def peer_copies(rng: np.random.Generator) -> Setup:
    """Return a process that sends activations from one of its GPUs to the other over NVLink."""
    return _two_devices(rng, A100, through_host=False)


def peer_copy_through_host(rng: np.random.Generator) -> Setup:
    """Return the same run without peer access: the driver copies through the host."""
    return _two_devices(rng, RTX_3090, through_host=True)


def _two_devices(rng: np.random.Generator, board: Board, *, through_host: bool) -> Setup:
    """Return a model split over two GPUs of one process, with four micro-batches a step."""
    host = Host(0, rng)
    first, second = Stream(0, 0, COMPUTE), Stream(0, 1, COMPUTE + 8)
    outward, back = Stream(0, 0, COPY), Stream(0, 1, COPY + 8)
    # A staged copy's second leg runs on the other device.
    landing = {outward: Stream(0, 1, COPY + 9), back: Stream(0, 0, COPY + 1)}

    def copy(by: Stream, size: int) -> None:
        if through_host:
            host.peer_copy_through_host(by, landing[by], size)
        else:
            host.peer_copy(by, size, by.device, 1 - by.device)

    for step in range(5):
        with host.step(step):
            for _ in range(4):
                host.operator(first, "aten::linear", *kernels.FORWARD)
                host.follow(outward, first)
                copy(outward, 32 * _MIB)
                host.follow(second, outward)
                host.operator(second, "aten::linear", *kernels.FORWARD)
            host.follow(back, second)
            copy(back, 32 * _MIB)
            host.follow(first, back)
            host.operator(first, "aten::mm", *kernels.FORWARD)
            host.synchronize(first)
    findings = sent_through_host if through_host else lambda _: []
    return Setup((host,), findings, devices=((0, 1),), board=board)


def sent_through_host(ranks: Ranks) -> list[Finding]:
    """Return for each source the bytes that it sent, and the time in which a leg was running.

    Both legs of a copy belong to one call; the first, to the host, shows the source.
    """
    findings = []
    for rank, (_, device) in enumerate(ranks.places):
        first = [
            operation
            for operation in ranks.operations[rank]
            if isinstance(operation.work, CopyWork) and operation.work.kind == 2
        ]
        if not first:
            continue
        calls = {operation.call for operation in first}
        legs = [operation for operation in ranks.result.operations if operation.call in calls]
        spans = answers.union((leg.start_ns, leg.end_ns) for leg in legs)
        size = sum(
            operation.work.bytes for operation in first if isinstance(operation.work, CopyWork)
        )
        metrics = {
            "bytes": size,
            "gb_per_s": size / sum(end - start for start, end in spans),
            "model_source_device": device,
        }
        findings.append(finding("peer-copy-through-host", rank, **metrics))
    return findings


def p2p_slower_than_copy(rng: np.random.Generator) -> Setup:
    """Return two ranks whose NCCL sends take 2.8 times as long as copies on the same path.

    The rates are those of two GPUs without NVLink between them (seed 001: 2.5 and 6.9 GB/s). Half
    of the activations go by NCCL, the other half by a copy engine into memory opened through IPC.
    """
    rates = Rates(nccl=Fraction(5, 2), peer=Fraction(69, 10))
    size = 16 * _MIB

    def step(host: Host) -> None:
        copy = host.stream(COPY)
        if host.process == 0:
            host.operator(host.compute, "aten::linear", *kernels.FORWARD * 4)
            host.send_recv("send", 1, WORLD, host.nccl, size, after=host.compute)
            host.follow(copy, host.nccl)
            host.peer_copy(copy, size, 0, 1)
            host.follow(host.compute, copy)
        else:
            host.send_recv("recv", 0, WORLD, host.nccl, size)
            host.follow(host.compute, host.nccl)
        host.operator(host.compute, "aten::mm", *kernels.FORWARD * 4)
        host.collective("all_reduce", WORLD, host.compute, 4096)

    return Setup(programs(rng, 6, step, rates), _slower, board=RTX_3090)


def _slower(ranks: Ranks) -> list[Finding]:
    sends = [
        operation
        for operation in ranks.operations[0]
        if answers.class_of(operation) == "communication"
        and not isinstance(operation.work, CopyWork)
        and answers.communication(operation).kernel == kernels.SEND_RECV
    ]
    sent = sum(answers.communication(send).bytes for send in sends)
    nccl = sent / sum(send.end_ns - send.last_arrival_ns for send in sends)
    (link,) = [row for row in answers.links(ranks) if row["direction"] == "p2p"]
    metrics = {"nccl_gb_per_s": nccl, "copy_gb_per_s": link["gb_per_s"]}
    ratio = link["gb_per_s"] / nccl
    return [finding("nccl-p2p-slower-than-copy", 0, **metrics, ratio=ratio)]


SCENARIOS = {
    "pageable-copy": Scenario(
        "Batches come from pageable memory, so that host and GPU wait.",
        pageable_copy,
        silent=("launch-queue-stall", "overlap-slowdown", "nccl-serialization"),
    ),
    "exposed-copy": Scenario(
        "Batches on the compute stream, and gradients copied out of their buckets.",
        exposed_copy,
        only=("exposed-copy", "exposed-communication", "late-allreduce", "gpu-idle"),
    ),
    "peer-copy-through-host": Scenario(
        "Copies from device to device go through the host.",
        peer_copy_through_host,
        silent=("pageable-copy", "launch-queue-stall", "nccl-p2p-slower-than-copy"),
    ),
    "peer-copies": Scenario(
        "Copies from device to device go straight over NVLink.",
        peer_copies,
        silent=("peer-copy-through-host", "pageable-copy", "nccl-p2p-slower-than-copy"),
    ),
    "p2p-slower-than-copy": Scenario(
        "NCCL sends at 2.5 GB/s where a copy engine reaches 6.9.",
        p2p_slower_than_copy,
        silent=("peer-copy-through-host", "pageable-copy", "overlap-slowdown"),
    ),
}
