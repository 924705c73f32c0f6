"""Trains a small DDP model over Gloo without marking its steps, and ends as it is told.

`unmarked.py STEPS STATUS [FOLDER]`: rank 1 ends with this exit status. Rank 0 makes an empty file
`step-20` in the folder when it has done that many. Without torchrun it forks its two ranks, as
notebooks' launchers do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch._dynamo  # which optimizers import: here once for both ranks
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

WIDTH = 96


def train(rank: int, store: str) -> None:
    num_steps, status = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.04)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        if number == 20 and rank == 0 and len(sys.argv) > 3:
            (Path(sys.argv[3]) / "step-20").touch()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(status if rank == 1 else 0)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), "env://")
    with TemporaryDirectory() as folder:
        arguments = (f"file://{folder}/store",)
        start_processes(train, arguments, nprocs=2, start_method="fork")  # type: ignore[no-untyped-call]
