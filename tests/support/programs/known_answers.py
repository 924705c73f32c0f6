"""Programs with known answers, to be recorded: `python -m … NAME TRUTH.json`.

Each writes what it did into the file. One process, one rank; on a GPU where there is one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import instrument

STEPS, WIDTH, MIB = 6, 256, 1 << 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Truth = dict[str, Any]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def train(model: torch.nn.Module, num_steps: int = STEPS) -> Truth:
    """Train some steps; return their number, and the bytes of all gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(32, WIDTH, device=DEVICE)).square().mean().backward()
        optimizer.step()
    synchronize()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"steps": num_steps, "gradient_bytes": size}


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


@contextmanager
def group() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if DEVICE == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/s", rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def ddp() -> Truth:
    with group():
        return train(DistributedDataParallel(network(), bucket_cap_mb=0.3))


def fsdp2() -> Truth:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  (not in every PyTorch)

    with group():
        model = network()
        for layer in model.children():
            fully_shard(layer)
        fully_shard(model)  # in place
        return train(model)


def compiled() -> Truth:
    """Train a model through torch.compile; the first call, which compiles, is no part of it."""
    model = network()
    run: Any = torch.compile(model)
    run(torch.randn(32, WIDTH, device=DEVICE)).square().mean().backward()
    with instrument.annotate("measured"):
        return train(run)


def graphs() -> Truth:
    """Run a model once eagerly, and 20 times as a CUDA graph."""
    model, batch = network(), torch.randn(32, WIDTH, device=DEVICE)
    with torch.no_grad():
        model(batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(batch)
        for name, count, call in (("eager", 1, lambda: model(batch)), ("replay", 20, graph.replay)):
            synchronize()
            with instrument.annotate(name):
                for _ in range(count):
                    call()
                synchronize()
    return {"replays": 20}


def exchange() -> Truth:
    """Send to and receive from itself, in a step: nothing else begins a trace of torch."""
    with group(), instrument.step():
        sent, received = (torch.ones(MIB // 4, device=DEVICE) for _ in range(2))
        for _ in range(10):
            operations = [dist.P2POp(dist.isend, sent, 0), dist.P2POp(dist.irecv, received, 0)]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        synchronize()
    return {"operations": 10, "bytes": MIB}


def copies() -> Truth:
    """Copy pageable and pinned memory to the GPU and back, in a step."""
    pageable, pinned = torch.ones(MIB), torch.ones(MIB).pin_memory()
    with instrument.step():
        for source in (pageable, pinned):
            for _ in range(5):
                target = source.to("cuda", non_blocking=True)
                source.copy_(target)
        synchronize()
    return {"copies": 5, "bytes": 4 * MIB}


def unset_device() -> Truth:
    """Copy on the host before a device is set; say whether that has initialized CUDA."""
    torch.ones(4).copy_(torch.zeros(4)).to(torch.float64)
    cuda: Any = torch.cuda
    was_initialized = cuda.is_initialized()
    train(network(), 1)
    return {"was_initialized": was_initialized}


PROGRAMS: dict[str, Callable[[], Truth]] = {
    program.__name__: program
    for program in (ddp, fsdp2, compiled, graphs, exchange, copies, unset_device)
}
NEED_GPU = frozenset(PROGRAMS) - {"ddp"}
"""Programs that make no sense, or take long, without a GPU."""


def main() -> None:
    name, target = sys.argv[1:]
    Path(target).write_text(json.dumps(PROGRAMS[name]()))


if __name__ == "__main__":
    main()
