"""The reference for waits by readiness, and the analysis, against timelines worked out by hand."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.reference.readiness import Serialization, reference
from tests.support.builders import ALL_REDUCE, TraceBuilder, record, wait
from tests.support.claims import measured_numbers
from tests.support.traces import ranks_of
from traceprof.analyses import nccl_serialization

# Compute on stream 7, communication on stream 20: A runs from 100 to 200, B from 200 to 300. B's
# launch returns at 20, the last compute launched before it (event 1) ends at 150.
#
#   7   |##compute#########|          ends at 150
#   20       |####A####|####B####|    100, 200, 300


def line(*, events: bool = True, input_end: int = 150) -> TraceBuilder:
    builder = TraceBuilder().kernel(50, input_end, launch=(1, 2))
    builder.kernel(100, 200, ALL_REDUCE, launch=(5, 6), stream=20)
    if events:
        wait(record(builder, 1, 7, 15), 1, 20, 16)
    return builder.kernel(200, 300, ALL_REDUCE, launch=(18, 20), stream=20)


def only(builder: TraceBuilder, tmp_path: Path, name: str = "t.sqlite") -> Serialization:
    """Return the reference's numbers, which are those of the analysis."""
    path = builder.write(tmp_path / name)
    (result,) = reference(path).values()
    with ranks_of(path) as (rank,):
        measured = nccl_serialization.run(rank, rank.window)
    numbers = asdict(result)
    del numbers["num_queued"]
    assert measured_numbers(measured, numbers) == numbers
    return result


def test_it_is_ready_when_its_input_is(tmp_path: Path) -> None:
    numbers = only(line(), tmp_path)
    assert (numbers.blocked_ns, numbers.num_blocked, numbers.max_blocked_ns) == (50, 1, 50)
    assert (numbers.queued_ns, numbers.num_queued, numbers.num_operations) == (100, 1, 2)
    assert numbers.avoidable_ns == 50  # compute is over at 150


@pytest.mark.parametrize(
    ("input_end", "blocked"), [(99, 100), (100, 100), (101, 99), (199, 1), (200, 0), (250, 0)]
)
def test_inputs_that_end_about_when_the_others_do(
    tmp_path: Path, input_end: int, blocked: int
) -> None:
    assert only(line(input_end=input_end), tmp_path).blocked_ns == blocked


def test_without_events_the_thread_tells(tmp_path: Path) -> None:
    assert only(line(events=False), tmp_path).blocked_ns == 50


@pytest.mark.parametrize("table", ["CUDA_EVENT", "SYNCHRONIZATION"])
def test_without_one_of_the_tables_the_thread_tells(tmp_path: Path, table: str) -> None:
    builder = line().without(f"CUPTI_ACTIVITY_KIND_{table}")
    # Launched by the same thread after the record: only the order of launches knows of it.
    builder.kernel(160, 180, launch=(17, 17))
    assert only(builder, tmp_path).blocked_ns == 20


def test_another_threads_launches_tell_nothing(tmp_path: Path) -> None:
    builder = line(events=False, input_end=60)
    builder.kernel(60, 190, launch=(10, 11), tid=1001)
    builder.kernel(100, 170, ALL_REDUCE, launch=(12, 13), stream=30)  # communication: no input
    assert only(builder, tmp_path).blocked_ns == 100  # behind A, from 100 on


def test_with_events_a_launch_alone_is_no_input(tmp_path: Path) -> None:
    builder = line()
    builder.kernel(150, 190, launch=(17, 17))  # after the record
    assert only(builder, tmp_path).blocked_ns == 50


def test_a_wait_after_the_launch_is_for_the_next_one(tmp_path: Path) -> None:
    builder = line(input_end=120)
    builder.kernel(120, 190, launch=(21, 22))
    wait(record(builder, 2, 7, 23), 2, 20, 24)
    assert only(builder, tmp_path).blocked_ns == 80


