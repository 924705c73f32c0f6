"""Gates: checks of a replay; a failed gate refuses the answers that it makes unsure.

Missing records leave traces: operations without a launch, event calls without a record, silences
that last as long as the GPU works, delays that end with another stream's work, and steps that are
replayed wrong with the delays of other steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses import gpu_idle
from traceprof.analyses.verdict.savings import Gate
from traceprof.host.idle_causes import IdleCause
from traceprof.replay.graph.process_part import unseen_pace
from traceprof.replay.graph.run_graph import by_number
from traceprof.replay.graph.stream_waits import MAX_LOST_RECORDS
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of
from traceprof.trace.model.kinds import UNIFIED_COPIES
from traceprof.trace.model.parts import Part
from traceprof.units import percent

if TYPE_CHECKING:
    from traceprof.analyses.verdict.savings import GateName
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64
    from traceprof.replay.assumptions.assumption import Assumption
    from traceprof.replay.graph.process_part import ProcessFacts
    from traceprof.replay.graph.run_graph import RunGraph

MAX_UNLAUNCHED = 0.01
MAX_HIDDEN_HOST = 0.01
MAX_HIDDEN_STREAM = 0.03
MAX_UNEXPLAINED = 0.05
MAX_OFF_FLOOR = 0.05
MAX_BELOW_FLOOR = 0.001
"""Tolerance of an answer below a step's least time, as a share: rounding."""
MAX_MISFIT, MAX_MISFIT_WITHOUT_EVENTS = 0.02, 0.035
MIN_HELD_OUT = 6
"""With fewer steps, none is held out: the mean step is compared."""
_OF_SPREAD, _OF_STEP = 0.3, 0.005
_FAR_OFF = 10.0  # digits of a share beyond it say nothing


class _Meaning(Record, frozen=True):
    """Consequences of a gate that fails."""

    why: str  # what is wrong, with a place for the value
    part: Part | None  # what to record instead; None if no recording is known to help
    refuses: frozenset[str]  # kinds of changes that it makes unsure


ALL = frozenset(("host", "gpu", "streams", "ranks"))
MEANINGS: dict[GateName, _Meaning] = {
    "launches": _Meaning(
        "the report lacks the calls that launched {} of the operations, or these themselves (calls"
        " made before the capture began; pages of unified memory have none), so what delayed them"
        " is unknown",
        None,
        ALL,
    ),
    "records": _Meaning(
        "{} of the calls that record an event have no record: what streams waited for is unknown",
        Part.EVENT_RECORDS,
        frozenset(),  # what needs them says so, where there is a send or bucket
    ),
    "hidden-host-waits": _Meaning(
        "for {} of the time threads waited for the GPU in calls that are not in the report",
        None,
        ALL,
    ),
    "hidden-stream-waits": _Meaning(
        "for {} of the time streams waited for each other because of calls that are not in the"
        " report",
        Part.EVENT_RECORDS,
        ALL,
    ),
    "misfit": _Meaning("the replay is {} off the measurement", Part.EVENT_RECORDS, ALL),
    "unexplained": _Meaning(
        "the GPU was idle for {} of the time for reasons that are not in the report",
        Part.THREAD_SWITCHES,
        frozenset(("host",)),  # delays of the GPU are in the intervals
    ),
    "host-floor": _Meaning(
        "with GPU times at zero, the replayed step is {} off the host's own time: the report"
        " does not show how threads pace each other",
        None,
        ALL,
    ),
}


def gates_of(
    analysis: OpenAnalysis,
    graph: RunGraph,
    share: Float64,
    measured: Float64,
    replayed: tuple[Float64, Float64, Float64],
) -> tuple[Gate, ...]:
    """Return the gates of a replay.

    `share`, `measured`: float64[s], weights of steps in the mean, and their lengths in ns.
    `replayed`: float64[s] each, ns, without unexplained delays, with delays of the other half of
    the steps, and without GPU time.
    """
    facts = graph.facts
    lost = sum(rank.completeness.losses.num_lost for rank in analysis.run.ranks)
    num = max(sum(process.num_operations for process in facts), 1)
    unjoined = (sum(process.num_unlaunched for process in facts) + lost) / (num + lost)
    return (
        _gate("launches", unjoined, MAX_UNLAUNCHED),
        _gate("records", max(process.lost_records for process in facts), MAX_LOST_RECORDS),
        _gate(
            "hidden-host-waits",
            max(process.hidden_host_ns / process.span_ns for process in facts),
            MAX_HIDDEN_HOST,
        ),
        _gate(
            "hidden-stream-waits",
            max(process.hidden_stream_ns / process.span_ns for process in facts),
            MAX_HIDDEN_STREAM,
        ),
        _misfit(share, measured, *replayed[:2], has_events=graph.has_event_records),
        _gate("unexplained", _unexplained(analysis, facts), MAX_UNEXPLAINED),
        _gate("host-floor", _off_floor(graph, share, measured, replayed[2]), MAX_OFF_FLOOR),
    )


def is_paced(gate: Gate | None) -> bool:
    """Return whether a gate fails only because threads wait for each other in unknown ways."""
    return gate is not None and gate.name == "host-floor"


