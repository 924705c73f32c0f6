"""Programs of training for `gpu_machine`, and which assumptions can really be made in each.

A program is what its threads do. Under an assumption the same program runs on a changed machine,
and its mean step is the truth that `traceprof whatif` is held to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.reference.gpu_machine import (
    MS,
    US,
    Batches,
    Change,
    Device,
    Kernel,
    Machine,
    Thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.reference.gpu_machine import Steps

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


@dataclass(frozen=True)
class Program:
    """A program, the machine that it runs on, and what is asked about it.

    Attributes:
        start: starts its threads, given the machine, the seed and the number of steps.
        asked: the change that each assumption stands for.
        slowdown: as of `Machine`.
        queue_limit: as of `Machine`.
        is_labelled: as of `Machine`.
    """

    start: Callable[[Machine, int, int], None]
    asked: Mapping[str, Change]
    slowdown: float = 1.0
    queue_limit: int = 1024
    is_labelled: bool = True

    def run(self, seed: int, change: Change | None = None, num_steps: int = NUM_STEPS) -> Machine:
        """Run it, as it is or changed."""
        machine = Machine(
            change or Change(), slowdown=self.slowdown, queue_limit=self.queue_limit,
            is_labelled=self.is_labelled,
        )  # fmt: skip
        self.start(machine, seed, num_steps)
        return machine.run()


def _steps(thread: Thread, num_steps: int, step: Callable[[int], Steps]) -> None:
    def process() -> Steps:
        yield START_NS  # what loads has begun before
        for number in range(num_steps):
            yield from thread.step(number, step(number))
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


def launch_bound(machine: Machine, seed: int, num_steps: int) -> None:
    """Kernels take less than their launches, but for two."""
    thread = Thread(Device(machine, 0), seed, pace_ns=11 * US)
    compute = thread.device.stream(COMPUTE)
    _steps(thread, num_steps, lambda _: thread.launch(compute, *[TINY] * 50, GEMM, *[TINY] * 40))


def item_per_step(machine: Machine, seed: int, num_steps: int) -> None:
    """The loss is read within a step, and the host works on before the next launch."""
    thread = Thread(Device(machine, 0), seed)
    compute = thread.device.stream(COMPUTE)

    def step(_: int) -> Steps:
        yield from thread.launch(compute, *LAYER * 4)
        yield from thread.item(compute)
        yield from thread.work(250 * US)
        yield from thread.launch(compute, *LAYER * 4, ADAM)

    _steps(thread, num_steps, step)


def reducing(ns: float, num_layers: int) -> Callable[[Machine, int, int], None]:
    """Return a program of two ranks whose gradients are reduced in four buckets."""

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        for rank in range(2):
            thread = Thread(Device(machine, rank), seed)

            def step(_: int, thread: Thread = thread) -> Steps:
                yield from thread.launch(thread.device.stream(COMPUTE), *LAYER * 3)
                yield from _reduced(thread, 2, ns, 4, num_layers)

            _steps(thread, num_steps, step)

    return start


def sometimes_reducing(machine: Machine, seed: int, num_steps: int) -> None:
    """Gradients are reduced in three of four steps, beside products that are longer than others.

    These have the name and grid of products of half the length, which never run beside a reduction.
    """
    for rank in range(2):
        thread = Thread(Device(machine, rank), seed)

        def step(number: int, thread: Thread = thread) -> Steps:
            compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
            yield from thread.launch(compute, *LAYER * 3)
            for bucket in range(3):
                if number % 4 < 3:
                    yield from thread.follow(nccl, compute, 100 + bucket)
                    yield from thread.collective(nccl, "0", 2, 1.1 * MS)
                yield from thread.launch(compute, *[LONG_GEMM] * 2, *LAYER)
            yield from thread.follow(compute, nccl, 200)
            yield from thread.launch(compute, ADAM)

        _steps(thread, num_steps, step)


def loader(is_rare: bool) -> Callable[[Machine, int, int], None]:
    """Return a program that sleeps for its batches, for each or now and then."""

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        thread = Thread(Device(machine, 0), seed)
        compute = thread.device.stream(COMPUTE)

        def step(_: int) -> Steps:
            is_late = not is_rare or thread.chance() < 0.25
            yield from thread.load((6 if is_late else 0.05) * MS)
            yield from thread.copy(compute, "HtoD", 1 << 22, 300 * US)
            yield from thread.launch(compute, *LAYER * 6, ADAM)
            yield from thread.item(compute)

        _steps(thread, num_steps, step)

    return start


def straggler(machine: Machine, seed: int, num_steps: int) -> None:
    """One of four ranks works on the host before it launches."""
    for rank in range(4):
        thread = Thread(Device(machine, rank), seed)

        def step(_: int, thread: Thread = thread, is_late: bool = rank == 2) -> Steps:
            if is_late and machine.change.late:
                yield from thread.work(2.5 * MS)
            yield from thread.launch(thread.device.stream(COMPUTE), *LAYER * 2)
            yield from _reduced(thread, 4, 350 * US, 2, 2)
            yield from thread.item(thread.device.stream(COMPUTE))

        _steps(thread, num_steps, step)


def pipeline(machine: Machine, seed: int, num_steps: int) -> None:
    """Three stages pass six micro-batches on, all forward and then all back."""
    for rank in range(3):
        thread = Thread(Device(machine, rank), seed)

        def step(_: int, thread: Thread = thread, rank: int = rank) -> Steps:
            compute = thread.device.stream(COMPUTE)
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

        _steps(thread, num_steps, step)


def stages(layers: Sequence[int]) -> Callable[[Machine, int, int], None]:
    """Return a pipeline of stages with these numbers of layers, which run 1F1B."""
    num_stages = len(layers)

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        change = machine.change
        num_micro_batches = 6 * change.split
        for rank, own in enumerate(layers):
            thread = Thread(Device(machine, rank), seed)
            num = sum(layers) // num_stages if change.equal else own

            def step(_: int, thread: Thread = thread, rank: int = rank, num: int = num) -> Steps:
                ahead = num_micro_batches if change.forwards_first else num_stages - 1 - rank
                for number in range(num_micro_batches + ahead):
                    if number < num_micro_batches:
                        yield from _stage_pass(thread, num_stages, num, is_forward=True)
                    if number >= ahead:
                        yield from _stage_pass(thread, num_stages, num, is_forward=False)
                yield from thread.launch(thread.device.stream(COMPUTE), ADAM)

            _steps(thread, num_steps, step)

    return start


def _stage_pass(thread: Thread, num_stages: int, num_layers: int, *, is_forward: bool) -> Steps:
    """Receive, compute, and send on."""
    compute, rank = thread.device.stream(COMPUTE), thread.device.number
    split = thread.machine.change.split
    moved = 220 * US / split
    before, after = (rank - 1, rank + 1) if is_forward else (rank + 1, rank - 1)
    if before in range(num_stages):
        stream = thread.device.stream(NCCL + 2 * before)
        yield from thread.follow(stream, compute, 20 + before)
        yield from thread.collective(stream, "0", num_stages, moved, sends=(before, rank))
        yield from thread.follow(compute, stream, 30 + before)
    own = [replace(kernel, ns=kernel.ns / split) for kernel in LAYER]
    kernels = own * num_layers * (1 if is_forward else 2)
    kind = "forward" if is_forward else "backward"
    yield from thread.named(kind, thread.launch(compute, *kernels))
    if after in range(num_stages):
        stream = thread.device.stream(NCCL + 2 * after + 1)
        yield from thread.follow(stream, compute, 10 + after)
        yield from thread.collective(stream, "0", num_stages, moved, sends=(rank, after))


def _decoding(thread: Thread, batches: Batches, ns: float) -> Steps:
    """Decode batches on the GPU, and put them into a queue until nobody takes them any more."""
    stream = thread.device.stream(DECODING)
    while True:
        yield from thread.sleep(ns)
        yield from thread.copy(stream, "HtoD", 1 << 22, 400 * US)
        yield from thread.launch(stream, *[DECODE] * 4)
        over = yield from thread.record(stream, 300)
        yield from thread.put(batches, over)


def worker(
    ns: float, spread: float, *, is_process: bool = False
) -> Callable[[Machine, int, int], None]:
    """Return a program whose batches come from a thread without calls, two ahead.

    It takes `ns` for one, by up to `spread` more or less, and begins when the training does. It
    sleeps, or is a process of its own that works.
    """

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        device, batches = Device(machine, 0), Batches(2)
        pid = 1_000 if is_process else 0
        thread, other = Thread(device, seed), Thread(device, seed, tid=1, pid=pid)
        compute = device.stream(COMPUTE)

        def loading() -> Steps:
            yield START_NS
            while True:
                takes_ns = ns * (1 + spread * (2 * other.chance() - 1))
                yield from (other.work if is_process else other.sleep)(takes_ns)
                yield from other.put(batches)

        machine.start(loading())

        def step(_: int) -> Steps:
            yield from thread.get(batches)
            if batches.events:
                batches.get()
            yield from thread.copy(compute, "HtoD", 1 << 22, 300 * US)
            yield from thread.launch(compute, *LAYER * 6, ADAM)
            yield from thread.item(compute)

        _steps(thread, num_steps, step)

    return start


def _batch(thread: Thread, batches: Batches) -> Steps:
    compute = thread.device.stream(COMPUTE)
    yield from thread.get(batches)
    over = batches.get() if batches.events else None
    if over is not None and thread.machine.change.loading:
        yield from thread.wait(compute, 300, over)


def two_threads(ns: float) -> Callable[[Machine, int, int], None]:
    """Return a program whose second thread takes `ns` and decoding for a batch, two ahead."""

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        device = Device(machine, 0)
        thread, other = Thread(device, seed), Thread(device, seed, tid=1)
        batches = Batches(2)
        compute = device.stream(COMPUTE)
        machine.start(_decoding(other, batches, ns))

        def step(_: int) -> Steps:
            yield from _batch(thread, batches)
            yield from thread.launch(compute, *LAYER * 6, ADAM)
            yield from thread.item(compute)

        _steps(thread, num_steps, step)

    return start


def stages_of_loader(
    ns: float, spread: float, *, is_marked: bool = True
) -> Callable[[Machine, int, int], None]:
    """Return a program whose loader has three stages, on a thread each, as NVIDIA DALI's has.

    The first takes `ns` for a batch on the host, by up to `spread` more or less; the second copies
    it, the third transforms it. Who trains takes a batch and asks for another one, two ahead. If
    nothing marks the stages, the loader begins when the training does.
    """

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        device = Device(machine, 0)
        thread, *others = (Thread(device, seed, tid=tid) for tid in range(4))
        compute, stream = device.stream(COMPUTE), device.stream(DECODING)
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

        def step(_: int) -> Steps:
            yield from thread.get(ready)
            if ready.events:
                ready.get()
            yield from thread.work(60 * US)
            asked.put()
            yield from thread.work(80 * US)
            yield from thread.launch(compute, *LAYER * 6, ADAM)
            yield from thread.item(compute)

        _steps(thread, num_steps, step)

    return start


def serialized(machine: Machine, seed: int, num_steps: int) -> None:
    """Small statistics that compute needs stand behind gradients that nothing needs soon."""
    for rank in range(2):
        thread = Thread(Device(machine, rank), seed)

        def step(_: int, thread: Thread = thread) -> Steps:
            compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
            aside = nccl if machine.change.one_stream else thread.device.stream(NCCL + 1)
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

        _steps(thread, num_steps, step)


def full_queue(machine: Machine, seed: int, num_steps: int) -> None:
    """A reduction is launched behind more short kernels than the queue holds, on one of two."""
    for rank in range(2):
        thread = Thread(Device(machine, rank), seed)

        def step(_: int, thread: Thread = thread, num_short: int = 60 - 60 * rank) -> Steps:
            compute, nccl = thread.device.stream(COMPUTE), thread.device.stream(NCCL)
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

        _steps(thread, num_steps, step)


def copies(machine: Machine, seed: int, num_steps: int) -> None:
    """Batches come from pageable memory on the stream that computes, and gradients are copied."""
    thread = Thread(Device(machine, 0), seed)
    compute = thread.device.stream(COMPUTE)

    def step(_: int) -> Steps:
        yield from thread.copy(compute, "HtoD", 1 << 24, 1.2 * MS, pageable=True)
        yield from thread.work(150 * US)
        yield from thread.launch(compute, *LAYER * 5)
        for _ in range(5):
            yield from thread.copy(compute, "DtoD", 1 << 24, 60 * US)
        yield from thread.launch(compute, ADAM)

    _steps(thread, num_steps, step)


def all_at_once(loads_in_thread: bool) -> Callable[[Machine, int, int], None]:
    """Return a program of two ranks that load, reduce, read a number, and one of which is late."""

    def start(machine: Machine, seed: int, num_steps: int) -> None:
        for rank in range(2):
            device = Device(machine, rank)
            thread, batches = Thread(device, seed), Batches(2) if loads_in_thread else None
            if batches is not None:
                machine.start(_decoding(Thread(device, seed, tid=1), batches, 3 * MS))

            def step(
                _: int, thread: Thread = thread, batches: Batches | None = batches, rank: int = rank
            ) -> Steps:
                compute = thread.device.stream(COMPUTE)
                if batches is not None:
                    yield from _batch(thread, batches)
                else:
                    yield from thread.load(4 * MS)
                    yield from thread.copy(compute, "HtoD", 1 << 22, 300 * US)
                yield from thread.launch(compute, *LAYER * 3)
                yield from thread.item(compute)
                if rank == 1 and machine.change.late:
                    yield from thread.work(1.5 * MS)
                yield from _reduced(thread, 2, 900 * US, 3, 1)

            _steps(thread, num_steps, step)

    return start


HALF = Change(kernels={"gemm": 0.5})
ALL = {
    "no-sync": Change(waits=False),
    "link=2x": Change(link=0.5),
    "kernel:gemm=0.5x": HALF,
    "no-straggler": Change(late=False),
    "no-overlap-slowdown": Change(slowdown=False),
    "no-data-loading": Change(loading=False),
}
STAGED = {
    "equal-stages": Change(equal=True),
    "link=2x": Change(link=0.5),
    "schedule=gpipe": Change(forwards_first=True),
    "micro-batches=2x": Change(split=2),
}
LOADED = {
    "kernel:gemm=0.5x": HALF,
    "kernel:dali=0.5x": Change(kernels={"dali": 0.5}),
    "no-data-loading": Change(loading=False),
}
PACED = {
    "kernel:gemm=0.5x": HALF,
    "no-data-loading": Change(loading=False),
    "no-sync": Change(waits=False),
}
BESIDE = {"link=2x": Change(link=0.5), "no-overlap-slowdown": Change(slowdown=False)}
PROGRAMS = {
    "launch-bound": Program(
        launch_bound, {"launch=0": Change(launch=0.0), "kernel:gemm=0.5x": HALF}
    ),
    "item-per-step": Program(
        item_per_step,
        {"no-sync": Change(waits=False), "kernel:gemm=0.5x": HALF, "launch=0": Change(launch=0.0)},
    ),
    "communication-bound": Program(
        reducing(2.2 * MS, 1),
        {
            "link=2x": Change(link=0.5),
            "no-overlap-slowdown": Change(slowdown=False),
            "communication=0": Change(link=0.0),
            "kernel:gemm=0.5x": HALF,
        },
        slowdown=1.3,
    ),
    "slowed": Program(
        reducing(0.9 * MS, 2),
        {
            "link=2x": Change(link=0.5),
            "no-overlap-slowdown": Change(slowdown=False),
            "communication=0": Change(link=0.0),
            "perfect-overlap": Change(reads_gradients=False),
        },
        slowdown=1.4,
    ),
    "not-slowed": Program(
        reducing(0.9 * MS, 2),
        {
            "link=2x": Change(link=0.5),
            "no-overlap-slowdown": Change(slowdown=False),
            "kernel:gemm=0.5x": HALF,
        },
    ),
    "sometimes-slowed": Program(sometimes_reducing, BESIDE, slowdown=1.4),
    "other-products": Program(sometimes_reducing, BESIDE),
    "loader-steady": Program(
        loader(is_rare=False),
        {"no-data-loading": Change(loading=False), "kernel:gemm=0.5x": HALF},
    ),
    "loader-rare": Program(
        loader(is_rare=True), {"no-data-loading": Change(loading=False), "kernel:gemm=0.5x": HALF}
    ),
    "straggler": Program(
        straggler,
        {
            "no-straggler": Change(late=False),
            "link=2x": Change(link=0.5),
            "no-sync": Change(waits=False),
        },
    ),
    "pipeline": Program(pipeline, {"kernel:gemm=0.5x": HALF, "link=2x": Change(link=0.5)}),
    "pipeline-unlabelled": Program(
        pipeline, {"kernel:gemm=0.5x": HALF, "link=2x": Change(link=0.5)}, is_labelled=False
    ),
    "two-stages": Program(stages((2, 4)), STAGED),
    "four-stages": Program(stages((2, 4, 3, 3)), STAGED),
    "serialized-unlabelled": Program(
        serialized, {"no-serialization": Change(one_stream=False)}, is_labelled=False
    ),
    "two-threads-fast": Program(
        two_threads(2 * MS),
        {
            "kernel:gemm=0.5x": HALF,
            "kernel:decode=0.5x": Change(kernels={"decode": 0.5}),
            "no-data-loading": Change(loading=False),
        },
    ),
    "two-threads-slow": Program(
        two_threads(7 * MS),
        {
            "kernel:gemm=0.5x": HALF,
            "kernel:decode=0.5x": Change(kernels={"decode": 0.5}),
            "no-data-loading": Change(loading=False),
        },
    ),
    "loader-stages-fast": Program(stages_of_loader(2.5 * MS, 0.5), LOADED),
    "loader-stages-slow": Program(stages_of_loader(6 * MS, 0.5), LOADED),
    "loader-stages-even": Program(stages_of_loader(4.2 * MS, 0.9), LOADED),
    "loader-unmarked-slow": Program(stages_of_loader(6 * MS, 0.5, is_marked=False), PACED),
    "loader-unmarked-even": Program(stages_of_loader(4.2 * MS, 0.9, is_marked=False), PACED),
    "worker-slow": Program(worker(6 * MS, 0.5), PACED),
    "worker-even": Program(worker(4.2 * MS, 0.9), PACED),
    "process-ahead": Program(worker(3.7 * MS, 0.1, is_process=True), PACED),
    "serialized": Program(serialized, {"no-serialization": Change(one_stream=False)}),
    "full-queue": Program(full_queue, {"no-launch-stall": Change(limit=False)}, queue_limit=32),
    "copies": Program(
        copies, {"copies-hidden": Change(copies=0.0), "no-sync": Change(waits=False)}
    ),
    "all-at-once": Program(all_at_once(loads_in_thread=False), ALL, slowdown=1.3),
    "all-with-threads": Program(all_at_once(loads_in_thread=True), ALL, slowdown=1.3),
}
