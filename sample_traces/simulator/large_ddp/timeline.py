"""Times of all events: launching hosts, in-order streams, and collectives that wait for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sample_traces.simulator.large_ddp.program import CallKind, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sample_traces.simulator.large_ddp.program import Program
    from traceprof.intervals import Float64, Int64


# Host time of each call, in order of `CallKind`; a synchronization also waits for the GPU.
_CALL_NS = np.array([4_300, 8_500, 7_000, 7_000, 5_200, 1_300, 1_500, 2_500])
# Host time before each call, in which Python or autograd prepares it.
_PAUSE_NS = np.array([3_400, 2_600, 6_000, 9_000, 3_400, 2_000, 2_000, 2_000])
_AUTOGRAD_PAUSE_NS = 2_400
# Host time before a phase: the data loader, the model, autograd's thread that wakes up, …
_PHASE_PAUSE_NS = np.array([60_000, 14_000, 26_000, 30_000, 12_000])

_LAUNCH_LATENCY_NS = 1_900  # from the end of a call to the earliest start on the GPU
_STREAM_GAP_NS = 900  # between operations of one stream
_EVENT_LATENCY_NS = 1_600  # from an operation's end to a stream that waits for it
_RETURN_NS = 3_200  # from the stream's end to the end of the call that waits for it
_STEP_END_NS = 6_000  # from the last call's end to the step range's
_BETWEEN_STEPS_NS = 18_000
_FIRST_STEP_NS = 1_500_000_000  # since the start of the session
_START_SPREAD_NS = 400_000

# Ranks differ less than steps do, so that the last one to arrive varies.
_RANK_SPREAD = 0.002
_MACHINE = 1  # chooses the speeds
_STEP_SPREAD = 0.008
_WORK_SPREAD = 0.02  # of one kernel's duration
_HOST_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """The times of one step on each rank, in ns since the session's start.

    Attributes:
        number: of the step.
        program: its calls.
        range_start_ns: int64[ranks], of the step's range on the host.
        range_end_ns: int64[ranks].
        call_start_ns: int64[ranks, calls].
        call_end_ns: int64[ranks, calls].
        start_ns: int64[ranks, calls], of the GPU operation; 0 for calls that launch none.
        end_ns: int64[ranks, calls], of the GPU operation; 0 for calls that launch none.
    """

    number: int
    program: Program
    range_start_ns: Int64
    range_end_ns: Int64
    call_start_ns: Int64
    call_end_ns: Int64
    start_ns: Int64
    end_ns: Int64


def run_steps(
    programs: Iterable[Program], num_ranks: int, rng: np.random.Generator
) -> Iterator[StepTimeline]:
    """Yield the steps of a run, one program each, as they follow each other on all ranks.

    The launch queue has no limit here: with many more than a thousand kernels in a step, a real
    host would block before it.
    """
    # The GPUs are the same in all runs: seeds are runs of one program on one machine.
    speed = _varied(np.ones((num_ranks, 1)), _RANK_SPREAD, np.random.default_rng(_MACHINE))
    rng.random(num_ranks)  # once drawn for the speeds; keeps the later numbers unchanged
    range_start = _FIRST_STEP_NS + _whole(_START_SPREAD_NS * rng.random(num_ranks))
    for number, program in enumerate(programs):
        timeline = _run_step(number, program, range_start, speed, rng)
        yield timeline
        pause = _varied(np.full(num_ranks, _BETWEEN_STEPS_NS), _HOST_SPREAD, rng)
        range_start = timeline.range_end_ns + _whole(pause)


def _run_step(
    number: int, program: Program, range_start: Int64, speed: Float64, rng: np.random.Generator
) -> StepTimeline:
    num_ranks = len(range_start)
    call_start, call_end = _host_calls(program, range_start, rng)
    ready = call_end + _LAUNCH_LATENCY_NS
    step_speed = _varied(speed, _STEP_SPREAD, rng)
    work = _whole(_varied(np.tile(program.work_ns, (num_ranks, 1)), _WORK_SPREAD, rng) * step_speed)
    start, end = np.zeros_like(work), np.zeros_like(work)

    stream = program.compute_stream
    is_after = program.phase[stream] >= Phase.OPTIMIZER
    before, after = stream[~is_after], stream[is_after]
    start[:, before], end[:, before] = run_stream(ready[:, before], work[:, before])
    reduced = _all_reduce(program, ready, work, start, end)
    # The optimizer waits for the gradients, and for the preceding work of its stream.
    reached = np.maximum(reduced + _EVENT_LATENCY_NS, end[:, before[-1]] + _STREAM_GAP_NS)
    ready[:, after[0]] = np.maximum(ready[:, after[0]], reached)
    start[:, after], end[:, after] = run_stream(ready[:, after], work[:, after])

    # The host waits for the stream in its last call.
    call_end[:, -1] = np.maximum(call_end[:, -1], end[:, stream[-1]] + _RETURN_NS)
    return StepTimeline(
        number=number,
        program=program,
        range_start_ns=range_start,
        range_end_ns=call_end[:, -1] + _STEP_END_NS,
        call_start_ns=call_start,
        call_end_ns=call_end,
        start_ns=start,
        end_ns=end,
    )


def run_stream(ready_ns: Int64, work_ns: Int64) -> tuple[Int64, Int64]:
    """Return start and end of operations that a stream runs in order.

    Each starts when it is ready and the stream is free, a moment after the end of the one before:
    the recurrence end[i] = max(end[i-1], ready[i]) + work[i], without a loop over operations.

    Args:
        ready_ns: int64[ranks, operations], earliest starts.
        work_ns: int64[ranks, operations].
    """
    occupied = work_ns + _STREAM_GAP_NS
    total = np.cumsum(occupied, axis=1)
    # The latest start of the stream, if all work before an operation ran without a gap.
    begun = np.maximum.accumulate(ready_ns - (total - occupied), axis=1)
    start = begun + total - occupied
    return start, start + work_ns


def _host_calls(
    program: Program, range_start: Int64, rng: np.random.Generator
) -> tuple[Int64, Int64]:
    """Return start and end of the calls, in order, one thread after the other."""
    pause = _PAUSE_NS[program.call]
    autograd = (program.phase == Phase.BACKWARD) & (program.call == CallKind.KERNEL)
    pause[autograd] = _AUTOGRAD_PAUSE_NS
    phases, first = np.unique(program.phase, return_index=True)
    pause[first] = _PHASE_PAUSE_NS[phases]
    shape = (len(range_start), 1)
    usual = _varied(np.tile(_CALL_NS[program.call], shape), _HOST_SPREAD, rng)
    # A few calls take up to twice as long: the eighth power of uniform numbers is mostly near 0.
    spent = _whole(usual * (1 + np.square(np.square(np.square(rng.random(usual.shape))))))
    pause = _whole(_varied(np.tile(pause, shape), _HOST_SPREAD, rng))
    end = range_start[:, np.newaxis] + np.cumsum(pause + spent, axis=1)
    return end - spent, end


def _all_reduce(program: Program, ready: Int64, work: Int64, start: Int64, end: Int64) -> Int64:
    """Fill in the all-reduces, one after the other on each rank's NCCL stream.

    Each starts on a rank when that rank is ready and spins until the last one is; all leave it
    together.

    Returns:
        int64[ranks]: the end of the last one.
    """
    stream = program.compute_stream
    left = np.zeros(len(ready), np.int64)
    for reduce in program.all_reduces:
        producer = stream[np.searchsorted(stream, reduce) - 1]
        produced = end[:, producer] + _EVENT_LATENCY_NS
        arrived = np.maximum(np.maximum(ready[:, reduce], produced), left + _STREAM_GAP_NS)
        left = np.full_like(arrived, arrived.max() + work[0, reduce])
        start[:, reduce], end[:, reduce] = arrived, left
    return left


def _varied(nominal: Float64 | Int64, spread: float, rng: np.random.Generator) -> Float64:
    """Return the nominal values, each varied by up to the share `spread`.

    Only products and sums of uniform numbers, which are the same on every machine.
    """
    varied: Float64 = nominal * (1 - spread + 2 * spread * rng.random(nominal.shape))
    return varied


def _whole(values: Float64) -> Int64:
    return values.astype(np.int64)