def floor_gate(below: float) -> Gate:
    """Return the gate that no answer is below a step's least time.

    `below`: distance of the lowest answer, as a share of the least time.
    """
    return _gate("floor", below, MAX_BELOW_FLOOR)


def failed(gates: tuple[Gate, ...], assumption: Assumption) -> Gate | None:
    """Return the first failed gate that an assumption depends on, or None."""
    return next(
        (
            gate
            for gate in gates
            if not gate.holds
            and gate.name in MEANINGS
            and MEANINGS[gate.name].refuses & assumption.changed
        ),
        None,
    )


def why_not(gate: Gate) -> str:
    """Return why a failed gate refuses answers."""
    if gate.value is None:
        value = "an unknown share"
    else:
        value = "over 1000 %" if abs(gate.value) > _FAR_OFF else percent(abs(gate.value))
    return MEANINGS[gate.name].why.format(value)


def how_to_collect(analysis: OpenAnalysis, gate: Gate) -> str:
    """Return what to do about a failed gate, or that nothing is known to help."""
    part = MEANINGS[gate.name].part
    if gate.name == "launches" and not _are_pages(analysis):
        return "record from the beginning of the training, or begin the capture between two steps"
    if part is None or (part is Part.EVENT_RECORDS and _has_records(analysis)):
        return "no recorder is known to show more: ask for other assumptions, or compare two runs"
    return analysis.run.ranks[0].trace.how_to_collect(part)


def _are_pages(analysis: OpenAnalysis) -> bool:
    ranks = analysis.run.ranks
    num_pages = sum(int(is_in(rank.operations.copies.kind, UNIFIED_COPIES).sum()) for rank in ranks)
    num_unlaunched = sum(
        int(np.count_nonzero(calls < 0)) for rank in ranks for calls in rank.launched_by
    )
    return num_pages > num_unlaunched / 2


def _has_records(analysis: OpenAnalysis) -> bool:
    return all(rank.trace.event_records(rank.process) for rank in analysis.run.ranks)


def _gate(name: GateName, value: float | None, limit: float) -> Gate:
    value = None if value is None else float(value)  # numpy's own are not written to JSON
    return Gate(name, value, limit, value is not None and abs(value) <= limit)


def _misfit(
    share: Float64, measured: Float64, removed: Float64, held_out: Float64, *, has_events: bool
) -> Gate:
    """Return the gate of held-out steps; of the mean step if there are too few steps."""
    step = float(share @ measured)
    if not step:
        return _gate("misfit", None, MAX_MISFIT)
    if np.count_nonzero(share) < MIN_HELD_OUT:
        limit = MAX_MISFIT if has_events else MAX_MISFIT_WITHOUT_EVENTS
        return _gate("misfit", float(share @ removed) / step - 1, limit)
    spread = float(share @ (measured - step) ** 2) ** 0.5
    error = float(share @ (held_out - measured) ** 2) ** 0.5
    return _gate("misfit", error / step, max(_OF_SPREAD * spread / step, _OF_STEP))


def _off_floor(
    graph: RunGraph, share: Float64, measured: Float64, without: Float64
) -> float | None:
    """Return the distance of a step without GPU time from the host's own time.

    That is from the launch of a step's first operation to the launch of the next step's, less
    waits of the launching threads; or another thread's own time for the work that it hands over.
    If other threads load the batches, it is anything from that to the measured step.
    """
    needed = []
    for rank_steps in graph.steps:
        facts = next(facts for facts in graph.facts if rank_steps.rank in facts.ranks)
        waited = np.diff(intervals.covered_before(facts.host_waits, rank_steps.launched_ns))
        needed.append((np.diff(rank_steps.launched_ns) - waited)[:, np.newaxis].astype(np.float64))
    step = float(median_of(measured))
    if not step:
        return None
    # A rank that waits for others in between is as slow as the slowest of them.
    own = by_number(graph.steps, needed)[:, 0]
    brings_batches = any(process.brings_batches for process in graph.facts)
    if brings_batches or unseen_pace(graph.facts) is not None:
        # Who waits for a loader may do so with a quicker GPU, too.
        floor, low, high = (float(share @ ns) for ns in (without, own, measured))
        low = 0.0 if brings_batches else low  # the loader's thread may wait for the GPU instead
        return (floor - min(max(floor, low), high)) / step
    low = float(median_of(own))
    high = max(low, *(float(median_of(of_rank)) for of_rank in needed))
    floor = float(median_of(without))
    paced = [process.paced_ns for process in graph.facts if process.paced_ns]
    expected = [min(max(floor, low), high), *paced]
    return min((floor - time for time in expected), key=abs) / step


def _unexplained(analysis: OpenAnalysis, facts: tuple[ProcessFacts, ...]) -> float:
    """Return the largest share of a rank's time that is idle for no known reason.

    Where the queue held work, the replay may know its dependency.
    """
    late_ns = {rank: ns for process in facts for rank, ns in process.late_ns.items()}
    shares = [0.0]
    for result in analysis.measured.of(gpu_idle):
        _, silent = result.unknown_ns
        queued = result.by_cause[IdleCause.QUEUED]
        unknown = silent + min(queued, late_ns.get(result.rank, 0))
        shares.append(unknown / max(result.window.length_ns, 1))
    return max(shares)
