"""Three ranks over Gloo, of which one is slow in several ways, and recorded with a peer.

In each step the slow one goes on until the others wait for it, so that it is slow on a busy
machine, too.
"""

import gc
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import instrument
from instrument import watching
from instrument.core import nvtx_ranges

SIZE, SLOW, EVERY = 3, 1, 8
_MAX_S = 120.0
_LEAST_S = 0.03


def load() -> None:
    """Spend most of the step in the loader."""
    time.sleep(_LEAST_S)


def multiply() -> None:
    """Spend most of the step in one operator."""
    factor = torch.ones(600, 600)
    for _ in range(3):
        torch.mm(factor, factor)


def collect() -> None:
    """Spend most of the step in a collection."""
    gc.collect()


_objects: list[list[int]] = []
CAUSES = {"loader": load, "operator": multiply, "collections": collect}


class Others:
    """How far the other ranks are, by a file of each."""

    def __init__(self, folder: Path) -> None:
        self._files = [folder / f"{rank}.step" for rank in range(SIZE) if rank != SLOW]
        self._own = folder / f"{dist.get_rank()}.step"

    def wait_for_slow(self, number: int) -> None:
        """Say that this rank is about to wait for the slow one."""
        self._own.write_bytes(b"." * number)

    def have_come(self, number: int) -> bool:
        """Return whether the others are about to wait in this step."""
        return all(file.exists() and file.stat().st_size >= number for file in self._files)


class Batches(IterableDataset[torch.Tensor]):
    """Batches without an end."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(dist.get_rank())
        while True:
            self._before()
            yield torch.randn(8, 64, generator=generator)


def train(cause: str, folder: Path, is_over: Callable[[int], bool]) -> list[float]:
    """Train from the same state until it is over; return all parameters."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    is_slow, others, number = dist.get_rank() == SLOW, Others(folder), 1

    def dawdle(_: object = None) -> None:
        CAUSES[cause]()
        last = time.monotonic() + _MAX_S
        while not others.have_come(number) and time.monotonic() < last:
            CAUSES[cause]()
        CAUSES[cause]()

    if is_slow and cause in {"operator", "collections"}:
        parameters[0].register_hook(dawdle)  # type: ignore[no-untyped-call]
    batches = Batches(dawdle if is_slow and cause == "loader" else lambda: None)
    for batch in DataLoader(batches, batch_size=None):
        with instrument.step():
            others.wait_for_slow(
                number
            )  # in the second forward pass already: DDP agrees on buckets
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if is_over(number):
            break
        number += 1
    return [value for parameter in parameters for value in parameter.flatten().tolist()]


def compare(cause: str, folder: Path) -> dict[str, Any]:
    """Train with the watch until two traces are written, then as long without it."""
    tables: list[Any] = []
    folder.mkdir(exist_ok=True)
    last, push, end = time.monotonic() + _MAX_S, nvtx_ranges.push, folder / "end"
    instrument.watch(EVERY, folder / "watch.jsonl", tables.append, on_straggler="record")

    def is_over(number: int) -> bool:
        is_done = len([*folder.glob("*/*/*.gz")]) == 2 or time.monotonic() > last
        if dist.get_rank() == 0 and is_done and not end.exists():
            end.write_text(str(number + 2))  # no other rank can be further than the next step
        return end.exists() and number >= int(end.read_text() or number + 1)

    parameters = train(cause, folder, is_over)
    instrument.disable()
    dist.barrier()
    num_steps = int(end.read_text())
    is_same = train("", folder, lambda number: number == num_steps) == parameters
    said = list(itertools.chain.from_iterable(table["said"] for table in tables))
    return {"same": is_same, "said": said, "restored": nvtx_ranges.push is push}


def run(rank: int, store: str, folder: Path) -> None:
    """Train with garbage collections as the cause."""
    run_causes(rank, store, folder, ["collections"])


def run_others(rank: int, store: str, folder: Path) -> None:
    """Train with each other cause."""
    run_causes(rank, store, folder, ["loader", "operator"])


def run_causes(rank: int, store: str, folder: Path, causes: list[str]) -> None:
    """Train with these causes, one after the other."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE)
    torch.set_num_threads(1)
    gc.freeze()
    _objects.extend([number] for number in range(200_000))
    watching.TIMEOUT_S, watching.BEAT_S = 30.0, 0.1
    seen: dict[str, Any] = {cause: compare(cause, folder / cause) for cause in causes}
    (folder / f"{rank}.json").write_text(json.dumps(seen | {"folder": str(folder)}))
    dist.barrier()
    dist.destroy_process_group()
