"""Ranks without a GPU on one clock: planted stragglers, and columns by a plain computation."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dashboards.address import Address
from dashboards.pages import ranks as page
from dashboards.view import View
from sample_traces.simulator import RUN_SCENARIOS
from tests.support import dashboard
from tests.support.builders import TraceBuilder
from tests.support.claims import validator
from tests.support.databases import query
from tests.support.planted import analyzed, assert_clocks, made
from tests.support.selection import rows_long_after
from tests.support.traces import ranks_of
from traceprof.analysis import Analysis
from traceprof.ranks import arrivals
from traceprof.ranks.matching import LEAVE_TOGETHER
from traceprof.reports import json as json_report
from traceprof.reports import text

pytestmark = pytest.mark.slow

STRAGGLERS = [name for name in RUN_SCENARIOS if name.startswith("cpu-straggler-")]
Runs = Callable[[str, bool], tuple[Path, dict[str, Any], Analysis]]
BOUNDS = {"error_ns": 20_000, "uncertainty_ns": 1_000_000}  # clocks are up to 40 ms apart


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return a function that gives a run's folder, its truth and what is found, made once."""

    @cache
    def run(name: str, per_rank: bool) -> tuple[Path, dict[str, Any], Analysis]:
        folder = tmp_path_factory.mktemp(name) / "run"
        truth = made(name, folder, seed=3 + per_rank, per_rank=per_rank)
        return folder, truth, analyzed(folder, truth)

    return run


