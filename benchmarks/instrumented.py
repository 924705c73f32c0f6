"""What `instrument` costs: a call against bare NVTX ranges, and a training step of two ranks.

    python benchmarks/instrumented.py [--calls 250] [--rounds 60] [--blocks 60] [--processes 4]

Three times in child processes: without a tool, where nothing is replaced; as if there was one (a
variable names a library that does not exist), with all wrappers and ranges that nobody takes; and
under `nsys profile --trace=nvtx`, where it is on PATH.

Calls: short blocks of calls in turn, without anything, with a bare range around each (push and
pop, with a text of its own, written by our means or by nvtx's functions), and with `instrument`.
CPU time of the calling thread: what is added is work of that thread, whatever the operation waits
for. Operations are those of PyTorch's "fake" backend, which return at once. Medians of the
differences of neighbouring blocks, and what `instrument` adds over what a bare range adds.

Steps: DistributedDataParallel over Gloo, each rank on a core of its own; short blocks of steps
without `instrument` and with it, in turn. The median step of a block with it, in wall time and in
CPU time of the process, less the mean of those of the blocks without it before and after. Printed
are the median of these differences over all blocks of several pairs of ranks, and where it lies
with 95 % confidence, by drawing the blocks again. The same of blocks without it, between others
without it, is what the machine does by itself.

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
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt
import nvtx
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed as dist
from torch.distributed.distributed_c10d import _get_default_group
from torch.multiprocessing.spawn import spawn
from torch.testing._internal.distributed.fake_pg import FakeStore

import instrument
from instrument import nvtx_ranges
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
PRETENDED = {nvtx_ranges.INJECTION: "/nonexistent/tool.so"}
UNDER_NSYS = f"under nsys, nvtx {version('nvtx')}"
SETTLING_CALLS = 50  # the interpreter finds its shortcuts anew
STEPS_PER_BLOCK = 20
SETTLING_STEPS = 10  # after eight, functions have been made quicker
DRAWS = 2000
STEPS_ALONE = 300  # of half a millisecond


@click.group(invoke_without_command=True)
@click.option("--calls", default=250, show_default=True, help="Calls in a block.")
@click.option("--rounds", default=60, show_default=True, help="Pairs of blocks of calls.")
@click.option("--blocks", default=60, show_default=True, help="Pairs of blocks of steps.")
@click.option("--processes", default=4, show_default=True, help="Pairs of ranks, one by one.")
@click.pass_context
def main(context: click.Context, calls: int, rounds: int, blocks: int, processes: int) -> None:
    """Measure in children and print."""
    if context.invoked_subcommand is not None:
        return
    settings: list[tuple[str, list[str], Mapping[str, str]]] = [
        ("no tool", [], {}),
        ("as if under a tool", [], PRETENDED),
    ]
    if shutil.which("nsys"):
        settings.append((UNDER_NSYS, NSYS, {}))
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, tool, environment) in enumerate(settings):
            under = [*tool, f"--output={folder}/{number}"] if tool else []
            show_calls(name, child(under, environment, "calls", str(calls), str(rounds)))
            show_steps(
                name,
                [child(under, environment, "steps", str(blocks)) for _ in range(processes)],
            )
            own = child(under, environment, "alone", "18")
            print(f"a step of one rank, {name}: {own['added_us']:.0f} µs of CPU time added\n")


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
    # Of old tools, nvtx believes that they are not there.
    is_written = type(nvtx.get_domain(labels.DOMAIN)).__name__ == "Domain"
    out.write_text(json.dumps({"calls": measured, "nvtx writes": is_written}))
    dist.destroy_process_group()


def operations() -> dict[str, Call]:
    """Return the calls that are measured."""
    tensor, output = torch.ones(4), torch.ones(8)

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
    }


def added(calls: Mapping[str, Callable[[], object]], number: int, rounds: int) -> Measured:
    """Return what calls cost, and what ranges around them and `instrument` add: µs of CPU time."""
    kinds = ("without", "ours", "nvtx's", "instrument")
    costs: Measured = {name: {kind: [] for kind in kinds} for name in calls}
    for each in range(rounds):
        texts = [
            f"all_reduce bytes=26214400 dtype=float32 group=0 rank=3 size=8 seq={each}.{one}"
            for one in range(2 * number * len(calls))
        ]
        for name, call in calls.items():
            costs[name]["without"].append(plain(call, number))
            costs[name]["ours"].append(in_our_ranges(call, [texts.pop() for _ in range(number)]))
            own = [texts.pop() for _ in range(number)]
            costs[name]["nvtx's"].append(in_public_ranges(call, own))
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


def in_our_ranges(call: Callable[[], object], texts: list[str]) -> float:
    """Return the cost of a call in a range of each text, by the fastest means."""
    push, pop = nvtx_ranges.push, nvtx_ranges.pop
    began = time.thread_time_ns()
    for text in texts:
        push(text)
        call()
        pop()
    return (time.thread_time_ns() - began) / len(texts) / 1e3


def in_public_ranges(call: Callable[[], object], texts: list[str]) -> float:
    """Return the cost of a call in a range of each text, by nvtx's functions."""
    domain = labels.DOMAIN
    began = time.thread_time_ns()
    for text in texts:
        nvtx.push_range(text, domain=domain)
        call()
        nvtx.pop_range(domain=domain)
    return (time.thread_time_ns() - began) / len(texts) / 1e3


