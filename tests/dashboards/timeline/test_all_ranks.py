"""The row of all ranks: how long steps took, who came latest, and collectives without steps."""

from pathlib import Path
from typing import Any

from tests.support.builders import TraceBuilder
from tests.support.dashboard import asking
from tests.support.traces import analysis_of


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
