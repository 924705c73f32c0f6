"""Kernels: the numbers of the analysis, and where on the timeline each is to be seen."""

import dataclasses
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from playwright.sync_api import Page, expect

from dashboards.address import Address
from dashboards.pages import kernels, overlap
from dashboards.pages.kernels import modules_card, modules_part
from dashboards.questions import (
    CompareQuestion,
    PendingAnswer,
    Questions,
    answer_by,
    questions_about,
)
from dashboards.view import View
from tests.support import profiler_events as profile
from tests.support.builders import ALL_REDUCE, TraceBuilder
from tests.support.dashboard import Serve, Timeline, named, text
from tests.support.selection import known
from tests.support.traces import SAMPLE, analysis_of
from tests.support.workers import until
from traceprof.analyses.kernels.launched_kernels import LaunchedKernels, ModuleUse
from traceprof.analysis import Analysis, analyze
from traceprof.documents.comparison import ModuleChange
from traceprof.execution.options import Options
from traceprof.reports.ranks_text import compute_lines, step_text
from traceprof.units import percent

SLOWED = SAMPLE.with_stem("overlap-slowdown")


@pytest.fixture(scope="module")
def analysis() -> Iterator[Analysis]:
    with analysis_of(SLOWED) as made:
        yield made


def rows(analysis: Analysis, address: Address, *, of_compute: bool = False) -> list[dict[str, Any]]:
    compute, by_name = named(kernels.layout(View(analysis, address)), "AgGrid")
    listed: list[dict[str, Any]] = (compute if of_compute else by_name).rowData
    return listed


def test_compute_adds_up_to_that_of_the_breakdown(analysis: Analysis) -> None:
    computed = [measured.whole.compute_ns for measured in analysis.result.breakdown]
    shown = rows(analysis, Address(), of_compute=True)
    assert sum(row["total_ns"] for row in shown) == pytest.approx(sum(computed) / len(computed))
    assert sum(row["share"] for row in shown) == pytest.approx(1)
    (alone,) = (parts for parts in analysis.measured.compute if parts.rank == 1)
    of_one = rows(analysis, Address(rank=(1,)), of_compute=True)
    assert [row["total_ns"] for row in of_one] == pytest.approx(
        [part.total_ns for part in alone.parts]
    )
    window = next(rank.window for rank in analysis.run.ranks if rank.rank == 1)
    middle = (window.start_ns + window.end_ns) // 2
    halves = ((window.start_ns, middle), (middle, window.end_ns))
    addresses = [Address(rank=(1,), start_ns=start, end_ns=end) for start, end in halves]
    both = sum(row["total_ns"] for one in addresses for row in rows(analysis, one, of_compute=True))
    assert both == pytest.approx(alone.total_ns)


def test_times_are_the_means_over_the_ranks_chosen(analysis: Analysis) -> None:
    tables = analysis.measured.kernels
    shown = rows(analysis, Address())
    for field in ("total_ns", "per_step_ns"):
        expected: dict[str, float] = {}
        for use in (use for table in tables for use in table.uses):
            mean = getattr(use, field) / len(tables)
            expected[use.name] = expected.get(use.name, 0) + mean
        assert sorted(row[field] for row in shown) == pytest.approx(sorted(expected.values()))
    assert sum(row["share"] for row in shown) == pytest.approx(1)
    (alone,) = (table for table in tables if table.rank == 1)
    of_one = rows(analysis, Address(rank=(1,)))
    assert [row["total_ns"] for row in of_one] == [use.total_ns for use in alone.uses]
    for field in ("count", "per_step_ns", "median_ns"):
        assert [row[field] for row in of_one] == [getattr(use, field) for use in alone.uses]


