"""What waits of the host cost: idle time after them, and host time that goes without them."""

from pathlib import Path

import pytest

from tests.reference import kineto
from tests.support.builders import TraceBuilder
from tests.support.claims import END, MS, US, begun, found, late, switched
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.host.host_waits import since_other_launches, synchronizing_calls, with_operators
from traceprof.trace.model.kinds import waits_for_gpu

RECORDINGS = Path(__file__).parents[1] / "gpu" / "recordings"


def waited(length: int = 515 * US) -> TraceBuilder:
    """Wait from within the first kernel until 15 us after it; the debt is 15 us less."""
    return begun().api("cudaDeviceSynchronize", END + 15 * US - length, END + 15 * US)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(400, {"sync": 400}), (500, {"sync": 500}), (510, {"sync": 500, "launch_bound": 10})],
)
def test_a_wait_takes_run_ahead(gap: int, expected: dict[str, float], tmp_path: Path) -> None:
    assert found(late(waited(), gap * US), tmp_path) == expected


def test_a_debt_reaches_over_gaps(tmp_path: Path) -> None:
    trace = late(waited(), 300 * US, call=300 * US)
    first = END + 300 * US + MS
    trace.kernel(first + 400 * US, first + MS, launch=(first + US, first + 399 * US))
    assert found(trace, tmp_path) == {"sync": 500, "launch_bound": 200}


def test_sleep_setup_and_turnaround_use_up_no_debt(tmp_path: Path) -> None:
    trace = switched(waited(), (END + 100 * US, 0), (END + 300 * US, 1))
    trace.api("cudaMalloc", END + 310 * US, END + 360 * US)
    trace = late(trace, 760 * US, call=10 * US)
    # the thread runs from 15 us before its launch, and is not silent: 510 us might be taken
    expected = {"sync": 500, "waiting": 200, "allocation": 50, "launch_bound": 10}
    assert found(trace, tmp_path) == expected


@pytest.mark.parametrize(("stretch", "is_sync"), [(10_000_000, True), (10_000_001, False)])
def test_long_stretches_are_not_sync(stretch: int, is_sync: bool, tmp_path: Path) -> None:
    length = 20 * MS + 15 * US
    trace = begun().kernel(END, 40 * MS, launch=(END - 10 * US, END - 9 * US))
    trace.api("cudaDeviceSynchronize", 40 * MS + 100 * US - length, 40 * MS + 100 * US)
    start = 40 * MS + 200 * US + stretch
    trace.kernel(start, start + MS, launch=(start - 100 * US, start))
    expected = {"sync": 200 + stretch / US} if is_sync else {"sync": 200, "unknown": stretch / US}
    assert found(trace, tmp_path) == expected


@pytest.mark.parametrize(
    ("stream", "cause"), [(None, "launch_bound"), (7, "sync"), (9, "launch_bound")]
)
def test_a_wait_of_another_thread_counts_on_streams_to_which_it_launches(
    stream: int | None, cause: str, tmp_path: Path
) -> None:
    trace = begun().api("cudaDeviceSynchronize", END - MS, END, tid=1001)
    if stream is not None:
        trace.kernel(8 * MS, 9 * MS, stream=stream, tid=1001)
    assert found(late(trace, 300 * US, call=300 * US), tmp_path) == {cause: 300}


@pytest.mark.parametrize(
    ("api", "pageable", "length", "expected"),
    [
        ("cudaMemcpy_v3020", False, 1000, {"sync": 385, "launch_bound": 15}),
        ("cudaMemcpyAsync_v3020", True, 1000, {"sync": 385, "launch_bound": 15}),
        ("cudaMemcpyAsync_v3020", False, 1000, {"launch_bound": 400}),
        ("cudaMemcpyAsync_v3020", True, 20, {"launch_bound": 400}),
    ],
)
def test_blocking_copies(
    api: str, pageable: bool, length: int, expected: dict[str, float], tmp_path: Path
) -> None:
    # 400 us pass from the call to the copy, or all of a short call
    begin = END - (10 if length == 20 else 390) * US
    trace = begun().memcpy(
        END + 10 * US, END + 20 * US, "DtoH", pageable=pageable,
        launch=(begin, begin + length * US), api=api,
    )  # fmt: skip
    start = END + 410 * US
    trace.kernel(start, start + MS, launch=(END + 20 * US, start))
    assert found(trace, tmp_path) == expected


def test_a_blocking_copy_of_another_device(tmp_path: Path) -> None:
    trace = begun().memcpy(
        END + 5 * US, END + 300 * US, "DtoH", device=1, launch=(END, END + 315 * US),
        api="cudaMemcpy_v3020",
    )  # fmt: skip
    assert found(late(trace, 400 * US, call=85 * US), tmp_path) == {
        "sync": 300,
        "launch_bound": 100,
    }


