"""Eight ranks over Gloo that make processes and groups of their own while they are watched."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from instrument import watching
from tests.support.programs.watched import EVERY, WAYS, compare, train

MANY = 8
SLEEPER = 5


def train_with_forks_and_groups() -> list[float]:
    """Train, make a group and a process of one's own, and train again."""
    first = train(sleeper=SLEEPER)
    half = dist.new_subgroups(MANY // 2)[0]  # type: ignore[no-untyped-call]
    dist.all_reduce(torch.ones(4), group=half)
    child = os.fork()
    if child == 0:
        parameter = torch.nn.Parameter(torch.ones(1))
        parameter.grad = torch.ones(1)
        optimizer = torch.optim.SGD([parameter], lr=0.01)
        for _ in range(2 * EVERY):
            optimizer.step()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise AssertionError("a forked process trains as without the watch")
    return [*first, *train(models=2)]


def run(rank: int, store: str, folder: Path) -> None:
    """Train on many ranks, of which one is slow at first."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=MANY)
    watching.TIMEOUT_S = 60.0
    WAYS["many"] = (train_with_forks_and_groups, {})
    seen = compare("many", folder)
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(seen))
