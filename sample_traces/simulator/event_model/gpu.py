"""Simulated GPUs: streams, engines, links, communicators, contention."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import ceil

from sample_traces.simulator.event_model.actions import (
    CallRecord,
    Clock,
    CommunicationWork,
    CopyWork,
    Entry,
    Event,
    KernelWork,
    Record,
    Stream,
    Wait,
    Work,
)

_ALONE = Fraction(1)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Times between cause and effect, in ns."""

    launch: int = 1_900  # from the end of a call to the earliest start of its operation
    stream_gap: int = 500  # between operations of one stream
    event: int = 1_600  # from the operation before an event's record to a stream that waits for it
    # from the end of the work that a call waits for to the end of the call
    host_return: int = 3_200
    queue_check: int = 600  # from a launch's start to its check for room in the queue


@dataclass(eq=False, slots=True)
class Operation:
    """A kernel, a copy or a memory set that was launched."""

    work: Work  # its kind and size
    stream: Stream  # runs it
    call: CallRecord  # launched it
    start_ns: int = -1  # -1 until it has started
    end_ns: int = -1  # -1 until it is over
    last_arrival_ns: int = -1  # the start of the last member of a NCCL operation; -1 for others
    input_ns: int = 0  # the end of the work on other streams that its stream had to wait for
    _remaining_ns: Fraction = _ALONE
    _rate: Fraction = _ALONE
    _since_ns: int = 0
    version: int = 0  # changes of the rate

    def change_rate(self, rate: Fraction, now_ns: int) -> int | None:
        """Continue at a share of full speed; return its new end, None if unchanged."""
        if rate == self._rate and self.version:
            return None
        self._remaining_ns -= (now_ns - self._since_ns) * self._rate
        self._since_ns, self._rate = now_ns, rate
        self.version += 1
        # Fractions are exact: the end is rounded once, however often the rate changes.
        return ceil(now_ns + self._remaining_ns / rate)

    def begin(self, work_ns: int, now_ns: int) -> None:
        """Start, with this duration at full speed."""
        self.start_ns = self._since_ns = now_ns
        self._remaining_ns = Fraction(work_ns)


@dataclass(slots=True)
class _StreamState:
    queue: deque[tuple[Entry | Operation, int]] = field(default_factory=deque)
    running: Operation | None = None
    free_ns: int = 0
    input_ns: int = 0


@dataclass(slots=True)
class _Engine:
    running: Operation | None = None
    waiting: deque[Stream] = field(default_factory=deque)


