"""The calls of every rank in one training step of DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from sample_traces.simulator import kernels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sample_traces.simulator.kernels import Kernel
    from traceprof.intervals import Int64

# Fewer do not suffice for all phases and two gradient buckets.
MIN_KERNELS_PER_STEP = 20

_BUCKET_BYTES = 25 << 20  # DDP's bucket_cap_mb
_LAST_BUCKET_BYTES = 14 << 20  # the rest of the model
_KERNELS_PER_BUCKET = 13
_MAX_BUCKETS = 24

_BATCH_BYTES = (2 << 20, 64 << 10)  # inputs and labels
_LOSS_BYTES = 4
_WORKSPACE_BYTES = 1 << 20
_COPY_LATENCY_NS = 1_400
_PCIE_BYTES_PER_NS = 24  # 24 GB/s of PCIe 4.0 x16
_MEMSET_BYTES_PER_NS = 1_000
_ALL_REDUCE_LATENCY_NS = 9_000
_ALL_REDUCE_LATENCY_PER_PEER_NS = 3_000
_BUS_BYTES_PER_NS = 150  # 150 GB/s busbw over NVLink at DDP's message sizes


class CallKind(IntEnum):
    """The kind of an API call of the host."""

    KERNEL = 0
    ALL_REDUCE = 1
    COPY_TO_DEVICE = 2
    COPY_TO_HOST = 3
    MEMSET = 4
    RECORD_EVENT = 5
    WAIT_EVENT = 6
    SYNCHRONIZE = 7


class Phase(IntEnum):
    """A part of the step; PyTorch's autograd thread makes the calls of the backward."""

    LOAD = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    READ_LOSS = 4


@dataclass(frozen=True)
class Program:
    """The API calls of one step in their order, which is the same on every rank.

    Attributes:
        call: int64[calls], of `CallKind`.
        phase: int64[calls], of `Phase`.
        kernel: int64[calls], index into `kernels.KERNELS`; -1 if no kernel is launched.
        size_bytes: int64[calls], of copies, memory sets and all-reduces, else 0.
        work_ns: int64[calls], nominal time on the GPU; of an all-reduce, once all ranks are in it.
    """

    call: Int64
    phase: Int64
    kernel: Int64
    size_bytes: Int64
    work_ns: Int64

    def __len__(self) -> int:
        return len(self.call)

    def where(self, *calls: CallKind) -> Int64:
        """Return the positions of these calls, ascending."""
        return np.flatnonzero(np.isin(self.call, calls))

    @cached_property
    def computes(self) -> Int64:
        """Positions of the compute kernels."""
        return self.where(CallKind.KERNEL)

    @cached_property
    def all_reduces(self) -> Int64:
        """Positions of the all-reduces."""
        return self.where(CallKind.ALL_REDUCE)

    @cached_property
    def copies(self) -> Int64:
        """Positions of memory copies and memory sets."""
        return self.where(CallKind.COPY_TO_DEVICE, CallKind.COPY_TO_HOST, CallKind.MEMSET)

    @cached_property
    def compute_stream(self) -> Int64:
        """Positions of all operations on the compute stream: kernels, copies and memory sets."""
        return np.sort(np.concatenate((self.computes, self.copies)))


@dataclass(frozen=True, slots=True)
class _Entry:
    call: CallKind
    phase: Phase
    kernel: int = -1
    size_bytes: int = 0
    work_ns: int = 0


