"""A discrete-event model of a training run: host threads, a bounded launch queue, and GPUs.

Each host thread has a program of actions; the result is a record of all events with their times.
The model is deterministic and counts in whole nanoseconds:

* A thread performs its actions one after the other.
* A process has room for a number of operations that are launched and not over. A launch without
  room blocks its thread until one is over.
* A stream runs its entries in order. An operation starts when it has been launched, the one before
  it and the events that its stream waits for are over, and its engine and communicator are free.
* A communicator runs its operations one after the other, whatever their streams. Each member
  occupies its stream from its own start; all leave together, a transfer after the last arrived.
* While a communication kernel runs on a device, compute kernels there are slower by one factor.
* A rendezvous of threads, as of ranks without a GPU, ends some time after its last member arrives.
* Concurrent copies share the bandwidth of a link evenly.

Simplifications: kernels of two streams do not slow each other, nothing slows communication, and
records of events take no room in the launch queue.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np

from sample_traces.simulator.event_model.actions import (
    Action,
    Arrive,
    Await,
    Busy,
    Call,
    CallRecord,
    Clock,
    CommunicationWork,
    Event,
    HostRecord,
    Leaving,
    Mark,
    MarkRecord,
    Pop,
    Push,
    Record,
    Rendezvous,
    Sleep,
    Start,
    Stream,
    Thread,
    Wait,
)
from sample_traces.simulator.event_model.gpu import Gpus, Latencies, Operation
from sample_traces.simulator.machine import PURPOSE

QUEUE_LIMIT = 1024  # HTA, docs/source/features/augmented_counters.rst
_NO_SLOWDOWN = Fraction(1)


@dataclass(eq=False, slots=True)
class RangeRecord:
    """An NVTX range that was opened, and closed unless `end_ns` is -1."""

    thread: Thread
    action: Push | Start
    start_ns: int
    end_ns: int = -1

    @property
    def nests(self) -> bool:
        """True for a range that was pushed and popped on its thread."""
        return isinstance(self.action, Push)


@dataclass(frozen=True, slots=True)
class Result:
    """The record of a run, each kind in order of start (operations: of launch)."""

    calls: list[CallRecord]  # of the CUDA API
    operations: list[Operation]  # of GPUs
    ranges: list[RangeRecord]  # of NVTX, and other regions of threads
    # times in which threads slept or ran named functions
    host: list[HostRecord] = field(default_factory=list)
    # the beginning and the end of each thread
    lives: dict[Thread, tuple[int, int]] = field(default_factory=dict)
    marks: list[MarkRecord] = field(default_factory=list)  # of threads

    @property
    def end_ns(self) -> int:
        kinds = (self.calls, self.operations, self.ranges)
        return max(record.end_ns for kind in kinds for record in kind)

    @property
    def ranges_of_processes(self) -> list[list[RangeRecord]]:
        """The ranges of each process that has any, by its number, in order of start."""
        by_process: dict[int, list[RangeRecord]] = defaultdict(list)
        for range_ in self.ranges:
            by_process[range_.thread.process].append(range_)
        return [by_process[process] for process in sorted(by_process)]


@dataclass(slots=True)
class _ThreadState:
    thread: Thread
    program: Iterator[Action]
    start_ns: int
    open_ranges: list[RangeRecord] = field(default_factory=list)
    is_over: bool = False


@dataclass(slots=True)
class _LaunchQueue:
    num_pending: int = 0
    blocked: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)


class Simulation:
    """One run: threads are added, then it runs once."""

    def __init__(
        self,
        *,
        slowdown: Fraction = _NO_SLOWDOWN,  # of compute kernels beside communication
        queue_limit: int = QUEUE_LIMIT,  # operations of a process that are launched and not over
        latencies: Latencies | None = None,
        range_cost_ns: int = 250,  # host time of a mark, and of each end of an NVTX range
    ) -> None:
        self._clock = Clock()
        self._latencies = latencies or Latencies()
        self._gpus = Gpus(self._clock, self._latencies, slowdown, self._operation_is_over)
        self._queue_limit = queue_limit
        self._range_cost_ns = range_cost_ns
        self._queues: Mapping[int, _LaunchQueue] = defaultdict(_LaunchQueue)
        self._rendezvous_waiters: dict[Rendezvous, list[Callable[[], None]]] = defaultdict(list)
        self._num_calls: dict[int, int] = defaultdict(int)
        self._threads: list[_ThreadState] = []
        self._result = Result([], [], [])

    def add(self, thread: Thread, program: Iterable[Action], start_ns: int = 0) -> None:
        """Add a thread that begins its program at a time."""
        state = _ThreadState(thread, iter(program), start_ns)
        self._threads.append(state)
        self._clock.at(start_ns, partial(self._act, state))

    def run(self) -> Result:
        """Run everything to its end.

        Raises:
            RuntimeError: a thread or an operation waits forever.
        """
        self._clock.run()
        waiting = [state.thread for state in self._threads if not state.is_over]
        stuck = [operation for operation in self._result.operations if operation.end_ns < 0]
        if waiting or stuck:
            raise RuntimeError(f"deadlock: {waiting} and {len(stuck)} operations wait forever")
        self._result.operations.sort(
            key=lambda operation: (operation.call.end_ns, operation.start_ns)
        )
        return self._result

    def _act(self, state: _ThreadState) -> None:
        action, now = next(state.program, None), self._clock.now_ns
        go_on = partial(self._act, state)
        if action is None:
            state.is_over = True
            self._result.lives[state.thread] = (state.start_ns, now)
        elif isinstance(action, Call):
            self._begin_call(state, action)
        elif isinstance(action, Busy | Sleep):
            end = now + action.duration_ns
            if isinstance(action, Sleep) or action.function is not None:
                self._result.host.append(HostRecord(state.thread, action, now, end))
            self._clock.at(end, go_on)
        elif isinstance(action, Arrive):
            self._arrive(state.thread.process, action.rendezvous)
            self._act(state)
        elif isinstance(action, Await):
            self._when_left((action.leaving,), lambda left: self._clock.at(left, go_on))
        elif isinstance(action, Start):
            started = RangeRecord(state.thread, action, now)
            self._result.ranges.append(started)
            self._when_left(action.until, partial(_end_range, started))
            self._act(state)
        elif isinstance(action, Mark):
            self._result.marks.append(MarkRecord(state.thread, action, now))
            self._clock.at(now + self._range_cost_ns, go_on)
        else:
            if isinstance(action, Push):
                range_ = RangeRecord(state.thread, action, now)
                state.open_ranges.append(range_)
                self._result.ranges.append(range_)
            else:
                assert isinstance(action, Pop)
                range_ = state.open_ranges.pop()
                range_.end_ns = now
            cost = 0 if range_.action.domain == PURPOSE else self._range_cost_ns
            self._clock.at(now + cost, go_on)

    def _arrive(self, process: int, rendezvous: Rendezvous) -> None:
        rendezvous.arrived_ns[process] = self._clock.now_ns
        if len(rendezvous.arrived_ns) == rendezvous.num_members:
            rendezvous.over_ns = self._clock.now_ns + rendezvous.transfer_ns
            for happen in self._rendezvous_waiters.pop(rendezvous, ()):
                happen()

    def _when_left(self, until: tuple[Leaving, ...], happen: Callable[[int], None]) -> None:
        """Call a function once the times of leaving all rendezvous are known."""
        unknown = [rendezvous for rendezvous, _ in until if rendezvous.over_ns < 0]
        if unknown:
            again = partial(self._when_left, until, happen)
            self._rendezvous_waiters[unknown[0]].append(again)
        else:
            happen(max(rendezvous.over_ns + later for rendezvous, later in until))

    def _begin_call(self, state: _ThreadState, action: Call) -> None:
        process, now = state.thread.process, self._clock.now_ns
        self._num_calls[process] += 1
        queue = self._queues[process]
        call = CallRecord(
            state.thread, action, self._num_calls[process], now, depth=queue.num_pending
        )
        self._result.calls.append(call)
        submit = partial(self._submit, state, call)
        num_slots = sum(not isinstance(entry, Record | Wait) for _, entry in action.entries)
        if not num_slots:
            self._clock.at(now + action.cost_ns, submit)
            return
        checked = min(self._latencies.queue_check, action.cost_ns)
        rest = action.cost_ns - checked
        self._clock.at(now + checked, partial(self._take_room, call, num_slots, rest, submit))

    def _take_room(
        self, call: CallRecord, num_slots: int, rest_ns: int, submit: Callable[[], None]
    ) -> None:
        queue, since = self._queues[call.thread.process], self._clock.now_ns

        def go_on() -> None:
            now = self._clock.now_ns
            queue.num_pending += num_slots
            if now > since:
                call.stall_ns = (since, now)
            self._clock.at(now + rest_ns, submit)

        if queue.blocked or queue.num_pending + num_slots > self._queue_limit:
            queue.blocked.append((num_slots, go_on))
        else:
            go_on()

    def _submit(self, state: _ThreadState, call: CallRecord) -> None:
        action, now = call.action, self._clock.now_ns
        ready = now + self._latencies.launch
        used: list[Stream] = []
        for stream, entry in action.entries:
            used.append(stream)
            if isinstance(entry, Record | Wait):
                self._gpus.put(stream, entry, ready)
                continue
            operation = Operation(entry, stream, call)
            self._result.operations.append(operation)
            self._gpus.put(stream, operation, ready)
        awaited: list[Event] = []
        if isinstance(action.until, Event):
            awaited.append(action.until)
        elif isinstance(action.until, Stream):
            until = action.until
            streams = [until]
            if action.device_wide:
                streams = self._gpus.streams_of(until.process, until.device)
            awaited += [self._mark(stream) for stream in streams]
        elif action.blocking:
            awaited += [self._mark(stream) for stream in dict.fromkeys(used)]
        if awaited:
            self._gpus.when_done(awaited, partial(self._return_after, state, call))
        else:
            self._return(state, call)

    def _mark(self, stream: Stream) -> Event:
        event = Event()
        self._gpus.put(stream, Record(event), self._clock.now_ns)
        return event

    def _return_after(self, state: _ThreadState, call: CallRecord, done_ns: int) -> None:
        late = done_ns + self._latencies.host_return
        if late > self._clock.now_ns and done_ns > call.start_ns:
            self._clock.at(late, partial(self._return, state, call))
        else:
            self._return(state, call)

    def _return(self, state: _ThreadState, call: CallRecord) -> None:
        call.end_ns = self._clock.now_ns
        self._act(state)

    def _operation_is_over(self, operation: Operation) -> None:
        """Free the operation's room in the launch queue for the longest-waiting launch."""
        queue = self._queues[operation.call.thread.process]
        queue.num_pending -= 1
        while queue.blocked and queue.num_pending + queue.blocked[0][0] <= self._queue_limit:
            _, go_on = queue.blocked.popleft()
            go_on()


