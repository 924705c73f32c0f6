"""Cards, tables, and what of many ranks is drawn one by one."""

from typing import Any

import numpy as np
import pytest
from dash import html
from msgspec import structs
from msgspec.structs import replace

from dashboards.address import Address
from dashboards.pages import nccl as nccl_figures
from dashboards.pages import overlap as overlap_page
from dashboards.pages import ranks as ranks_page
from dashboards.pages import steps as figures
from dashboards.pages.overlap import gain_and_cost, is_cost_known
from dashboards.pages.ranks import wait_matrix
from dashboards.view import View
from dashboards.widgets.components import (
    MAX_DRAWN,
    minus,
    missing,
    sorted_worst_first,
    with_table,
    worst_first,
)
from dashboards.widgets.findings import finding_card
from dashboards.widgets.tables import IDENTIFIER, Column, table
from tests.support.dashboard import named, text
from tests.support.selection import known
from traceprof.analyses import overlap_slowdown
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analysis import Analysis
from traceprof.findings import InPhase, NotApplicable
from traceprof.ranks.comparison import RankComparison


def test_what_is_missing_on_many_ranks_is_said_once() -> None:
    gaps = [
        NotApplicable("overlap-slowdown", f"of {40 + rank} kernels, {rank} are alike", "more", rank)
        for rank in range(64)
        if rank != 5
    ]
    gaps.append(NotApplicable("link-saturated", "no GPU metrics", "sample them", None))
    cards = missing(gaps)
    entries = named(cards, "Li")
    assert [" ".join(text(entry).split()) for entry in entries] == [
        "overlap-slowdown on ranks 0-4, 6-63: of 40 kernels, 0 are alike (rank 0) → more",
        "link-saturated no GPU metrics → sample them",
    ]
    assert missing([]) == []


def test_reasons_of_other_words_are_said_apart() -> None:
    gaps = [
        NotApplicable("gpu-idle", "no calls", "record them", 0),
        NotApplicable("gpu-idle", "no threads", "record them", 1),
    ]
    assert len(named(missing(gaps), "Li")) == 2


@pytest.mark.parametrize(
    ("decimals", "value", "letters"),
    [(0, 36_515_281_024, 14), (3, 12_345_678.9, 14), (IDENTIFIER, 281_479_288_520_704, 15),
     (0, None, 1), (None, "0x5eed000000000012", 17)],
)  # fmt: skip
def test_no_number_is_cut(decimals: int | None, value: float | str | None, letters: int) -> None:
    column = Column("size", "communication", decimals, 60)
    width = column.definition([{"size": 1}, {"size": value}, {}])["minWidth"]
    assert width >= 8 * letters + 32  # of a cell, 16 pixels stay free on either side
    assert column.definition()["minWidth"] > 100  # what the head alone needs


def test_names_are_cut_before_a_table_leaves_a_small_window() -> None:
    columns = [
        Column("name", "name", None, 150, may_be_cut=True),
        *(Column(f"n{number}", "number", 0, 90) for number in range(8)),
    ]
    row = {"name": "x" * 40, **{f"n{number}": 10**8 for number in range(8)}}
    (grid,) = named(table("t", columns, [row]), "AgGrid")
    widths = [definition["minWidth"] for definition in grid.columnDefs]
    assert sum(widths) <= 1204
    assert widths[0] >= 120
    assert widths[1:] == [column.least_width([row]) for column in columns[1:]]


NUM = 64


def slowed(result: BreakdownResult, rank: int, factor: float) -> BreakdownResult:
    """Return a result as if of a rank whose steps take so many times as long, in compute."""
    steps = []
    for step in result.steps:
        more = round(step.measures.window_ns * (factor - 1))
        measures = structs.replace(
            step.measures,
            window_ns=step.measures.window_ns + more,
            compute_ns=step.measures.compute_ns + more,
        )
        steps.append(replace(step, measures=measures))
    return replace(result, rank=rank, steps=tuple(steps))


