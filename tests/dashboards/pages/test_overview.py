"""The overview: the analysis' own numbers, and names that are never markup."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dashboards import shell
from dashboards.address import Address
from dashboards.pages import overview
from dashboards.pages.overview import breakdown_card, outliers
from dashboards.server.app import create_app
from dashboards.view import View, device_text
from dashboards.widgets.findings import DRAWING_WIDTH, metric_text, saving_text
from tests.support.dashboard import named, text
from tests.support.planted import made
from tests.support.traces import SAMPLE, SAMPLES, analysis_of
from tests.support.two_phases import LONGER, SHORTER, program
from traceprof.analyses import breakdown
from traceprof.analysis import Analysis, Options, analyze
from traceprof.findings import Basis, Saving, by_id, worst_of
from traceprof.reports.drawings import timeline
from traceprof.reports.html import svg
from traceprof.reports.tracks import Moment, scenes


@pytest.fixture(params=SAMPLES, ids=lambda path: path.stem)
def analysis(request: pytest.FixtureRequest) -> Iterator[Analysis]:
    with analysis_of(request.param) as result:
        yield result


def test_each_card_draws_its_first_evidence_as_the_report_does(analysis: Analysis) -> None:
    pictures = named(overview.layout(View(analysis, Address())), "Img")
    groups = [worst_of(group) for group in by_id(analysis.findings)]
    drawn = [worst for worst in groups if worst.evidence]
    assert len(pictures) == len(drawn)
    browser = create_app(analysis).server.test_client()
    made = scenes(analysis.result, Options()) if drawn else {}
    for place, (picture, worst) in enumerate(zip(pictures, drawn, strict=True)):
        is_open = place == 0 and worst is groups[0]
        source = getattr(picture, "src" if is_open else "data-src")
        reply = browser.get(source)
        assert (reply.status_code, reply.mimetype) == (200, "image/svg+xml")
        first = worst.evidence[0]
        scene = made[Moment(worst.rank, first.start_ns, first.end_ns)]
        assert reply.get_data(as_text=True) == svg(timeline(scene, DRAWING_WIDTH))
    assert browser.get(f"/drawing/{len(analysis.findings)}").status_code == 404


@pytest.mark.parametrize(
    ("saving", "written"),
    [
        (None, "–"),  # noqa: RUF001
        (Saving.at_most(1_400_000, "perfect-overlap"), "at most 1.40 ms"),
        (Saving(1_080_000, 900_000, 1_400_000, Basis.REPLAY, "no-sync"), "1.08 ms"),
        (
            Saving(1_080_000, 50_000, 1_400_000, Basis.REPLAY, "no-sync"),
            "1.08 ms (50 µs to 1.40 ms)",
        ),
        (Saving.at_most(0, "perfect-overlap"), "nothing"),
        (Saving.at_most(1_400_000, None, "no replay can remove it"), "at most 1.40 ms"),
        (Saving(1_080_000, 0, 1_400_000, Basis.REPLAY, "no-sync"), "at most 1.40 ms"),
    ],
)
def test_savings_say_whether_they_are_bounds(saving: Saving | None, written: str) -> None:
    assert saving_text(saving) == written


@pytest.mark.parametrize(("name", "unit"), [("mpi-wait", "the training"), ("training", "a step")])
def test_what_is_gained_is_of_a_step_where_there_are_steps(name: str, unit: str) -> None:
    options = Options(period=False)
    with closing(analyze(SAMPLE.with_stem(name), options=options)) as analysis:
        shown = text(overview.layout(View(analysis, Address())))
    assert f"bars: {unit}, " in shown
    if name == "training":  # in the other nothing can be taken out of a replay
        assert f"Without it {unit} takes" in shown


def test_what_lies_in_another_phase_is_of_its_step(tmp_path: Path) -> None:
    trace = program(LONGER, SHORTER).write(tmp_path)
    with closing(analyze(trace, options=Options(savings=False))) as analysis:
        shown = text(overview.layout(View(analysis, Address())))
    assert "In the second phase the GPU idles 60." in shown
    assert "at most 60 µs" in shown
    assert "of 100 µs, second phase" in shown


@pytest.mark.long
def test_many_ranks_are_shown_by_machine_and_who_stands_out(tmp_path: Path) -> None:
    made("straggler-host", tmp_path / "run", seed=1)
    paths = sorted((tmp_path / "run").glob("*.sqlite"))
    with closing(analyze(*paths)) as analysis:
        view = View(analysis, Address())
        few = outliers(view.of(breakdown))
        # The ranks that wait for it have no idle time: it is the one that has.
        (late,) = {one.rank for one in few if one.part == "idle"}
        assert late == next(f.rank for f in analysis.findings if f.id == "straggler")
        results = view.of(breakdown)
        tree = breakdown_card(view, (*results, results[0]))
    assert not named(tree, "AgGrid")  # the page of ranks has it
    assert named(tree, "Link")[-1].children == f"All {len(results) + 1} ranks"
    shown = text(tree)
    assert "Ranks that stand out" in shown
    machines = {view.machines[rank.rank] for rank in view.ranks}
    assert len(machines) == 4
    assert all(f"{machine} 2: " in shown or f"{machine} 3: " in shown for machine in machines)


def test_no_rank_stands_out_where_all_are_alike() -> None:
    with analysis_of(SAMPLE) as analysis:
        (result, *_) = analysis.result.breakdown
    assert outliers([result] * 9) == []
    assert outliers([result]) == []


def test_a_rank_may_be_without_a_gpu() -> None:
    assert device_text(None, None) == "CPU"
    assert device_text(3, None) == "GPU 3"
    assert device_text(0, "A100\n") == "GPU 0 · A100\\n"


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("stall_ns", 1_500_000, "1.50 ms"), ("median_bytes", 12_345, "12.3 kB"),
        ("gb_per_s", 12.345, "12.35 GB/s"), ("matched_fraction", 0.5, "50.0 %"),
        ("coverage", 1.0, "100.0 %"), ("num_stalls", 7, "7"), ("slowdown", 1.23456, "1.23"),
        ("api", "cuda\nMemcpy", "cuda\\nMemcpy"), ("communication_slowdown", None, "not known"),
    ],
)  # fmt: skip
def test_metrics_have_the_unit_that_their_name_tells(
    name: str, value: float | str | None, written: str
) -> None:
    assert metric_text(name, value) == written


def test_reports_that_were_left_out_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "<b>missing</b>.sqlite"
    with closing(analyze(SAMPLE, missing)) as analysis:
        tree = overview.layout(View(analysis, Address()))
    assert f"left out: cannot read {missing}" in text(tree)


def test_ranks_are_shown_by_number_whatever_the_order_of_reports(tmp_path: Path) -> None:
    truth = made("cpu-ranks-balanced", tmp_path / "run", seed=1)
    reports = [tmp_path / "run" / report["file"] for report in truth["reports"]]
    with closing(analyze(*reports[::-1])) as analysis:
        tree = overview.layout(View(analysis, Address()))
        _, choices = shell.choices(analysis)
    assert [rank.rank for rank in analysis.run.ranks] == list(range(8))
    heads = [text(head) for head in named(tree, "Th") if head.scope == "row"]
    assert heads[-8:] == [f"rank {number}" for number in range(8)]
    assert [choice["value"] for choice in choices] == list(range(8))
