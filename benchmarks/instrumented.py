"""What `instrument` costs: a call against bare NVTX ranges, and a training step of two ranks.

    python benchmarks/instrumented.py [--calls 250] [--rounds 60] [--threes 1000] [--processes 4]

Three times in child processes: without a tool, where nothing is replaced; under one that only
counts (compiled with `cc`), with all wrappers and ranges that nobody keeps; and under `nsys profile
--trace=nvtx`, where it is on PATH.

Calls: short alternating blocks of calls, without anything, with a bare range around each (push and
pop, with a text of its own), and with `instrument`. CPU time of the calling thread: what is added
is work of that thread, whatever the operation waits for. Operations are those of PyTorch's "fake"
backend, which return at once. Medians of the differences of neighbouring blocks, and what
`instrument` adds over what a bare range adds.

Among them are calls that move nothing and get no range: `.to("cpu")` of a tensor on the CPU.

Steps: DistributedDataParallel over Gloo, each rank on a core of its own. A machine has moods that
last for many steps, and `enable` makes functions that the interpreter has yet to make quick. So it
is called once; then of every three steps, in any order, one has in place what `enable` replaced of
what a step passes, and two have what was there before. Wall time and CPU time of the process of the
one, less the mean of the other two. Printed are the mean of these differences over all threes of
several pairs of ranks, less the lowest and the highest tenth of them, and where it lies with 95 %
confidence, by drawing the threes again. The same of the second of the two without it, less the
first one, is what the machine does by itself.

Alone: what is added to a step of one rank without others, which computes next to nothing.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MethodType
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed as dist
from torch.distributed.distributed_c10d import _get_default_group
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import instrument
from instrument.core import nvtx_ranges
from instrument.wraps import ddp
from instrument.wraps.steps import _cell_of_step

Measured = dict[str, Any]
Measurements = npt.NDArray[np.float64]
Call = tuple[int, "Callable[[], object]"]
"""How many ranges are to be paid for, and the call."""

NSYS = [
    "nsys",
    "profile",
    "--trace=nvtx",
    "--sample=none",
    "--cpuctxsw=none",
    "--force-overwrite=true",
]
TOOL = Path(__file__).parents[1] / "tests" / "support" / "tool.c"
"""A tool that counts ranges."""
UNDER_NSYS = f"under nsys, nvtx {version('nvtx')}"
SETTLING_CALLS = 50  # the interpreter finds its shortcuts anew
SETTLING_STEPS = 20  # after eight, functions have been made quicker
DRAWS = 2000
STEPS_ALONE = 300  # of half a millisecond


@click.group(invoke_without_command=True)
@click.option("--calls", default=250, show_default=True, help="Calls in a block.")
@click.option("--rounds", default=60, show_default=True, help="Pairs of blocks of calls.")
@click.option("--threes", default=1000, show_default=True, help="Threes of steps.")
@click.option("--processes", default=4, show_default=True, help="Pairs of ranks, one by one.")
@click.pass_context
def main(context: click.Context, calls: int, rounds: int, threes: int, processes: int) -> None:
    """Measure in children and print."""
    if context.invoked_subcommand is not None:
        return
    with tempfile.TemporaryDirectory() as folder:
        compile_tool = ["cc", "-shared", "-fPIC", "-O1", str(TOOL), "-o", f"{folder}/tool.so"]
        subprocess.run(compile_tool, check=True)
        measure(folder, calls, rounds, threes, processes)


def measure(folder: str, calls: int, rounds: int, threes: int, processes: int) -> None:
    """Measure in children and print."""
    settings: list[tuple[str, list[str], Mapping[str, str]]] = [
        ("no tool", [], {}),
        ("under a tool that counts", [], {nvtx_ranges.VARIABLE: f"{folder}/tool.so"}),
    ]
    if shutil.which("nsys"):
        settings.append((UNDER_NSYS, NSYS, {}))
    for number, (name, tool, environment) in enumerate(settings):
        under = [*tool, f"--output={folder}/{number}"] if tool else []
        show_calls(name, child(under, environment, "calls", str(calls), str(rounds)))
        show_steps(
            name, [child(under, environment, "steps", str(threes)) for _ in range(processes)]
        )
        alone = child(under, environment, "alone", "18")
        print(f"a step of one rank, {name}: {alone['added_us']:.0f} µs of CPU time added\n")


def child(under: list[str], environment: Mapping[str, str], *arguments: str) -> Any:  # noqa: ANN401
    """Run this script under a tool and return what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = [*under, sys.executable, __file__, *arguments, str(out)]
        subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


