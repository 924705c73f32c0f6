"""Two ranks over Gloo that train with and without the watch, and what it tells of them."""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import instrument
from instrument import watching

SIZE = 2
EVERY = 8
NUM_STEPS = 3 * EVERY
SLEEP_S = 0.1


class UserError(Exception):
    """What the training raises itself."""


def sleep(gradient: torch.Tensor) -> None:
    """Compute for long."""
    del gradient
    time.sleep(SLEEP_S)


def fail(gradient: torch.Tensor) -> None:
    raise UserError(gradient)


class Stuttering(list[torch.Tensor]):
    """A data set that takes long for three samples of four."""

    def __getitem__(self, number: Any) -> Any:
        if number % 4:
            time.sleep(SLEEP_S)
        return super().__getitem__(number)


def train(
    models: int = 1, accumulate: int = 1, sleeper: int | None = None, stutterer: int | None = None
) -> list[float]:
    """Train from the same state; return all parameters."""
    torch.manual_seed(0)
    nets = [DistributedDataParallel(torch.nn.Linear(64, 64)) for _ in range(models)]
    parameters = [parameter for net in nets for parameter in net.parameters()]
    if dist.get_rank() == sleeper:
        parameters[0].register_hook(sleep)  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randn(NUM_STEPS * accumulate, 8, 64, generator=generator)
    samples = Stuttering(rows) if dist.get_rank() == stutterer else list(rows)
    for number, batch in enumerate(DataLoader(samples, batch_size=None)):  # type: ignore[arg-type]
        is_last = (number + 1) % accumulate == 0
        for net in nets:
            net.require_backward_grad_sync = is_last  # what `no_sync` sets
            net(batch).square().mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    return [value for parameter in parameters for value in parameter.flatten().tolist()]


def train_with_an_exception() -> list[float]:
    """Train after a backward pass that an exception left."""
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(fail)  # type: ignore[no-untyped-call]
    try:
        (leaf * 2).sum().backward()  # type: ignore[no-untyped-call]
    except UserError:
        return train()
    raise AssertionError("the exception is the user's")


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (train, {}),
    "two_models_and_no_sync": (train, {"models": 2, "accumulate": 2}),
    "exception": (train_with_an_exception, {}),
    "slow": (train, {"sleeper": 1}),
    "stutter": (train, {"stutterer": 1}),
}


def compare(name: str, folder: Path, *, is_alone: bool = False) -> dict[str, Any]:
    """Train one way without and with the watch."""
    way, options = WAYS[name]
    original = vars(dist.Work)["wait"]
    fast = {key: value for key, value in options.items() if key not in {"sleeper", "stutterer"}}
    expected = way(**fast)
    tables: list[Any] = []
    rank = dist.get_rank()
    if not (is_alone and rank):
        instrument.watch(EVERY, path=folder / f"{name}.jsonl", callback=tables.append)
    is_wrapped = vars(dist.Work)["wait"] is not original
    same = way(**options) == expected
    last = time.monotonic() + watching.TIMEOUT_S
    while rank == 0 and len(tables) < NUM_STEPS // EVERY and time.monotonic() < last:
        time.sleep(0.01)
    dist.barrier()
    instrument.disable()
    is_restored = vars(dist.Work)["wait"] is original
    return {"same": same, "tables": tables, "wrapped": is_wrapped, "restored": is_restored}


def run(rank: int, store: str, folder: Path) -> None:
    """Train in all ways; at the end rank 1 does not watch, and then it dies."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE)
    watching.TIMEOUT_S = 30.0
    seen: dict[str, Any] = {name: compare(name, folder) for name in WAYS}
    watching.TIMEOUT_S = 0.2
    seen["alone"] = compare_alone(folder)
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    instrument.watch(EVERY)
    if rank == 1:
        os._exit(0)
    try:
        train()
    except RuntimeError as error:
        seen["dead"] = str(error)
    dist.destroy_process_group()
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    for _ in range(2 * EVERY):
        parameter.square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    instrument.disable()
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def compare_alone(folder: Path) -> dict[str, Any]:
    WAYS["alone"] = (train, {})
    return compare("alone", folder, is_alone=True)
