"""What `instrument.watch` adds to a training step with 20 collectives: CPU time.

    python benchmarks/watch.py [--collectives 20] [--steps 200] [--rounds 30]

Blocks of steps with and without the watch alternate; collectives are those of one rank over Gloo,
which waits for none. Printed are medians and quartiles of the differences between blocks of a pair,
of the training's thread and of the whole process. The first row compares blocks without the watch:
it shows what such differences are worth.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch
from torch import distributed as dist

import instrument

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
    # On one core: to wake a thread of Gloo on another one takes 100 µs more or less a step.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        compare(collectives, steps, rounds)
        dist.destroy_process_group()


def compare(collectives: int, steps: int, rounds: int) -> None:
    """Measure alternately with and without the watch, and print."""
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
        "all_reduce": partial(step, lambda: dist.all_reduce(tensor), collectives),
        "all_reduce, async, and wait": partial(step, asynchronous, collectives),
        "no collective": partial(step, asynchronous, 0),
    }
    control = "all_reduce, no watch in either"
    added: dict[str, list[np.ndarray]] = {name: [] for name in (control, *kinds)}
    for _ in range(rounds):
        without = {name: block(run, steps) for name, run in kinds.items()}
        added[control].append(block(kinds["all_reduce"], steps) - without["all_reduce"])
        instrument.watch()
        for name, run in kinds.items():
            added[name].append(block(run, steps) - without[name])
        instrument.disable()
    idle = [-second_us() for _ in range(rounds)]
    instrument.watch()
    block(kinds["all_reduce"], steps)
    idle = [without_us + second_us() for without_us in idle]
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
