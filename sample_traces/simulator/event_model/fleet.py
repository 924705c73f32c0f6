"""Reports of a run on several machines: clocks that disagree, captures that are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sample_traces.simulator.event_model.actions import CallRecord, CommunicationWork
from sample_traces.simulator.event_model.engine import Result

if TYPE_CHECKING:
    import numpy as np

    from sample_traces.simulator.event_model.gpu import Operation

# The maximum distance in time between members that leave an operation, on comparable clocks.
_JITTER_NS = 20_000
# The distance between the median of the members and the last possible one.
MEDIAN_EARLY_NS = _JITTER_NS // 2
# Share of operations that a member leaves long before the others: its part was done.
_OUTLIERS = 0.02


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and its clock.

    Attributes:
        name: of the machine.
        ahead_ns: the lead of its clock over the true time at time 0.
        drift_ppb: the gain of its clock, in ns per second.
    """

    name: str
    ahead_ns: int
    drift_ppb: int

    def shown(self, true_ns: int) -> int:
        """Return the reading of its clock at a true time."""
        return true_ns + self.ahead_ns + true_ns * self.drift_ppb // 1_000_000_000


@dataclass(frozen=True, slots=True)
class Capture:
    """One report.

    Attributes:
        node: the captured machine.
        processes: in the report.
        session_ns: the true time of its time 0.
        start_ns: events that start before this true time are missing.
        stop_ns: events that end after this true time are missing.
    """

    node: Node
    processes: tuple[int, ...]
    session_ns: int
    start_ns: int
    stop_ns: int

    def time(self, true_ns: int) -> int:
        """Return the time in the report of a true time."""
        return self.node.shown(true_ns) - self.node.shown(self.session_ns)

    def holds(self, start_ns: int, end_ns: int) -> bool:
        """Return whether an event is in the report."""
        return self.start_ns <= start_ns and end_ns <= self.stop_ns


def seen(result: Result, capture: Capture, rng: np.random.Generator) -> Result:
    """Return the part of a run in a report, in its own time.

    Members of an operation, which leave together in the model, leave up to 20 µs apart here.

    Args:
        result: of the simulation.
        capture: the report.
        rng: for the times of leaving.
    """
    calls = {
        id(call): _call(call, capture)
        for call in result.calls
        if call.thread.process in capture.processes
    }
    operations = [
        _operation(operation, calls[id(operation.call)], capture, rng)
        for operation in result.operations
        if operation.stream.process in capture.processes
        and capture.holds(operation.start_ns, operation.end_ns)
    ]
    return Result(
        [
            calls[id(call)]
            for call in result.calls
            if id(call) in calls and capture.holds(call.start_ns, call.end_ns)
        ],
        operations,
        [
            replace(
                range_, start_ns=capture.time(range_.start_ns), end_ns=capture.time(range_.end_ns)
            )
            for range_ in result.ranges
            if range_.thread.process in capture.processes
            and capture.holds(range_.start_ns, range_.end_ns)
        ],
    )


def _call(call: CallRecord, capture: Capture) -> CallRecord:
    stall = call.stall_ns and (capture.time(call.stall_ns[0]), capture.time(call.stall_ns[1]))
    return replace(
        call, start_ns=capture.time(call.start_ns), end_ns=capture.time(call.end_ns), stall_ns=stall
    )


def _operation(
    operation: Operation, call: CallRecord, capture: Capture, rng: np.random.Generator
) -> Operation:
    end = operation.end_ns
    if isinstance(operation.work, CommunicationWork):
        most = operation.work.transfer_ns // 2
        early = most if rng.random() < _OUTLIERS else min(_JITTER_NS, most)
        end -= round(early * float(rng.random()))
    return replace(
        operation, call=call, start_ns=capture.time(operation.start_ns), end_ns=capture.time(end)
    )
