"""The critical path of a step: one part behind the other, as long as the step."""

from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import astuple

from tests.support.selection import known
from tests.support.traces import GPU_SAMPLES, SAMPLE
from traceprof.analysis import Analysis, Options, analyze
from traceprof.replay.critical_path import critical_paths, step_path
from traceprof.replay.graph.run_graph import run_graph
from traceprof.replay.graph.weights import Variant
from traceprof.replay.results import StepPath

_NO_REPLAY = Options(savings=False)
_QUICK = {"ddp", "launch-queue-stall", "healthy", "straggler-two-nodes", "training"}


def check(analysis: Analysis, step: int) -> StepPath:
    """The parts tile the longest of the ranks' steps."""
    path = known(step_path(analysis, step))
    lengths = {
        rank.rank: measured.measures.window_ns
        for rank in analysis.result.breakdown
        for measured in rank.steps
        if measured.number == step
    }
    assert path.length_ns == lengths[path.rank] == max(lengths.values())
    assert sum(part.end_ns - part.start_ns for part in path.parts) == path.length_ns
    assert all(part.end_ns > part.start_ns for part in path.parts)
    unknown_ns = sum(
        part.end_ns - part.start_ns for part in path.parts if part.name.startswith("before the")
    )
    assert unknown_ns < 0.1 * path.length_ns
    if len(analysis.run.reports) == 1:
        assert all(one.end_ns == other.start_ns for one, other in pairwise(path.parts))
    return path


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in _QUICK else [pytest.mark.long])
        for path in GPU_SAMPLES
    ],
)
def test_it_is_as_long_as_the_step(path: Path) -> None:
    with closing(analyze(path, options=_NO_REPLAY)) as analysis:
        first, *others = analysis.result.breakdown
        steps = first.steps
        are_same = all(len(rank.steps) == len(steps) for rank in others)
        for step in (steps[1:2] + steps[-1:]) if steps else ():
            if are_same:
                check(analysis, step.number)
            else:  # nothing marks steps, and kernels return more often on one rank
                assert step_path(analysis, step.number) is None
        headline = analysis.result.headline
        if not steps and headline is not None:
            whole = known(step_path(analysis))
            assert whole.length_ns == headline.step_ns


def test_the_path_of_all_steps_has_the_parts_that_a_walk_along_it_finds() -> None:
    """Its time by rank and kind, and all of it: as long as the steps of the rank that ends last."""
    with closing(analyze(SAMPLE, options=_NO_REPLAY)) as analysis:
        graph = run_graph(analysis, [Variant()])
        ranks, walked = critical_paths(graph), known(step_path(analysis))
    limits_ns = max((one.limits_ns for one in graph.steps), key=lambda limits: int(limits[-1]))
    assert sum(sum(astuple(rank)[1:]) for rank in ranks) == limits_ns[-1] - limits_ns[0]
    for rank in ranks:
        spent = Counter[str]()
        for part in walked.parts:
            spent[part.kind] += (part.end_ns - part.start_ns) * (part.rank == rank.rank)
        found = rank.compute_ns, rank.communication_ns, rank.copy_ns
        assert found == (spent["compute"], spent["communication"], spent["copy"])
        # Within a segment, who waited for a launch and who for the one before is not told apart.
        assert rank.host_ns + rank.delay_ns == pytest.approx(spent["host"] + spent["delay"], abs=9)


@pytest.mark.long
def test_of_a_real_run(traces: Path) -> None:
    path = traces / "a100x4_ddp_baseline_rank0.sqlite"
    with closing(analyze(path, options=_NO_REPLAY)) as analysis:
        for step in (0, 29, 58):
            check(analysis, step)


def test_a_thread_that_is_handed_the_step_is_followed_back(traces: Path) -> None:
    """Autograd's thread makes its first call of the step when the other one has handed it over."""
    path = traces / "pairs/a100_loader_0_baseline.sqlite"
    with closing(analyze(path, options=_NO_REPLAY)) as analysis:
        check(analysis, 0)
