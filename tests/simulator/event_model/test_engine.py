"""The discrete-event model, on programs so small that their answers are counted by hand."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import (
    Action,
    Busy,
    Call,
    CommunicationWork,
    Communicator,
    CopyWork,
    Event,
    KernelWork,
    MemsetWork,
    Pop,
    Push,
    Record,
    Stream,
    Thread,
    Wait,
    Work,
)
from sample_traces.simulator.event_model.engine import Result, Simulation
from sample_traces.simulator.event_model.gpu import Latencies, Operation

NONE = Latencies(launch=0, stream_gap=0, event=0, host_return=0, queue_check=0)
S, T = Stream(0, 0, 7), Stream(0, 0, 20)  # two streams of one device
OTHER = Stream(1, 1, 7)  # of another process

Spans = list[tuple[int, int]]


def launch(work: Work | int, stream: Stream = S, *, cost: int = 1, blocking: bool = False) -> Call:
    """A call that launches something: a kernel of so many ns, if it is a number."""
    if isinstance(work, int):
        work = KernelWork(kernels.UP, work)
    return Call("launch", cost, ((stream, work),), blocking=blocking)


def record(event: Event, stream: Stream = S) -> Call:
    return Call("record", 1, ((stream, Record(event)),))


def wait(event: Event, stream: Stream = S) -> Call:
    return Call("wait", 1, ((stream, Wait(event)),))


def copy(work_ns: int, engine: str = "h2d", link: str = "pcie") -> CopyWork:
    return CopyWork(1, 4096, work_ns, engine, link, source_kind=1, destination_kind=2)


def collective(transfer_ns: int, *members: int, communicator: int = 5) -> CommunicationWork:
    group = Communicator(communicator, str(communicator), members)
    return CommunicationWork(kernels.ALL_REDUCE, group, members, transfer_ns, 4096)


def run(
    *programs: list[Action],
    slowdown: Fraction = Fraction(1),
    limit: int = 1024,
    latencies: Latencies = NONE,
) -> Result:
    simulation = Simulation(
        slowdown=slowdown, queue_limit=limit, latencies=latencies, range_cost_ns=1
    )
    for process, program in enumerate(programs):
        simulation.add(Thread(process), program)
    return simulation.run()


def operations(result: Result) -> Spans:
    return [(operation.start_ns, operation.end_ns) for operation in result.operations]


def calls(result: Result) -> Spans:
    return [(call.start_ns, call.end_ns) for call in result.calls]


def test_a_stream_runs_in_order() -> None:
    # host 0-1-2-3       kernels [1 11)[11 31)[31 36)
    result = run([launch(10), launch(20), launch(5)])
    assert calls(result) == [(0, 1), (1, 2), (2, 3)]
    assert operations(result) == [(1, 11), (11, 31), (31, 36)]


def test_latencies_lie_between_cause_and_effect() -> None:
    latencies = Latencies(launch=100, stream_gap=7, event=30, host_return=50, queue_check=0)
    event = Event()
    result = run(
        [
            launch(10), launch(10), record(event), wait(event, T), launch(4, T),
            Call("sync", 2, (), T),
        ],
        latencies=latencies,
    )  # fmt: skip
    # launched at 1, 2; the event is reached at 128, the other stream goes on 30 later
    assert operations(result) == [(101, 111), (118, 128), (158, 162)]
    assert calls(result)[-1] == (5, 162 + 50)


def test_streams_run_beside_each_other() -> None:
    assert operations(run([launch(10), launch(10, T)])) == [(1, 11), (2, 12)]


def test_a_stream_waits_for_an_event() -> None:
    event = Event()
    result = run([launch(10), record(event), wait(event, T), launch(5, T), launch(5)])
    assert operations(result) == [(1, 11), (11, 16), (11, 16)]


def test_an_event_that_is_reached_already_holds_up_nothing() -> None:
    event = Event()
    result = run([launch(2), record(event), Busy(20), wait(event, T), launch(5, T)])
    assert operations(result) == [(1, 3), (24, 29)]


def test_one_copy_engine_for_each_direction() -> None:
    # both directions at once; of one direction, in the order in which they became ready
    down = copy(10, "d2h", "other way")
    result = run([launch(copy(10)), launch(copy(10), T), launch(down, Stream(0, 0, 30))])
    assert operations(result) == [(1, 11), (11, 21), (3, 13)]


def test_copies_share_a_link() -> None:
    #  0    4 5        17   21
    #  A 4 alone, 6 left at half the rate; B has 6 of 10 done when A ends
    result = run([launch(copy(10, "a")), Busy(3), launch(copy(10, "b"), T)])
    assert operations(result) == [(1, 17), (5, 21)]


def test_kernels_are_slower_beside_communication() -> None:
    # kernel from 1; communication [11 23): 8 of its 12 ns count; 12 left at 23
    result = run([launch(30), Busy(9), launch(collective(12, 0), T)], slowdown=Fraction(3, 2))
    assert operations(result) == [(1, 35), (11, 23)]


def test_slow_work_is_rounded_once() -> None:
    # communication [3 4) and [5 6): by 6, 2 + 2/3 + 1 + 2/3 of 10 are done, 5 2/3 are left
    result = run(
        [launch(10), Busy(1), launch(collective(1, 0), T), Busy(1), launch(collective(1, 0), T)],
        slowdown=Fraction(3, 2),
    )
    assert operations(result) == [(1, 12), (3, 4), (5, 6)]


def test_communication_slows_its_own_device_only() -> None:
    result = run([launch(collective(12, 0), T)], [launch(12, OTHER)], slowdown=Fraction(2))
    assert operations(result) == [(1, 13), (1, 13)]


def test_a_communicator_has_one_order() -> None:
    result = run([launch(collective(10, 0)), launch(collective(10, 0), T)])
    assert operations(result) == [(1, 11), (11, 21)]
    other = collective(10, 0, communicator=6)
    assert operations(run([launch(collective(10, 0)), launch(other, T)])) == [(1, 11), (2, 12)]


def test_members_leave_together() -> None:
    work = collective(20, 0, 1)
    result = run([launch(work), launch(5)], [Busy(49), launch(work, OTHER)])
    assert operations(result) == [(1, 70), (70, 75), (50, 70)]
    assert [operation.last_arrival_ns for operation in result.operations] == [50, -1, 50]


def test_a_full_queue_blocks_and_frees() -> None:
    # two places: the third launch begins at 2 and gets the first one's place at 11
    result = run([launch(10), launch(10), launch(10), launch(10)], limit=2)
    assert operations(result) == [(1, 11), (11, 21), (21, 31), (31, 41)]
    assert calls(result) == [(0, 1), (1, 2), (2, 12), (12, 22)]
    assert [call.stall_ns for call in result.calls] == [None, None, (2, 11), (12, 21)]
    assert [call.depth for call in result.calls] == [0, 1, 2, 2]


def test_a_full_queue_keeps_other_streams_waiting() -> None:
    program: list[Action] = [launch(100), launch(100), launch(5, T)]
    assert operations(run(program)) == [(1, 101), (101, 201), (3, 8)]
    blocked = run(program, limit=2)
    assert operations(blocked) == [(1, 101), (101, 201), (102, 107)]


def test_the_queue_is_the_process_own() -> None:
    result = run([launch(50), launch(50)], [launch(5, OTHER)], limit=1)
    assert [call.stall_ns for call in result.calls] == [None, None, (1, 51)]


@pytest.mark.parametrize("until", ["stream", "event", "device", "own"])
def test_the_host_waits(until: str) -> None:
    event = Event()
    program: list[Action] = [launch(10), record(event), launch(30, T)]
    if until == "own":
        program.append(launch(MemsetWork(4, 5), blocking=True))
    else:
        what = event if until == "event" else S
        program.append(Call("sync", 1, (), what, device_wide=until == "device"))
    result = run([*program, launch(1)])
    ends = {"stream": 11, "event": 11, "device": 33, "own": 16}
    assert calls(result)[3:] == [(3, ends[until]), (ends[until], ends[until] + 1)]


def test_nothing_to_wait_for() -> None:
    assert calls(run([launch(2), Busy(9), Call("sync", 3, (), S)]))[1] == (10, 13)


def test_ranges_enclose_what_is_done_in_them() -> None:
    result = run([Push("outer", 0), Push("inner", 0), launch(5), Pop(), Busy(4), Pop()])
    spans = {range_.action.name: (range_.start_ns, range_.end_ns) for range_ in result.ranges}
    assert spans == {"outer": (0, 8), "inner": (1, 3)}
    assert calls(result) == [(2, 3)]


def test_correlations_count_in_each_process() -> None:
    result = run([launch(5), launch(5)], [launch(5, OTHER)])
    numbers = [(call.thread.process, call.correlation) for call in result.calls]
    assert sorted(numbers) == [(0, 1), (0, 2), (1, 1)]


def test_waiting_for_ever_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 operations wait forever"):
        run([launch(collective(5, 0, 1))], [])


def works(number: int) -> Work:
    """One of a few kinds of work, of different lengths."""
    length = 5 + 7 * (number % 5)
    kinds: tuple[Work, ...] = (
        KernelWork(kernels.UP, length),
        collective(length, 0, communicator=number % 2),
        copy(length, "h2d"),
        copy(length, "d2h"),
        MemsetWork(4, length),
    )
    return kinds[number // 5 % len(kinds)]


@given(
    st.lists(st.tuples(st.integers(0, 24), st.sampled_from([S, T]), st.integers(1, 9)), max_size=30)
)
def test_rules_hold_for_any_program(entries: list[tuple[int, Stream, int]]) -> None:
    limit = 4
    program: list[Action] = [
        launch(works(number), stream, cost=cost) for number, stream, cost in entries
    ]
    result = run(program, slowdown=Fraction(3, 2), limit=limit)
    assert len(result.operations) == len(entries)
    for op in result.operations:
        assert op.call.end_ns <= op.start_ns < op.end_ns
        length = op.end_ns - op.start_ns
        if isinstance(op.work, KernelWork):
            assert op.work.work_ns <= length <= 1.5 * op.work.work_ns + 1
        elif not isinstance(op.work, CommunicationWork):
            assert op.work.work_ns <= length <= 2 * op.work.work_ns
        # Not yet over when this one was launched: no more than there is room for.
        assert sum(o.call.end_ns <= op.call.end_ns < o.end_ns for o in result.operations) <= limit
    for exclusive in (S, T, "h2d", "d2h", 0, 1):
        own = [operation for operation in result.operations if exclusive in resources(operation)]
        own.sort(key=lambda operation: operation.start_ns)
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(own))


def resources(operation: Operation) -> set[object]:
    """What an operation has to itself: its stream, and its engine or communicator."""
    work = operation.work
    if isinstance(work, CopyWork):
        return {operation.stream, work.engine}
    if isinstance(work, CommunicationWork):
        return {operation.stream, work.communicator.id}
    return {operation.stream}
