"""A program of two phases, one after the other, with other kernels."""

from typing import NamedTuple

from tests.support.builders import US, TraceBuilder


class Planted(NamedTuple):
    num: int  # iterations
    busy_us: int  # of an iteration, then the GPU idles
    idle_us: int


LONGER, SHORTER = Planted(60, 180, 20), Planted(60, 40, 60)


# What trains begins with a matrix multiplication: a phase before the longest is of it, too.
_KERNELS = (("matmul_sweep", "norm"), ("matmul_advect", "project"))


def program(*of_phases: Planted) -> TraceBuilder:
    trace, at = TraceBuilder(), 0
    for planted, names in zip(of_phases, _KERNELS, strict=False):
        for _ in range(planted.num):
            for name in names:
                end = at + planted.busy_us * US // 2
                trace.kernel(at, end, f"{name}(float*)", launch=(at - 5 * US, at - 4 * US))
                at = end
            at += planted.idle_us * US
    return trace