@pytest.mark.parametrize(
    ("name", "per_rank"),
    rows_long_after(1, [(name, row % 2 == 1) for row, name in enumerate(STRAGGLERS)]),
)
def test_a_planted_straggler_is_found(runs: Runs, name: str, per_rank: bool) -> None:
    _, truth, analysis = runs(name, per_rank)
    (found,) = [finding for finding in analysis.findings if finding.id == "straggler"]
    planted = truth["straggler"]
    assert (found.metrics["rank"], found.metrics["cause"]) == (planted["rank"], planted["cause"])
    assert found.metrics["lateness_ns"] == pytest.approx(planted["lateness_ns"], abs=500_000)
    assert not analysis.ranks.unmatched
    assert_clocks(truth, analysis, **BOUNDS)
    document = json.loads(json_report.render(analysis.result))
    validator().validate(document)
    assert len(document["run"]["lateness"]) == 8
    assert all(collective["num_matched"] for collective in document["collectives"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_balanced_run_is_silent(tmp_path: Path, seed: int) -> None:
    truth = made("cpu-ranks-balanced", tmp_path / "run", seed=seed, per_rank=seed > 1)
    analysis = analyzed(tmp_path / "run", truth)
    assert [finding.title for finding in analysis.findings if finding.id == "straggler"] == []
    assert_clocks(truth, analysis, **BOUNDS)


@pytest.mark.long
def test_text_and_page_show_them_as_they_show_others(tmp_path: Path) -> None:
    truth = made("cpu-straggler-unnamed", tmp_path / "run", seed=2)
    analysis = analyzed(tmp_path / "run", truth)
    shown = " ".join(text.render(analysis.result, is_verbose=True).split())
    assert "Ranks on one clock" in shown
    assert "AllReduce group 0 nodes" in shown
    assert "it spends the time outside the ranges of instrument" in shown
    late = truth["straggler"]["rank"]
    matrix = analysis.ranks.matrix_ns
    column = analysis.ranks.ranks.index(late)
    assert matrix[:, column].sum() > 0.9 * matrix.sum()
    drawn = dashboard.text(page.layout(View(analysis, Address(path=page.PATH))))
    assert "Who waited for whom" in drawn


def test_operations_are_the_calls_of_the_ranges(runs: Runs) -> None:
    folder, truth, analysis = runs(STRAGGLERS[0], False)
    path = folder / truth["reports"][1]["file"]
    rows = query(
        path,
        "SELECT start, end, value FROM NVTX_EVENTS JOIN StringIds ON id = textId"
        " WHERE value LIKE 'all_reduce %' ORDER BY start",
    )
    for rank in truth["reports"][1]["processes"]:
        expected: dict[str, tuple[int, int]] = {}  # a call and its flight have one text
        for start, end, value in rows:
            if f" rank={rank} " in value:
                begun, over = expected.get(value, (start, end))
                expected[value] = min(begun, start), max(over, end)
        last = max(
            begun for value, (begun, over) in expected.items() if _is_flight(value, over, begun)
        )
        # Flights that the capture's end cut off leave their calls alone.
        expected = {
            value: (begun, over)
            for value, (begun, over) in expected.items()
            if "group=0" not in value or begun < last or _is_flight(value, over, begun)
        }
        of_ranks = [packed.unpacked for packed in analysis.result.measured.arrivals]
        of_rank = next(one for one in of_ranks if one.rank == rank)
        times_of_calls = {
            (of_rank.groups[of_rank.group[index]], int(of_rank.sequence[index])): (
                int(of_rank.start_ns[index]),
                int(of_rank.end_ns[index]),
            )
            for index in range(len(of_rank))
        }
        assert times_of_calls == {
            (re.findall(r"group=(\S+)", value)[0], int(re.findall(r"seq=(\d+)", value)[0])): times
            for value, times in expected.items()
        }


def _is_flight(text: str, over: int, begun: int) -> bool:
    return "bytes=4194304" in text and over - begun > 20_001  # which the call itself takes


def test_a_call_without_a_flight_is_done_if_another_flew_later(tmp_path: Path) -> None:
    builder = TraceBuilder()
    facts = "bytes=400 dtype=float32 group=0 rank=0 size=2"
    builder.label(f"all_reduce {facts} seq=0", 0, 10)  # synchronous
    builder.label(f"all_reduce {facts} seq=1", 20, 22)
    builder.label(f"all_reduce {facts} seq=1", 20, 40, in_flight=True)
    builder.label(f"all_reduce {facts} seq=2", 50, 52)  # cut off, or synchronous: nothing tells
    builder.label("barrier group=0 rank=0 size=2 seq=3", 60, 70)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        result = arrivals.run(rank, rank.window)
    assert result.sequence.tolist() == [0, 1, 3]
    assert result.end_ns.tolist() == [10, 40, 70]


def test_time_is_spent_by_the_ranges_and_the_rest_is_other(tmp_path: Path) -> None:
    builder = TraceBuilder()
    facts = "bytes=400 dtype=float32 group=0 rank=0 size=2"
    builder.label("data loading", 0, 10)
    builder.label("forward", 15, 40)
    builder.label(f"all_reduce {facts} seq=0", 20, 25)
    builder.label("backward", 40, 100)
    builder.label(f"all_reduce {facts} seq=1", 50, 52)
    builder.label(f"all_reduce {facts} seq=1", 50, 90, in_flight=True)
    builder.label("barrier group=0 rank=0 size=2 seq=2", 110, 120)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        result = arrivals.run(rank, rank.window)
    at = dict.fromkeys(arrivals.TIME_CATEGORIES, 0)
    first = at | {"compute": 5, "data loading": 10, "other": 5}
    assert result.cumulative_ns_at_start[0].tolist() == list(first.values())
    assert result.spent_at_end_ns[0].tolist() == list((first | {"communication": 5}).values())
    last = at | {"compute": 78, "communication": 7, "data loading": 10, "other": 15}
    assert result.cumulative_ns_at_start[2].tolist() == list(last.values())
    for times, spent in (
        (result.start_ns, result.cumulative_ns_at_start),
        (result.end_ns, result.spent_at_end_ns),
    ):
        assert spent.sum(axis=1).tolist() == times.tolist()
    names = [result.operations[index] for index in result.operation.tolist()]
    assert names == ["AllReduce", "AllReduce", "Barrier"]
    assert names[2] in LEAVE_TOGETHER
