"""Two ranks over Gloo of which one is stopped within a step, and later waits for what never comes.

Rank 0's watch says so; only then the other rank goes on, so that nothing depends on times.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import instrument
from instrument import watching

SIZE = 2
STOPPED, STUCK, NUM_STEPS = 5, 9, 12
_MAX_S = 120.0


def until_exists(path: Path) -> str:
    """Wait for a file that another process writes; return its text."""
    last = time.monotonic() + _MAX_S
    while not path.exists() and time.monotonic() < last:
        time.sleep(0.05)
    return path.read_text()


def write(path: Path, text: str) -> None:
    """Write a file as a whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


def train(interrupt: Any) -> list[float]:
    """Train from the same state; return all parameters."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(NUM_STEPS):
        loss = model(torch.full((4, 8), float(number))).square().mean()
        if dist.get_rank() == 1:
            interrupt(number)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def run(rank: int, store: str, folder: Path) -> None:
    """Train without and with interruptions."""
    told = Path(f"{store}.told")
    pid = Path(f"{store}.pid")
    port = Path(f"{store}.port")
    # A rank that is stopped while it locks the file of a FileStore would stop all others.
    if rank == 0:
        server = TCPStore("127.0.0.1", 0, SIZE, is_master=True, wait_for_workers=False)
        write(port, str(server.port))
    else:
        write(pid, str(os.getpid()))
        server = TCPStore("127.0.0.1", int(until_exists(port)), SIZE, is_master=False)
    dist.init_process_group("gloo", store=server, rank=rank, world_size=SIZE)
    watching.TIMEOUT_S, watching.BEAT_S = 1.0, 0.2
    expected = train(bool)
    tables: list[Any] = []
    other = int(until_exists(pid))

    def is_stopped() -> bool:
        return Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def let_go(table: Any) -> None:
        tables.append(table)
        if table["silent"] and not any(before["silent"] for before in tables[:-1]):
            last = time.monotonic() + _MAX_S
            while not is_stopped() and time.monotonic() < last:
                time.sleep(0.01)  # on a busy machine it is said too early
            os.kill(other, signal.SIGCONT)
        if table["stuck"]:
            write(told, json.dumps(table))

    def interrupt(number: int) -> None:
        if number == STOPPED:
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == STUCK:
            until_exists(told)

    original = vars(dist.Work)["wait"]
    instrument.watch(NUM_STEPS, callback=let_go)
    same = train(interrupt) == expected
    dist.barrier()
    instrument.disable()
    is_restored = vars(dist.Work)["wait"] is original
    seen = {"same": same, "tables": tables, "restored": is_restored}
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()
