"""A second simulator: hosts, streams and links as processes that wait for signals.

Written from the description of the hardware, without a look at `sample_traces/simulator` or
`traceprof/replay`, so that an error in one is none in the other. Everything that takes time is a
Python generator: a host thread, a stream, an operation on it. It yields how many ns it needs, or
the `Signal` that it waits for; `Machine.run` goes from one moment to the next.

* A thread's call takes its time; a launch waits for room where `queue_limit` operations of the
  device are not over yet; synchronizing calls and copies of pageable memory block.
* A stream runs its entries in order. An operation starts `LATENCY` after its launch, `TURNAROUND`
  after the one before it, and, if it is a copy, when the engine of its direction is free.
* An event is over when all before it on its stream is; a stream that waits for one stands still.
* The kernel of a collective starts on each rank by itself; data move once all are there, and all
  end together. Compute on a device with such a kernel runs `slowdown` times as long.
* A queue between two threads holds a number of batches; `get` and `put` put the thread to sleep.

All chance is drawn by host threads in the order of their program: a changed machine meets the same.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias

from sample_traces.simulator import nsight_writer
from sample_traces.simulator.nsight_writer import NsightWriter
from tests.support.builders import add_rows, global_pid, global_tid
from traceprof import labels
from traceprof.trace.nsight import schema

LATENCY, TURNAROUND, EVENT, ENGINE = 4_200, 1_300, 1_400, 900
MS, US = 1_000_000, 1_000


class Signal:
    """Something that happens once; who waits for it goes on then."""

    def __init__(self) -> None:
        self.is_set = False
        self.waiting: list[Callable[[], None]] = []

    def set(self) -> None:
        """Let it have happened."""
        self.is_set = True
        waiting, self.waiting = self.waiting, []
        for resume in waiting:
            resume()


Wanted: TypeAlias = "float | Signal | tuple[float, Signal]"
Steps: TypeAlias = "Generator[Wanted, None, None]"
Row: TypeAlias = "dict[str, int | str]"


@dataclass(frozen=True)
class Change:
    """What is otherwise: factors of times, and what is left out."""

    # factors of kernels' times, by a part of their names
    kernels: dict[str, float] = field(default_factory=dict)
    link: float = 1.0  # factor of transfers; 0.5 is a link twice as fast
    launch: float = 1.0  # factor of launch calls and of the thread's short pieces of work
    copies: float = 1.0  # factor of copies
    waits: bool = True  # whether the host waits for the GPU
    slowdown: bool = True  # whether communication slows compute down
    loading: bool = True  # whether batches have to be waited for
    late: bool = True  # whether the straggler is one
    limit: bool = True  # whether the launch queue has one
    one_stream: bool = True  # whether communicators share a stream
    reads_gradients: bool = True  # whether the optimizer waits for reductions
    equal: bool = False  # whether all stages of a pipeline have as many layers


class Machine:
    """The clock, the rows that a profiler writes, and when steps began.

    Attributes:
        now: the time, in ns.
        slowdown: how many times as long compute takes beside communication.
        queue_limit: how many operations of a device may be launched and not over.
        is_labelled: whether ranges of `instrument` say what is communicated.
        step_starts: when the first operation began that a step's own thread launched, per process
            and step.
    """

    def __init__(
        self, change: Change, *, slowdown: float = 1.0, queue_limit: int = 1024,
        is_labelled: bool = True,
    ) -> None:  # fmt: skip
        self.now = 0.0
        self.change = change
        self.slowdown = slowdown if change.slowdown else 1.0
        self.queue_limit = queue_limit if change.limit else 1 << 40
        self.rows: dict[str, list[Row]] = defaultdict(list)
        self.is_labelled = is_labelled
        self.step_starts: dict[int, dict[int, float]] = defaultdict(dict)
        self._meetings: dict[tuple[str, int], list[Signal]] = defaultdict(list)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def start(self, process: Steps) -> None:
        self._at(self.now, lambda: self._go_on(process))

    def run(self) -> Machine:
        while self._agenda:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        return self

    def meet(self, group: str, number: int, size: int) -> Steps:
        """Wait until `size` have come to a meeting."""
        here = self._meetings[group, number]
        here.append(Signal())
        if len(here) == size:
            for signal in here:
                signal.set()
        yield here[-1] if len(here) < size else 0.0

    def step_ns(self, first: int, last: int) -> float:
        """Return the mean of the steps from `first` to `last`.

        A step lasts from when all ranks have begun it to when all have begun the next one.
        """
        begun = [max(starts[n] for starts in self.step_starts.values()) for n in (first, last + 1)]
        return (begun[1] - begun[0]) / (last + 1 - first)

    def write(self, path: Path) -> Path:
        """Write an export of what happened, or `t.sqlite` in a folder."""
        path = path / "t.sqlite" if path.is_dir() else path
        with NsightWriter(path) as writer:
            for table, rows in self.rows.items():
                add_rows(writer, table, rows)
        return path

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, next(self._order), action))

    def _go_on(self, process: Steps) -> None:
        wanted = next(process, None)
        if wanted is None:
            return
        is_over = False

        def once() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._go_on(process)

        for reason in wanted if isinstance(wanted, tuple) else (wanted,):
            if not isinstance(reason, Signal):
                self._at(self.now + max(reason, 0.0), once)
            elif reason.is_set:
                self._at(self.now, once)
            else:
                reason.waiting.append(once)


class Device:
    """A GPU: what is pending on it, and whether it communicates."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.pid, self.number = machine, 1000 + number, number
        self.num_pending = 0
        self.num_communicating = 0
        self.changed = Signal()
        self.engines: dict[str, Signal] = {}
        self._streams: dict[int, Stream] = {}
        board: Row = {"vmId": nsight_writer.VM_ID, "id": number, "name": "NVIDIA A100-SXM4-40GB"}
        machine.rows[schema.GPU_INFO].append(board)
        known: Row = {"gpuId": number, "cudaId": number, "pid": self.pid}
        machine.rows[schema.CUDA_DEVICES].append(known)

    def stream(self, number: int) -> Stream:
        if number not in self._streams:
            self._streams[number] = Stream(self, number)
        return self._streams[number]

    def change(self, *, pending: int = 0, communicating: int = 0) -> None:
        """Count what is pending and communicates; who depends on it looks again."""
        self.num_pending += pending
        self.num_communicating += communicating
        before, self.changed = self.changed, Signal()
        before.set()

    def compute(self, ns: float) -> Steps:
        """Compute for `ns`, or longer beside communication."""
        machine = self.machine
        while ns > 0.5:
            slower = machine.slowdown if self.num_communicating else 1.0
            began = machine.now
            yield ns * slower, self.changed
            ns -= (machine.now - began) / slower