@main.command(hidden=True)
@click.argument("blocks", type=int)
@click.argument("out", type=Path)
def steps(blocks: int, out: Path) -> None:
    """Measure training steps in two children of this process."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(train, (blocks, folder, str(out)), nprocs=2)  # type: ignore[no-untyped-call]


def train(rank: int, blocks: int, folder: str, out: str) -> None:
    """Be one of two ranks that train twelve layers; rank 0 writes what it measured."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # else ranks, and Gloo's threads, change places
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    step = training_step(width=512, samples=64)

    def run() -> list[tuple[float, float]]:
        for _ in range(SETTLING_STEPS):  # the interpreter finds its shortcuts anew
            step()
        dist.barrier()
        times = []
        for _ in range(STEPS_PER_BLOCK):
            wall, cpu = time.perf_counter_ns(), time.process_time_ns()
            step()
            wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
            times.append((wall / 1e6, cpu / 1e6))
        return times

    def run_named() -> list[tuple[float, float]]:
        instrument.enable()
        try:
            return run()
        finally:
            instrument.disable()

    run(), run_named()
    gc.collect()
    gc.freeze()
    times = [run_named() if number % 2 else run() for number in range(2 * blocks + 1)]
    of_ranks: list[Any] = [None, None]
    dist.gather_object(times, of_ranks if rank == 0 else None)
    if rank == 0:
        medians = np.median(np.array(of_ranks), axis=2).mean(axis=0)  # by block, and wall or CPU
        Path(out).write_text(json.dumps(medians.tolist()))
    dist.destroy_process_group()


@main.command(hidden=True)
@click.argument("rounds", type=int)
@click.argument("out", type=Path)
def alone(rounds: int, out: Path) -> None:
    """Measure steps of a rank without others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=0, world_size=1)
    step = training_step(width=16, samples=4)

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


def training_step(width: int, samples: int) -> Callable[[], None]:
    """Return a step that trains twelve layers with DistributedDataParallel."""
    layers = [torch.nn.Linear(width, width) for _ in range(12)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(samples, width)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def show_calls(name: str, measured: Measured) -> None:
    """Print one child's calls."""
    bare = []
    if name == UNDER_NSYS:  # a range that nobody takes is no measure
        bare = ["ours", "nvtx's"] if measured["nvtx writes"] else ["ours"]
    table = Table(
        "call", "ranges", "µs without", "µs added", *(f"in pairs, {each}" for each in bare)
    )
    for call, cost in measured["calls"].items():
        table.add_row(
            call,
            *(str(cost["ranges"]), f"{cost['without']:.2f}", f"{cost['instrument']:.2f}"),
            *(f"{cost['instrument'] / cost[each]:.1f} × {cost[each]:.2f} µs" for each in bare),
        )
    print(f"calls, {name}")
    Console(width=100).print(table)


def show_steps(name: str, measured: list[list[list[float]]]) -> None:
    """Print what the children found of steps."""
    blocks = [np.array(each) for each in measured]
    usual = np.median(np.concatenate([each[::2] for each in blocks]), axis=0)
    print(f"steps of {usual[0]:.1f} ms, {name}")
    found = {
        "with instrument": np.concatenate([_above(each) for each in blocks]),
        "without, again": np.concatenate([_above(each[::2]) for each in blocks]),
    }
    rng = np.random.default_rng(0)
    for place, time_of in enumerate(("wall", "CPU")):
        for run, above in found.items():
            more = above[:, place] / usual[place]
            drawn = more[rng.integers(len(more), size=(DRAWS, len(more)))]
            low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
            print(
                f"  {time_of} time {run} {np.median(more):+.2%}"
                f" ({low:+.2%} to {high:+.2%}, {len(more)} blocks)"
            )
    print()


def _above(blocks: Measurements) -> Measurements:
    """Return by how much every other block is above the mean of its neighbours."""
    return blocks[1:-1:2] - (blocks[:-2:2] + blocks[2::2]) / 2


if __name__ == "__main__":
    main()
