"""Parts of a dependency graph: times, latencies, weights of steps, and packed copies."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import TraceBuilder, global_pid
from tests.support.traces import ranks_of
from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
from traceprof.host.launch_stalls import Stalls
from traceprof.replay.graph.columns import recorded
from traceprof.replay.graph.host_waits import host_waits
from traceprof.replay.graph.longest_path import (
    ROOT,
    CircularError,
    WeightSets,
    binding_edges,
    schedule,
    solve,
)
from traceprof.replay.graph.process_graph import measured_latencies
from traceprof.replay.graph.run_graph import steady_shares
from traceprof.replay.graph.steps import RankSteps, begun_together
from traceprof.replay.graph.stream_waits import NO_STREAM_WAITS, OperationWaits
from traceprof.run.rank import WindowKind
from traceprof.run.steady_steps import StepUse


def plain(num: int, edges: list[tuple[int, int, float]]) -> list[float]:
    """Each node is as late as the latest edge that leads to it; sources have smaller numbers."""
    times = [0.0] * num
    for node in range(1, num):
        times[node] = max(times[low] + weight for low, high, weight in edges if high == node)
    return times


def some_edges(rng: np.random.Generator, num: int) -> list[tuple[int, int, float]]:
    edges = [(int(rng.integers(node)), node, float(rng.integers(-5, 20))) for node in range(1, num)]
    for _ in range(2 * num):
        low, high = sorted(rng.integers(0, num, 2).tolist())
        if low < high:
            edges.append((low, high, float(rng.integers(-5, 20))))
    return [edges[index] for index in rng.permutation(len(edges))]


@pytest.mark.parametrize("seed", range(40))
def test_times_are_those_of_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 60))
    edges = some_edges(rng, num)
    source, target = (np.array(ends) for ends in zip(*[edge[:2] for edge in edges], strict=True))
    weights = np.array([[edge[2], 2 * edge[2]] for edge in edges])
    plan = schedule(num, source, target)
    times = solve(plan, WeightSets.of_columns(weights[:, 0], weights.T))
    assert times[:, 0].tolist() == plain(num, edges)
    assert times[:, 1].tolist() == plain(num, [(low, high, 2 * w) for low, high, w in edges])
    node = num - 1
    way = binding_edges(plan, weights[:, 0], times[:, 0], node)
    assert sum(edges[edge][2] for edge in way) == times[node, 0]
    assert edges[way[0]][0] == ROOT
    assert [edges[edge][1] for edge in way[:-1]] == [edges[edge][0] for edge in way[1:]]


def test_equal_sets_of_weights_are_kept_once() -> None:
    full = np.array([0.0, 1.0, 2.0])
    sets = WeightSets.of_columns(full, [full, full + 1, full * 2, full + 1])
    for some in (sets, WeightSets.joined([sets, sets])):
        numbers, place = some.distinct()
        assert (numbers, place.tolist()) == ([0, 1, 2], [0, 1, 2, 1])


def test_a_circle_is_an_error() -> None:
    with pytest.raises(CircularError, match="wait for each other"):
        schedule(3, np.array([0, 1, 2]), np.array([1, 2, 1]))


US = 1_000
# Stream, start and end, call, us. The fourth begins 147 us later than 3 us after the one before it,
# and kernels ran in all but 3 of these; the fifth 57, and kernels ran in 10 of these.
KERNELS = (
    (7, 10, 110, 0, 5), (7, 113, 213, 6, 8),
    (9, 20, 40, 12, 15), (9, 190, 200, 30, 32), (9, 260, 270, 40, 42),
)  # fmt: skip
FIRST, FOURTH = np.array([0]), np.array([3])


@pytest.mark.parametrize(
    ("between", "crowded_us"),
    [
        (NO_STREAM_WAITS, 147),
        # From 3 us after the first ended, kernels always ran.
        (OperationWaits(FIRST, FOURTH, True, np.array([True])), 77),
        (OperationWaits(FIRST, FOURTH, True, np.array([False])), 147),
    ],
    ids=["no wait", "a wait", "a possible wait"],
)
def test_what_held_each_operation(between: OperationWaits, crowded_us: int, tmp_path: Path) -> None:
    trace = TraceBuilder()
    for stream, start, end, called, returned in KERNELS:
        launch = called * US, returned * US
        trace.kernel(start * US, end * US, stream=stream, launch=launch)
    # A copy takes no room of kernels.
    trace.memcpy(200 * US, 262 * US, "DtoD", stream=11, launch=(195 * US, 198 * US))
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = measured_latencies(recorded([(0, rank)]), between)
    assert (found.launched_ns // US).tolist() == [5, 8, 15, 32, 42, 198]
    assert (found.after_launch_ns // US).tolist() == [5, 5, 5, 5, 5, 2]
    assert (found.after_previous_ns[[1, 3, 4]] // US).tolist() == [3, 3, 3]
    assert (found.after_wait_ns // US).tolist() == [3] * len(between.consumer)
    assert (found.crowded_ns // US).tolist() == [0, 0, 0, crowded_us, 0, 0]
    assert (found.unexplained_ns // US).tolist() == [0, 0, 0, 0, 57, 0]


def test_a_launch_that_comes_too_late_to_hide_its_latency(tmp_path: Path) -> None:
    # A kernel begins 5 us after its launch call has returned, and 1 us after the one before it.
    trace, end, returned = TraceBuilder(), 0, 0
    # Each is launched so long before the stream is free, us: into an idle GPU, too late, in time.
    leads = [-40] * 3 + [1, 2, 3] * 4 + [5, 6, 30] * 2
    for number, lead in enumerate(leads):
        returned = end - lead
        start = max(end + 1, returned + 5) if number else 100
        launch = ((returned - 3) * US, returned * US) if number else (92 * US, 95 * US)
        trace.kernel(start * US, (start + 50) * US, launch=launch)
        end = start + 50
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = measured_latencies(recorded([(0, rank)]), NO_STREAM_WAITS)
    assert set(found.after_launch_ns[1:] // US) == {5}
    assert set(found.after_previous_ns[1:] // US) == {1}
    assert not found.unexplained_ns.any()


_NOTHING = np.empty(0, np.int64)


def steps_by_rank(*numbers: int, is_marked: bool = True) -> RankSteps:
    number = np.array(numbers, np.int64)
    limits = np.zeros(len(number) + 1, np.int64)
    return RankSteps(0, number, limits, number, limits, limits, is_marked, _NOTHING)


def ran(
    lengths: list[int], uses: dict[int, StepUse], numbers: list[int] | None = None
) -> BreakdownResult:
    steps = tuple(
        StepMeasures(
            place if numbers is None else numbers[place],
            Measures(0, length, length, 0, 0, 0, 0, 0, 0, 1, 0, 0),
            use=uses.get(place, StepUse.STEADY),
        )
        for place, length in enumerate(lengths)
    )
    whole = Measures(0, sum(lengths), 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)
    return BreakdownResult(0, whole, steps, whole, WindowKind.TRAINING, None)


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7]])
def test_steps_that_are_not_steady_count_nothing(numbers: list[int]) -> None:
    """By end, what follows a step is the next one's; a rare step shows no change."""
    uses = {0: StepUse.OPENING, 3: StepUse.RARE, 5: StepUse.CUT}
    by_begin, by_end = steady_shares([steps_by_rank(*numbers)], ran([10] * 6, uses, numbers))
    assert by_begin.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert by_end.tolist() == pytest.approx([0, 0, 1 / 2, 0, 0, 1 / 2])