class Stream:
    """Entries that run in order."""

    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number
        self.last = Signal()
        self.last.set()
        self.ready_ns = 0.0
        self._entries: deque[Steps] = deque()
        self._came = Signal()
        device.machine.start(self._work())

    def push(self, entry: Steps) -> Signal:
        """Add an entry; the signal is that it is over."""
        over = self.last = Signal()

        def tracked() -> Steps:
            yield from entry
            over.set()

        self._entries.append(tracked())
        self._came.set()
        return over

    def wait(self, event: Signal) -> Steps:
        """Stand still until an event is over."""
        if not event.is_set:
            yield event
            self.ready_ns = max(self.ready_ns, self.device.machine.now + EVENT)

    def _work(self) -> Steps:
        while True:
            while not self._entries:
                self._came = Signal()
                yield self._came
            yield from self._entries.popleft()


class Batches:
    """A queue of batches between two threads."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.events: deque[Signal | None] = deque()
        self.changed = Signal()

    def put(self, event: Signal | None = None) -> None:
        """Add a batch, which is there once the event is over."""
        self.events.append(event)
        self._tell()

    def get(self) -> Signal | None:
        """Take the oldest batch."""
        event = self.events.popleft()
        self._tell()
        return event

    def _tell(self) -> None:
        before, self.changed = self.changed, Signal()
        before.set()


@dataclass(frozen=True)
class Kernel:
    """What a kernel is called and how long it takes alone, in ns."""

    name: str
    ns: float
    grid: int = 108


class Thread:
    """A host thread of a rank's process, which makes calls: all but `step` by `yield from`.

    Attributes:
        device: what it launches to.
        pace_ns: what a launch takes: half of it in the call, half before it.
    """

    def __init__(
        self, device: Device, seed: int, *, tid: int = 0, pid: int = 0, pace_ns: float = 8_000
    ) -> None:
        self.device, self.machine = device, device.machine
        self.tid = global_tid(device.pid + pid, device.pid + pid + tid)
        self.pace_ns = pace_ns
        self._step: int | None = None
        self._has_domain = False
        self._rng = random.Random(f"{seed} {device.pid} {tid}")
        self._correlations = count(tid * 1_000_000 + 1)
        self._meetings: defaultdict[str, count[int]] = defaultdict(count)
        name: Row = {"nameId": "python", "globalTid": self.tid}
        self.machine.rows[schema.THREAD_NAMES].append(name)
        self._switch(is_in=True)

    def chance(self) -> float:
        return self._rng.random()

    def step(self, number: int, process: Steps) -> Steps:
        """Run a step, marked by a range."""
        self._step = number
        yield from self.named(f"step {number}", process)

    def named(self, text: str, process: Steps) -> Steps:
        """Do something, marked by a range."""
        began = self.machine.now
        yield from process
        self._range(text, began)

    def work(self, ns: float) -> Steps:
        """Run code of the host."""
        factor = self.machine.change.launch if ns < MS / 2 else 1.0
        yield self._noisy(ns, 0.1) * factor

    def sleep(self, ns: float) -> Steps:
        self._switch(is_in=False)
        yield self._noisy(ns, 0.05)
        self._switch(is_in=True)

    def load(self, ns: float) -> Steps:
        """Sleep until the next batch is there."""
        if self.machine.change.loading:
            yield from self.sleep(ns)
        else:
            self._noisy(ns, 0.05)

    def put(self, batches: Batches, event: Signal | None = None) -> Steps:
        """Add a batch, once there is room."""
        yield from self._asleep(batches, lambda: len(batches.events) >= batches.depth)
        batches.put(event)

    def get(self, batches: Batches, *, is_loader: bool = False) -> Steps:
        """Wait until a batch is there; `batches.get` takes it."""
        if self.machine.change.loading or is_loader:
            yield from self._asleep(batches, lambda: not batches.events)

    def launch(self, stream: Stream, *kernels: Kernel) -> Steps:
        """Launch kernels one after the other."""
        for kernel in kernels:
            yield from self.work(self.pace_ns / 2)
            ns = self._noisy(kernel.ns, 0.01)
            for part, factor in self.machine.change.kernels.items():
                ns *= factor if part in kernel.name else 1.0
            row = _kernel_row(kernel)
            yield from self._submit(stream, "cudaLaunchKernel_v7000", schema.KERNEL.name, row,
                                    self.device.compute(ns))  # fmt: skip

    def collective(
        self,
        stream: Stream,
        group: str,
        size: int,
        ns: float,
        *,
        latency_ns: float = 0.0,
        sends: tuple[int, int] | None = None,
    ) -> Steps:
        """Launch this rank's part of a group's next operation, whose data move in `ns`, or later.

        Where it `sends` from one rank to another, these two meet, else all of the group.
        """
        yield from self.work(self.pace_ns * 0.9)
        rank, key = self.device.number, f"{group} {sends}"
        number = next(self._meetings[key])
        num_bytes = round(ns) * 20  # at 20 GB/s
        ns *= self.machine.change.link * (1 + 0.02 * random.Random(f"{key} {number}").gauss(0, 1))
        leaving_ns = latency_ns + self._rng.uniform(0, 600)
        kind, call = "AllReduce_Sum_f16_RING_LL", "all_reduce"
        if sends is not None:
            kind, call = "SendRecv", f"recv src={sends[0]}"
            call = f"send dst={sends[1]}" if sends[0] == rank else call
        row = _kernel_row(Kernel(f"ncclDevKernel_{kind}(ncclDevKernelArgsStorage<4096ul>)", ns, 24))

        def transfer() -> Steps:
            self.device.change(communicating=1)
            yield from self.machine.meet(key, number, 2 if sends else size)
            yield ns + leaving_ns
            self.device.change(communicating=-1)

        began, api = self.machine.now, "cudaLaunchKernelExC_v11060"
        yield from self._submit(stream, api, schema.KERNEL.name, row, transfer())
        if self.machine.is_labelled:
            facts = f"bytes={num_bytes} dtype=float16 group={group} rank={rank} size={size}"
            self._range(f"{call} {facts} seq={number}", began - US, labels.DOMAIN)

    def copy(
        self, stream: Stream, kind: str, size: int, ns: float, *, pageable: bool = False
    ) -> Steps:
        """Copy; the thread waits for the end where memory is pageable."""
        yield from self.work(self.pace_ns / 2)
        host = nsight_writer.MEM_PAGEABLE if pageable else nsight_writer.MEM_PINNED
        row: Row = {"bytes": size, "copyKind": {"HtoD": 1, "DtoH": 2, "DtoD": 8}[kind]}
        row["srcKind"] = host if kind.startswith("H") else nsight_writer.MEM_DEVICE
        row["dstKind"] = host if kind.endswith("H") else nsight_writer.MEM_DEVICE
        ns = self._noisy(ns, 0.02) * self.machine.change.copies

        def move() -> Steps:
            yield ns

        yield from self._submit(stream, "cudaMemcpyAsync_v3020", schema.MEMCPY.name, row, move(),
                                engine=kind, blocks=pageable)  # fmt: skip

    def record(self, stream: Stream, event: int) -> Generator[Wanted, None, Signal]:
        """Record an event; returned is that it is over."""
        yield from self.work(800)
        began, correlation = self.machine.now, next(self._correlations)
        over = stream.push(iter_nothing())
        yield 900 * self.machine.change.launch
        self._call("cudaEventRecord_v3020", began, correlation)
        row: Row = {"streamId": stream.number, "eventId": event, "correlationId": correlation}
        self._gpu_row(schema.EVENT_RECORD.name, row)
        return over

    def wait(self, stream: Stream, event: int, over: Signal) -> Steps:
        """Have a stream wait for a recorded event."""
        yield from self.work(800)
        began, correlation = self.machine.now, next(self._correlations)
        stream.push(stream.wait(over))
        yield 900 * self.machine.change.launch
        self._call("cudaStreamWaitEvent_v3020", began, correlation)
        kind = nsight_writer.SYNC_STREAM_WAIT_EVENT
        self._synchronization(kind, began, correlation, stream.number, event)

    def follow(self, later: Stream, earlier: Stream, event: int) -> Steps:
        """Have what comes on a stream wait for what was launched to another one."""
        over = yield from self.record(earlier, event)
        yield from self.wait(later, event, over)

    def synchronize(self, stream: Stream) -> Steps:
        """Wait until all is over on a stream."""
        yield from self.work(1_000)
        began, correlation = self.machine.now, next(self._correlations)
        yield 1_200.0
        if self.machine.change.waits and not stream.last.is_set:
            yield stream.last
            yield 4_000.0
        self._call("cudaStreamSynchronize_v3020", began, correlation)
        self._synchronization(
            nsight_writer.SYNC_STREAM, began, correlation, stream.number, schema.NO_ID
        )

    def item(self, stream: Stream) -> Steps:
        """Read one number of the device, as `.item()` does."""
        yield from self.copy(stream, "DtoH", 4, 1_500, pageable=True)
        yield from self.synchronize(stream)

    def _submit(
        self, stream: Stream, api: str, table: str, row: Row, body: Steps, *, engine: str = "",
        blocks: bool = False,
    ) -> Steps:  # fmt: skip
        machine, device = self.machine, self.device
        began, correlation, step = machine.now, next(self._correlations), self._step
        call_ns = self._noisy(self.pace_ns / 2, 0.1) * machine.change.launch
        yield call_ns * 0.7
        if device.num_pending >= machine.queue_limit:
            full = machine.now
            while device.num_pending >= machine.queue_limit:
                yield device.changed
            self._full_queue(full, correlation)
        device.change(pending=1)
        launched = machine.now

        def entry() -> Steps:
            start = max(launched + LATENCY, stream.ready_ns)
            yield start - machine.now
            turn, before = Signal(), device.engines.get(engine)
            if engine:
                device.engines[engine] = turn
                if before is not None and not before.is_set:
                    yield before
                    yield float(ENGINE)
            start = machine.now
            if step is not None:
                machine.step_starts[device.pid].setdefault(step, start)
            yield from body
            stream.ready_ns = machine.now + TURNAROUND
            turn.set()
            device.change(pending=-1)
            times: Row = {"start": round(start), "end": round(machine.now)}
            where: Row = {"streamId": stream.number, "correlationId": correlation}
            self._gpu_row(table, {**times, **where, **row})

        over = stream.push(entry())
        yield call_ns * 0.3
        if blocks and machine.change.waits:
            yield over
            yield 2_500.0
        self._call(api, began, correlation)

    def _asleep(self, batches: Batches, is_waiting: Callable[[], bool]) -> Steps:
        if is_waiting():
            self._switch(is_in=False)
            while is_waiting():
                yield batches.changed
            yield 3_000.0
            self._switch(is_in=True)

    def _noisy(self, ns: float, spread: float) -> float:
        return ns * max(0.2, 1 + spread * self._rng.gauss(0, 1))

    def _call(self, name: str, began: float, correlation: int) -> None:
        row: Row = {"start": round(began), "end": round(self.machine.now), "nameId": name}
        row |= {"globalTid": self.tid, "correlationId": correlation}
        self.machine.rows[schema.API_CALL.name].append(row)

    def _gpu_row(self, table: str, row: Row) -> None:
        place: Row = {"deviceId": self.device.number, "contextId": 1}
        place["globalPid"] = global_pid(self.device.pid)
        self.machine.rows[table].append({**place, **row})

    def _synchronization(
        self, kind: int, began: float, correlation: int, stream: int, event: int
    ) -> None:  # fmt: skip
        row: Row = {"start": round(began), "end": round(self.machine.now), "syncType": kind}
        row |= {"correlationId": correlation, "streamId": stream, "eventId": event}
        self._gpu_row(schema.WAIT.name, row)

    def _range(self, text: str, began: float, domain: str = "") -> None:
        row: Row = {"start": round(began), "end": round(self.machine.now), "text": text}
        row |= {"eventType": schema.NVTX_PUSH_POP, "globalTid": self.tid, "domainId": 0}
        if domain:
            kind: Row = {"eventType": schema.NVTX_DOMAIN, "text": domain, "domainId": 1}
            if not self._has_domain:
                self.machine.rows[schema.NVTX.name].append({**row, **kind})
            self._has_domain = True
            row["domainId"] = 1
        self.machine.rows[schema.NVTX.name].append(row)

    def _full_queue(self, began: float, correlation: int) -> None:
        row: Row = {"start": round(began), "end": round(self.machine.now), "globalTid": self.tid}
        row |= {"correlationId": correlation, "nameId": schema.COMMAND_BUFFER_FULL_NAME}
        row |= {
            "eventClass": nsight_writer.OVERHEAD_CLASS,
            "overheadType": schema.COMMAND_BUFFER_FULL,
        }
        self.machine.rows[schema.DRIVER_OVERHEAD.name].append(row)

    def _switch(self, *, is_in: bool) -> None:
        row: Row = {"start": round(self.machine.now), "cpu": 0, "isSchedIn": int(is_in)}
        self.machine.rows[schema.SWITCHES].append({**row, "globalTid": self.tid})


def iter_nothing() -> Steps:
    """Return a process that takes no time: what a recorded event does on its stream."""
    yield from ()


def _kernel_row(kernel: Kernel) -> Row:
    row: Row = {"demangledName": kernel.name, "shortName": kernel.name.partition("(")[0]}
    row |= {"gridX": kernel.grid, "gridY": 1, "gridZ": 1}
    return row | {"blockX": 256, "blockY": 1, "blockZ": 1}
