"""Small trainings on one GPU, before and after a change: `python -m tests.gpu.changes FOLDER`.

Each is timed without a recorder, before and after in turn, and recorded with torch.profiler. What
docs/h100.md is made from comes into FOLDER: `NAME.pt.trace.json.gz` before the change, and
`times.json`, microseconds of a step in each round, and recorded before and after.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import instrument
import traceprof
from instrument import switch
from instrument.core import nvtx_ranges
from instrument.torch_trace import TorchTrace
from tests.support.recording import WARM_UP, Change, time_change

RECORDED = 9
CUDA = "cuda"
cuda: Any = torch.cuda  # in parts without types
HALF = torch.bfloat16
WRITER = "traceprof trace"  # the threads of instrument that compress what was recorded


def blocks(num: int, width: int) -> torch.nn.Sequential:
    """Return layers as those of a transformer without attention."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(
            torch.nn.Sequential(
                torch.nn.LayerNorm(width),
                torch.nn.Linear(width, 4 * width),
                torch.nn.GELU(),
                torch.nn.Linear(4 * width, width),
            )
            for _ in range(num)
        )
    ).to(CUDA)


def train(optimizer: Any, loss: Callable[[], Tensor], *, half: bool = True) -> Tensor:
    """Return a loss, computed under autocast with `half`, after a step that makes it smaller."""
    optimizer.zero_grad()
    with torch.autocast(CUDA, HALF, enabled=half):
        value = loss()
    torch.autograd.backward(value)
    optimizer.step()
    return value.detach()


class Training:
    """A model of `num` blocks with AdamW; with `half`, autocast computes in bfloat16."""

    def __init__(self, num: int, width: int, *, half: bool = True, **optimizer: Any) -> None:
        self.model = blocks(num, width)
        self.half = half
        options = optimizer or {"fused": True}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **options)

    def loss(self, batch: Tensor) -> Tensor:
        with torch.autocast(CUDA, HALF, enabled=self.half):
            output: Tensor = self.model(batch)
            return output.float().square().mean()

    def step(self, batch: Tensor) -> Tensor:
        """Train with a batch; return its loss."""
        return train(self.optimizer, lambda: self.loss(batch), half=self.half)


def read_loss(*, changed: bool) -> Callable[[], object]:
    """Read the loss and the norm of the gradients in every step, or never."""
    training = Training(6, 1024)
    batch = torch.randn(8192, 1024, device=CUDA)

    def step() -> None:
        loss = training.step(batch)
        if not changed:
            norm = torch.nn.utils.get_total_norm(
                [p.grad for p in training.model.parameters() if p.grad is not None]
            )
            sum_of_read.append(loss.item() + norm.item())

    sum_of_read: list[float] = []
    return step


def synchronize(*, changed: bool) -> Callable[[], object]:
    """Synchronize after each part of a step, as for timing it, or not."""
    training = Training(6, 1024)
    batch = torch.randn(8192, 1024, device=CUDA)

    def wait() -> None:
        if not changed:
            cuda.synchronize()

    def step() -> None:
        training.optimizer.zero_grad()
        wait()
        loss = training.loss(batch)
        wait()
        torch.autograd.backward(loss)
        wait()
        training.optimizer.step()
        wait()

    return step


def pinned(*, changed: bool) -> Callable[[], object]:
    """Copy batches from pageable memory, or from pinned memory without waiting."""
    training = Training(4, 1024)
    batch = torch.randn(8192, 1024)
    if changed:
        batch = batch.pin_memory()

    def step() -> None:
        training.step(batch.to(CUDA, non_blocking=changed))

    return step


