"""Kernels of ranks by their place in steps, with noise or written by hand."""

from typing import Any

import numpy as np

from traceprof.analyses.kernels.placed_kernels import PlacedKernels, pack_places
from traceprof.run.session_clocks import Clocks, MachineClock
from traceprof.trace.columns import pack

CLOCKS = Clocks(
    (0,) * 64, (0,) * 64, (MachineClock("m", "reference", 0, 0.0, 0, 0, 0),), (0,), None
)


def kernels_of(rank: int, lengths: Any, parts: int) -> PlacedKernels:
    """Kernels of a rank by step and place, int[s, p], in parts of a step."""
    num_steps, num = lengths.shape
    step_ns = 2 * int(lengths.sum(axis=1).max())
    start = np.arange(num_steps) * step_ns
    return PlacedKernels(
        rank=rank,
        report=rank,
        num_steps=num_steps,
        number=np.arange(num_steps),
        start_ns=start,
        end_ns=start + step_ns,
        places=pack_places(
            np.repeat(np.arange(num_steps), num),
            np.tile(np.arange(num) * parts // num, num_steps),
            np.tile(np.arange(num) % 7, num_steps),
            np.full(lengths.size, 108),
        ),
        length_ns=pack(lengths.ravel()),
        names=tuple("abcdefg"),
        categories=("matmul",) * 7,
        num_blocking=np.full(parts - 1, num_steps),
        num_communicating=np.full(parts - 1, num_steps),
        window_ns=num_steps * step_ns,
        clock_hz=None,
    )


def noisy(rng: np.random.Generator, num_ranks: int, num_steps: int, num: int, parts: int) -> Any:
    """Equal ranks, with noise as kernels of an A100 have it, and a little of each step and rank."""
    usual = rng.lognormal(np.log(150_000), 1.0, num)
    ranks = []
    for rank in range(num_ranks):
        times = 1 + rng.normal(0, 0.005, (num_steps, num)) + rng.normal(0, 0.003, (num_steps, 1))
        is_long = rng.random((num_steps, num)) < 0.02
        times += np.where(is_long, rng.exponential(0.15, (num_steps, num)), 0)
        ranks.append(kernels_of(rank, np.rint(usual * times).astype(np.int64), parts))
    return ranks