@main.command(hidden=True)
@click.argument("calls", type=int)
@click.argument("rounds", type=int)
@click.argument("out", type=Path)
def calls(calls: int, rounds: int, out: Path) -> None:
    """Measure calls in this process."""
    warnings.simplefilter("ignore")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    measured = added({name: call for name, (_, call) in operations().items()}, calls, rounds)
    for name, (ranges, _) in operations().items():
        measured[name]["ranges"] = ranges
    out.write_text(json.dumps(measured))
    dist.destroy_process_group()


def operations() -> dict[str, Call]:
    """Return the calls that are measured."""
    tensor, output, element = torch.ones(4), torch.ones(8), torch.ones(1)

    def asynchronous() -> None:
        if work := dist.all_reduce(tensor, async_op=True):
            work.wait()

    def batched() -> None:
        operations = [dist.P2POp(dist.isend, tensor, 1), dist.P2POp(dist.irecv, tensor, 1)]
        dist.batch_isend_irecv(operations)

    def method() -> None:
        group.allreduce([tensor])

    group = _get_default_group()
    return {
        "all_reduce": (1, lambda: dist.all_reduce(tensor)),
        "broadcast": (1, lambda: dist.broadcast(tensor, 0)),
        "all_gather_single": (1, lambda: dist.all_gather_single(output, tensor)),
        "barrier": (1, dist.barrier),
        "send": (1, lambda: dist.send(tensor, 1)),
        "isend": (1, lambda: dist.isend(tensor, 1)),
        "all_reduce and wait": (2, asynchronous),
        "batch of two": (3, batched),
        "method of a group": (1, method),
        '.to("cpu") of a CPU tensor': (0, lambda: tensor.to("cpu")),
        ".item() of a CPU tensor": (0, lambda: element.item()),  # noqa: PLW0108  (looked up anew)
    }


def added(calls: Mapping[str, Callable[[], object]], number: int, rounds: int) -> Measured:
    """Return what calls cost, and what ranges around them and `instrument` add: µs of CPU time."""
    kinds = ("without", "bare", "instrument")
    costs: Measured = {name: {kind: [] for kind in kinds} for name in calls}
    for round_ in range(rounds):
        texts = [
            f"all_reduce bytes=26214400 dtype=float32 group=0 rank=3 size=8 seq={round_}.{one}"
            for one in range(number * len(calls))
        ]
        for name, call in calls.items():
            costs[name]["without"].append(plain(call, number))
            costs[name]["bare"].append(in_ranges(call, [texts.pop() for _ in range(number)]))
        instrument.enable()
        for name, call in calls.items():
            costs[name]["instrument"].append(plain(call, number))
        instrument.disable()
    return {
        name: {"without": statistics.median(of_call["without"])}
        | {
            kind: float(np.median(np.subtract(of_call[kind], of_call["without"])))
            for kind in kinds[1:]
        }
        for name, of_call in costs.items()
    }


def plain(call: Callable[[], object], calls: int) -> float:
    """Return the cost of a call in µs of CPU time."""
    for _ in range(SETTLING_CALLS):
        call()
    began = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - began) / calls / 1e3


def in_ranges(call: Callable[[], object], texts: list[str]) -> float:
    """Return the cost of a call in a range of each text, by the fastest means."""
    push, pop, message = nvtx_ranges.push, nvtx_ranges.pop, nvtx_ranges.message
    began = time.thread_time_ns()
    for text in texts:
        push(message(text))
        call()
        pop()
    return (time.thread_time_ns() - began) / len(texts) / 1e3


@main.command(hidden=True)
@click.argument("threes", type=int)
@click.argument("out", type=Path)
def steps(threes: int, out: Path) -> None:
    """Measure training steps in two children of this process."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(train, (threes, folder, str(out)), nprocs=2)  # type: ignore[no-untyped-call]


def train(rank: int, threes: int, folder: str, out: str) -> None:
    """Be one of two ranks that train twelve layers; rank 0 writes what it measured."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # else ranks, and Gloo's threads, change places
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    training = Training(width=512, samples=64)
    switch = Switch(training)
    for number in range(2 * SETTLING_STEPS):
        switch.turn(on=bool(number % 2))
        training.step()
    gc.collect()
    gc.freeze()
    order = np.random.default_rng(0)  # the same on both ranks
    times = np.zeros((threes, 3, 2))
    for three in times:
        for kind in order.permutation(3):  # 0 is with `instrument`
            switch.turn(on=bool(kind == 0))
            wall, cpu = time.perf_counter_ns(), time.process_time_ns()
            training.step()
            three[kind] = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    of_ranks: list[Any] = [None, None]
    dist.gather_object(times / 1e6, of_ranks if rank == 0 else None)
    if rank == 0:
        Path(out).write_text(json.dumps(np.mean(of_ranks, axis=0).tolist()))
    switch.turn(on=True)
    instrument.disable()
    dist.destroy_process_group()