@pytest.mark.parametrize("num", [0, 1, MAX_DRAWN, MAX_DRAWN + 1, 100])
def test_the_worst_come_first_only_where_there_are_many(num: int) -> None:
    below = html.Table()
    assert (with_table(below, num) is below) == (num <= MAX_DRAWN)  # of more it is folded
    costs = [float(at * 37 % 101) for at in range(num)]
    items = [*enumerate(costs)]
    split = worst_first(items, lambda item: item[1])
    assert sorted([*split.drawn, *split.others]) == items
    if num <= MAX_DRAWN:
        assert (split.drawn, split.note("x")) == (items, "")
        assert sorted_worst_first(items, lambda item: item[1]) == items
        return
    ordered = sorted(costs, reverse=True)
    assert [cost for _, cost in split.drawn] == ordered[:MAX_DRAWN]
    assert split.others == [item for item in items if item not in split.drawn]
    assert [cost for _, cost in sorted_worst_first(items, lambda item: item[1])] == ordered
    assert f"{MAX_DRAWN} ranks with x, and the other {num - MAX_DRAWN}" in split.note("x")


def test_means_of_ranks_without_the_same_steps(analysis: Analysis) -> None:
    first = analysis.result.breakdown[0]
    fewer = replace(slowed(first, 1, 2.0), steps=slowed(first, 1, 2.0).steps[1:])
    bars, alone = figures.step_bars([first, fewer]), figures.step_bars([first])
    assert bars.grid.position.tolist() == alone.grid.position.tolist()
    assert bars.parts_ns[:, 0].tolist() == pytest.approx(alone.parts_ns[:, 0].tolist())
    assert bars.parts_ns[:, 1].sum() == pytest.approx(1.5 * alone.parts_ns[:, 1].sum())


def test_a_cost_of_overlap_that_cannot_be_known_is_no_zero(analysis: Analysis) -> None:
    unknown = analysis.of(overlap_slowdown)[1]
    assert unknown.hidden_ns
    compared = replace(unknown.comparison, num_overlapped=9, overlapped_ns=3000, expected_ns=2000.0)
    result = replace(unknown, rank=0, comparison=compared, wall_excess_ns=1000)
    assert not is_cost_known(unknown)
    hidden, cost, gain = gain_and_cost([result, unknown])["series"]
    assert (hidden["rows"], cost["rows"], gain["rows"]) == ([0, 1], [0], [0])
    mixed = gain_and_cost([], [result, unknown])["series"]
    assert mixed[1]["values"] == pytest.approx([-result.wall_excess_ns])
    (alone,) = gain_and_cost([unknown])["series"]
    assert alone["name"] == hidden["name"]
    assert text(overlap_page._summary([unknown])).count("not") >= 2
    assert text(overlap_page._summary([result, unknown])).count("on rank 0") >= 2