def test_a_sample_has_the_mix_of_all_steps() -> None:
    """Of twenty steps five are long; of the six that are replayed three are."""
    lengths = [10] * 12 + [50] * 3 + [10] * 3 + [50] * 2
    by_begin, _ = steady_shares([steps_by_rank(10, 11, 12, 13, 14, 15)], ran(lengths, {}))
    assert by_begin.sum() == pytest.approx(1)
    assert by_begin[2:5].sum() == pytest.approx(5 / 20)


def test_the_last_step_of_a_phase_is_not_measured_by_its_end() -> None:
    """What the phase ends with, a copy of all results, is launched in it."""
    uses = {2: StepUse.CUT, 5: StepUse.CUT}
    by_begin, by_end = steady_shares([steps_by_rank(*range(6))], ran([10] * 6, uses))
    assert by_begin.tolist() == pytest.approx([1 / 4, 1 / 4, 0, 1 / 4, 1 / 4, 0])
    assert by_end.tolist() == pytest.approx([0, 1 / 3, 0, 0, 1 / 3, 1 / 3])


def test_without_steps_all_is_one() -> None:
    for result in (ran([], {}), ran([5, 5], {})):
        shares = steady_shares([steps_by_rank(0, is_marked=False)], result)
        assert [share.tolist() for share in shares] == [[1], [1]]


def test_trainings_of_one_host_begin_with_the_first() -> None:
    late = replace(steps_by_rank(0, is_marked=False), limits_ns=np.array([5, 90]))
    first = replace(late, limits=np.array([7, 8]), limits_ns=np.array([3, 95]))
    both = begun_together([late, first])
    assert [one.limits.tolist() for one in both] == [[7, 0], [7, 8]]
    assert [one.limits_ns.tolist() for one in both] == [[3, 90], [3, 95]]


@pytest.mark.parametrize(("api", "waited_for"), [("Stream", [1]), ("Device", [1, 2])])
def test_a_call_waits_for_what_was_put_on_streams_last(
    api: str, waited_for: list[int], tmp_path: Path
) -> None:
    trace = TraceBuilder()
    for start, stream in ((100, 7), (200, 7), (150, 13)):
        trace.kernel(start * US, (start + 90) * US, stream=stream, launch=(50 * US, 60 * US))
    trace.api(f"cuda{api}Synchronize_v3020", 70 * US, 295 * US, correlation=99)
    trace.raw(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=70 * US, end=295 * US, streamId=7,
        correlationId=99, globalPid=global_pid(1000), deviceId=0, contextId=1, syncType=3,
    )  # fmt: skip
    none = _NOTHING
    stalls = Stalls("inferred", none, none, none, none, none, None, None, 0)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        process = recorded([(0, rank)])
        waits = host_waits(process, None, stalls)
    ends = process.work.end_ns[waits.operation] // US
    assert sorted(ends.tolist()) == sorted([190, 290, 240][place] for place in waited_for)