def spans(path: Path) -> list[tuple[int, int]]:
    """Return what goes with all waits of a trace, us since its beginning."""
    with ranks_of(path) as (rank,):
        assert rank.calls is not None
        time = with_operators(rank, rank.calls, synchronizing_calls(rank, rank.calls))
        first = int(rank.calls.start_ns[0])
        pairs = zip(time.start_ns.tolist(), time.end_ns.tolist(), strict=True)
        return [((start - first) // US, (end - first) // US) for start, end in pairs]


def operator(name: str, start: int, end: int, thread: int = 1) -> dict[str, object]:
    return event("cpu_op", name, start, end - start, (PID, thread))


def test_operators_around_a_wait_go_unless_they_launch_something_else(tmp_path: Path) -> None:
    wait = "cudaStreamSynchronize"
    events = [
        call(0, 5, number=1), kernel(10, 20, number=1),
        operator("item", 100, 160), operator("local_scalar", 110, 150),
        call(120, 140, name=wait, number=2),
        operator("both", 200, 300), call(210, 215, number=3), kernel(220, 230, number=3),
        operator("item", 240, 280), call(250, 260, name=wait, number=4),
        call(400, 420, name=wait, number=5), operator("beside", 390, 450, thread=2),
        operator("empty", 500, 510),
    ]  # fmt: skip
    assert spans(write(tmp_path / "t.json", events)) == [(100, 160), (240, 280), (400, 420)]


def test_without_operators_the_calls_go_and_without_waits_nothing(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(10 * US, 20 * US, launch=(0, 5 * US))
    assert spans(trace.write(tmp_path / "a.sqlite")) == []
    trace.api("cudaDeviceSynchronize_v3020", 7 * US, 21 * US)
    assert spans(trace.write(tmp_path / "b.sqlite")) == [(7, 21)]


def test_time_between_launches_of_others_goes_with_a_call(tmp_path: Path) -> None:
    """An event recorded before it does; before the first call nothing is known to.

    call    1..3 (goes)  5..6  event 7..8  9..11 (goes)  14..15
    """
    trace = TraceBuilder()
    for begin, end in ((1, 3), (5, 6), (9, 11), (14, 15)):
        trace.kernel(100 * US + begin, 101 * US + begin, launch=(begin * US, end * US))
    trace.api("cudaEventRecord_v3020", 7 * US, 8 * US)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert rank.calls is not None
        chosen = (rank.calls.start_ns == 1 * US) | (rank.calls.start_ns == 9 * US)
        time = since_other_launches(rank, rank.calls, chosen)
        assert (time.start_ns // US).tolist() == [1, 6]
        assert (time.end_ns // US).tolist() == [3, 11]


@pytest.mark.parametrize("name", long_after(1, ["scalars", "read_loss", "synchronize"]))
def test_a_recording_says_the_same_to_plain_python(name: str) -> None:
    path = RECORDINGS / f"{name}.pt.trace.json.gz"
    facts = kineto.document(path)
    launches = {one["args"]["correlation"] for one in kineto.events(facts, "kernel")}
    calls = kineto.api_calls(facts)
    waits = [one for one in calls if waits_for_gpu(one[4])]
    others = [one for one in calls if one[0] in launches]
    found = {(start, end) for _, start, end, _, _ in waits}
    for one in kineto.events(facts, "cpu_op"):
        start, end, thread = one["start"], one["end"], one["tid"]
        num_waits, num_others = (
            sum(start <= at < end and of == thread for _, at, _, of, _ in some)
            for some in (waits, others)
        )
        if num_waits and not num_others:
            found.add((start, end))
    covered, until = 0, 0
    for start, end in sorted(found):
        covered += max(end - max(start, until), 0)
        until = max(until, end)
    with ranks_of(path) as (rank,):
        assert rank.calls is not None
        of_ours = with_operators(rank, rank.calls, synchronizing_calls(rank, rank.calls))
    assert of_ours.measure_ns == covered


def test_what_a_user_takes_out_is_no_less_than_what_came_under_the_recorder() -> None:
    """20 scalars that were made on the GPU took 532 us of each step, under torch.profiler."""
    analysis = closed_analysis(RECORDINGS / "scalars.pt.trace.json.gz", savings=False)
    (finding,) = (one for one in analysis.findings if one.id == "host-sync")
    assert finding.saving is not None
    assert (finding.saving.high_ns or 0) > 532 * US > finding.impact_ns / 8