def ddp_program(num_kernels: int, num_ranks: int, *, is_first_step: bool) -> Program:
    """Return the calls of a step with exactly `num_kernels` kernels, all-reduces among them.

    In the first step DDP reduces the whole model as one bucket, because it does not know the order
    of gradients yet; Adam creates its state, with as many additional kernels.
    """
    buckets = _buckets(num_kernels)
    num_computes = num_kernels - len(buckets)
    num_forward = num_computes * 3 // 10
    num_optimizer = max(2, num_computes // 24)
    fills: Sequence[Kernel] = ()
    if is_first_step:
        fills = [kernels.STATE_FILL] * (len(buckets) - 1)
        buckets = [sum(buckets)]
    forward = _sequence((), kernels.FORWARD_LAYER, kernels.FORWARD_END, num_forward)
    backward = _sequence(
        kernels.BACKWARD_START,
        kernels.BACKWARD_LAYER,
        (),
        num_computes - num_forward - num_optimizer,
    )
    optimizer = _sequence((kernels.GRADIENT_NORM,), (kernels.ADAM,), (), num_optimizer)
    entries = [
        *(_copy(CallKind.COPY_TO_DEVICE, Phase.LOAD, size) for size in _BATCH_BYTES),
        _memset(Phase.FORWARD, _LOSS_BYTES),
        *_launches(Phase.FORWARD, forward),
        *_backward(backward, buckets, num_ranks),
        _memset(Phase.OPTIMIZER, _LOSS_BYTES),
        *_launches(Phase.OPTIMIZER, [*fills, *optimizer]),
        _copy(CallKind.COPY_TO_HOST, Phase.READ_LOSS, _LOSS_BYTES),
        _Entry(CallKind.SYNCHRONIZE, Phase.READ_LOSS),
    ]
    return Program(
        *(
            np.array([getattr(entry, name) for entry in entries], np.int64)
            for name in ("call", "phase", "kernel", "size_bytes", "work_ns")
        )
    )


def _buckets(num_kernels: int) -> list[int]:
    """Return the bytes of the gradient buckets, in the order in which they become ready."""
    count = min(max(num_kernels // _KERNELS_PER_BUCKET, 2), _MAX_BUCKETS)
    return [_BUCKET_BYTES] * (count - 1) + [_LAST_BUCKET_BYTES]


def _sequence(
    first: Sequence[Kernel], layer: Sequence[Kernel], last: Sequence[Kernel], count: int
) -> list[Kernel]:
    """Return `count` kernels: the first and the last ones, and repeated layers between them."""
    return [*first, *islice(cycle(layer), count - len(first) - len(last)), *last]


def _launches(phase: Phase, launched: Iterable[Kernel]) -> Iterable[_Entry]:
    for kernel in launched:
        number = kernels.KERNELS.index(kernel)
        yield _Entry(CallKind.KERNEL, phase, kernel=number, work_ns=kernel.duration_ns)


def _backward(
    launched: Sequence[Kernel], buckets: Sequence[int], num_ranks: int
) -> Iterable[_Entry]:
    """Yield the backward: buckets become ready after equal shares of its kernels."""
    share = len(launched) / len(buckets)
    begin = 0
    for number, size in enumerate(buckets):
        end = round((number + 1) * share)
        if number == len(buckets) // 2:
            yield _memset(Phase.BACKWARD, _WORKSPACE_BYTES)
        yield from _launches(Phase.BACKWARD, launched[begin:end])
        # NCCL's stream waits for the preceding kernels.
        yield _Entry(CallKind.RECORD_EVENT, Phase.BACKWARD)
        yield _Entry(CallKind.WAIT_EVENT, Phase.BACKWARD)
        yield _all_reduce(size, num_ranks)
        begin = end
    # The compute stream waits for NCCL's.
    yield _Entry(CallKind.RECORD_EVENT, Phase.BACKWARD)
    yield _Entry(CallKind.WAIT_EVENT, Phase.BACKWARD)


def _all_reduce(size: int, num_ranks: int) -> _Entry:
    """Return a ring all-reduce: a latency, and 2(n-1)/n times its bytes over the bus."""
    peers = num_ranks - 1
    latency = _ALL_REDUCE_LATENCY_NS + _ALL_REDUCE_LATENCY_PER_PEER_NS * peers
    transfer = 2 * peers * size // (num_ranks * _BUS_BYTES_PER_NS)
    number = kernels.KERNELS.index(kernels.ALL_REDUCE)
    return _Entry(CallKind.ALL_REDUCE, Phase.BACKWARD, number, size, latency + transfer)


def _copy(call: CallKind, phase: Phase, size: int) -> _Entry:
    work = _COPY_LATENCY_NS + size // _PCIE_BYTES_PER_NS
    return _Entry(call, phase, size_bytes=size, work_ns=work)


def _memset(phase: Phase, size: int) -> _Entry:
    work = _COPY_LATENCY_NS + size // _MEMSET_BYTES_PER_NS
    return _Entry(CallKind.MEMSET, phase, size_bytes=size, work_ns=work)
