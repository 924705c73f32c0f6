"""A solver whose iterations nobody marked, as an export."""

from collections.abc import Sequence

import numpy as np

from tests.support.builders import TraceBuilder

US = 1000


def solver(
    num: int,
    kernels: Sequence[str] = ("sweep", "norm", "sweep", "update"),
    *,
    builder: TraceBuilder | None = None,
    begin_ns: int = 0,
    length_us: int = 30,
    noise: float = 0.0,
    seed: int = 0,
) -> TraceBuilder:
    """Add iterations of kernels 2 us apart, each launched 5 us before it starts.

    Args:
        num: of iterations.
        kernels: of an iteration.
        builder: to which they are added.
        begin_ns: when the first one begins.
        length_us: of each kernel.
        noise: standard deviation of the length of an iteration's kernels, as a share.
        seed: of the noise.
    """
    trace, at = builder or TraceBuilder(), begin_ns
    source = np.random.default_rng(seed)
    for _ in range(num):
        at += 20 * US  # idle
        length = int(length_us * US * (1 + noise * source.normal()))
        for name in kernels:
            trace.kernel(at, at + length, f"{name}(float*)", launch=(at - 5 * US, at - 4 * US))
            at += length + 2 * US
    return trace
