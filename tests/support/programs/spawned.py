"""Starts processes by mp.spawn; each says what was instrumented. `spawned.py FOLDER OTHERS`.

One is the rank of a group; OTHERS more do not communicate, as workers of a data loader.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

NUM_RANKS = 1


def work(rank: int, folder: str) -> None:
    if rank < NUM_RANKS:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=NUM_RANKS)
        dist.barrier()
        dist.destroy_process_group()
    switch = sys.modules.get("instrument.switch")
    said = str(switch is not None and switch.is_enabled())
    (Path(folder) / f"rank-{rank}").write_text(said)


if __name__ == "__main__":
    spawn(work, (sys.argv[1],), nprocs=NUM_RANKS + int(sys.argv[2]))  # type: ignore[no-untyped-call]