def test_the_last_record_before_the_wait_counts(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(50, 120, launch=(1, 2)).kernel(120, 190, launch=(3, 4))
    builder.kernel(100, 200, ALL_REDUCE, launch=(5, 6), stream=20)
    for at in (2, 4, 30):  # the last is after the wait
        record(builder, 1, 7, at)
    builder.kernel(190, 195, launch=(25, 26))
    builder.kernel(200, 300, ALL_REDUCE, launch=(18, 20), stream=20)
    assert only(wait(builder, 1, 20, 16), tmp_path).blocked_ns == 200 - 190


def test_a_record_where_nothing_was_launched_is_no_input(tmp_path: Path) -> None:
    builder = line(input_end=60)
    wait(record(builder, 2, 84, 8), 2, 20, 9)  # NCCL's own stream, which runs nothing
    wait(builder, 3, 20, 10)  # an event that was recorded before the capture
    assert only(builder, tmp_path).blocked_ns == 100


def test_waiting_for_its_own_stream_is_no_input(tmp_path: Path) -> None:
    builder = line(input_end=60)
    wait(record(builder, 2, 20, 8), 2, 20, 9)
    assert only(builder, tmp_path).blocked_ns == 100


def test_a_wait_of_a_driver_call_counts_and_a_synchronization_does_not(tmp_path: Path) -> None:
    builder = line(events=False, input_end=60).kernel(60, 180, launch=(7, 8), tid=1001)
    record(builder, 1, 7, 15)
    wait(builder, 1, 20, 16, api="cudaStreamSynchronize_v3020")
    assert only(builder, tmp_path).blocked_ns == 100  # no wait at all: as without events
    builder = line(events=False, input_end=60).kernel(60, 180, launch=(7, 8), tid=1001)
    wait(record(builder, 1, 7, 15), 1, 20, 16, api="cuStreamWaitEvent")
    assert only(builder, tmp_path, "other.sqlite").blocked_ns == 20


def test_what_began_before_its_launch_returned_was_not_blocked(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(100, 200, ALL_REDUCE, launch=(0, 1))
    builder.kernel(200, 300, ALL_REDUCE, launch=(190, 210))
    builder.kernel(300, 300, ALL_REDUCE, launch=(2, 3))  # no length
    numbers = only(builder, tmp_path)
    assert (numbers.blocked_ns, numbers.num_blocked, numbers.num_operations) == (200, 1, 3)


def test_operations_without_a_launch_row_are_not_judged(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(100, 200, ALL_REDUCE, launch=False)
    builder.kernel(200, 300, ALL_REDUCE, launch=False)
    builder.kernel(300, 400, ALL_REDUCE, launch=(0, 1))
    numbers = only(builder, tmp_path)
    assert (numbers.blocked_ns, numbers.num_judged, numbers.num_operations) == (200, 1, 3)
    builder = TraceBuilder().kernel(100, 200, ALL_REDUCE).kernel(200, 300, ALL_REDUCE)
    numbers = only(builder.without("CUPTI_ACTIVITY_KIND_RUNTIME"), tmp_path, "none.sqlite")
    assert (numbers.blocked_ns, numbers.queued_ns, numbers.num_judged) == (0, 0, 0)


def test_rows_of_nulls_are_passed_over(tmp_path: Path) -> None:
    builder = line()
    builder.raw("CUPTI_ACTIVITY_KIND_CUDA_EVENT", streamId=7, eventId=None, globalPid=None)
    builder.raw("CUPTI_ACTIVITY_KIND_CUDA_EVENT", streamId=7, eventId=1, correlationId=None,
                globalPid=1000 << 24 | 1 << 48, deviceId=0)  # fmt: skip
    builder.raw("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=0, end=0)
    builder.raw("CUPTI_ACTIVITY_KIND_RUNTIME", start=None, end=None, correlationId=1)
    assert only(builder, tmp_path).blocked_ns == 50
