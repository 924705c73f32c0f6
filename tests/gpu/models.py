"""Changes to trainings of known models on one GPU: `python -m tests.gpu.models FOLDER`.

GPT-2 and ResNet are those of transformers and torchvision, small and with random weights. The
program writes what `tests.gpu.changes` does. Nothing in traceprof was made with these in view.
"""

from __future__ import annotations

import gc
import io
import queue
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torchvision
import transformers
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.gpu.changes import CUDA, Training, cuda, main, train
from tests.support.recording import Change


def gpt2(layers: int, width: int, attention: str) -> Any:
    """Return GPT-2 of a size, without dropout."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 64, n_positions=1024, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).to(CUDA)


def language(
    model: Any, batch: int, length: int, *, half: bool = True, **options: Any
) -> Callable[[], Tensor]:
    """Return a step that trains a language model with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **(options or {"fused": True}))
    words = torch.randint(50257, (batch, length), device=CUDA)
    return lambda: train(optimizer, lambda: model(words, labels=words).loss, half=half)


def gpt2_half(*, changed: bool) -> Callable[[], object]:
    """Train GPT-2 in FP32, or in bfloat16 under autocast."""
    return language(gpt2(4, 768, "sdpa"), 8, 512, half=changed)


def gpt2_attention(*, changed: bool) -> Callable[[], object]:
    """Attend in several kernels, or in one."""
    return language(gpt2(4, 768, "sdpa" if changed else "eager"), 8, 1024)


def gpt2_compiled(*, changed: bool) -> Callable[[], object]:
    """Run each kernel of PyTorch, or those that the compiler makes."""
    model = gpt2(4, 512, "sdpa")
    if changed:
        model.transformer.compile()
    return language(model, 4, 512)


def gpt2_loop(*, changed: bool) -> Callable[[], object]:
    """Update each parameter by itself, or all at once."""
    return language(gpt2(6, 256, "sdpa"), 2, 256, foreach=changed)


def resnet(*, channels_last: bool = False) -> tuple[Any, Any]:
    """Return ResNet-50 and its optimizer."""
    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(CUDA)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)


def images(model: Any, optimizer: Any, batch: Tensor) -> Tensor:
    return train(optimizer, lambda: model(batch).float().square().mean())


def channels_last(*, changed: bool) -> Callable[[], object]:
    """Keep images by channel, or channels last."""
    model, optimizer = resnet(channels_last=changed)
    batch = torch.randn(64, 3, 224, 224, device=CUDA)
    if changed:
        batch = batch.to(memory_format=torch.channels_last)
    return lambda: images(model, optimizer, batch)


class Pictures(Dataset[Any]):
    """Images that take some milliseconds of one core each."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(256, (3, 256, 256), generator=generator, dtype=torch.uint8)
        crop = image[:, 16:240, 16:240].float().div_(255).sub_(0.5).div_(0.25)
        return crop, index % 1000


def workers(*, changed: bool) -> Callable[[], object]:
    """One process loads batches of images, or six."""
    model, optimizer = resnet(channels_last=True)
    loader = DataLoader(
        Pictures(), batch_size=32, num_workers=6 if changed else 1, pin_memory=True,
        persistent_workers=True,
    )  # fmt: skip
    batches = iter(loader)

    def step() -> None:
        batch, _ = next(batches)
        batch = batch.to(CUDA, non_blocking=True, memory_format=torch.channels_last)
        images(model, optimizer, batch)

    return step


def recompute(*, changed: bool) -> Callable[[], object]:
    """Compute activations again in the backward, or keep them."""
    training = Training(6, 1024)
    batch = torch.randn(8192, 1024, device=CUDA)

    def loss() -> Tensor:
        output = batch
        for block in training.model:
            output = block(output) if changed else checkpoint(block, output, use_reentrant=False)
        return output.float().square().mean()

    return lambda: train(training.optimizer, loss)


def offload(*, changed: bool) -> Callable[[], object]:
    """Keep activations in the host's pinned memory, or on the GPU."""
    training = Training(4, 1024)
    batch = torch.randn(4096, 1024, device=CUDA)

    def loss() -> Tensor:
        saved: Any = torch.autograd.graph.save_on_cpu(pin_memory=True)
        with nullcontext() if changed else saved:
            return training.loss(batch)

    return lambda: train(training.optimizer, loss)