def test_kernels_reach_a_share_of_the_peak_where_shapes_say_it(tmp_path: Path) -> None:
    product = {"Input Dims": [[512, 256], [256, 1024]], "Concrete Inputs": ["", ""]}
    added = {"Input Dims": [[1024], [1024]], "Input type": ["float", "float"]}
    events = [
        profile.event("cpu_op", "aten::mm", 1, 20, (profile.PID, 1), **product),
        profile.call(5, 6, number=1),
        profile.kernel(30, 40, name="ampere_bf16_s16816gemm_bf16_128x128_nn", number=1),
        profile.event("cpu_op", "aten::add", 25, 20, (profile.PID, 1), **added),
        profile.call(26, 27, number=2), profile.kernel(40, 41, name="add", number=2),
        profile.call(50, 51, number=3), profile.kernel(60, 69, name="unknown", number=3),
    ]  # fmt: skip
    gpu = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}
    with analysis_of(profile.write(tmp_path / "t.json", events, **gpu)) as analysis:
        shown = {row["title"]: row["reach"] for row in rows(analysis, Address())}
    assert shown == {
        "ampere_bf16_s16816gemm_bf16_128x128_nn": pytest.approx(
            2 * 512 * 256 * 1024 / 10e-6 / 312e12
        ),
        "add": pytest.approx(3 * 4 * 1024 / 1e-6 / 2039e9),
        "unknown": None,
    }


def test_what_a_step_reaches_of_the_peak_is_said_as_in_the_report() -> None:
    options = Options(savings=False, flops_per_step=4e12)
    with closing(analyze(SLOWED, options=options)) as analysis:
        longest = max(analysis.measured.compute, key=lambda parts: parts.total_ns)
        assert longest.in_step is not None
        said = step_text(longest.in_step)
        assert said in compute_lines(analysis.result)
        assert f"an MFU of {percent(known(longest.in_step.mfu))}" in said
        assert f"Rank {longest.rank}: {said}." in text(kernels.layout(View(analysis, Address())))
        (other,) = (parts for parts in analysis.measured.compute if parts is not longest)
        alone = text(kernels.layout(View(analysis, Address(rank=(other.rank,)))))
        assert f"A{step_text(known(other.in_step))[1:]}." in alone
        middle = analysis.result.breakdown[0].whole.window_start_ns
        chosen = Address(start_ns=middle, end_ns=middle + 10**8)
        assert "MFU" not in text(kernels.layout(View(analysis, chosen)))


def test_the_first_kernel_of_each_name_is_found(analysis: Analysis) -> None:
    (rank, *_) = analysis.run.ranks
    columns = rank.operations.kernels
    middle = int(np.median(columns.start_ns))
    for start, end in ((0, 1 << 60), (middle, middle + 10_000_000), (5, 6)):
        found = kernels.first_of_each(rank, start, end)
        expected: dict[str, tuple[int, int, int]] = {}
        times = zip(
            columns.start_ns.tolist(), columns.end_ns.tolist(), columns.name.tolist(), strict=True
        )
        for index, (begin, stop, name) in enumerate(times):
            if start <= begin < end:
                expected.setdefault(rank.kernel_names[name], (begin, stop, index))
        assert found == expected


@pytest.mark.long
def test_in_the_browser_names_are_filtered_and_lead_to_the_timeline(
    page: Page, serve: Serve, analysis: Analysis
) -> None:
    page.goto(f"{serve(SLOWED)}/kernels")
    names = page.locator("#page .ag-center-cols-container .ag-cell[col-id=title]")
    expect(names).to_have_count(len(rows(analysis, Address())))
    page.locator(".ag-floating-filter-input input").first.fill("AllReduce")
    expect(names).to_have_count(1)
    page.get_by_role("link", name="AllReduce").click()
    page.wait_for_url("**/timeline?*")
    timeline = Timeline(page, page.url)
    timeline.wait_for("t.selected !== null")
    first = timeline.ask("t.selected.id")
    timeline.page.keyboard.press("o")
    timeline.wait_for(f"t.selected.id !== '{first}'")
    assert "AllReduce" in timeline.ask("t.selected.name")
    timeline.page.keyboard.press("Shift+O")
    timeline.wait_for(f"t.selected.id === '{first}'")
    expect(page.locator("#timeline input[type=search], #timeline input").first).not_to_have_value(
        ""
    )


