"""Programs of host threads: calls of PyTorch and NCCL, as these libraries make them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from sample_traces.simulator import kernels, nsight_writer
from sample_traces.simulator.event_model import records
from sample_traces.simulator.event_model.actions import (
    Action,
    Arrive,
    Await,
    Busy,
    Call,
    CommunicationWork,
    Communicator,
    CopyWork,
    Entry,
    Event,
    KernelWork,
    Leaving,
    Mark,
    MemsetWork,
    Pop,
    Push,
    Record,
    Rendezvous,
    Sleep,
    Start,
    Stream,
    Wait,
)
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import (
    DEFAULT_DOMAIN,
    NCCL_DOMAIN,
    OS_CALL,
    PURPOSE,
    TRACEPROF_DOMAIN,
)
from traceprof import labels

_COPY_LATENCY_NS = 1_400
_MEMSET_BYTES_PER_NS = 1_000
_WORK_SPREAD = 0.01
_HOST_SPREAD = 0.15

COMPUTE, COPY, NCCL, SIDE = 7, 13, 20, 27  # stream ids

# torch's name of each operation to NCCL's function and the kernel.
_COLLECTIVES = {"all_reduce": ("ncclAllReduce", kernels.ALL_REDUCE)}
_SEND_RECV = {"send": "ncclSend", "recv": "ncclRecv"}


@dataclass(frozen=True, slots=True)
class Rates:
    """Achieved rates of the links of a machine; 1 byte per ns is 1 GB/s."""

    pinned: Fraction = Fraction(24)  # bytes per ns between pinned host memory and a device
    pageable: Fraction = Fraction(6)  # the same for pageable memory
    peer: Fraction = Fraction(270)  # between two devices, by a copy engine
    within: Fraction = Fraction(620)  # within a device, which reads and writes each byte
    nccl: Fraction = Fraction(235)  # bus bandwidth of NCCL's operations
    nccl_latency_ns: int = 12_000  # of an operation of any size


class Host:
    """Collects the actions of a process's main thread."""

    def __init__(
        self,
        process: int,
        rng: np.random.Generator,
        rates: Rates | None = None,
        *,
        is_grouped: bool = True,
        is_labelled: bool = True,
    ) -> None:
        """Begin an empty program.

        Args:
            process: its number.
            rng: for variations of durations.
            rates: of the machine's links.
            is_grouped: call NCCL between ncclGroupStart and ncclGroupEnd, as PyTorch does: then
                ncclGroupEnd launches, after the end of the operation's own range.
            is_labelled: put the ranges of `instrument` around communication.
        """
        self.process = process
        self.actions: list[Action] = []
        self._rng = rng
        self.rates = rates or Rates()
        self._is_grouped = is_grouped
        self._is_labelled = is_labelled
        self._num_in_group: dict[str, int] = defaultdict(int)
        self._start = float(rng.random())

    def stream(self, number: int) -> Stream:
        return Stream(self.process, self.process, number)

    @property
    def compute(self) -> Stream:
        return self.stream(COMPUTE)

    @property
    def nccl(self) -> Stream:
        """The stream of the process group of all ranks."""
        return self.stream(NCCL)

    def varied_start(self, spread_ns: int) -> int:
        return round(self._start * spread_ns)

    def varied(self, nominal_ns: int, spread: float) -> int:
        """Return a duration varied by up to a share; the same on every machine."""
        return round(nominal_ns * (1 - spread + 2 * spread * float(self._rng.random())))

    def busy(
        self,
        duration_ns: int,
        function: tuple[str, str] | None = None,
        *,
        spread: float = _HOST_SPREAD,
    ) -> None:
        """Let the host work, in a function and its library."""
        self.actions.append(Busy(self.varied(duration_ns, spread), function))

    def sleep(self, duration_ns: int, call: str, *, spread: float = _HOST_SPREAD) -> None:
        """Leave the CPU in a call of the operating system."""
        with self.range(call, OS_CALL):
            self.actions.append(Sleep(self.varied(duration_ns, spread)))

    def purpose(self, cause: str) -> AbstractContextManager[None]:
        """Give a purpose to the actions that the block adds: a metric of `gpu-idle`."""
        return self.range(cause, PURPOSE)

    def call(self, api: str, duration_ns: int) -> None:
        """Call an API that launches nothing."""
        self._call(api, duration_ns)

    @contextmanager
    def range(
        self, name: str, domain: int = TRACEPROF_DOMAIN, payload: dict[str, int] | None = None
    ) -> Iterator[None]:
        """Enclose the actions that the block adds in an NVTX range."""
        self.actions.append(Push(name, domain, payload))
        yield
        self.actions.append(Pop())

    def mark(self, name: str, domain: int = DEFAULT_DOMAIN) -> None:
        self.actions.append(Mark(name, domain))

    def launch(self, stream: Stream, *launched: Kernel, cost_ns: int = 4_300) -> None:
        """Launch kernels one after the other, by default as fast as PyTorch does."""
        for kernel in launched:
            self.busy(3_400)
            work = KernelWork(kernel, self.varied(kernel.duration_ns, _WORK_SPREAD))
            self._call("cudaLaunchKernel_v7000", cost_ns, (stream, work))

    def operator(self, stream: Stream, name: str, *launched: Kernel) -> None:
        """Launch kernels inside the range of an operator, as `emit_nvtx` writes it."""
        with self.range(name, DEFAULT_DOMAIN):
            self.launch(stream, *launched)

    def memset(self, stream: Stream, size: int) -> None:
        work = MemsetWork(size, _COPY_LATENCY_NS + size // _MEMSET_BYTES_PER_NS)
        self._call("cudaMemsetAsync_v3020", 5_200, (stream, work))

    def to_device(self, stream: Stream, size: int, *, pageable: bool = False) -> None:
        """Copy from the host; from pageable memory the call returns at the end of the copy."""
        facts = f"bytes={size} pinned={int(not pageable)} non_blocking={int(not pageable)}"
        with self.range(f"to h2d {facts}"):
            self.host_copy(1, stream, size, pageable=pageable)

    def to_host(self, stream: Stream, size: int, *, pageable: bool = False) -> None:
        """Copy to the host; to pageable memory the call returns at the end of the copy."""
        self.host_copy(2, stream, size, pageable=pageable)

    def host_copy(self, kind: int, stream: Stream, size: int, *, pageable: bool) -> None:
        """Copy from the host (kind 1) or to it (2), as in `MEMCPY.copyKind`."""
        host = nsight_writer.MEM_PAGEABLE if pageable else nsight_writer.MEM_PINNED
        ends = (host, nsight_writer.MEM_DEVICE) if kind == 1 else (nsight_writer.MEM_DEVICE, host)
        engine = f"{stream.device}:{'h2d' if kind == 1 else 'd2h'}"
        rate = self.rates.pageable if pageable else self.rates.pinned
        work = CopyWork(kind, size, _copy_ns(size, rate), engine, engine, *ends)
        self._call("cudaMemcpyAsync_v3020", 7_000, (stream, work), blocking=pageable)

    def copy_within(self, stream: Stream, size: int) -> None:
        device = nsight_writer.MEM_DEVICE
        work = CopyWork(8, size, _copy_ns(size, self.rates.within), None, None, device, device)
        self._call("cudaMemcpyAsync_v3020", 5_800, (stream, work))

    def item(self, stream: Stream) -> None:
        """Read a number, as `loss.item()` does: a blocking copy, and a wait for the stream."""
        with self.range("aten::item", DEFAULT_DOMAIN):
            self.to_host(stream, 4, pageable=True)
            self.synchronize(stream)

    def peer_copy(self, stream: Stream, size: int, source: int, destination: int) -> None:
        """Copy from device to device directly; the executing stream's device pushes or pulls."""
        work = CopyWork(
            kind=10,
            bytes=size,
            work_ns=_copy_ns(size, self.rates.peer),
            engine=f"{source}:d2h",
            link=f"{source}:{destination}",
            source_kind=nsight_writer.MEM_DEVICE,
            destination_kind=nsight_writer.MEM_DEVICE,
            source=source,
            destination=destination,
        )
        with self.range(f"to d2d bytes={size} non_blocking=1"):
            self._call("cudaMemcpyPeerAsync_v4000", 7_000, (stream, work))

    def peer_copy_through_host(self, stream: Stream, other: Stream, size: int) -> None:
        """Copy between devices without peer access: two legs, through the host.

        Nsight shows the kinds of memory of the whole copy on both legs: device. The driver sends
        large copies in pieces, whose legs overlap; here the second leg follows the first.

        Args:
            stream: of the first leg.
            other: of the second leg.
            size: in bytes.
        """
        legs = [
            CopyWork(
                kind=kind,
                bytes=size,
                work_ns=_copy_ns(size, self.rates.pinned),
                engine=f"{side.device}:{engine}",
                link=f"{side.device}:{engine}",
                source_kind=nsight_writer.MEM_DEVICE,
                destination_kind=nsight_writer.MEM_DEVICE,
            )
            for side, kind, engine in ((stream, 2, "d2h"), (other, 1, "h2d"))
        ]
        half, whole = Event(), Event()
        entries: tuple[tuple[Stream, Entry], ...] = (
            (stream, legs[0]), (stream, Record(half)), (other, Wait(half)), (other, legs[1]),
            (other, Record(whole)), (stream, Wait(whole)),
        )  # fmt: skip
        with self.range(f"to d2d bytes={size} non_blocking=1"):
            self._call("cudaMemcpyPeerAsync_v4000", 9_000, *entries)

    def record(self, stream: Stream) -> Event:
        event = Event()
        self._call("cudaEventRecord_v3020", 1_300, (stream, Record(event)))
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        self._call("cudaStreamWaitEvent_v3020", 1_500, (stream, Wait(event)))

    def follow(self, stream: Stream, other: Stream) -> None:
        """Make a stream wait for all work so far in another one."""
        self.wait(stream, self.record(other))

    def synchronize(self, until: Stream | Event) -> None:
        api = "cudaEventSynchronize_v3020"
        if isinstance(until, Stream):
            api = "cudaStreamSynchronize_v3020"
        self.actions.append(Call(api, 2_500, until=until))

    def collective(
        self,
        operation: str,
        communicator: Communicator,
        stream: Stream,
        size: int,
        *,
        after: Stream | None = None,
    ) -> None:
        """Start a collective as torch.distributed does.

        Args:
            operation: torch's name of it.
            communicator: of all participants.
            stream: of the kernel.
            size: in bytes, of one rank's tensor.
            after: another stream whose work so far it waits for, if any.
        """
        function, kernel = _COLLECTIVES[operation]
        num_ranks = len(communicator.processes)
        facts = f"{self._facts(size, communicator)} size={num_ranks}"
        payload = {records.REDUCTION: 0}
        with self._label(operation, facts, communicator):
            if after is not None:
                self.follow(stream, after)
            self._nccl(
                function,
                payload,
                stream,
                CommunicationWork(
                    kernel,
                    communicator,
                    communicator.processes,
                    self._transfer_ns(Fraction(2 * (num_ranks - 1) * size, num_ranks)),
                    size,
                ),
            )

    def send_recv(
        self,
        operation: str,
        peer: int,
        communicator: Communicator,
        stream: Stream,
        size: int,
        *,
        after: Stream | None = None,
    ) -> None:
        """Start `send` to a peer or `recv` from it, a rank."""
        key = "dst" if operation == "send" else "src"
        facts = f"{key}={peer} {self._facts(size, communicator)}"
        payload = {records.PEER: communicator.processes.index(peer)}
        members = (min(self.process, peer), max(self.process, peer))
        with self._label(operation, facts, communicator):
            if after is not None:
                self.follow(stream, after)
            work = CommunicationWork(
                kernels.SEND_RECV, communicator, members, self._transfer_ns(Fraction(size)), size
            )
            self._nccl(_SEND_RECV[operation], payload, stream, work)

    def _nccl(
        self, function: str, payload: dict[str, int], stream: Stream, work: CommunicationWork
    ) -> None:
        message = {records.COMMUNICATOR: work.communicator.id, records.SIZE: work.bytes}
        if self._is_grouped:
            with self.range("ncclGroupStart", NCCL_DOMAIN):
                pass
            with self.range(function, NCCL_DOMAIN, {**message, **payload}):
                pass
            launching = self.range("ncclGroupEnd", NCCL_DOMAIN)
        else:
            launching = self.range(function, NCCL_DOMAIN, {**message, **payload})
        with launching:
            self._call("cudaLaunchKernelExC_v11060", 8_500, (stream, work))

    def _facts(self, size: int, communicator: Communicator) -> str:
        return f"bytes={size} dtype=bfloat16 group={communicator.group}"

    def _label(
        self, operation: str, facts: str, communicator: Communicator
    ) -> AbstractContextManager[None]:
        number = self._num_in_group[communicator.group]
        self._num_in_group[communicator.group] += 1
        if not self._is_labelled:
            return nullcontext()
        return self.range(f"{operation} {facts} seq={number}")

    def _transfer_ns(self, size: Fraction) -> int:
        return self.rates.nccl_latency_ns + ceil(size / self.rates.nccl)

    def _call(
        self, api: str, cost_ns: int, *entries: tuple[Stream, Entry], blocking: bool = False
    ) -> None:
        cost = self.varied(cost_ns, _HOST_SPREAD)
        self.actions.append(Call(api, cost, entries, blocking=blocking))

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        with self.range(labels.step(number)):
            yield


class EvenHost(Host):
    """A process without random variations."""

    def varied(self, nominal_ns: int, spread: float) -> int:
        del spread
        return nominal_ns


def _copy_ns(size: int, rate: Fraction) -> int:
    return _COPY_LATENCY_NS + ceil(size / rate)


US = 1_000
_HOOK_NS, _CALL_NS, _COPY_BACK_NS = 5 * US, 20 * US, 30 * US


class CpuProgram:
    """Collects the actions of a process's main thread."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.actions: list[Action] = []
        self._num_in_group: dict[str, int] = defaultdict(int)

    def busy(self, duration_ns: int) -> None:
        """Do work outside of all ranges."""
        self.actions.append(Busy(duration_ns))

    def work(self, name: str, duration_ns: int) -> None:
        with self.range(name):
            self.busy(duration_ns)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Enclose the actions that the block adds in a range of `instrument`."""
        self.actions.append(Push(name, TRACEPROF_DOMAIN))
        yield
        self.actions.append(Pop())

    def gather(self, rendezvous: Rendezvous) -> None:
        """Wait for all members of a rendezvous without a range."""
        self.actions += [Arrive(rendezvous), Await((rendezvous, 0))]

    def all_reduce(self, leaving: Leaving, group: str, size: int) -> None:
        """Reduce a tensor and wait for it."""
        with self.range(self._label(leaving[0], group, size)):
            self.actions += [Arrive(leaving[0]), Await(leaving)]

    def backward(self, buckets: Sequence[tuple[int, Leaving]], group: str, size: int) -> None:
        """Compute gradients, reduce each bucket while computing goes on, and wait for all of them.

        Args:
            buckets: the time when each is ready, in ns since the backward began, and its operation.
            group: the name of the process group.
            size: of a bucket, in bytes.
        """
        with self.range(labels.BACKWARD):
            passed_ns = 0
            leavings: tuple[Leaving, ...] = ()
            for index, (ready_ns, leaving) in enumerate(buckets):
                self.busy(ready_ns - passed_ns)
                passed_ns = ready_ns + _HOOK_NS + _CALL_NS
                leavings += (leaving,)
                facts = f"index={index} bytes={size} dtype=float32"
                facts += f" last={int(index == len(buckets) - 1)}"
                reduced = tuple((rendezvous, later + US) for rendezvous, later in leavings)
                self._start(f"{labels.BUCKET} {facts}", reduced)
                self.busy(_HOOK_NS)
                text = self._label(leaving[0], group, size)
                self._start(text, leavings)
                with self.range(text):
                    self.actions.append(Arrive(leaving[0]))
                    self.busy(_CALL_NS)
            self.actions += [Await(leaving) for leaving in leavings]
            self.busy(_COPY_BACK_NS)

    def _start(self, name: str, until: tuple[Leaving, ...]) -> None:
        self.actions.append(Start(name, TRACEPROF_DOMAIN, until))

    def _label(self, rendezvous: Rendezvous, group: str, size: int) -> str:
        facts = {"bytes": size, "dtype": "float32", "group": group, "rank": self.process}
        facts |= {"size": rendezvous.num_members, "seq": self._num_in_group[group]}
        self._num_in_group[group] += 1
        return str(labels.Label("all_reduce", {name: str(fact) for name, fact in facts.items()}))
