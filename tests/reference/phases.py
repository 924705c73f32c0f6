"""An independent reference for the phases of a program, for tests only: plain loops over periods.

* A phase: periods in a row that begin with a kernel of the same name and shape.
* Its steady steps: all but the last one, which nothing follows, and leading ones longer than 1.05
  times the 95 % quantile of the later half; of those at most a quarter, and at most ten.
* The longest phase: the one whose steady steps take most time together.
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tests.reference.nsight_export import COMPUTE, Export
from tests.reference.spans import Span, clipped, length, union, without
from tests.reference.training import training


@dataclass(frozen=True)
class ReferencePhase:
    start: int
    end: int
    steady: list[Span]
    idle: list[Span]  # from start to end

    @property
    def step_ns(self) -> float:
        return length(self.steady) / len(self.steady)

    @property
    def idle_per_step_ns(self) -> float:
        idle = [length(clipped(self.idle, *step)) for step in self.steady]
        return sum(idle) / len(idle)


def phases(export: Export, process: int, device: int) -> list[ReferencePhase]:
    operations = export.ranks[process, device]
    shapes = {op.start: (op.name, op.shape) for op in operations if op.kind == COMPUTE}
    steps = [(step.start, step.end) for step in training(export, process, device).steps]
    busy = union((op.start, op.end) for op in operations)
    found = []
    for _, group in groupby(steps, lambda step: shapes[step[0]]):
        of_phase = [*group]
        span = of_phase[0][0], of_phase[-1][1]
        steady = of_phase[_num_opening([end - start for start, end in of_phase[:-1]]) : -1]
        found.append(ReferencePhase(*span, steady, without([span], busy)))
    return found


def longest(found: list[ReferencePhase]) -> int:
    times = [length(phase.steady) for phase in found]
    return times.index(max(times))


def _num_opening(lengths: list[int]) -> int:
    if len(lengths) < 6:
        return 0
    limit = 1.05 * float(np.quantile(lengths[len(lengths) // 2 :], 0.95))
    most, num = min(max(len(lengths) // 4, 1), 10), 0
    while num < most and lengths[num] > limit:
        num += 1
    return num
