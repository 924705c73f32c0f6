"""The overview: the analysis' own numbers, and names that are never markup."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dashboards import shell
from dashboards.address import Address, parse
from dashboards.pages import overview, steps
from dashboards.pages.overview import breakdown_card, outliers
from dashboards.server.app import create_app
from dashboards.view import View, device_text
from dashboards.widgets.charts import PARTS
from dashboards.widgets.findings import DRAWING_WIDTH, metric_text, saving_text
from tests.support.builders import TraceBuilder
from tests.support.dashboard import named, text
from tests.support.planted import made
from tests.support.selection import known
from tests.support.traces import SAMPLE, SAMPLES, analysis_of
from tests.support.two_phases import LONGER, SHORTER, program
from traceprof.analyses import breakdown
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.analyses.verdict.yields import expected_ns
from traceprof.analysis import Analysis, Options, analyze
from traceprof.findings import Basis, Saving, by_id, worst_of
from traceprof.reports.drawings import timeline
from traceprof.reports.html import svg
from traceprof.reports.time_text import slow_steps_lines
from traceprof.reports.tracks import Moment, scenes
from traceprof.units import duration


@pytest.fixture(params=SAMPLES, ids=lambda path: path.stem)
def analysis(request: pytest.FixtureRequest) -> Iterator[Analysis]:
    with analysis_of(request.param) as result:
        yield result


def test_bars_are_as_wide_as_their_shares(analysis: Analysis) -> None:
    tree = overview.layout(View(analysis, Address()))
    bars = [element for element in named(tree, "Div") if getattr(element, "className", "") == "bar"]
    assert len(bars) == len(analysis.result.breakdown)
    for bar, result in zip(bars, analysis.result.breakdown, strict=True):
        widths = [float(part.style["width"].removesuffix("%")) for part in bar.children]
        expected = [
            100 * getattr(result.judged, measure) / result.judged.window_ns for measure, *_ in PARTS
        ]
        assert widths == pytest.approx(expected, abs=1e-4)
        assert sum(widths) == pytest.approx(100, abs=1e-3)


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


def test_every_finding_is_shown_and_leads_to_its_evidence(analysis: Analysis) -> None:
    tree = overview.layout(View(analysis, Address()))
    shown = text(tree)
    links = [parse(*link.href.partition("?")[::2]) for link in named(tree, "Link")]
    for finding in analysis.findings:
        assert finding.title in shown
        assert all(advice in shown for advice in finding.advice)
        of_finding = [
            link for link in links if link.finding == finding.id and link.rank == (finding.rank,)
        ]
        assert bool(of_finding) == bool(finding.evidence)
        for link in of_finding:
            evidence = finding.evidence[link.evidence or 0]
            assert link.path == "/timeline"
            assert known(link.start_ns) < evidence.start_ns <= evidence.end_ns < known(link.end_ns)


def test_the_answer_comes_first(analysis: Analysis) -> None:
    headline = known(analysis.result.headline)
    tree = overview.layout(View(analysis, Address()))
    shown = text(tree)
    verdict = known(three_lines(analysis.result))
    assert shown.startswith(f"Overview {verdict.problem}")
    assert duration(headline.step_ns) in shown
    links = [link for link in named(tree, "A") if str(link.href).startswith("#finding-")]
    anchors = [card.id for card in finding_cards(tree)]
    assert anchors == [f"finding-{group[0].id}" for group in by_id(analysis.findings)]
    assert {link.href.removeprefix("#") for link in links} <= {*anchors}
    assert all(link.title and not link.title.startswith("#") for link in links)
    assert [card.open for card in finding_cards(tree)] == [True, *[False] * (len(anchors) - 1)][
        : len(anchors)
    ]


def test_bars_are_gains_on_the_scale_of_a_step(analysis: Analysis) -> None:
    step_ns = known(analysis.result.headline).step_ns
    cards = finding_cards(overview.layout(View(analysis, Address())))
    assert cards or not analysis.findings
    for card, group in zip(cards, by_id(analysis.findings), strict=True):
        worst = worst_of(group)
        (bar,) = (part for part in named(card, "Span") if part.className == "gain")
        limit, proven, *mark = bar.children
        most = (worst.saving.high_ns or 0) if worst.saving else 0
        least = (worst.saving.low_ns or 0) if worst.saving and worst.saving.step_ns else 0
        assert named(card, "Span")[0].children == worst.severity
        assert f"{duration(worst.impact_ns)} · " in text(card) or not worst.impact_ns
        assert limit.style["width"] == f"{100 * min(most / step_ns, 1):.2f}%"
        assert proven.style["width"] == f"{100 * min(least / step_ns, 1):.2f}%"
        places = [f"{100 * min(expected_ns(worst, step_ns) / step_ns, 1):.2f}%"]
        has_mark = bool(worst.saving is None or most) and expected_ns(worst, step_ns) > 0
        assert [one.style["left"] for one in mark] == places * has_mark


def test_a_symptom_names_its_cause() -> None:
    with analysis_of(SAMPLE.with_stem("host-sync")) as analysis:
        shown = text(overview.layout(View(analysis, Address())))
    assert {"host-sync", "gpu-idle"} <= {finding.id for finding in analysis.findings}
    assert "gpu-idle ranks 0-1 because of host-sync" in shown


def test_slow_steps_are_those_of_the_report() -> None:
    with analysis_of(SAMPLE.with_stem("initialisation")) as analysis:
        lines = slow_steps_lines(analysis.result)
        shown = text(overview.layout(View(analysis, Address())))
    assert lines
    assert all(line in shown for line in lines)


def test_what_a_step_could_take_is_said_with_what_brings_it_there(analysis: Analysis) -> None:
    headline = known(analysis.result.headline)
    savings, replay = headline.savings, headline.savings.replay
    shown = " ".join(text(overview.layout(View(analysis, Address()))).split())
    if replay is None:
        assert "What it could take is not known" in shown
    elif savings.possible_step_ns is None:
        assert known(replay.refused) in shown
    elif savings.gains:
        assert f"It could take {duration(savings.possible_step_ns)}" in shown
        for gain in savings.gains:
            assert f"−{duration(gain.gain_ns)} without {gain.finding}" in shown
        assert ". By a replay" in shown
    for line in known(three_lines(analysis.result)).lines:
        assert " ".join(line.split()) in shown
    for group in by_id(analysis.findings):
        assert saving_text(worst_of(group).saving) in shown


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


def finding_cards(tree: Any) -> list[Any]:
    """Return the findings of an overview."""
    return [
        card for card in named(tree, "Details") if getattr(card, "id", "").startswith("finding-")
    ]


def test_every_large_part_is_owned(analysis: Analysis) -> None:
    shown = text(overview.layout(View(analysis, Address())))
    for owner in analysis.result.verdict.attributions:
        if owner.finding is None:
            assert f"is {owner.part} that no finding accounts for" in shown
        else:
            assert owner.finding in {finding.id for finding in analysis.findings}


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


def test_what_could_not_be_analysed_is_said_with_its_flag(analysis: Analysis) -> None:
    shown = text(overview.layout(View(analysis, Address())))
    numbers = re.compile(r"\d[\d.,]*")  # of several ranks those of the first are shown
    for gap in analysis.not_applicable:
        assert gap.id in shown
        assert numbers.sub("#", gap.reason) in numbers.sub("#", shown)
        assert gap.how_to_collect in shown


def test_only_the_ranks_chosen_are_shown() -> None:
    with analysis_of(SAMPLE) as analysis:
        shown = text(overview.layout(View(analysis, Address(rank=(1,)))))
        _, below = shown.split("Findings", 1)  # the headline is of the whole run
        assert "rank 1" in below
        assert "rank 0" not in below


def test_a_healthy_run_says_so(tmp_path: Path) -> None:
    with analysis_of(TraceBuilder().kernel(0, 1000).write(tmp_path)) as analysis:
        assert "No finding reaches 1 %" in text(overview.layout(View(analysis, Address())))


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


def test_the_headline_says_what_a_step_is_that_nobody_marked() -> None:
    with analysis_of(SAMPLE.with_stem("mpi-wait")) as analysis:
        shown = text(overview.layout(View(analysis, Address())))
        assert "an iteration is from one jacobi_kernel to the next (1 kernel)" in shown
        shown = text(steps.layout(View(analysis, Address())))
        assert "No range marks steps" in shown
        assert "begins on the GPU with the first operation launched inside its range" not in shown