class Switch:
    """Puts in place what `enable` replaced of what a step passes, or what was there before."""

    def __init__(self, training: Training) -> None:
        self._model = model = training.model
        self._of_optimizer = _cell_of_step(torch.optim.SGD.step)
        before = self._held()
        instrument.enable()
        training.step()  # the reducer takes its group from it
        self._places = [before, self._held()]
        self._holders = [
            names
            for module in list(sys.modules.values())
            if (names := vars(module)).get("_engine_run_backward") is self._places[1][0]
        ]
        self._groups = [model.process_group, ddp._observed.get(model, model.process_group)]

    def _held(self) -> tuple[Any, ...]:
        model, cell = type(self._model), self._of_optimizer
        run_backward = torch.autograd.graph._engine_run_backward
        return run_backward, model.forward, model._pre_forward, cell and cell.cell_contents

    def turn(self, *, on: bool) -> None:
        """Switch, for the next step."""
        run_backward, forward, prepare, optimize = self._places[on]
        for names in self._holders:
            names["_engine_run_backward"] = run_backward
        # In the model, not in its class: the interpreter would have to learn what uses that anew.
        vars(self._model)["forward"] = MethodType(forward, self._model)
        vars(self._model)["_pre_forward"] = MethodType(prepare, self._model)
        if self._of_optimizer:
            self._of_optimizer.cell_contents = optimize
        self._model.reducer._update_process_group(self._groups[on])


@main.command(hidden=True)
@click.argument("rounds", type=int)
@click.argument("out", type=Path)
def alone(rounds: int, out: Path) -> None:
    """Measure steps of a rank without others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=0, world_size=1)
    step = Training(width=16, samples=4).step

    def run() -> float:
        for _ in range(STEPS_ALONE // 10):
            step()
        began = time.process_time_ns()
        for _ in range(STEPS_ALONE):
            step()
        return (time.process_time_ns() - began) / STEPS_ALONE / 1e3

    run()
    added = []
    for _ in range(rounds):
        without = run()
        instrument.enable()
        added.append(run() - without)
        instrument.disable()
    out.write_text(json.dumps({"added_us": statistics.median(added)}))
    dist.destroy_process_group()


class Training:
    """Twelve layers with DistributedDataParallel."""

    def __init__(self, width: int, samples: int) -> None:
        layers = [torch.nn.Linear(width, width) for _ in range(12)]
        self.model = DistributedDataParallel(torch.nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self._batch = torch.randn(samples, width)

    def step(self) -> None:
        """Train one step."""
        self._optimizer.zero_grad()
        self.model(self._batch).square().mean().backward()
        self._optimizer.step()


def show_calls(name: str, measured: Measured) -> None:
    """Print one child's calls."""
    is_kept = name == UNDER_NSYS  # a range that nobody takes is no measure
    table = Table("call", "ranges", "µs without", "µs added", *["in pairs"] * is_kept)
    for call, cost in measured.items():
        pairs = f"{cost['instrument'] / cost['bare']:.1f} × {cost['bare']:.2f} µs"
        table.add_row(
            call,
            *(str(cost["ranges"]), f"{cost['without']:.2f}", f"{cost['instrument']:.2f}"),
            *[pairs] * is_kept,
        )
    print(f"calls, {name}")
    Console(width=100).print(table)


def show_steps(name: str, measured: list[list[list[list[float]]]]) -> None:
    """Print what the children found of steps: ms by three, kind, and wall or CPU time."""
    threes = np.concatenate([np.array(times) for times in measured])
    usual = np.median(threes[:, 1:], axis=(0, 1))
    print(f"steps of {usual[0]:.1f} ms, {name}")
    more = threes / usual
    found = {
        "with instrument": more[:, 0] - more[:, 1:].mean(axis=1),
        "without, again": more[:, 2] - more[:, 1],
    }
    rng = np.random.default_rng(0)
    for place, time_of in enumerate(("wall", "CPU")):
        for run, differences in found.items():
            above = differences[:, place]
            drawn = [_usual(rng.choice(above, len(above))) for _ in range(DRAWS)]
            low, high = np.percentile(drawn, [2.5, 97.5])
            print(
                f"  {time_of} time {run} {_usual(above):+.2%}"
                f" ({low:+.2%} to {high:+.2%}, {len(above)} times)"
            )
    print()


def _usual(values: Measurements) -> float:
    """Return the mean, less a tenth of the values at either end."""
    left_out = len(values) // 10
    return float(np.sort(values)[left_out : len(values) - left_out].mean())


if __name__ == "__main__":
    main()
