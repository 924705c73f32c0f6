"""Starts processes by mp.spawn; each says what was instrumented. `spawned.py FOLDER GROUP`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def work(rank: int, folder: str, makes_group: bool) -> None:
    if makes_group:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
        dist.barrier()
        dist.destroy_process_group()
    switch = sys.modules.get("instrument.switch")
    said = str(switch is not None and switch.is_enabled())
    (Path(folder) / f"rank-{rank}").write_text(said)


if __name__ == "__main__":
    spawn(work, (sys.argv[1], sys.argv[2] == "1"), nprocs=2)  # type: ignore[no-untyped-call]
