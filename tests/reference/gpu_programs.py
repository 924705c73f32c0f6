"""Programs of training for `gpu_machine`, and which assumptions can really be made in each.

A program is what its threads do. Under an assumption the same program runs on a changed machine,
and its mean step is the truth that `traceprof whatif` is held to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from tests.reference.gpu_machine import (
    MS,
    US,
    Batches,
    Change,
    Device,
    Kernel,
    Machine,
    Steps,
    Thread,
)

Start = Callable[[Machine, int, int], None]
Step = Callable[[Thread, int], Steps]

NUM_STEPS = 14
START_NS = 20.0 * MS
COMPUTE, NCCL, COPIES, DECODING = 7, 20, 24, 28

GEMM = Kernel("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_tn", 180 * US)
WIDE = Kernel("ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_tn", 260 * US, 216)
LONG_GEMM = replace(GEMM, ns=2 * GEMM.ns)
ATTENTION = Kernel("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(int)", 120 * US)
GELU = Kernel("void at::native::vectorized_elementwise_kernel<4, gelu>(int)", 40 * US, 400)
ADAM = Kernel("void at::native::multi_tensor_apply_kernel<fused_adam>(int)", 300 * US, 320)
TRANSPOSE = Kernel("void dali::kernels::TransposeTiledBatched<float>(int)", 150 * US, 64)
ROTATE = replace(TRANSPOSE, name="void rotate_batched<float>(int)")
DECODE = Kernel("nvjpeg::decode_kernel(int)", 150 * US, 64)
TINY = Kernel("void at::native::unrolled_elementwise_kernel<add>(int)", 3 * US, 8)
LAYER = (GEMM, ATTENTION, WIDE, GELU)


ASSUMED = {
    "no-sync": Change(waits=False),
    "launch=0": Change(launch=0.0),
    "link=2x": Change(link=0.5),
    "communication=0": Change(link=0.0),
    **{f"kernel:{name}=0.5x": Change(kernels={name: 0.5}) for name in ("gemm", "dali", "decode")},
    "copies-hidden": Change(copies=0.0),
    "no-straggler": Change(late=False),
    "no-overlap-slowdown": Change(slowdown=False),
    "perfect-overlap": Change(reads_gradients=False),
    "no-data-loading": Change(loading=False),
    "no-serialization": Change(one_stream=False),
    "no-launch-stall": Change(limit=False),
    "equal-stages": Change(equal=True),
}
"""The change that each assumption stands for."""


@dataclass(frozen=True)
class Program:
    """A program, the machine that it runs on, and what is asked about it."""

    start: Start  # starts its threads, given the machine, the seed and the number of steps
    assumptions: str  # of `ASSUMED`, those that can really be made, with blanks between them
    slowdown: float = 1.0  # as of `Machine`
    queue_limit: int = 1024  # as of `Machine`
    is_labelled: bool = True  # as of `Machine`

    @property
    def asked(self) -> dict[str, Change]:
        return {name: ASSUMED[name] for name in self.assumptions.split()}

    def run(self, seed: int, change: Change | None = None, num_steps: int = NUM_STEPS) -> Machine:
        machine = Machine(
            change or Change(), slowdown=self.slowdown, queue_limit=self.queue_limit,
            is_labelled=self.is_labelled,
        )  # fmt: skip
        self.start(machine, seed, num_steps)
        return machine.run()


def ranks(step: Step, num: int = 1, *, pace_ns: float = 8 * US) -> Start:
    """Return a program of ranks whose threads do no more than these steps."""

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        for rank in range(num):
            _steps(Thread(Device(machine, rank), seed, pace_ns=pace_ns), num_steps, step)

    return start


def _steps(thread: Thread, num_steps: int, step: Step) -> None:
    def process() -> Steps:
        yield START_NS  # what loads has begun before
        for number in range(num_steps):
            yield from thread.step(number, step(thread, number))
            yield from thread.work(20 * US)
        yield from thread.synchronize(thread.device.stream(COMPUTE))

    thread.machine.start(process())


def _reduced(thread: Thread, size: int, ns: float, num_buckets: int, num_layers: int) -> Steps:
    """Run a backward pass whose gradients are reduced beside it, and the optimizer after it."""
    compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
    for bucket in range(num_buckets):
        yield from thread.launch(compute, *LAYER * num_layers)
        yield from thread.follow(nccl, compute, 100 + bucket)
        yield from thread.collective(nccl, "0", size, ns)
    if thread.machine.change.reads_gradients:
        yield from thread.follow(compute, nccl, 200)
    yield from thread.launch(compute, ADAM)


def _trained(thread: Thread, num_layers: int) -> Steps:
    """Compute a step, and read its loss."""
    compute = thread.device.stream(COMPUTE)
    yield from thread.launch(compute, *LAYER * num_layers, ADAM)
    yield from thread.item(compute)


def launch_bound(thread: Thread, _: int) -> Steps:
    """Kernels take less than their launches, but for two."""
    return thread.launch(thread.device.stream(COMPUTE), *[TINY] * 50, GEMM, *[TINY] * 40)


def item_per_step(thread: Thread, _: int) -> Steps:
    """The loss is read within a step, and the host works on before the next launch."""
    compute = thread.device.stream(COMPUTE)
    yield from thread.launch(compute, *LAYER * 4)
    yield from thread.item(compute)
    yield from thread.work(250 * US)
    yield from thread.launch(compute, *LAYER * 4, ADAM)


def reducing(ns: float, num_layers: int) -> Start:
    """Return a program of two ranks whose gradients are reduced in four buckets."""

    def step(thread: Thread, _: int) -> Steps:
        yield from thread.launch(thread.device.stream(COMPUTE), *LAYER * 3)
        yield from _reduced(thread, 2, ns, 4, num_layers)

    return ranks(step, 2)


def accumulating(thread: Thread, _: int) -> Steps:
    """Gradients accumulate over two micro-batches, and DDP reduces them in both.

    No kernel but the optimizer's is ever alone at its place, and some are beside a reduction for
    less than half of their time only.
    """
    compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
    for _ in range(2):
        yield from thread.launch(compute, *LAYER * 2)
        for bucket in range(4):
            yield from thread.launch(compute, *LAYER)
            yield from thread.follow(nccl, compute, 100 + bucket)
            yield from thread.collective(nccl, "0", 2, 0.5 * MS)
        yield from thread.follow(compute, nccl, 200)
    yield from thread.launch(compute, ADAM)


def sometimes_reducing(thread: Thread, number: int) -> Steps:
    """Gradients are reduced in three of four steps, beside products that are longer than others.

    These have the name and grid of products of half the length, which never run beside a reduction.
    """
    compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
    yield from thread.launch(compute, *LAYER * 3)
    for bucket in range(3):
        if number % 4 < 3:
            yield from thread.follow(nccl, compute, 100 + bucket)
            yield from thread.collective(nccl, "0", 2, 1.1 * MS)
        yield from thread.launch(compute, *[LONG_GEMM] * 2, *LAYER)
    yield from thread.follow(compute, nccl, 200)
    yield from thread.launch(compute, ADAM)


def sleeping_loader(thread: Thread, _: int, *, is_rare: bool) -> Steps:
    """The thread sleeps for its batches, for each or now and then."""
    is_late = not is_rare or thread.chance() < 0.25
    yield from thread.load((6 if is_late else 0.05) * MS)
    yield from thread.copy(thread.device.stream(COMPUTE), "HtoD", 1 << 22, 300 * US)
    yield from _trained(thread, 6)


def straggler(thread: Thread, _: int) -> Steps:
    """One of four ranks works on the host before it launches."""
    if thread.device.number == 2 and thread.machine.change.late:
        yield from thread.work(2.5 * MS)
    yield from thread.launch(thread.device.stream(COMPUTE), *LAYER * 2)
    yield from _reduced(thread, 4, 350 * US, 2, 2)
    yield from thread.item(thread.device.stream(COMPUTE))


def pipeline(thread: Thread, _: int) -> Steps:
    """Three stages pass six micro-batches on, all forward and then all back."""
    compute, rank = thread.device.stream(COMPUTE), thread.device.number
    for before, after in ((rank - 1, rank + 1), (rank + 1, rank - 1)):
        for _ in range(6):
            for peer in (before, after):
                is_sent = peer == after
                if is_sent:
                    yield from thread.launch(compute, *LAYER * 2)
                if peer not in range(3):
                    continue
                ends = (rank, peer) if is_sent else (peer, rank)
                stream = thread.device.stream(NCCL + 2 * peer + is_sent)
                if is_sent:
                    yield from thread.follow(stream, compute, 10 + peer)
                yield from thread.collective(stream, "0", 3, 220 * US, sends=ends)
                if not is_sent:
                    yield from thread.follow(compute, stream, 30 + peer)
    yield from thread.launch(compute, ADAM)
    yield from thread.collective(thread.device.stream(NCCL), "0", 3, 100 * US)
    yield from thread.follow(compute, thread.device.stream(NCCL), 50)


def stages(layers: Sequence[int]) -> Start:
    num_stages = len(layers)

    def step(thread: Thread, _: int) -> Steps:
        change, rank = thread.machine.change, thread.device.number
        num = sum(layers) // num_stages if change.equal else layers[rank]
        ahead = num_stages - 1 - rank
        for number in range(6 + ahead):
            if number < 6:
                yield from _stage_pass(thread, num_stages, num, is_forward=True)
            if number >= ahead:
                yield from _stage_pass(thread, num_stages, num, is_forward=False)
        yield from thread.launch(thread.device.stream(COMPUTE), ADAM)

    return ranks(step, num_stages)


def _stage_pass(thread: Thread, num_stages: int, num_layers: int, *, is_forward: bool) -> Steps:
    """Receive, compute, and send on."""
    compute, rank = thread.device.stream(COMPUTE), thread.device.number
    moved = 220 * US
    before, after = (rank - 1, rank + 1) if is_forward else (rank + 1, rank - 1)
    if before in range(num_stages):
        stream = thread.device.stream(NCCL + 2 * before)
        yield from thread.follow(stream, compute, 20 + before)
        yield from thread.collective(stream, "0", num_stages, moved, sends=(before, rank))
        yield from thread.follow(compute, stream, 30 + before)
    kernels = LAYER * num_layers * (1 if is_forward else 2)
    kind = "forward" if is_forward else "backward"
    yield from thread.named(kind, thread.launch(compute, *kernels))
    if after in range(num_stages):
        stream = thread.device.stream(NCCL + 2 * after + 1)
        yield from thread.follow(stream, compute, 10 + after)
        yield from thread.collective(stream, "0", num_stages, moved, sends=(rank, after))


def _decoding(thread: Thread, batches: Batches, ns: float) -> Steps:
    """Decode batches on the GPU, and put them into a queue until nobody takes them any more."""
    stream = thread.device.stream(DECODING)
    for number in count():
        yield from thread.sleep(ns)
        yield from thread.copy(stream, "HtoD", 1 << 22, 400 * US)
        yield from thread.launch(stream, *[DECODE] * 4)
        over = yield from thread.record(stream, _event(batches, number))
        yield from thread.put(batches, over)


def _event(batches: Batches, number: int) -> int:
    """Return the event of a batch: no other one that may still be in the queue has it."""
    return 300 + number % (batches.depth + 2)


def worker(ns: float, spread: float, *, is_process: bool = False) -> Start:
    """Return a program whose batches come from a thread without calls, two ahead.

    It takes `ns` for one, by up to `spread` more or less, and begins when the training does. It
    sleeps, or is a process of its own that works.
    """

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        device, batches = Device(machine, 0), Batches(2)
        pid = 1_000 if is_process else 0
        thread, other = Thread(device, seed), Thread(device, seed, tid=1, pid=pid)

        def loading() -> Steps:
            yield START_NS
            while True:
                takes_ns = ns * (1 + spread * (2 * other.chance() - 1))
                yield from (other.work if is_process else other.sleep)(takes_ns)
                yield from other.put(batches)

        machine.start(loading())

        def step(thread: Thread, _: int) -> Steps:
            yield from thread.get(batches)
            if batches.events:
                batches.get()
            yield from thread.copy(device.stream(COMPUTE), "HtoD", 1 << 22, 300 * US)
            yield from _trained(thread, 6)

        _steps(thread, num_steps, step)

    return start


def _batch(thread: Thread, batches: Batches, number: int) -> Steps:
    compute = thread.device.stream(COMPUTE)
    yield from thread.get(batches)
    over = batches.get() if batches.events else None
    if over is not None and thread.machine.change.loading:
        yield from thread.wait(compute, _event(batches, number), over)


def two_threads(ns: float) -> Start:
    """Return a program whose second thread takes `ns` and decoding for a batch, two ahead."""

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        device, batches = Device(machine, 0), Batches(2)
        thread, other = Thread(device, seed), Thread(device, seed, tid=1)
        machine.start(_decoding(other, batches, ns))

        def step(thread: Thread, number: int) -> Steps:
            yield from _batch(thread, batches, number)
            yield from _trained(thread, 6)

        _steps(thread, num_steps, step)

    return start


def stages_of_loader(ns: float, spread: float, *, is_marked: bool = True) -> Start:
    """Return a program whose loader has three stages, on a thread each, as NVIDIA DALI's has.

    The first takes `ns` for a batch on the host, by up to `spread` more or less; the second copies
    it, the third transforms it. Who trains takes a batch and asks for another one, two ahead. If
    nothing marks the stages, the loader begins when the training does.
    """

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        device = Device(machine, 0)
        thread, *others = (Thread(device, seed, tid=tid) for tid in range(4))
        stream = device.stream(DECODING)
        queues = [Batches(num_steps + 2) for _ in range(4)]
        asked, ready = queues[0], queues[-1]

        def read(other: Thread) -> Steps:
            yield from other.sleep(ns * (1 + spread * (2 * other.chance() - 1)))

        def copied(other: Thread) -> Steps:
            yield from other.copy(stream, "HtoD", 1 << 22, 400 * US)

        def transformed(other: Thread) -> Steps:
            yield from other.launch(stream, *[TRANSPOSE if is_marked else ROTATE] * 4)
            yield from other.record(stream, 300)

        def stage(other: Thread, place: int, work: Callable[[Thread], Steps]) -> Steps:
            name = ("CPU", "Mixed", "GPU")[place]
            if not is_marked:
                yield START_NS
            while True:
                yield from other.get(queues[place], is_loader=True)
                queues[place].get()
                own = work(other)
                marked = other.named(f"[DALI][Executor] Run{name}", own) if is_marked else own
                yield from marked
                yield from other.put(queues[place + 1])

        for place, (other, work) in enumerate(
            zip(others, (read, copied, transformed), strict=True)
        ):
            machine.start(stage(other, place, work))
        for _ in range(2):
            asked.put()

        def step(thread: Thread, _: int) -> Steps:
            yield from thread.get(ready)
            if ready.events:
                ready.get()
            yield from thread.work(60 * US)
            asked.put()
            yield from thread.work(80 * US)
            yield from _trained(thread, 6)

        _steps(thread, num_steps, step)

    return start


def serialized(thread: Thread, _: int) -> Steps:
    """Small statistics that compute needs stand behind gradients that nothing needs soon."""
    compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
    aside = nccl if thread.machine.change.one_stream else thread.device.stream(NCCL + 1)
    yield from thread.launch(compute, *LAYER)
    yield from thread.follow(nccl, compute, 100)
    yield from thread.collective(nccl, "0", 2, 1.5 * MS)
    yield from thread.launch(compute, GEMM)
    yield from thread.follow(aside, compute, 101)
    yield from thread.collective(aside, "1", 2, 60 * US)
    yield from thread.follow(compute, aside, 102)
    yield from thread.launch(compute, *LAYER * 4)
    yield from thread.follow(compute, nccl, 103)
    yield from thread.launch(compute, ADAM)


def small_messages(num: int) -> Step:
    """Return a step that reduces 120 us of data in as many messages, each with its latency."""

    def step(thread: Thread, _: int) -> Steps:
        compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
        yield from thread.launch(compute, *LAYER)
        yield from thread.follow(nccl, compute, 99)
        yield from thread.collective(nccl, "0", 2, 1 * MS)
        for number in range(num):
            yield from thread.follow(nccl, compute, 100 + number)
            yield from thread.collective(nccl, "0", 2, 120 * US / num, latency_ns=10 * US)
            yield from thread.follow(compute, nccl, 300 + number)
        yield from thread.launch(compute, ADAM)
        yield from thread.item(compute)

    return step


def short_kernels(*, is_fused: bool) -> Step:
    """Return a step whose activations are six short kernels in a row each, or one."""
    short = replace(GELU, ns=6 * US)
    several = [short, replace(short, name=short.name.replace("gelu", "add"))] * 3

    def step(thread: Thread, _: int) -> Steps:
        compute = thread.device.stream(COMPUTE)
        yield from thread.launch(compute, *LAYER)
        yield from thread.launch(compute, *([short] if is_fused else several) * 10, ADAM)
        yield from thread.item(compute)

    return step


def full_queue(thread: Thread, _: int) -> Steps:
    """A reduction is launched behind more short kernels than the queue holds, on one of two."""
    compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
    num_short = 60 - 60 * thread.device.number
    yield from thread.launch(compute, *LAYER)
    over = yield from thread.record(compute, 100)
    yield from thread.launch(compute, *[GELU] * num_short)
    yield from thread.wait(nccl, 100, over)
    yield from thread.collective(nccl, "0", 2, 600 * US)
    yield from thread.follow(compute, nccl, 101)
    yield from thread.launch(compute, *LAYER * (1 if num_short else 4))
    yield from thread.follow(nccl, compute, 102)
    yield from thread.collective(nccl, "0", 2, 30 * US)
    yield from thread.follow(compute, nccl, 103)


def copies(thread: Thread, _: int) -> Steps:
    """Batches come from pageable memory on the stream that computes, and gradients are copied."""
    compute = thread.device.stream(COMPUTE)
    yield from thread.copy(compute, "HtoD", 1 << 24, 1.2 * MS, pageable=True)
    yield from thread.work(150 * US)
    yield from thread.launch(compute, *LAYER * 5)
    for _ in range(5):
        yield from thread.copy(compute, "DtoD", 1 << 24, 60 * US)
    yield from thread.launch(compute, ADAM)


def small_copies(kind: str, num: int, *, pageable: bool = False, beside: bool = False) -> Step:
    """Return a step that copies 240 KiB in as many copies, on the stream that computes or not."""

    def step(thread: Thread, _: int) -> Steps:
        compute = thread.device.stream(COMPUTE)
        own = thread.device.stream(COPIES) if beside else compute
        yield from thread.launch(compute, *LAYER)
        for _ in range(num):
            yield from thread.copy(own, kind, 245_760 // num, 2 * US, pageable=pageable)
        if beside:
            yield from thread.follow(compute, own, 100)
        yield from thread.launch(compute, *[replace(GELU, ns=6 * US)] * 10, ADAM)
        yield from thread.item(compute)

    return step


def all_at_once(loads_in_thread: bool) -> Start:
    """Return a program of two ranks that load, reduce, read a number, and one of which is late."""

    def step(thread: Thread, number: int, batches: Batches | None) -> Steps:
        compute = thread.device.stream(COMPUTE)
        if batches is not None:
            yield from _batch(thread, batches, number)
        else:
            yield from thread.load(4 * MS)
            yield from thread.copy(compute, "HtoD", 1 << 22, 300 * US)
        yield from thread.launch(compute, *LAYER * 3)
        yield from thread.item(compute)
        if thread.device.number == 1 and thread.machine.change.late:
            yield from thread.work(1.5 * MS)
        yield from _reduced(thread, 2, 900 * US, 3, 1)

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        for rank in range(2):
            device = Device(machine, rank)
            thread, batches = Thread(device, seed), Batches(2) if loads_in_thread else None
            if batches is not None:
                machine.start(_decoding(Thread(device, seed, tid=1), batches, 3 * MS))
            _steps(thread, num_steps, partial(step, batches=batches))

    return start


_GEMM = "kernel:gemm=0.5x"
BESIDE = "link=2x no-overlap-slowdown"
DECODED = f"{_GEMM} kernel:decode=0.5x no-data-loading"
LOADED = f"{_GEMM} kernel:dali=0.5x no-data-loading"
PACED = f"{_GEMM} no-data-loading no-sync"
STAGED = "equal-stages link=2x"
ALL = f"no-sync link=2x {_GEMM} no-straggler no-overlap-slowdown no-data-loading"
PROGRAMS = {
    "launch-bound": Program(ranks(launch_bound, pace_ns=11 * US), f"launch=0 {_GEMM}"),
    "item-per-step": Program(ranks(item_per_step), f"no-sync {_GEMM} launch=0"),
    "communication-bound": Program(
        reducing(2.2 * MS, 1), f"{BESIDE} communication=0 {_GEMM}", slowdown=1.3
    ),
    "slowed": Program(
        reducing(0.9 * MS, 2), f"{BESIDE} communication=0 perfect-overlap", slowdown=1.4
    ),
    "not-slowed": Program(reducing(0.9 * MS, 2), f"{BESIDE} {_GEMM}"),
    "sometimes-slowed": Program(ranks(sometimes_reducing, 2), BESIDE, slowdown=1.4),
    "accumulating": Program(
        ranks(accumulating, 2), f"{BESIDE} communication=0 {_GEMM}", slowdown=1.4
    ),
    "other-products": Program(ranks(sometimes_reducing, 2), BESIDE),
    "loader-steady": Program(
        ranks(partial(sleeping_loader, is_rare=False)), f"no-data-loading {_GEMM}"
    ),
    "loader-rare": Program(
        ranks(partial(sleeping_loader, is_rare=True)), f"no-data-loading {_GEMM}"
    ),
    "straggler": Program(ranks(straggler, 4), "no-straggler link=2x no-sync"),
    "pipeline": Program(ranks(pipeline, 3), f"{_GEMM} link=2x"),
    "pipeline-unlabelled": Program(ranks(pipeline, 3), f"{_GEMM} link=2x", is_labelled=False),
    "two-stages": Program(stages((2, 4)), STAGED),
    "four-stages": Program(stages((2, 4, 3, 3)), STAGED),
    "serialized-unlabelled": Program(ranks(serialized, 2), "no-serialization", is_labelled=False),
    "two-threads-fast": Program(two_threads(2 * MS), DECODED),
    "two-threads-slow": Program(two_threads(7 * MS), DECODED),
    "loader-stages-fast": Program(stages_of_loader(2.5 * MS, 0.5), LOADED),
    "loader-stages-slow": Program(stages_of_loader(6 * MS, 0.5), LOADED),
    "loader-stages-even": Program(stages_of_loader(4.2 * MS, 0.9), LOADED),
    "loader-unmarked-slow": Program(stages_of_loader(6 * MS, 0.5, is_marked=False), PACED),
    "loader-unmarked-even": Program(stages_of_loader(4.2 * MS, 0.9, is_marked=False), PACED),
    "worker-slow": Program(worker(6 * MS, 0.5), PACED),
    "worker-even": Program(worker(4.2 * MS, 0.9), PACED),
    "process-ahead": Program(worker(3.7 * MS, 0.1, is_process=True), PACED),
    "serialized": Program(ranks(serialized, 2), "no-serialization"),
    "full-queue": Program(ranks(full_queue, 2), "no-launch-stall", queue_limit=32),
    "copies": Program(ranks(copies), "copies-hidden no-sync"),
    "all-at-once": Program(all_at_once(loads_in_thread=False), ALL, slowdown=1.3),
    "all-with-threads": Program(all_at_once(loads_in_thread=True), ALL, slowdown=1.3),
}
