"""Runs, programs and series with planted, known answers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sample_traces.simulator import simulate_run
from sample_traces.simulator.event_model.actions import Call
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios import idle as planted
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.traces import closed_analysis
from traceprof.analysis import Analysis
from traceprof.intervals import Float64
from traceprof.run.mean_change import Interval, MeanChange, mean_change

Noise = Callable[[np.random.Generator, int], Float64]


def made(name: str, folder: Path, **how: Any) -> dict[str, Any]:
    """Write the reports of a run and return what was planted."""
    truth: dict[str, Any] = json.loads(simulate_run(name, folder, **how).read_text())
    return truth


def analyzed(folder: Path, truth: dict[str, Any], **options: Any) -> Analysis:
    """Return what is found in the reports of a run."""
    files = [folder / report["file"] for report in truth["reports"]]
    return closed_analysis(*files, **options)


def assert_clocks(
    truth: dict[str, Any], analysis: Analysis, *, error_ns: int, uncertainty_ns: int
) -> None:
    """Hold each report's clock to the planted one, and its error to what is said of it."""
    for report, told in enumerate(truth["reports"]):
        clock = analysis.ranks.clocks.of(report)
        assert clock.host == told["host"]
        drifted = (told["at_ns"] - clock.at_ns) * clock.drift
        error = abs(clock.offset_ns + drifted - told["offset_ns"])
        assert clock.uncertainty_ns is not None
        assert error <= clock.uncertainty_ns < uncertainty_ns
        assert error < error_ns


US, MS = 1_000, 1_000_000
_RANGE_NS = 250  # to open or close a range, in the simulation


def all_ranks(rng: np.random.Generator, num_steps: int = 80) -> Setup:
    """Four ranks, each held up at launches of its own."""
    hosts = planted.host_bound(rng, 4, num_steps=num_steps, waits=True)

    def stalls(host: Host) -> dict[int, int]:
        num = planted.num_launches(host)
        chosen = rng.choice(np.arange(50, num - 50), 6, replace=False).tolist()
        return {launch: int(rng.integers(2 * MS, 8 * MS)) for launch in chosen}

    return planted.held_up(hosts, stalls)


def host_time(host: Host) -> Generator[tuple[int, int], int, None]:
    """Yield each launch of a program and when it is over, ns; what is sent is added to the time."""
    now, launches = 0, count()
    for action in host.actions:
        now += getattr(action, "duration_ns", getattr(action, "cost_ns", _RANGE_NS))
        if isinstance(action, Call) and action.api == planted.LAUNCH:
            now += yield next(launches), now


def kept_until(host: Host, free_at: Callable[[int], int]) -> dict[int, int]:
    """Return how long launches of a program are held up, which go on at a time that is free."""
    stalls, launches = dict[int, int](), host_time(host)
    launch, now = next(launches)
    with suppress(StopIteration):
        while True:
            held_ns = max(free_at(now) - now, 0)
            if held_ns:
                stalls[launch] = held_ns
            launch, now = launches.send(held_ns)
    return stalls