def test_the_tree_of_modules_has_what_they_took_before() -> None:
    uses = (
        ModuleUse("model", 9_000_000, 1_000_000, 0, 9, None),
        ModuleUse("model.new", 5_000_000, 5_000_000, 0, 5, None),
    )
    changes = [
        ModuleChange("model", 4_000_000, 3_000_000, -1_000_000, 0.01, is_significant=True),
        ModuleChange("model.old", 2_000_000, None, -2_000_000, None, is_significant=False),
    ]
    compared = SimpleNamespace(comparison=SimpleNamespace(modules=changes))
    with analysis_of(SAMPLE) as analysed:
        launched = LaunchedKernels(rank=0, by_name={}, modules=uses)
        measured = structs.replace(analysed.result.measured, launched=(launched,))
        analysis = dataclasses.replace(
            analysed, result=structs.replace(analysed.result, measured=measured)
        )
        view = View(analysis, Address("/kernels"))
        (alone,) = named(modules_part(view), "AgGrid")
        assert "before_ns" not in {column["field"] for column in alone.columnDefs}
        waiting = modules_card(view, PendingAnswer())
        assert "being compared" in text(waiting)
        card = modules_card(view, PendingAnswer(compared, is_over=True))
        (grid,) = named(card, "AgGrid")
        assert "before_ns" in {column["field"] for column in grid.columnDefs}
        outer, new, gone = grid.rowData
        compared_ns = ("before_ns", "after_ns", "change_ns")
        assert [outer[name] for name in (*compared_ns, "sure")] == [4e6, 3e6, -1e6, "yes"]
        assert "before_ns" not in new
        assert [gone[name] for name in ("path", *compared_ns)] == ["model.old", 2e6, None, -2e6]
        assert "total_ns" not in gone
        compared.comparison.modules = []
        (same,) = named(modules_card(view, PendingAnswer(compared, is_over=True)), "AgGrid")
        assert len(same.rowData) == len(uses)
        answer_by(analysis, lambda *_: compared, CompareQuestion(("before",), Options()))
        asked = questions_about(analysis).comparison()
        until(lambda: asked is not None and asked.is_over)
        (poll,) = named(modules_part(view), "Interval")
        assert poll.disabled


def test_without_modules_nothing_is_compared(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Questions, "comparison", lambda _: pytest.fail("it is asked for"))
    assert modules_part(View(analysis, Address("/kernels"))) == []


def test_the_modules_of_the_model_are_a_tree(traces: Path) -> None:
    path = traces / "kineto/h100_timesformer.json.gz"
    if not path.exists():
        pytest.skip("TRACEPROF_TRACES has no h100_timesformer")
    with analysis_of(path) as analysis:
        (launched,) = analysis.measured.launched
        grids = named(kernels.layout(View(analysis, Address("/kernels"))), "AgGrid")
        (grid,) = (grid for grid in grids if grid.id["name"] == "modules")
        assert [row["path"] for row in grid.rowData] == [use.module for use in launched.modules]
        for row, use in zip(grid.rowData, launched.modules, strict=True):
            assert row["total_ns"] == use.total_ns
            assert len(row["module"]) - len(row["module"].lstrip()) == use.module.count(".")
        outer = [row["share"] for row in grid.rowData if row["module"] == row["path"]]
        assert sum(outer) == pytest.approx(1)
        start = analysis.result.breakdown[0].whole.window_start_ns
        chosen = Address("/kernels", start_ns=start, end_ns=start + 10**9)
        assert modules_card(View(analysis, chosen)) is None


def page(trace: TraceBuilder, path: Path, module: Any = overlap) -> str:
    with analysis_of(trace.write(path)) as analysis:
        return text(module.layout(View(analysis, Address())))


def test_without_overlap_no_steps_are_asked_for(tmp_path: Path) -> None:
    """That more steps would show more is said only of kernels that ran beside communication."""
    alone = TraceBuilder().kernel(0, 1000).kernel(1000, 2000, ALL_REDUCE, stream=20)
    beside = TraceBuilder().kernel(0, 1000).kernel(500, 2000, ALL_REDUCE, stream=20)
    said = page(alone, tmp_path / "a.sqlite"), page(beside, tmp_path / "b.sqlite")
    assert ["No kernel ran beside communication." in one for one in said] == [True, False]
    assert ["record more steps" in one for one in said] == [False, True]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (kernels, r"\d+ more names, \S+ \S+ together"),
        (overlap, r"\d+ more, with an excess of \S+ \S+ together"),
    ],
)
def test_what_a_table_leaves_out_is_summed_up(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, module: Any, said: str
) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 3)
    tree = module.layout(View(analysis, Address()))
    assert len(named(tree, "AgGrid")[-1].rowData) == 3
    assert re.search(said, text(tree).replace("\N{NO-BREAK SPACE}", " "))
