"""What it takes to bring reports together grows as the number of ranks does, counted, not timed."""

import pickle
import sys
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator import simulate_run
from tests.support.selection import long_after
from traceprof.analyses.measurements import MeasuredReport
from traceprof.analyses.verdict.judging import judge
from traceprof.analyses.verdict.measured_run import measured_run
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.execution.measuring import Task, measure_file
from traceprof.execution.options import Options
from traceprof.ranks.arrivals import Arrivals
from traceprof.trace.columns import Packed

pytestmark = pytest.mark.slow

_BLOCK, _PAIRS = 8, 4
_NUMBERS = (8, 16, 32)
_MAX_FACTOR = 2.2  # for twice as many more ranks; were it quadratic, it would be 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[MeasuredReport]:
    folder = tmp_path_factory.mktemp("run") / "run"
    simulate_run("straggler-upstream", folder, seed=1, per_rank=True)
    reports = []
    for path in [folder / f"rank_{rank}.sqlite" for rank in range(_BLOCK)]:
        report = measure_file(Task(path, path, Options()))
        assert isinstance(report, MeasuredReport)
        reports.append(report)
    return reports


def repeated(measured: Sequence[MeasuredReport], num_ranks: int) -> list[MeasuredReport]:
    """Return the reports of a run of so many ranks: all in one group, and two in each other."""
    return [
        _in_block(pickle.loads(pickle.dumps(report)), block, num_ranks)  # noqa: S301  (our own)
        for block in range(num_ranks // _BLOCK)
        for report in measured
    ]


def _in_block(report: MeasuredReport, block: int, num_ranks: int) -> MeasuredReport:
    numbers = {
        source: tuple(None if rank is None else rank + _BLOCK * block for rank in of_report)
        for source, of_report in report.facts.rank_numbers.items()
    }
    path = report.facts.path.with_name(f"{block}-{report.facts.path.name}")
    (rank,) = report.ranks
    assert rank.measurements is not None
    arrivals = _of_larger_run(rank.measurements.taken["arrivals"].unpacked, block, num_ranks)
    measurements = replace(
        rank.measurements, taken=rank.measurements.taken | {"arrivals": Packed.of(arrivals)}
    )
    identity = replace(report.facts.identity, work=frozenset())  # they are copies of one
    facts = replace(report.facts, path=path, rank_numbers=numbers, identity=identity)
    return replace(report, facts=facts, ranks=(replace(rank, measurements=measurements),))


def _of_larger_run(arrivals: Arrivals, block: int, num_ranks: int) -> Arrivals:
    world = arrivals.world_size == _BLOCK
    return replace(
        arrivals,
        world_size=np.where(world, num_ranks, arrivals.world_size),
        groups=tuple(
            name if name == "0" else f"{int(name) + _PAIRS * block}" for name in arrivals.groups
        ),
        communicators=tuple(
            name if index in arrivals.communicator[world] else f"{name}-{block}"
            for index, name in enumerate(arrivals.communicators)
        ),
    )


def judged(reports: list[MeasuredReport]) -> RunResult:
    measured = measured_run(reports)
    return RunResult(measured, judge(measured))


def num_calls(reports: list[MeasuredReport]) -> int:
    """Return how many functions are called, of Python and of C, to judge reports."""
    num = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal num
        num += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        judged(reports)
    finally:
        sys.setprofile(None)
    return num


def peak_bytes(reports: list[MeasuredReport]) -> int:
    """Return the most memory that is taken to judge reports, beyond what they are."""
    tracemalloc.start()
    try:
        judged(reports)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_the_repeated_run_is_one_run(measured: list[MeasuredReport]) -> None:
    result = judged(repeated(measured, 16))
    assert [rank.rank for rank in result.run.ranks] == list(range(16))
    assert sorted({len(wait.group.members) for wait in result.ranks.waits}) == [2, 16]
    assert "straggler" in {finding.id for finding in result.findings}


@pytest.mark.long
@pytest.mark.parametrize("cost", long_after(1, [num_calls, peak_bytes]))
def test_the_cost_of_each_rank_is_the_same(
    measured: list[MeasuredReport], cost: Callable[[list[MeasuredReport]], int]
) -> None:
    judged(repeated(measured, 8))  # imports, and what is kept
    few, some, many = (cost(repeated(measured, number)) for number in _NUMBERS)
    assert many - some <= _MAX_FACTOR * (some - few)
