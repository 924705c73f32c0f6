"""Trains a small DDP model over Gloo without marking its steps, and ends as it is told.

`unmarked.py STEPS STATUS [FOLDER]`: rank 1 ends with this exit status. Rank 0 makes an empty file
`step-20` in the folder when it has done that many.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 96


def main() -> None:
    """Train for some steps."""
    num_steps, status = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
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
    main()
