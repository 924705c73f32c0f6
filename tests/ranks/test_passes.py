"""Passes of a rank and its copies to another one, by hand."""

from pathlib import Path

from tests.support.builders import TraceBuilder
from tests.support.traces import ranks_of
from traceprof.ranks import passes

US = 1_000


def test_passes_end_where_messages_are_called(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for step, start in enumerate((0, 900)):
        trace.nvtx(f"step {step}", start * US, (start + 800) * US)
    trace.nvtx("forward_step", 1 * US, 40 * US).nvtx("backward_step", 50 * US, 80 * US)
    # Two of the forward, one of the backward, one of neither, one of the next step.
    kernels = (10, 60, 5), (60, 100, 8), (140, 200, 60), (220, 230, 95), (910, 920, 905)
    for start, end, called in kernels:
        trace.kernel(start * US, end * US, launch=(called * US, (called + 1) * US))
    trace.memcpy(132 * US, 139 * US, launch=(62 * US, 63 * US))
    for start, end, called in ((100, 130, 42), (205, 215, 90)):
        launch = called * US, (called + 1) * US
        trace.memcpy(
            start * US, end * US, "PtoP", source=0, destination=1, stream=20, launch=launch
        )  # fmt: skip
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = passes.rank_passes(rank, rank.window)
    times = {
        "launched_ns": [5, 60, 95, 905],
        "start_ns": [10, 140, 220, 910],
        "end_ns": [100, 200, 230, 920],
        "compute_ns": [90, 60, 10, 10],
        "copying_ns": [0, 7, 0, 0],  # but to other GPUs
        "called_ns": [42, 90],
        "copy_called_ns": [42, 90],
        "copy_start_ns": [100, 205],
        "copy_end_ns": [130, 215],
    }
    assert {name: (getattr(found, name) // US).tolist() for name in times} == times
    assert found.kind.tolist() == [passes.FORWARD, passes.BACKWARD, passes.OTHER, passes.OTHER]
    assert (found.step.tolist(), found.stream.tolist()) == ([0, 0, 0, 1], [7] * 4)
    assert (found.input_ns.tolist(), found.copy_to.tolist()) == ([-1, -1], [1, 1])