def clip(*, changed: bool) -> Callable[[], object]:
    """Clip gradients by a loop over parameters that reads each norm, or by one function."""
    training = Training(8, 512)
    batch = torch.randn(2048, 512, device=CUDA)
    parameters = list(training.model.parameters())

    def step() -> None:
        training.optimizer.zero_grad()
        torch.autograd.backward(training.loss(batch))
        if changed:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        else:
            squares = sum(p.grad.norm().item() ** 2 for p in parameters if p.grad is not None)
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(min(1.0, squares**-0.5))
        training.optimizer.step()

    return step


def collect(*, changed: bool) -> Callable[[], object]:
    """Collect Python's garbage in every step, or not."""
    training = Training(4, 1024)
    batch = torch.randn(4096, 1024, device=CUDA)

    def step() -> None:
        training.step(batch)
        if not changed:
            gc.collect()

    return step


def accumulate(*, changed: bool) -> Callable[[], object]:
    """Read the loss of each of four micro-batches, or their sum once."""
    training = Training(6, 768)
    batch = torch.randn(2048, 768, device=CUDA)

    def step() -> None:
        training.optimizer.zero_grad()
        losses = []
        for _ in range(4):
            loss = training.loss(batch)
            torch.autograd.backward(loss)
            losses.append(loss.detach())
            if not changed:
                loss.item()
        training.optimizer.step()
        if changed:
            torch.stack(losses).sum().item()

    return step


def masked(*, changed: bool) -> Callable[[], object]:
    """Choose rows by a mask, whose number the host must know, or multiply by it."""
    training = Training(6, 1024)
    batch = torch.randn(8192, 1024, device=CUDA)
    mask = torch.rand(8192, device=CUDA) > 0.02

    def loss() -> Tensor:
        output = batch
        for block in training.model:
            output = block(output)
            chosen = output * mask[:, None] if changed else output[mask]
        value: Tensor = chosen.float().square().mean()
        return value

    return lambda: train(training.optimizer, loss)


def metrics(*, changed: bool) -> Callable[[], object]:
    """Copy all outputs to the host for a metric, or reduce them on the GPU."""
    training = Training(6, 1024)
    batch = torch.randn(8192, 1024, device=CUDA)

    def step() -> None:
        training.step(batch)
        with torch.no_grad():
            outputs = training.model[0](batch)
        if changed:
            outputs.argmax(-1)
        else:
            outputs.cpu()

    return step


def many_tensors(*, changed: bool) -> Callable[[], object]:
    """Copy a batch of 40 small tensors one by one, or as one."""
    training = Training(4, 1024)
    batch = torch.randn(4096, 1024, device=CUDA)
    parts = [torch.randn(512) for _ in range(40)]

    def step() -> None:
        if changed:
            torch.split(torch.cat(parts).to(CUDA), 512)
        else:
            _ = [part.to(CUDA) for part in parts]
        training.step(batch)

    return step


def save(*, changed: bool) -> Callable[[], object]:
    """Save a checkpoint in every third step, or never."""
    training = Training(3, 512)
    batch = torch.randn(4096, 512, device=CUDA)
    number = [0]

    def step() -> None:
        training.step(batch)
        number[0] += 1
        if not changed and number[0] % 3 == 0:
            torch.save(training.model.state_dict(), io.BytesIO())

    return step


def threads(*, changed: bool) -> Callable[[], object]:
    """One thread loads batches, or three."""
    training = Training(4, 1024)
    batches: queue.Queue[Tensor] = queue.Queue(2)

    def load() -> None:
        generator = torch.Generator()
        while True:
            batches.put(torch.randn(1024, 1024, generator=generator).sin_().pin_memory())

    for _ in range(3 if changed else 1):
        threading.Thread(target=load, daemon=True).start()

    def step() -> None:
        training.step(batches.get().to(CUDA, non_blocking=True))

    return step


def two_streams(*, changed: bool) -> Callable[[], object]:
    """Evaluate beside the training on one stream, or on a stream of its own."""
    training = Training(3, 256)
    batch = torch.randn(256, 256, device=CUDA)
    side = cuda.Stream()

    def evaluate() -> None:
        with torch.no_grad():
            for _ in range(3):
                training.model(batch)

    def step() -> None:
        if changed:
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                evaluate()
        else:
            evaluate()
        training.step(batch)

    return step


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        gpt2_half, gpt2_attention, gpt2_loop, channels_last, workers, recompute, offload, clip,
        collect, accumulate, masked, metrics, many_tensors, save, threads, two_streams,
        gpt2_compiled,
    )
}  # fmt: skip


if __name__ == "__main__":
    main(CHANGES)