def few_cores(
    rng: np.random.Generator, *, num_ranks: int = 8, num_cores: int = 2, since_ns: int = 5 * MS
) -> Setup:
    """Eight ranks on two cores, of which each has one for 4 ms in turn, from a time on."""
    slice_ns = 4 * MS
    hosts = planted.host_bound(rng, num_ranks, num_steps=12, busy_ns=60 * US)
    turn_ns = slice_ns * num_ranks // num_cores

    def stalls(host: Host) -> dict[int, int]:
        begins = slice_ns * (host.process // num_cores)

        def free_at(now: int) -> int:
            turn, since = divmod(now - begins, turn_ns)
            # All begin together; what is shorter than a stall is none.
            is_free = since < slice_ns or now < since_ns or turn_ns - since < 1500 * US
            return now if is_free else begins + (turn + 1) * turn_ns

        return kept_until(host, free_at)

    return planted.held_up(hosts, stalls)


PROGRAMS: dict[str, Callable[[np.random.Generator], Setup]] = {
    "one rank": planted.one_rank,
    "all ranks": partial(all_ranks, num_steps=40),
    "few cores": few_cores,
}


# As of launches on quiet machines (A100, H100, B200, MI300): this share takes at most so many times
# the median.
_SHARES, _TIMES = (0, 0.5, 0.9, 0.99, 0.999, 1), (0.6, 1, 1.7, 5.2, 10, 40)


def healthy(rng: np.random.Generator) -> Setup:
    """A run on a quiet machine: of one to four ranks, bound by the GPU or by launches.

    Its calls vary as real ones do; it waits for the GPU, allocates, loads kernels and reads numbers
    as programs do, which may take milliseconds and is no stall.
    """
    num_ranks, num_steps = int(rng.integers(1, 5)), int(rng.integers(6, 20))
    hosts = planted.host_bound(
        rng,
        num_ranks,
        num_steps=num_steps,
        busy_ns=int(rng.choice([0, 30 * US, 100 * US])),
        waits=bool(rng.integers(2)),
        kernel_ns=int(rng.choice([9 * US, 60 * US, 300 * US])),
    )
    habits = {
        "cudaMalloc_v3020": rng.uniform(0, 0.01),
        "cuLibraryLoadData": rng.uniform(0, 0.005),
        "item": rng.uniform(0, 0.03),
    }
    for host in hosts:
        actions, host.actions[:] = [*host.actions], []
        for action in actions:
            if isinstance(action, Call):
                times = float(np.interp(rng.random(), _SHARES, _TIMES))
                host.actions.append(replace(action, cost_ns=int(action.cost_ns * times)))
                _as_programs_do(host, habits, rng)
            else:
                host.actions.append(action)
    return Setup(hosts, lambda _: [])


def _as_programs_do(host: Host, habits: dict[str, float], rng: np.random.Generator) -> None:
    """Add what takes long and is no stall, each as often as it is a habit."""
    for name, share in habits.items():
        if rng.random() < share:
            if name == "item":
                host.item(host.compute)
            else:
                host.call(name, int(rng.integers(1, 8)) * MS)


def drawn(num: int, num_names: int, seed: int = 0, first: int = 0) -> list[int]:
    return [first + int(name) for name in np.random.default_rng(seed).integers(0, num_names, num)]


def noisy(sequence: list[int], share: float) -> list[int]:
    """Return a sequence some of whose names are another one."""
    is_noise = np.random.default_rng(7).random(len(sequence)) < share
    return [
        max(sequence) + 1 if other else name for name, other in zip(sequence, is_noise, strict=True)
    ]


def layers(num: int, head: int = 4) -> list[int]:
    """An iteration of equal layers of 57 kernels, and others at its end."""
    return drawn(57, 20) * num + [*range(70, 70 + head)]


WITHOUT_INSERTIONS = {
    "one kernel": ([1] * 10, 1),
    "plain": (drawn(40, 12) * 50, 40),
    "four": (drawn(40, 12) * 4, 40),
    "three are too few": (drawn(40, 12) * 3, None),
    "cut at both ends": ((drawn(40, 12) * 30)[17:-11], 40),
    "iteration of 32 layers": (layers(32) * 6, 57 * 32 + 4),
    "iteration of 100 layers": (layers(100) * 4, 57 * 100 + 4),
    "layers of one iteration": (layers(32), 57),
    "forward and backward": ((drawn(20, 9) * 24 + drawn(40, 11, 1) * 24) * 6, 1440),
    "outer loop of a solver": (([1] * 200 + [2]) * 20, 201),
    "accumulated gradients": ((drawn(100, 30) * 4 + [*range(200, 230)]) * 20, 430),
    "1 % noise": (noisy(drawn(100, 30) * 60, 0.01), 100),
    "5 % noise": (noisy(drawn(100, 30) * 60, 0.05), None),
    "random": (drawn(3000, 5), None),
    "random, many names": (drawn(3000, 100), None),
    "one name nine times of ten": (noisy([0] * 3000, 0.1), None),
    "an inner loop of 10 to 30": (
        [name for num in drawn(60, 20, first=10) for name in [*[1, 2, 3] * num, 4, 5]],
        None,
    ),
}
INSERTED = {
    "a log every tenth": ((drawn(40, 12) * 10 + [99, 98]) * 12, 40),
    "a log every tenth of a large one": ((drawn(341, 60) * 10 + [99, 98, 97]) * 8, 341),
    "checkpoints": (
        [name for num in range(100) for name in drawn(40, 12) + [99] * (num % 13 == 5)],
        40,
    ),
    "equal ones in turns": (
        [
            name
            for swaps in drawn(60, 2)
            for name in [*drawn(100, 90)[: 50 - swaps], *drawn(100, 90)[50 - swaps :][::-1]]
        ],
        None,
    ),
}


def named(sequence: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    return np.unique(sequence, return_inverse=True)[1].astype(np.uint16)


def independent(source: np.random.Generator, num: int) -> Float64:
    return 100 * (1 + source.normal(0, 0.02, num))


def of_boundaries(source: np.random.Generator, num: int) -> Float64:
    """Steps that take time from their neighbours, as those of real recordings do."""
    shift = source.normal(0, 0.02 / math.sqrt(2), num + 1)
    return 100 * (1 + shift[1:] - shift[:-1])


def alternating(source: np.random.Generator, num: int) -> Float64:
    is_long = (np.arange(num) + source.integers(2)) % 2 == 0
    return independent(source, num) * np.where(is_long, 7, 1)


def every_eighth(source: np.random.Generator, num: int) -> Float64:
    is_long = (np.arange(num) + source.integers(8)) % 8 == 0
    return independent(source, num) * np.where(is_long, 3, 1)


def mixed(source: np.random.Generator, num: int) -> Float64:
    return independent(source, num) * np.where(source.random(num) < 0.3, 7, 1)


def change(before: Float64, after: Float64) -> MeanChange:
    return mean_change(before, after, (before, after))


def said(before: Float64, after: Float64) -> Interval:
    """Return the interval that the verdict is made from."""
    judged = change(before, after).judged
    assert judged is not None
    return judged


class Rates(NamedTuple):
    """How often series differ without a change, and with a planted one."""

    false: float
    found: float


def rates(noise: Noise, num: int, planted: float, runs: int) -> Rates:
    source = np.random.default_rng(29)
    counts = np.zeros(2)
    for _ in range(runs):
        before, after = noise(source, num), noise(source, num)
        low, high = said(before, after)
        slower = after * (1 + planted)
        counts += not low <= 0 <= high, said(before, slower).low > 0
    return Rates(*(counts / runs).tolist())


def drawn_from(steps: Float64, block: int) -> Noise:
    """Return what draws blocks of neighbours of a recording's steps."""

    def draw(source: np.random.Generator, num: int) -> Float64:
        starts = source.integers(0, len(steps), (-(-num // block), 1))
        chosen: Float64 = steps[((starts + np.arange(block)) % len(steps)).ravel()[:num]]
        return chosen

    return draw
