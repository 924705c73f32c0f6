"""Raises exceptions out of an alarm's handler while it communicates, copies and computes.

`alarms.py ALARMS OUT` writes what was counted without `instrument` and with it, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import instrument
from instrument.core import calls


class Counts:
    fired = caught = 0


def on_alarm(_: int, __: FrameType | None) -> None:
    Counts.fired += 1
    # Of a kind that reading arguments may raise, too, and of one that it may not.
    raise (RuntimeError if Counts.fired % 2 else TimeoutError)("the user's")


@instrument.step
def step(tensor: torch.Tensor) -> None:
    """Do what opens ranges of all kinds, in short calls."""
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    if work is not None:
        work.wait()
    tensor.to("cpu")
    torch.autograd.backward(WEIGHT.sum())
    OPTIMIZER.step()


WEIGHT = torch.ones(2, requires_grad=True)
OPTIMIZER = torch.optim.SGD([WEIGHT], lr=0.0)


def counts(alarms: int, *, enabled: bool) -> dict[str, Any]:
    Counts.fired = Counts.caught = 0
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        if enabled:
            instrument.enable()
        tensor = torch.ones(4)
        step(tensor)
        signal.signal(signal.SIGALRM, on_alarm)
        draw = random.Random(1)
        while Counts.fired < alarms:
            fired = Counts.fired
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(5e-6, 4e-4))
                while Counts.fired == fired:
                    step(tensor)
                # An exception that was swallowed: the loop ended without it.
            except (RuntimeError, TimeoutError) as error:
                if error.args != ("the user's",):
                    raise
                Counts.caught += 1
                torch.set_grad_enabled(True)  # an alarm may leave the optimizer's `no_grad` open
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        counted: dict[str, Any] = {
            "fired": Counts.fired,
            "lost": Counts.fired - Counts.caught,
            "level": calls.thread.level,
        }
        instrument.disable()
        dist.destroy_process_group()
    tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
    for name in ("pushed", "popped", "started", "ended"):
        counted[name] = ctypes.c_long.in_dll(tool, name).value
    return counted


if __name__ == "__main__":
    torch.set_num_threads(1)
    both = [counts(int(sys.argv[1]), enabled=enabled) for enabled in (False, True)]
    Path(sys.argv[2]).write_text(json.dumps(both))
