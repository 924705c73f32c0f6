"""How long steps take without the recorder and under it, by one clock: what recording costs.

Of a recording of steps A to B these are the last of the steps before A-1, in which the recorder is
made ready, without the first of the process, which warm up. A step lasts until the next one begins:
work of the GPU that one step leaves behind is waited for in a later one. They are written as
`HOST-rank3.baseline.json` beside the report when the last recorded step is over:

    {"schema": "traceprof.baseline/1", "host": "node7", "rank": 3, "pid": 4711, "tool": "torch",
     "steps": "30:40", "unrecorded_ns": [10123456, …], "recorded_ns": [10321098, …]}
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "TRACEPROF_BASELINE_TO"
"""Environment variable: the folder for the file; nothing is timed without it."""
SUFFIX = ".baseline.json"
MAX_STEPS = 20
MAX_RECORDED = 1000
WARM_UP = 3
"""Number of first steps of a process that are not counted."""


class StepTimes:
    """Lengths of the steps before a recording and in it, which go to a file in the folder.

    `tool`: `nsys` or `torch`; `steps`: the recorded ones, `A:B`; `first`: the number of the
    first of them; `clock`: in nanoseconds.
    """

    def __init__(
        self,
        folder: Path,
        tool: str,
        steps: str,
        first: int,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._folder, self._tool, self._steps, self._first = folder, tool, steps, first
        self._clock = clock
        self._pid = 0  # of the process whose steps these are, perhaps forked
        self.unrecorded: deque[int] = deque(maxlen=MAX_STEPS)
        self.recorded: deque[int] = deque(maxlen=MAX_RECORDED)
        self._open: deque[int] | None = None
        self._began_ns = 0

    def begins(self, number: int) -> None:
        """Start the clock for a step, after all that its beginning sets off."""
        if number >= self._first:
            self._open = self.recorded
        elif WARM_UP <= number < self._first - 1:
            self._open = self.unrecorded
        self._pid = os.getpid()
        self._began_ns = self._clock()

    def ends(self) -> None:
        """Stop the clock, before all that the end of the step sets off."""
        lengths, self._open = self._open, None
        if lengths is not None:
            lengths.append(self._clock() - self._began_ns)

    def drop(self) -> None:
        """Leave out the step that is open."""
        self._open = None

    def write(self) -> None:
        """Write the file, whole or not at all; nothing without steps of both kinds."""
        if not self.unrecorded or not self.recorded or self._pid != os.getpid():
            return
        host, rank = host_name(), rank_number()
        record = {
            "schema": "traceprof.baseline/1",
            "host": host,
            "rank": rank,
            "pid": self._pid,
            "tool": self._tool,
            "steps": self._steps,
            "unrecorded_ns": [*self.unrecorded],
            "recorded_ns": [*self.recorded],
        }
        name = f"{process_name()}{SUFFIX}"
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{name}"
        try:
            partial.write_text(json.dumps(record), "utf-8")
            partial.replace(self._folder / name)
        finally:
            partial.unlink(missing_ok=True)


def step_times(tool: str, steps: str, first: int) -> StepTimes | None:
    """Return the clock of this process's steps; None where nobody asks, or no step can count."""
    folder = os.environ.get(FOLDER)
    if not folder or first - 1 <= WARM_UP:
        return None
    return StepTimes(Path(folder), tool, steps, first)


def host_name() -> str:
    """Return this machine's name as it may stand in the name of a file."""
    return re.sub(r"[^\w.-]", "_", socket.gethostname())


def rank_number() -> int | None:
    """Return the rank of this process; None if it has none."""
    torch = sys.modules.get("torch")
    group: Any = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return int(group.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None


def process_name() -> str:
    """Return what files of this process are called, `HOST-rank3`; without a rank `HOST-PID`."""
    rank = rank_number()
    return f"{host_name()}-{os.getpid()}" if rank is None else f"{host_name()}-rank{rank}"
