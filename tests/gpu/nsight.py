"""Changes to CUDA programs without PyTorch, for Nsight Systems.

`python -m tests.gpu.nsight FOLDER [NAMES]`

Nsight Systems 2023.4 drops the GPU's work of a program of CUDA 13, as PyTorch is, and records one
of CUDA's runtime 12. These launch kernels from Python by way of that runtime and the driver. Each
is timed without a recorder, before and after in turn, and recorded before: `NAME.qdstrm` (or
`NAME.nsys-rep`, where its importer is there) and `times.json` come into FOLDER. It needs `nsys`,
`nvcc`, and `libcudart.so.12` on the path of libraries. There is no other GPU: the reductions are
kernels with the name of NCCL's, which move memory.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_long, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import instrument
from tests.support.recording import WARM_UP, Change, time_change

Launch = Callable[[c_void_p], object]

RECORDED = 30
KERNELS = Path(__file__).with_name("kernels.cu")
MiB = 1 << 20
TO_GPU, TO_HOST = 1, 2
DEFAULT, NON_BLOCKING, NO_TIMING = 0, 1, 2
REDUCTION = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _check(status: int, function: Any, arguments: object) -> int:
    if status:
        raise RuntimeError(f"{function.__name__} failed with {status}")
    return status


class Library:
    """Functions of a library, each of which returns a status."""

    def __init__(self, name: str) -> None:
        self._lib = ctypes.CDLL(name)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._lib, name)
        function.errcheck = _check
        setattr(self, name, function)
        return function


class Gpu:
    """The first GPU, with the kernels of a folder's `kernels.ptx`."""

    def __init__(self, folder: Path) -> None:
        self.runtime, self.driver = Library("libcudart.so.12"), Library("libcuda.so.1")
        self.runtime.cudaSetDevice(0)
        self.runtime.cudaFree(None)
        self._module = c_void_p()
        text = (folder / "kernels.ptx").read_bytes() + b"\0"
        self.driver.cuModuleLoadData(byref(self._module), text)
        self.main = self.stream()

    def stream(self) -> c_void_p:
        """Return a new stream that does not wait for the default one."""
        stream = c_void_p()
        self.runtime.cudaStreamCreateWithFlags(byref(stream), NON_BLOCKING)
        return stream

    def synchronize(self) -> None:
        self.runtime.cudaDeviceSynchronize()

    def memory(self, num_bytes: int) -> c_void_p:
        memory = c_void_p()
        self.runtime.cudaMalloc(byref(memory), c_size_t(num_bytes))
        return memory

    def pinned(self, num_bytes: int) -> c_void_p:
        memory = c_void_p()
        self.runtime.cudaMallocHost(byref(memory), c_size_t(num_bytes))
        return memory

    @staticmethod
    def pageable(num_bytes: int) -> Any:
        """Return memory of the host as the system gives it."""
        memory = ctypes.create_string_buffer(num_bytes)
        ctypes.memset(memory, 1, num_bytes)
        return memory

    def copy(self, to: Any, source: Any, num_bytes: int, kind: int, stream: c_void_p) -> None:
        """Copy, and wait for it if the host's memory is pageable."""
        self.runtime.cudaMemcpyAsync(to, source, c_size_t(num_bytes), kind, stream)

    def kernel(self, name: str, blocks: int, threads: int, *values: Any) -> Launch:
        """Return what launches a kernel with these arguments on a stream."""
        function = c_void_p()
        self.driver.cuModuleGetFunction(byref(function), self._module, name.encode())
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        launch = self.driver.cuLaunchKernel

        def on(stream: c_void_p) -> None:
            launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)

        on.values = values  # type: ignore[attr-defined]  # which the pointers are to
        return on

    def matmul(self, rounds: int) -> Launch:
        """Return a kernel that computes: 1,000 rounds take about 30 us."""
        return self.kernel("matmul", 132 * 6, 256, self.memory(MiB), c_int(rounds))

    def moving(self, name: str, num_bytes: int, blocks: int, threads: int = 512) -> Launch:
        """Return a kernel that reads a number of bytes and writes as many."""
        return self.kernel(
            name, blocks, threads, self.memory(num_bytes), self.memory(num_bytes),
            c_long(num_bytes // 16),
        )  # fmt: skip

    def elementwise(self, num_bytes: int) -> Launch:
        """Return a kernel on all multiprocessors that moves memory."""
        return self.moving("elementwise", num_bytes, 132 * 4)

    def reduction(self, num_bytes: int) -> Launch:
        """Return a kernel on 24 multiprocessors that moves memory, with NCCL's name."""
        return self.moving(REDUCTION, num_bytes, 24)

    def order(self, first: c_void_p, then: c_void_p) -> Callable[[], None]:
        """Return what lets a stream wait for all that another one has been given so far."""
        event = c_void_p()
        self.runtime.cudaEventCreateWithFlags(byref(event), NO_TIMING)

        def wait() -> None:
            self.runtime.cudaEventRecord(event, first)
            self.runtime.cudaStreamWaitEvent(then, event, 0)

        return wait


class Training:
    """Layers of a computing and a moving kernel, whose gradients are reduced on another stream.

    A step is the forward, a backward twice as long, and an update. A reduction of `num_bytes` goes
    with every second layer of the backward, or all with its end; without bytes there is none.
    """

    def __init__(
        self, gpu: Gpu, num_bytes: int = 0, *, rounds: int = 3000, late: bool = False
    ) -> None:
        self.gpu, self.late = gpu, late
        self.layers = [[gpu.matmul(rounds), gpu.elementwise(32 * MiB)] for _ in range(8)]
        self.update = gpu.elementwise(16 * MiB)
        self.reduce = gpu.reduction(num_bytes) if num_bytes else None
        self.others = gpu.stream()
        self.given = gpu.order(gpu.main, self.others)
        self.reduced = gpu.order(self.others, gpu.main)

    def layer(self, number: int) -> None:
        for kernel in self.layers[number]:
            kernel(self.gpu.main)

    def start_reduction(self) -> None:
        """Reduce gradients once the main stream is here."""
        if self.reduce is not None:
            self.given()
            self.reduce(self.others)

    def step(self, after_layer: Callable[[], object] = lambda: None) -> None:
        """Train once."""
        for number in range(len(self.layers)):
            self.layer(number)
            after_layer()
        for number in reversed(range(len(self.layers))):
            self.layer(number)
            self.layer(number)
            after_layer()
            if number % 2 == 0 and not self.late:
                self.start_reduction()
        if self.late:
            for _ in self.layers[::2]:
                self.start_reduction()
        if self.reduce is not None:
            self.reduced()
        for _ in self.layers:
            self.update(self.gpu.main)


def no_reduction(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Reductions longer than the backward, or none."""
    return Training(gpu, 0 if changed else 256 * MiB).step


def half_reduction(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Reduce 4 bytes of each number, or 2."""
    return Training(gpu, (128 if changed else 256) * MiB).step


def short_reduction(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Reductions that the backward hides, or none: what is left is how much they slow it down."""
    return Training(gpu, 0 if changed else 64 * MiB).step


def late_reduction(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Reduce after the backward, or beside it."""
    return Training(gpu, 96 * MiB, late=not changed).step


def small_reductions(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Reduce 96 tensors one by one after the backward, or all at once."""
    training = Training(gpu)
    reduce = gpu.reduction((96 if changed else 1) * MiB)
    given, reduced = gpu.order(gpu.main, training.others), gpu.order(training.others, gpu.main)

    def step() -> None:
        training.step()
        given()
        for _ in range(1 if changed else 96):
            reduce(training.others)
        reduced()

    return step


def faster_kernel(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Kernels that compute for a time, or for half of it."""
    return Training(gpu, rounds=1500 if changed else 3000).step


def faster_beside_reduction(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """The same beside reductions."""
    return Training(gpu, 128 * MiB, rounds=1500 if changed else 3000).step


def full_queue(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Launch 3,000 small kernels before an independent reduction, or a tenth of them, longer."""
    small = gpu.matmul(3000 if changed else 300)
    reduce, others = gpu.reduction(1024 * MiB), gpu.stream()
    start, end = gpu.order(gpu.main, others), gpu.order(others, gpu.main)

    def step() -> None:
        start()
        for _ in range(300 if changed else 3000):
            small(gpu.main)
        reduce(others)
        end()

    return step


def graph(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Launch 400 small kernels one by one, or as one graph."""
    small = gpu.elementwise(MiB // 4)

    def launch() -> None:
        for _ in range(400):
            small(gpu.main)

    if not changed:
        return launch
    captured, whole = c_void_p(), c_void_p()
    gpu.runtime.cudaStreamBeginCapture(gpu.main, 2)
    launch()
    gpu.runtime.cudaStreamEndCapture(gpu.main, byref(captured))
    gpu.runtime.cudaGraphInstantiate(byref(whole), captured, ctypes.c_ulonglong(0))
    return partial(gpu.runtime.cudaGraphLaunch, whole, gpu.main)


def synchronize(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    training = Training(gpu, rounds=1000)
    wait = partial(gpu.runtime.cudaStreamSynchronize, gpu.main)
    return training.step if changed else partial(training.step, wait)


def read_back(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Read a number of each layer, or of the last one only."""
    training = Training(gpu, rounds=1000)
    source, number = gpu.memory(4), c_float()
    read = partial(gpu.copy, byref(number), source, 4, TO_HOST, gpu.main)

    def step() -> None:
        training.step(lambda: None if changed else read())
        read()

    return step


def pin(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Copy batches from pageable memory, or from pinned."""
    training, size = Training(gpu), 32 * MiB
    batch = gpu.pinned(size) if changed else gpu.pageable(size)
    to = gpu.memory(size)

    def step() -> None:
        gpu.copy(to, batch, size, TO_GPU, gpu.main)
        training.step()

    return step


def prefetch(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Copy a pinned batch before each step, or the next one beside it."""
    training, size = Training(gpu), 64 * MiB
    batch, to, copies = gpu.pinned(size), gpu.memory(size), gpu.stream()
    stream = copies if changed else gpu.main
    begin, end = gpu.order(gpu.main, copies), gpu.order(copies, gpu.main)

    def step() -> None:
        if changed:
            end()
            begin()
        gpu.copy(to, batch, size, TO_GPU, stream)
        training.step()

    return step


def results(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Copy all results to pageable memory of the host, or one number of them."""
    training, size = Training(gpu), 4 if changed else 16 * MiB
    source, to = gpu.memory(size), gpu.pageable(size)

    def step() -> None:
        training.step()
        gpu.copy(to, source, size, TO_HOST, gpu.main)

    return step


def offload(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Copy what a step keeps to pinned memory and back, or leave it on the GPU."""
    training, size = Training(gpu), 24 * MiB
    on_gpu, on_host = gpu.memory(size), gpu.pinned(size)

    def move() -> None:
        if not changed:
            gpu.copy(on_host, on_gpu, size, TO_HOST, gpu.main)
            gpu.copy(on_gpu, on_host, size, TO_GPU, gpu.main)

    def step() -> None:
        move()
        training.step()

    return step


def stall(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Sleep for 8 ms in every third step, or never."""
    training = Training(gpu)
    number = [0]

    def step() -> None:
        number[0] += 1
        if not changed and number[0] % 3 == 0:
            gpu.synchronize()
            time.sleep(0.008)
        training.step()

    return step


def load(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """One thread loads batches, or four."""
    training, size = Training(gpu), 8 * MiB
    batches: queue.Queue[Any] = queue.Queue(4)
    to = gpu.memory(size)
    data = bytes(size)

    def produce() -> None:
        batch = gpu.pinned(size)
        while True:
            hashlib.sha256(data).digest()  # Python's lock is free meanwhile
            batches.put(batch)

    for _ in range(4 if changed else 1):
        threading.Thread(target=produce, daemon=True).start()

    def step() -> None:
        gpu.copy(to, batches.get(), size, TO_GPU, gpu.main)
        training.step()

    return step


def allocate(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Allocate memory and free it in each step, or not."""
    training = Training(gpu, rounds=1000)

    def step() -> None:
        memory = None if changed else [gpu.memory(256 * MiB) for _ in range(4)]
        training.step()
        for one in memory or ():
            gpu.runtime.cudaFree(one)

    return step


def host_code(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """Compute for 3 ms on the host between the two halves of a step, or not."""
    training = Training(gpu, rounds=1000)

    def step() -> None:
        training.step()
        if not changed:
            end = time.perf_counter() + 0.003
            while time.perf_counter() < end:
                pass
        training.step()

    return step


def legacy_stream(gpu: Gpu, *, changed: bool) -> Callable[[], object]:
    """A small kernel of each layer on the default stream, which waits for all, or on another."""
    blocking, other = c_void_p(), c_void_p() if not changed else gpu.stream()
    gpu.runtime.cudaStreamCreateWithFlags(byref(blocking), DEFAULT)
    wide, narrow = gpu.matmul(2000), gpu.kernel("matmul", 4, 256, gpu.memory(MiB), c_int(2000))

    def step() -> None:
        for _ in range(24):
            wide(blocking)
            narrow(other)

    return step


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        no_reduction, half_reduction, short_reduction, late_reduction, small_reductions,
        faster_kernel, faster_beside_reduction, full_queue, graph, synchronize, read_back, pin,
        prefetch, results, offload, stall, load, allocate, host_code, legacy_stream,
    )
}  # fmt: skip


def run_recorded(gpu: Gpu, name: str) -> None:
    """Run marked steps before a change, under Nsight Systems."""
    step = CHANGES[name](gpu, changed=False)
    for _ in range(WARM_UP):
        step()
    gpu.synchronize()
    for _ in range(RECORDED):
        with instrument.step():
            step()
    gpu.synchronize()


def time_one(gpu: Gpu, name: str) -> None:
    """Print the times of both sides of a change."""
    before, after = (CHANGES[name](gpu, changed=changed) for changed in (False, True))
    json.dump(time_change(before, after, gpu.synchronize), sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--only", choices=["time", "run"])
    asked = parser.parse_args()
    folder: Path = asked.folder
    if asked.only is not None:
        {"time": time_one, "run": run_recorded}[asked.only](Gpu(folder), *asked.names)
        return
    folder.mkdir(parents=True, exist_ok=True)
    ptx = ["nvcc", "--ptx", "-arch=sm_90", "-o", str(folder / "kernels.ptx"), str(KERNELS)]
    subprocess.run(ptx, check=True)
    times = {}
    for name in asked.names or CHANGES:
        command = [sys.executable, "-m", "tests.gpu.nsight", str(folder), name]
        done = subprocess.run([*command, "--only", "time"], stdout=subprocess.PIPE, check=False)
        if done.returncode == 0:
            times[name] = json.loads(done.stdout)
        (folder / "times.json").write_text(json.dumps(times, indent=1), encoding="utf-8")
    for name in times:
        command = [sys.executable, "-m", "tests.gpu.nsight", str(folder), name]
        nsys = ["nsys", "profile", "-t", "cuda,nvtx,osrt", "-s", "none", "--cpuctxsw=none"]
        output = ["--force-overwrite=true", "-o", str(folder / name)]
        subprocess.run([*nsys, *output, *command, "--only", "run"], check=False)


if __name__ == "__main__":
    main()
