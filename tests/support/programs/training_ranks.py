"""Models that DDP and FSDP train on three ranks, without ranges and with them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import instrument
from instrument.core import completion
from tests.support.recording import record

Wrap = Callable[[torch.nn.Module], torch.nn.Module]

SIZE = 3
STEPS = 5
WIDTH = 48
LAYERS = 4
ACCUMULATED = 2
"""The step that first computes gradients without sending them."""

BUCKET_MB = 0.008  # less than a layer, more than its bias
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 4


seed = torch.default_generator.manual_seed
"""As `torch.manual_seed`, which also notes for each absent GPU by whom it was called."""


class Conditional(torch.nn.Module):
    """Leaves a layer out in every other call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result: torch.Tensor = self.first(rows)
        return result if self.calls % 2 else self.second(result)


class Mixed(torch.nn.Module):
    """Has sparse and complex gradients, and buffers that are sent with each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, WIDTH, sparse=True)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.turn = torch.nn.Parameter(torch.randn(WIDTH, 3, dtype=torch.complex64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found = self.table(rows[:, :2].abs().mul(9).long().clamp(max=19)).mean(1)
        return torch.view_as_real(self.norm(found).to(torch.complex64) @ self.turn)


def layers(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(LAYERS)))


def users_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Do what no other path does, so that it shows if it was not called."""
    scaled = bucket.buffer().div_(7.0)
    work = dist.all_reduce(scaled, group=state, async_op=True)
    assert work is not None
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(
        lambda done: done.value()[0].mul_(3.0)
    )
    return future


# DDP looks at the annotations, which are mere strings in this module.
users_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}


class Case(NamedTuple):
    model: Callable[[], torch.nn.Module] = layers
    ddp: dict[str, Any] = {}  # noqa: RUF012  (never written to)
    register: Callable[[DistributedDataParallel], None] | None = None
    dtype: torch.dtype = torch.float32


def _register_users(model: DistributedDataParallel) -> None:
    model.register_comm_hook(model.process_group, users_hook)


def _register_builtin(model: DistributedDataParallel) -> None:
    model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)  # type: ignore[no-untyped-call]


CASES = {
    "plain": Case(),
    "views": Case(ddp={"gradient_as_bucket_view": True}),
    "static graph": Case(ddp={"static_graph": True}),
    "unused": Case(Conditional, {"find_unused_parameters": True}),
    "half": Case(lambda: layers(torch.float16), dtype=torch.float16),
    "mixed": Case(Mixed),
    "user's hook": Case(register=_register_users),
    "built-in hook": Case(register=_register_builtin),
}


def train(case: Case, group: dist.ProcessGroup) -> list[torch.Tensor]:
    seed(0)
    model = DistributedDataParallel(
        case.model(), process_group=group, bucket_cap_mb=BUCKET_MB, **case.ddp
    )
    if case.register is not None:
        case.register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        seed(100 * step + dist.get_rank())
        # Gradients that lie in their buckets are averaged by another instruction.
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        rows = torch.randn(6, WIDTH, dtype=case.dtype)
        if step == ACCUMULATED and case.model is not Conditional:
            with model.no_sync():
                model(rows).square().mean().backward()
        model(rows).square().mean().backward()
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*(parameter.detach() for parameter in model.parameters()), *gradients]


def join(group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Train on more batches on some ranks than on others."""
    seed(0)
    model = DistributedDataParallel(layers(), process_group=group, bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=False):
        for batch in range(3 + dist.get_rank()):
            seed(100 * batch + dist.get_rank())
            optimizer.zero_grad()
            model(torch.randn(6, WIDTH)).square().mean().backward()
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def sharded(wrap: Wrap) -> list[torch.Tensor]:
    """Train a model one step that another API than DDP wraps."""
    seed(0)
    model = wrap(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seed(dist.get_rank())
    model(torch.randn(6, WIDTH)).square().mean().backward()
    optimizer.step()
    parameters = [parameter.detach() for parameter in model.parameters()]
    return [
        parameter.to_local() if isinstance(parameter, DTensor) else parameter
        for parameter in parameters
    ]


def fsdp1(model: torch.nn.Module) -> torch.nn.Module:
    policy = ModuleWrapPolicy({torch.nn.Linear})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def fsdp2(model: torch.nn.Module) -> torch.nn.Module:
    mesh = DeviceMesh("cpu", range(SIZE))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def run(rank: int, store: str, folder: Path) -> None:
    """Be one of the ranks: train in every way without ranges, then with them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # PyTorch's, of what is prototype or deprecated
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE)
    world, pair = dist.group.WORLD, dist.new_group([0, 1])
    assert world is not None
    ways: dict[str, Callable[[], list[torch.Tensor]]] = {}
    for name, case in CASES.items():
        ways[f"{name} of 3"] = partial(train, case, world)
        if rank < 2:
            ways[f"{name} of 2"] = partial(train, case, pair)
    ways["join"] = partial(join, world)
    wrappers: dict[str, Wrap] = {"fsdp1": fsdp1, "fsdp2": fsdp2, "replicate": replicate}
    ways |= {name: partial(sharded, wrap) for name, wrap in wrappers.items()}

    without = {name: way() for name, way in ways.items()}
    events = record(setattr)
    seen: dict[str, Any] = {}
    instrument.enable()
    for name, way in ways.items():
        trained = way()
        completion._wait_for_all()  # threads of Gloo end ranges a moment later
        same = [
            torch.equal(*map(_dense, pair)) for pair in zip(trained, without[name], strict=True)
        ]
        seen[name] = {"same": all(same), "events": list(events)}
        events.clear()
    instrument.disable()
    seen["after"] = {"same": True, "events": (way(), list(events))[1]}
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.is_sparse else tensor
