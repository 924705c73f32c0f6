"""Forks two ranks of Gloo, as notebooks' launchers do; each trains. `forked.py FOLDER STEPS`."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch._dynamo  # which optimizers import: here once for both ranks
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def work(rank: int, folder: str, num_steps: int) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(num_steps):
        model(torch.ones(2, 4)).sum().backward()
        dist.all_reduce(torch.ones(1))
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    arguments: Any = (sys.argv[1], int(sys.argv[2]))
    start_processes(work, arguments, nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
