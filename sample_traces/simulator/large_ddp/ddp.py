"""Data-parallel training on one host, simulated: the export, and the truth beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sample_traces.simulator.large_ddp.export import RunExport
from sample_traces.simulator.large_ddp.measures import Truth
from sample_traces.simulator.large_ddp.program import MIN_KERNELS_PER_STEP, ddp_program
from sample_traces.simulator.large_ddp.timeline import run_steps
from sample_traces.simulator.nsight_writer import NsightWriter
from sample_traces.simulator.truth import check_at_least, new_truth, write_truth

if TYPE_CHECKING:
    from pathlib import Path


def simulate_ddp(
    path: Path, *, gpus: int = 2, steps: int = 5, kernels_per_step: int = 40, seed: int = 0
) -> Path:
    """Write the export of a simulated DistributedDataParallel run, and the truth about it.

    Each rank is a process of its own. Its host launches forward, backward and optimizer ahead of
    the GPU, which runs them in order on one stream; gradient buckets are all-reduced on NCCL's
    stream as soon as the backward has them ready, and the optimizer waits for the last. An
    all-reduce starts on each rank when that rank is ready and ends on all ranks together. The host
    reads the loss at the end of a step, so that it loses its lead and the GPU is idle for a moment.
    This run has no problem: communication does not slow the kernels beside it.

    Args:
        path: the export to write, such as `ddp.sqlite`; the truth goes to `ddp.truth.json`.
        gpus: number of ranks.
        steps: number of training steps.
        kernels_per_step: kernels of one rank in one step, including NCCL's; the launch queue of a
            real host holds a thousand at most.
        seed: of the jitter. The same arguments make the same export.

    Returns:
        The path of the truth: the arguments, and `breakdown` and `steps` as
        `traceprof analyze --format json` must find them, exactly.

    Raises:
        UsageError: an argument is out of range, or one of the files exists already.
        TraceFileError: the disk is full.
    """
    check_at_least("gpus", gpus, 1)
    check_at_least("steps", steps, 1)
    check_at_least("kernels per step", kernels_per_step, MIN_KERNELS_PER_STEP)
    check_at_least("seed", seed, 0)
    truth_path = new_truth(path)
    arguments = {"gpus": gpus, "steps": steps, "kernels_per_step": kernels_per_step, "seed": seed}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in arguments.items())
    first, later = (
        ddp_program(kernels_per_step, gpus, is_first_step=is_first) for is_first in (True, False)
    )
    truth = Truth()
    with NsightWriter(path) as writer:
        export = RunExport(writer, gpus, f"traceprof simulate ddp {options}")
        end_ns = 0
        for step in run_steps([first, *[later] * (steps - 1)], gpus, np.random.default_rng(seed)):
            export.add(step)
            truth.add(step)
            end_ns = int(step.range_end_ns.max())
        export.finish(end_ns)
    return write_truth(truth_path, "ddp", arguments, truth.to_json())
