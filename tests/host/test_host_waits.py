"""The host's time that goes with calls: of operators around them, or since other launches."""

from pathlib import Path

import pytest

from tests.reference import kineto
from tests.support.builders import TraceBuilder
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.host.host_waits import since_other_launches, synchronizing_calls, with_operators
from traceprof.trace.model.kinds import waits_for_gpu

RECORDINGS = Path(__file__).parents[1] / "gpu" / "recordings"
US = 1_000


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