def test_waits_of_many_ranks_are_by_machine(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = np.arange(NUM * NUM).reshape(NUM, NUM)
    monkeypatch.setattr(RankComparison, "matrix_ns", matrix)
    machines = tuple(f"node-{rank % 4}" for rank in range(NUM))
    compared: Any = replace(analysis.ranks, ranks=tuple(range(NUM)), machines=machines, waits=())
    drawn = known(wait_matrix(compared, range(NUM)))
    assert [row["title"] for row in drawn["rows"]] == [f"node-{number}" for number in range(4)]
    for row in range(4):
        for column in range(4):
            together = matrix[row::4, column::4].sum() / 1e6
            assert drawn["rows"][row]["values"][column] == pytest.approx(together)
    assert [row["ranks"] for row in drawn["rows"]] == [[*range(at, NUM, 4)] for at in range(4)]
    assert drawn["columns"][3]["ranks"] == [*range(3, NUM, 4)]
    # Ranks that nobody waited for have no column.
    with monkeypatch.context() as few_waits:
        few_waits.setattr(RankComparison, "matrix_ns", matrix * (matrix % NUM < 3))
        alone = known(wait_matrix(replace(compared, machines=("one",) * NUM), range(NUM)))
    assert [column["title"] for column in alone["columns"]] == ["rank 0", "rank 1", "rank 2"]
    # A click on a cell leads to the ranks of two machines, which are drawn one by one.
    for few in (("one",) * NUM, ("one", "other") * (NUM // 2)):
        apart = known(wait_matrix(replace(compared, machines=few), range(NUM)))
        assert len(apart["rows"]) == len(apart["columns"]) == MAX_DRAWN
        assert apart["rows"][-1]["values"][-1] == pytest.approx(matrix[-1, -1] / 1e6)
        assert not any("ranks" in row for row in apart["rows"])
    nodes = tuple(f"node-{rank // 2}" for rank in range(NUM))
    many = known(wait_matrix(replace(compared, machines=nodes), range(NUM)))
    assert [row["title"] for row in many["rows"]] == [f"node-{node}" for node in range(16, 32)]
    assert many["rows"][-1]["values"][-1] == pytest.approx(matrix[-2:, -2:].sum() / 1e6)


@pytest.mark.parametrize(
    ("num_machines", "note"),
    [
        (1, "of 64 ranks those that waited"),
        (4, "by machine; a click on a cell shows the ranks of both Its ranks, of one machine"),
        (32, "the ranks of both; of 32 those that waited and were waited for most"),
    ],
)
def test_what_is_said_of_waits_of_many_ranks(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, num_machines: int, note: str
) -> None:
    machines = {rank: f"node-{rank % num_machines}" for rank in range(NUM)}
    monkeypatch.setattr(RankComparison, "matrix_ns", np.arange(NUM * NUM).reshape(NUM, NUM))
    compared: Any = {"ranks": tuple(machines), "machines": tuple(machines.values()), "waits": ()}
    monkeypatch.setattr(Analysis, "ranks", replace(analysis.ranks, **compared))
    for name, value in (("ranks", range(NUM)), ("numbers", {*machines}), ("machines", machines)):
        monkeypatch.setattr(View, name, value)
    shown = text(ranks_page._waits(View(analysis, Address())))
    assert note in shown
    links = [f"node-{at}: " in shown for at in range(num_machines)]
    assert links == [num_machines > 1] * num_machines


def test_of_many_ranks_nccl_draws_the_slowest_and_the_range_of_the_others(
    analysis: Analysis,
) -> None:
    use = analysis.result.collectives[0].uses[0]
    use = structs.replace(use, is_lower_bound=False, peak_gb_per_s=None)
    uses = [(rank, structs.replace(use, busbw_gb_per_s=float(rank))) for rank in range(NUM)]
    assert nccl_figures.bus_bandwidth(uses)["axis"] == "bus bandwidth (GB/s)"
    unsure = [*uses[1:], (0, structs.replace(uses[0][1], is_lower_bound=True))]
    drawn = nccl_figures.bus_bandwidth(unsure)
    assert drawn["axis"] == "bus bandwidth (GB/s), a lower bound"
    points, middle = drawn["series"]
    assert sorted(points["values"]) == [*range(MAX_DRAWN)]
    assert middle["notes"] == [["48 other ranks: 16.00 GB/s to 63.00 GB/s, median 39.50 GB/s"]]


def test_a_finding_of_some_of_many_ranks_says_of_how_many(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = [structs.replace(analysis.findings[0], rank=rank) for rank in range(0, NUM, 2)]
    monkeypatch.setattr(View, "ranks", range(NUM))
    assert f"32 of {NUM} ranks" in text(finding_card(group, View(analysis, Address("/"))))


def test_of_an_unknown_saving_in_another_phase_no_step_is_said(analysis: Analysis) -> None:
    saving = known(analysis.findings[0].saving)
    phase = InPhase(1, 100, 0.5, 100_000, replace(saving, high_ns=None), None, 0)
    view = View(analysis, Address())

    def gain(of_phase: InPhase) -> str:
        card = finding_card([replace(analysis.findings[0], in_phase=of_phase)], view)
        return next(
            text(div) for div in named(card, "Div") if getattr(div, "className", "") == "number"
        )

    assert gain(phase) == "– , second phase"  # noqa: RUF001
    assert gain(replace(phase, saving=saving)).endswith(" of 100 µs, second phase")


def test_signs_of_numbers_are_minus_signs_and_no_others() -> None:
    assert minus("-2.2 % (-2.7 to +1.0), 2-3 of --lr-3 and +0") == (
        "−2.2 % (−2.7 to +1.0), 2-3 of --lr-3 and +0"
    )
