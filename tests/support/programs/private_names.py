"""Takes one private name of PyTorch away after another, and trains with what is left."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def take_away(name: str) -> Callable[[], None] | None:
    """Delete the name; return what puts it back, None where it was not there."""
    path = name.split(".")
    owner: Any = sys.modules[path[0]]
    for part in path[1:-1]:
        owner = getattr(owner, part)
    last = path[-1]
    if not hasattr(owner, last):
        return None
    stored = vars(owner)[last]
    delattr(owner, last)
    return lambda: setattr(owner, last, stored)


def train() -> float:
    """Train some steps with what `instrument` names; return the last loss."""
    torch.manual_seed(0)
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows: Any = torch.ones(4, 3)
    for batch in DataLoader(rows, batch_size=2):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        work = dist.all_reduce(loss.detach(), async_op=True)
        if work is not None:
            work.wait()
    dist.barrier()
    if hasattr(functional, "wait_tensor"):
        functional.all_reduce(loss.detach(), "sum", dist.group.WORLD).sum()  # type: ignore[arg-type]
    return float(loss)


def main() -> None:
    """Print for each name: whether it was there, the loss, what was logged, and the ranges."""
    names = json.loads(sys.argv[1])
    for name in ["", *names]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as file:
                file.write(json.dumps(_without(name)))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            text = file.read()
        os.waitpid(child, 0)
        sys.stdout.write(json.dumps([name, json.loads(text or "null")]) + "\n")
        sys.stdout.flush()


def _without(name: str) -> dict[str, Any]:
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("traceprof.instrument").addHandler(handler)
    try:
        put_back = take_away(name) if name else None
        events = importlib.import_module("tests.support.recording").record(setattr)
        importlib.import_module("instrument").enable()
        if put_back is not None:  # PyTorch needs it itself
            put_back()
        return {
            "was_there": put_back is not None,
            "loss": train(),
            "logged": logged,
            "events": events,
        }
    except BaseException:  # noqa: BLE001  (it is what the test is about)
        return {"failed": traceback.format_exc(), "logged": logged}


if __name__ == "__main__":
    main()
