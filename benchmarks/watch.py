"""What `instrument.watch` adds to a training step with 20 collectives: CPU time of its thread.

    python benchmarks/watch.py [--collectives 20] [--steps 200] [--rounds 30]

Blocks of steps with and without the watch alternate; collectives are those of one rank over Gloo,
which waits for none. Medians of the differences of neighbouring blocks, and what lies
between their quartiles: of the whole step, of a step without collectives, and of one collective.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
import numpy as np
import torch
from torch import distributed as dist

import instrument

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_US = 10_000
"""Length of the step to which the printed percentages refer."""


@click.command()
@click.option("--collectives", default=20, show_default=True, help="Collectives in a step.")
@click.option("--steps", default=200, show_default=True, help="Steps in a block.")
@click.option("--rounds", default=30, show_default=True, help="Pairs of blocks.")
def main(collectives: int, steps: int, rounds: int) -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        compare(collectives, steps, rounds)
        dist.destroy_process_group()


def compare(collectives: int, steps: int, rounds: int) -> None:
    """Measure in turn with and without the watch, and print."""
    tensor = torch.ones(4)
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=1e-4)

    def asynchronous() -> None:
        if work := dist.all_reduce(tensor, async_op=True):
            work.wait()

    def step(call: Callable[[], object], number: int) -> None:
        for _ in range(number):
            call()
        parameter.square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    kinds = {
        # By name: `dist.all_reduce` is another function while it is watched.
        "all_reduce": partial(step, lambda: dist.all_reduce(tensor), collectives),
        "all_reduce, async, and wait": partial(step, asynchronous, collectives),
        "no collective": partial(step, dist.barrier, 0),
    }
    added: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        without = {name: block(run, steps) for name, run in kinds.items()}
        instrument.watch()
        for name, run in kinds.items():
            added[name].append(block(run, steps) - without[name])
        instrument.disable()
    bare = float(np.median(added["no collective"]))
    for name, differences in added.items():
        low, usual, high = np.quantile(differences, [0.25, 0.5, 0.75])
        line = f"{name}: {usual:.0f} µs a step ({low:.0f} to {high:.0f}), {usual / STEP_US:.2%}"
        each = (usual - bare) / collectives
        print(f"{line} of 10 ms" + ("" if usual == bare else f"; {each:.2f} µs each"))


def block(run: Callable[[], object], steps: int) -> float:
    """Return a step's CPU time on this thread in µs, once the interpreter has settled."""
    for _ in range(steps // 4):
        run()
    began = time.thread_time_ns()
    for _ in range(steps):
        run()
    return (time.thread_time_ns() - began) / steps / 1e3


if __name__ == "__main__":
    main()