class Gpus:
    def __init__(
        self,
        clock: Clock,
        latencies: Latencies,
        slowdown: Fraction,
        on_end: Callable[[Operation], None],
    ) -> None:
        self._clock = clock
        self._latencies = latencies
        self._slowdown = slowdown
        self._on_end = on_end
        self._streams: dict[Stream, _StreamState] = defaultdict(_StreamState)
        self._done: dict[Event, int] = {}
        self._event_waiters: dict[Event, list[Callable[[], None]]] = defaultdict(list)
        self._engines: dict[str, _Engine] = defaultdict(_Engine)
        self._links: dict[str, list[Operation]] = defaultdict(list)
        # By process and device, whose operations share a GPU here.
        self._computing: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        self._communicating: dict[tuple[int, int], int] = defaultdict(int)
        self._in_order: dict[tuple[int, int], deque[Operation]] = defaultdict(deque)
        self._num_joined: dict[tuple[int, tuple[int, ...], int], int] = defaultdict(int)
        self._arrived: dict[tuple[int, tuple[int, ...], int], list[Operation]] = defaultdict(list)
        self._round: dict[Operation, tuple[int, tuple[int, ...], int]] = {}

    def put(self, stream: Stream, entry: Entry | Operation, ready_ns: int) -> None:
        """Append an entry to a stream, which may run it from `ready_ns` on."""
        if isinstance(entry, Operation) and isinstance(entry.work, CommunicationWork):
            self._join(entry, entry.work)
        self._streams[stream].queue.append((entry, ready_ns))
        self._advance(stream)

    def streams_of(self, process: int, device: int) -> list[Stream]:
        """Return the streams of a process on a device that have been used so far."""
        return [
            stream
            for stream in self._streams
            if (stream.process, stream.device) == (process, device)
        ]

    def when_done(self, events: Iterable[Event], happen: Callable[[int], None]) -> None:
        """Call a function once all events are done, with the time of the last one."""
        events = list(events)
        open_ones = [event for event in events if event not in self._done]
        if open_ones:
            again = partial(self.when_done, events, happen)
            self._event_waiters[open_ones[0]].append(again)
        else:
            happen(max(self._done[event] for event in events))

    def _join(self, operation: Operation, work: CommunicationWork) -> None:
        """Take the next place in the communicator's order and in the operation's own."""
        process = operation.stream.process
        self._in_order[work.communicator.id, process].append(operation)
        joined = (work.communicator.id, work.members, process)
        number = self._num_joined[joined]
        self._num_joined[joined] += 1
        self._round[operation] = (work.communicator.id, work.members, number)

    def _advance(self, stream: Stream) -> None:
        state, now = self._streams[stream], self._clock.now_ns
        while state.queue and state.running is None:
            entry, ready = state.queue[0]
            if isinstance(entry, Record):
                state.queue.popleft()
                self._reach(entry.event)
            elif isinstance(entry, Wait):
                if entry.event not in self._done:
                    waiters = self._event_waiters[entry.event]
                    waiters.append(partial(self._advance, stream))
                    return
                state.queue.popleft()
                done = self._done[entry.event]
                state.input_ns = max(state.input_ns, done)
                state.free_ns = max(state.free_ns, done + self._latencies.event)
            else:
                assert isinstance(entry, Operation)
                start = max(ready, state.free_ns)
                if start > now:
                    self._clock.at(start, partial(self._advance, stream))
                    return
                if not self._has_turn(entry):
                    return
                state.queue.popleft()
                state.running = entry
                entry.input_ns = state.input_ns
                self._start(entry)

    def _reach(self, event: Event) -> None:
        self._done[event] = self._clock.now_ns
        for happen in self._event_waiters.pop(event, ()):
            happen()

    def _has_turn(self, operation: Operation) -> bool:
        """Return whether its communicator or engine is free for it; if not, it will be woken."""
        work = operation.work
        if isinstance(work, CommunicationWork):
            order = self._in_order[work.communicator.id, operation.stream.process]
            return order[0] is operation
        if isinstance(work, CopyWork) and work.engine is not None:
            engine = self._engines[work.engine]
            if engine.running is not None:
                if operation.stream not in engine.waiting:
                    engine.waiting.append(operation.stream)
                return False
        return True

    def _start(self, operation: Operation) -> None:
        work, now = operation.work, self._clock.now_ns
        place = (operation.stream.process, operation.stream.device)
        if isinstance(work, CommunicationWork):
            operation.start_ns = now
            self._communicating[place] += 1
            self._contend(place)
            self._arrive(operation, work)
            return
        operation.begin(work.work_ns, now)
        if isinstance(work, KernelWork):
            self._computing[place].append(operation)
            self._contend(place)
        elif isinstance(work, CopyWork) and work.link is not None:
            if work.engine is not None:
                self._engines[work.engine].running = operation
            self._links[work.link].append(operation)
            self._share(work.link)
        else:
            self._run_at(operation, _ALONE)

    def _arrive(self, operation: Operation, work: CommunicationWork) -> None:
        members = self._arrived[self._round[operation]]
        members.append(operation)
        if len(members) == len(work.members):
            leave = self._clock.now_ns + max(_transfer_ns(member) for member in members)
            for member in members:
                member.last_arrival_ns = self._clock.now_ns
                self._clock.at(leave, partial(self._end, member))

    def _contend(self, place: tuple[int, int]) -> None:
        rate = 1 / self._slowdown if self._communicating[place] else _ALONE
        for operation in self._computing[place]:
            self._run_at(operation, rate)

    def _share(self, link: str) -> None:
        sharing = self._links[link]
        for operation in sharing:
            self._run_at(operation, Fraction(1, len(sharing)))

    def _run_at(self, operation: Operation, rate: Fraction) -> None:
        end = operation.change_rate(rate, self._clock.now_ns)
        if end is not None:
            self._clock.at(end, partial(self._end_if, operation, operation.version))

    def _end_if(self, operation: Operation, version: int) -> None:
        """End the operation unless its rate has changed since this end was planned."""
        if operation.version == version:
            self._end(operation)

    def _end(self, operation: Operation) -> None:
        work, now = operation.work, self._clock.now_ns
        place = (operation.stream.process, operation.stream.device)
        operation.end_ns = now
        state = self._streams[operation.stream]
        state.running = None
        state.free_ns = now + self._latencies.stream_gap
        if isinstance(work, CommunicationWork):
            self._communicating[place] -= 1
            self._contend(place)
            self._pass_turn(operation, work)
        elif isinstance(work, KernelWork):
            self._computing[place].remove(operation)
        elif isinstance(work, CopyWork) and work.link is not None:
            self._links[work.link].remove(operation)
            self._share(work.link)
            self._free_engine(work.engine)
        self._on_end(operation)
        self._advance(operation.stream)

    def _pass_turn(self, operation: Operation, work: CommunicationWork) -> None:
        order = self._in_order[work.communicator.id, operation.stream.process]
        order.popleft()
        if order and order[0].stream != operation.stream:
            # NCCL makes the other stream wait for an event of its own.
            state = self._streams[order[0].stream]
            reached = self._clock.now_ns + self._latencies.event
            state.free_ns = max(state.free_ns, reached)
            self._clock.at(reached, partial(self._advance, order[0].stream))

    def _free_engine(self, name: str | None) -> None:
        if name is None:
            return
        engine = self._engines[name]
        engine.running = None
        if engine.waiting:
            self._clock.at(self._clock.now_ns, partial(self._advance, engine.waiting.popleft()))


def _transfer_ns(operation: Operation) -> int:
    assert isinstance(operation.work, CommunicationWork)
    return operation.work.transfer_ns