def _end_range(started: RangeRecord, left_ns: int) -> None:
    started.end_ns = left_ns


# The maximum distance in time between members that leave an operation, on comparable clocks.
_JITTER_NS = 20_000
# The distance between the median of the members and the last possible one.
MEDIAN_EARLY_NS = _JITTER_NS // 2
# Share of operations that a member leaves long before the others: its part was done.
_OUTLIERS = 0.02


@dataclass(frozen=True, slots=True)
class Node:
    name: str  # of the machine
    ahead_ns: int  # the lead of its clock over the true time at time 0
    drift_ppb: int  # the gain of its clock, in ns per second

    def shown(self, true_ns: int) -> int:
        """Return the reading of its clock at a true time."""
        return true_ns + self.ahead_ns + true_ns * self.drift_ppb // 1_000_000_000


@dataclass(frozen=True, slots=True)
class Capture:
    """One report."""

    node: Node  # the captured machine
    processes: tuple[int, ...]  # in the report
    session_ns: int  # the true time of its time 0
    start_ns: int  # events that start before this true time are missing
    stop_ns: int  # events that end after this true time are missing

    def time(self, true_ns: int) -> int:
        """Return the time in the report of a true time."""
        return self.node.shown(true_ns) - self.node.shown(self.session_ns)

    def holds(self, start_ns: int, end_ns: int) -> bool:
        return self.start_ns <= start_ns and end_ns <= self.stop_ns


def seen(result: Result, capture: Capture, rng: np.random.Generator) -> Result:
    """Return the part of a run in a report, in its own time.

    Members of an operation, which leave together in the model, leave up to 20 µs apart here.
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
