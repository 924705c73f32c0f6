"""Trains a small DDP model over Gloo and says what it did, for a recording to be held to.

Run by every rank; rank 0 sends a parcel to rank 1 in each step. Writes `truth-RANK.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import instrument

LAYERS, WIDTH, BATCH = 4, 96, 8
PARCEL = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--truth", type=Path, required=True)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1], group_desc="pair")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    # Two layers of 36 864 bytes to a bucket: the limit is passed by the second.
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.04)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(arguments.steps * BATCH, WIDTH))
    parcel = torch.zeros(PARCEL)
    began_ns = []
    for (batch,) in DataLoader(data, batch_size=BATCH):
        began_ns.append(time.monotonic_ns())
        with instrument.step():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            if rank == 0:
                dist.send(parcel, dst=1, group=pair)
            elif rank == 1:
                dist.recv(parcel, src=0, group=pair)
            total = loss.detach().clone()
            dist.all_reduce(total, async_op=True).wait()
    truth = {
        "rank": rank,
        "pid": os.getpid(),
        "began_ns": began_ns,
        "gradient_bytes": sum(parameter.numel() * 4 for parameter in model.parameters()),
        "parcel_bytes": PARCEL * 4,
        "pair": pair.group_name,
    }
    (arguments.truth / f"truth-{rank}.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