def prefetch(*, changed: bool) -> Callable[[], object]:
    """Copy pinned batches before each step, or the next one beside the step."""
    training = Training(6, 1024)
    batch = torch.randn(65536, 1024).pin_memory()
    stream = cuda.Stream()
    compute = cuda.current_stream()
    following: list[Tensor] = []

    def copy() -> Tensor:
        with cuda.stream(stream):
            return batch.to(CUDA, non_blocking=True)

    def step() -> None:
        if not changed:
            training.step(batch.to(CUDA, non_blocking=True)[:8192])
            return
        if not following:
            following.append(copy())
        compute.wait_stream(stream)
        current = following.pop()
        current.record_stream(compute)
        following.append(copy())
        training.step(current[:8192])

    return step


class Images(Dataset[Any]):
    """Batches that take some milliseconds of one core to make."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(1024, 1024, generator=generator)
        for _ in range(2):
            image = torch.sin(image)
        return image


def load(*, changed: bool) -> Callable[[], object]:
    """Load data in the training process, or in four others."""
    training = Training(4, 1024)
    loader: DataLoader[Any] = DataLoader(
        Images(), batch_size=None, num_workers=4 if changed else 0, pin_memory=True
    )
    batches: Iterator[Tensor] = iter(loader)

    def step() -> None:
        training.step(next(batches).to(CUDA, non_blocking=True))

    return step


def autocast(*, changed: bool) -> Callable[[], object]:
    """Compute in FP32, or in bfloat16 under autocast."""
    training = Training(4, 1024, half=changed)
    return partial(training.step, torch.randn(4096, 1024, device=CUDA))


def tf32(*, changed: bool) -> Callable[[], object]:
    """Compute in FP32, or in TF32."""
    training = Training(4, 1024, half=False)
    batch = torch.randn(4096, 1024, device=CUDA)

    def step() -> None:
        torch.backends.cuda.matmul.allow_tf32 = changed
        training.step(batch)
        torch.backends.cuda.matmul.allow_tf32 = False

    return step


def graph(*, changed: bool) -> Callable[[], object]:
    """Launch all kernels of a small model one by one, or as a CUDA graph."""
    training = Training(6, 128, fused=True, capturable=True)
    batch = torch.randn(128, 128, device=CUDA)

    def step() -> None:
        training.step(batch)

    if not changed:
        return step
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            step()
    cuda.current_stream().wait_stream(side)
    captured = cuda.CUDAGraph()
    with cuda.graph(captured):
        step()
    return cast("Callable[[], object]", captured.replay)


class Attention(torch.nn.Module):
    """Self-attention, its softmax by itself or within one kernel."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.inner = torch.nn.Linear(width, 3 * width)
        self.outer = torch.nn.Linear(width, width)

    def forward(self, batch: Tensor) -> Tensor:
        """Return what is attended to, shape (batch, sequence, width)."""
        parts = self.inner(batch).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        if self.fused:
            attended = functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            attended = scores.softmax(-1).to(value.dtype) @ value
        output: Tensor = self.outer(attended.transpose(1, 2).flatten(-2))
        return output


