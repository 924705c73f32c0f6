"""The row of all ranks: how long steps took, who came latest, and collectives without steps."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from dashboards.timeline.events import OPERATION
from tests.support.builders import TraceBuilder
from tests.support.dashboard import asking
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analysis import Analysis


def latest_by_step(analysis: Analysis) -> dict[int, tuple[int, int]]:
    """Return the latest of the certainly late arrivals in each step: how late, and which rank."""
    latest: dict[int, tuple[int, int]] = {}
    compared = analysis.ranks
    for late in compared.lateness:
        number = compared.ranks[late.member]
        (result,) = (row for row in analysis.result.breakdown if row.rank == number)
        for (group, row, column), start in zip(
            late.operations.tolist(), late.start_ns.tolist(), strict=True
        ):
            length = int(compared.waits[group].late_ns[row, column])
            for step in result.steps:
                since = start - step.measures.window_start_ns
                if 0 <= since < step.measures.window_ns:
                    latest[step.number] = max(latest.get(step.number, (0, 0)), (length, number))
    return latest


@pytest.mark.parametrize("stem", ["training", "nccl-serialization", "ddp"])
def test_steps_say_the_same_as_the_tables(stem: str) -> None:
    with analysis_of(SAMPLE.with_stem(stem)) as analysis:
        spreads = asking(analysis)("spreads")["spreads"]
        lengths: dict[str, list[tuple[int, int]]] = {}
        for result in analysis.result.breakdown:
            for step in result.steps:
                of_step = lengths.setdefault(f"step {step.number}", [])
                of_step.append((step.measures.window_ns, result.rank))
        latest = latest_by_step(analysis)
    assert [one["name"] for one in spreads] == [*lengths]
    assert len(spreads) > 3
    for one in spreads:
        known = [length for length, _ in lengths[one["name"]]]
        assert (one["least"], one["most"]) == (min(known), max(known))
        assert one["median"] == int(statistics.median(known))
        assert (one["most"], one["rank"]) in lengths[one["name"]]
        if one["late"] is not None:
            number = int(one["name"].removeprefix("step "))
            assert (one["late"]["length"], one["late"]["rank"]) == latest[number]
            assert one["late"]["id"].startswith(f"{one['late']['rank']}.{OPERATION}.")
    assert any(one["late"] for one in spreads)


def test_a_straggler_is_the_late_rank(straggling: tuple[Analysis, int]) -> None:
    analysis, slow = straggling
    spreads = asking(analysis)("spreads")["spreads"]
    late = [one["late"]["rank"] for one in spreads if one["late"]]
    assert 2 * late.count(slow) > len(spreads)


def test_without_steps_collectives_say_who_came_last(tmp_path: Path) -> None:
    trace = TraceBuilder()
    starts = [(1_000_000 * number, 30_000 * (number + 1)) for number in range(6)]
    for start, late in starts:
        for rank, begin in enumerate((start, start + late)):
            of_rank: Any = {"pid": 10 + rank, "device": rank}
            trace.kernel(begin, start + 200_000 + late, "ncclDevKernel_AllReduce_Sum", **of_rank)
    with analysis_of(trace.write(tmp_path)) as analysis:
        ask = asking(analysis)
        spreads, steps = ask("spreads")["spreads"], ask("steps", rank=0)["steps"]
    # All of the time is one step.
    assert steps == [{"number": None, "start": "0", "length": 5_000_000 + 200_000 + 180_000}]
    said = [(int(one["start"]), one["most"], one["rank"]) for one in spreads]
    assert said == [(start, late, 1) for start, late in starts]
    assert {one["name"] for one in spreads} == {"AllReduce"}
