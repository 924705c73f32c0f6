"""Programs whose host threads are held up, each in a way of its own, with the truth about them."""

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np

from sample_traces.simulator.event_model.actions import Call
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios import stalls as planted
from sample_traces.simulator.scenarios.setup import Setup

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

    return planted.held_up(hosts, stalls, "few cores")


def throttled(rng: np.random.Generator) -> Setup:
    """One rank whose quota is used up in each period of 100 ms, at another moment each time."""
    period_ns = 100 * MS
    hosts = planted.host_bound(rng, 1, num_steps=40, busy_ns=600 * US)
    used_ns = rng.integers(40 * MS, 90 * MS, 100).tolist()

    def free_at(now: int) -> int:
        period, since = divmod(now, period_ns)
        return now if since < used_ns[period] else (period + 1) * period_ns

    return planted.held_up(hosts, lambda host: kept_until(host, free_at), "quota")


def sliced(rng: np.random.Generator) -> Setup:
    """One rank of two that loses its core for 1 to 5 ticks of 4 ms."""
    hosts = planted.host_bound(rng, 2, num_steps=14)

    def stalls(host: Host) -> dict[int, int]:
        num = planted.num_launches(host)
        chosen = rng.choice(np.arange(50, num - 50), 16, replace=False).tolist()
        ticks = rng.integers(1, 6, 16).tolist()
        held = {launch: tick * 4 * MS for launch, tick in zip(chosen, ticks, strict=True)}
        return held if host.process else {}

    return planted.held_up(hosts, stalls, "time slices")


PROGRAMS: dict[str, Callable[[np.random.Generator], Setup]] = {
    "one rank": planted.one_rank,
    "quota": throttled,
    "time slices": sliced,
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
