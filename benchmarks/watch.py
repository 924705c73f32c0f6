"""What `instrument.watch` adds to a training step with 20 collectives: CPU time.

    python benchmarks/watch.py [--collectives 20] [--steps 200] [--rounds 30]

Blocks of steps with and without the watch alternate; collectives are those of one rank over Gloo,
which waits for none. Printed are medians of the differences of neighbouring blocks, and what lies
between their quartiles: of the training's thread, and of the whole process. Gloo's own threads vary
by more than the watch adds, so the first kind waits 20 times for one operation that is over.
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

    over = dist.all_reduce(tensor, async_op=True)
    if over is None:
        raise RuntimeError("this rank is in no group")
    over.wait()

    def wait() -> None:  # by name: a method that was taken before the watch began is not timed
        over.wait()

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
        "wait for what is over": partial(step, wait, collectives),
        "all_reduce": partial(step, lambda: dist.all_reduce(tensor), collectives),
        "all_reduce, async, and wait": partial(step, asynchronous, collectives),
        "no collective": partial(step, wait, 0),
    }
    added: dict[str, list[np.ndarray]] = {name: [] for name in kinds}
    idle: list[float] = []
    for _ in range(rounds):
        without = {name: block(run, steps) for name, run in kinds.items()}
        waits_us = second_us()
        instrument.watch()
        for name, run in kinds.items():
            added[name].append(block(run, steps) - without[name])
        idle.append(second_us() - waits_us)
        instrument.disable()
    for name, differences in added.items():
        columns = zip(*np.quantile(differences, [0.5, 0.25, 0.75], axis=0), strict=True)
        thread, process = ("{:.1f} µs a step ({:.1f} to {:.1f})".format(*each) for each in columns)
        share = np.median(differences, axis=0)[0] / STEP_US
        print(f"{name}: {thread}, {share:.2%} of 10 ms; of the process {process}")
    low, usual, high = np.quantile(idle, [0.25, 0.5, 0.75])
    print(f"signs of life: {usual:.0f} µs a second ({low:.0f} to {high:.0f})")


def block(run: Callable[[], object], steps: int) -> np.ndarray:
    """Return a step's CPU time in µs once the interpreter has settled: thread, process."""
    for _ in range(steps // 4):
        run()
    began = time.thread_time_ns(), time.process_time_ns()
    for _ in range(steps):
        run()
    ended = time.thread_time_ns(), time.process_time_ns()
    return np.subtract(ended, began) / steps / 1e3


def second_us() -> float:
    """Return the process's CPU time in a second in which it only waits."""
    began = time.process_time_ns()
    time.sleep(1.0)
    return (time.process_time_ns() - began) / 1e3


if __name__ == "__main__":
    main()