def attention(*, changed: bool) -> Callable[[], object]:
    """Attend in several kernels, or in one."""
    torch.manual_seed(0)
    layers = [Attention(1024, 16, fused=changed) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(8, 1024, 1024, device=CUDA)

    return lambda: train(optimizer, lambda: model(batch).float().square().mean())


def gelu_by_hand(batch: Tensor) -> Tensor:
    """Return GELU by its tanh formula, an operation at a time."""
    return 0.5 * batch * (1 + torch.tanh(0.7978845608 * (batch + 0.044715 * batch**3)))


class Gelu(torch.nn.Module):
    """GELU an operation at a time."""

    def forward(self, batch: Tensor) -> Tensor:
        """Return GELU of all elements."""
        return gelu_by_hand(batch)


def activation(*, changed: bool) -> Callable[[], object]:
    """Compute GELU in eight kernels, or in one."""
    training = Training(4, 1024)
    for block in training.model.children():
        assert isinstance(block, torch.nn.Sequential)
        block[2] = torch.nn.GELU("tanh") if changed else Gelu()
    return partial(training.step, torch.randn(8192, 1024, device=CUDA))


def optimizer(*, changed: bool) -> Callable[[], object]:
    """Update each parameter in kernels of its own, or all in one."""
    training = Training(8, 512, **({"fused": True} if changed else {"foreach": False}))
    return partial(training.step, torch.randn(2048, 512, device=CUDA))


def empty_cache(*, changed: bool) -> Callable[[], object]:
    """Give free memory back to the driver in every step, or never."""
    training = Training(4, 1024)
    batch = torch.randn(4096, 1024, device=CUDA)

    def step() -> None:
        training.step(batch)
        if not changed:
            cuda.empty_cache()

    return step


def host_code(*, changed: bool) -> Callable[[], object]:
    """Compute 4 ms in Python in every step, or not."""
    training = Training(4, 1024)
    batch = torch.randn(4096, 1024, device=CUDA)

    def step() -> None:
        training.step(batch)
        end = time.perf_counter() + (0 if changed else 0.004)
        while time.perf_counter() < end:
            pass

    return step


def stall(*, changed: bool) -> Callable[[], object]:
    """Sleep 10 ms in every third step, as for a small checkpoint, or never."""
    training = Training(4, 1024)
    batch = torch.randn(4096, 1024, device=CUDA)
    number = [0]

    def step() -> None:
        training.step(batch)
        number[0] += 1
        if not changed and number[0] % 3 == 0:
            time.sleep(0.01)

    return step


def scalars(*, changed: bool) -> Callable[[], object]:
    """Make 20 scalars in every step on the host, or on the GPU."""
    training = Training(4, 1024)
    batch = torch.randn(8192, 1024, device=CUDA)

    def step() -> None:
        for number in range(20):
            if changed:
                torch.full((), float(number), device=CUDA)
            else:
                torch.tensor(float(number), device=CUDA)
        training.step(batch)

    return step


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        read_loss, synchronize, pinned, prefetch, autocast, tf32, graph, attention, activation,
        optimizer, empty_cache, host_code, stall, scalars, load,
    )
}  # fmt: skip


def run(step: Callable[[], object]) -> None:
    for _ in range(RECORDED):
        with instrument.step():
            step()


def record(folder: Path, step: Callable[[], object]) -> None:
    """Record marked steps into a folder."""
    for _ in range(WARM_UP):
        step()
    cuda.synchronize()
    recorder = TorchTrace(folder)
    recorder.prepare()
    recorder.begin()
    run(step)
    recorder.end()


def collected(folder: Path, name: str) -> list[float]:
    """Keep the recording before a change; return the recorded steps before and after, in us."""
    steps = []
    for when in ("before", "after"):
        (trace,) = (folder / f"{name}-{when}").glob("*.gz")
        with closing(traceprof.analyze(trace)) as analysis:
            headline = analysis.result.headline
        assert headline is not None
        steps.append(round(headline.step_ns / 1e3, 1))
        if when == "before":  # its own path is nobody's business
            kept = f"{name}.pt.trace.json"
            text = re.sub(
                rb'"traceName": "[^"]*"',
                b'"traceName": "%s"' % kept.encode(),
                gzip.decompress(trace.read_bytes()),
            )
            (folder / f"{kept}.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    return steps


def main(changes: dict[str, Change]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    nvtx_ranges.annotate_in_profiler()
    times: dict[str, dict[str, list[float]]] = {}
    for name in asked.names or changes:
        before, after = (changes[name](changed=changed) for changed in (False, True))
        times[name] = time_change(before, after, cuda.synchronize)
        switch.enable()
        record(asked.folder / f"{name}-before", before)
        record(asked.folder / f"{name}-after", after)
        switch.disable()
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()
    for thread in threading.enumerate():
        if thread.name == WRITER:
            thread.join()
    for name, rounds in times.items():
        rounds["recorded"] = collected(asked.folder, name)
    (asked.folder / "times.json").write_text(json.dumps(times, indent=1))


if __name__ == "__main__":
    main(CHANGES)
