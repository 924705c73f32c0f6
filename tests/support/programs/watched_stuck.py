"""Two ranks over Gloo of which each is stopped within a step; one waits for what never comes.

The other's watch says so; only then the rank goes on, so that nothing depends on times.
"""

import json
import logging
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
STOPPED, FIRST_STOPPED, STUCK, NUM_STEPS = 5, 7, 9, 12
_MAX_S = 120.0


def until_exists(path: Path) -> str:
    """Wait for a file that another process writes; return its text."""
    last = time.monotonic() + _MAX_S
    while not path.exists() and time.monotonic() < last:
        time.sleep(0.05)
    return path.read_text()


def write(path: Path, text: str) -> None:
    """Write a file as a whole."""
    partial = path.with_name(f"{path.name}-{os.getpid()}")
    partial.write_text(text)
    partial.rename(path)


def train(interrupt: Any) -> list[float]:
    """Train from the same state; return all parameters."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(NUM_STEPS):
        loss = model(torch.full((4, 8), float(number))).square().mean()
        interrupt(number)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def wake(other: int) -> None:
    """Let a process go on once it is stopped: on a busy machine it is said too early."""
    state, last = Path(f"/proc/{other}/stat"), time.monotonic() + _MAX_S
    while state.read_text().rpartition(")")[2].split()[0] != "T" and time.monotonic() < last:
        time.sleep(0.01)
    os.kill(other, signal.SIGCONT)


class WakeFirst(logging.Handler):
    """Keeps what is logged, and lets rank 0 go on where it is first said to be silent."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._first = first

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if self.lines[-1].startswith("rank 0 did not answer") and len(self.lines) == 1:
            wake(self._first)


def join(rank: int, store: str) -> None:
    """Make the process group.

    As with torchrun the store is in a process of its own. A rank that is stopped while it locks the
    file of a FileStore would stop all others.
    """
    port = Path(f"{store}.port")
    if rank == 0 and os.fork() == 0:
        server = TCPStore("127.0.0.1", 0, SIZE, is_master=True, wait_for_workers=False)
        write(port, str(server.port))
        until_exists(Path(f"{store}.over"))
        os._exit(0)
    server = TCPStore("127.0.0.1", int(until_exists(port)), SIZE, is_master=False)
    dist.init_process_group("gloo", store=server, rank=rank, world_size=SIZE)


def run(rank: int, store: str, folder: Path) -> None:
    """Train without and with interruptions."""
    told = Path(f"{store}.told")
    pids = [Path(f"{store}.pid{number}") for number in range(SIZE)]
    write(pids[rank], str(os.getpid()))
    join(rank, store)
    watching.TIMEOUT_S, watching.BEAT_S = 1.0, 0.2
    expected = train(bool)
    tables: list[Any] = []
    other = int(until_exists(pids[1 - rank]))

    def let_go(table: Any) -> None:
        tables.append(table)
        if table["silent"] and not any(before["silent"] for before in tables[:-1]):
            wake(other)
        if table["stuck"]:
            write(told, json.dumps(table))

    def interrupt(number: int) -> None:
        if number == (STOPPED if rank else FIRST_STOPPED):
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == STUCK and rank == 1:
            until_exists(told)

    original, logged = vars(dist.Work)["wait"], WakeFirst(other)
    logging.getLogger("traceprof.instrument").addHandler(logged)
    path = folder / "watch.jsonl"
    instrument.watch(NUM_STEPS, path, let_go)
    same = train(interrupt) == expected
    dist.barrier()
    instrument.disable()
    is_restored = vars(dist.Work)["wait"] is original
    seen = {"same": same, "tables": tables, "restored": is_restored, "path": str(path)}
    (folder / f"{rank}.json").write_text(json.dumps(seen | {"logged": logged.lines}))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        write(Path(f"{store}.over"), "")
