"""Compare: the comparison of `traceprof compare`, made beside the page, and a step of each side."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from flask.testing import FlaskClient
from playwright.sync_api import Page, expect

from dashboards.address import Address
from dashboards.pages import compare
from dashboards.questions import (
    ComparedSide,
    ComparedSides,
    CompareQuestion,
    PendingAnswer,
    alike,
    answer_by,
    compared_with,
    questions_about,
)
from dashboards.server.app import create_app
from dashboards.server.serving import DashboardServer
from dashboards.view import View
from tests.support.commands import run
from tests.support.dashboard import Timeline, box_of, text
from tests.support.selection import known
from tests.support.traces import SAMPLE
from tests.support.workers import until
from traceprof.analyses.breakdown import Measures
from traceprof.analysis import Analysis, Options, analyze

BEFORE, AFTER = SAMPLE, SAMPLE.with_stem("overlap-slowdown")
QUESTION = CompareQuestion((str(BEFORE),), Options())


@pytest.fixture(scope="module")
def analysis() -> Iterator[Analysis]:
    with closing(analyze(AFTER)) as made:
        yield made


@pytest.fixture(scope="module")
def compared(analysis: Analysis) -> ComparedSides:
    return compared_with(analysis, QUESTION)


def test_both_sides_show_the_same_rank_where_both_have_it(compared: ComparedSides) -> None:
    after = known(compared.after)
    for slowest in (after.rank, 1 - after.rank):
        other = alike(after._replace(rank=slowest), after)
        assert other.rank == after.rank
        (shown,) = (rank for rank in other.ranks if rank.rank == after.rank)
        assert other.step in [step.number for step in shown.steps]
    assert alike(after, after._replace(rank=99)) == after
    assert alike(after, None) == after


@pytest.mark.long
def test_without_its_reports_a_side_cannot_be_drawn(analysis: Analysis, tmp_path: Path) -> None:
    gone = tmp_path / "gone.sqlite"
    shutil.copyfile(BEFORE, gone)
    saved = tmp_path / "before.json"
    assert run("analyze", gone, "--format", "json", "-o", saved) == 0
    here = compared_with(analysis, CompareQuestion((str(saved),), Options()))
    gone.unlink()
    away = compared_with(analysis, CompareQuestion((str(saved),), Options()))
    assert here.before is not None
    assert here.before.ranks == compared_with(analysis, QUESTION).before.ranks  # type: ignore[union-attr]
    assert away.before is None
    shown = text(compare.drawn(PendingAnswer(away, is_over=True)))
    assert "Before: its reports are not here." in shown
    several = compared_with(analysis, CompareQuestion((str(saved), str(saved)), Options()))
    assert several.before is None
    shown = text(compare.drawn(PendingAnswer(several, is_over=True)))
    assert "Before: there are several recordings; none of them is drawn." in shown


@pytest.fixture
def client(analysis: Analysis, compared: ComparedSides) -> FlaskClient:
    """Return a client of a server that has made the comparison."""
    answer_by(analysis, lambda *_: compared, QUESTION)
    asked = questions_about(analysis).about(QUESTION)
    until(lambda: asked.is_over)
    return create_app(analysis).server.test_client()


def test_both_sides_are_answered(client: FlaskClient, compared: ComparedSides) -> None:
    def ask(path: str) -> Any:
        response = client.get(path)
        return json.loads(response.get_data()) if response.status_code == 200 else None

    for side, path in ((compared.before, "timeline-before"), (compared.after, "timeline")):
        assert side is not None
        for rank in side.ranks:
            steps = ask(f"/{path}/steps?rank={rank.rank}")["steps"]
            assert [(step["number"], int(step["start"]), step["length"]) for step in steps] == [
                (step.number, step.measures.window_start_ns, step.measures.window_ns)
                for step in rank.steps
            ]
    with closing(analyze(BEFORE)) as other:
        alone = create_app(other).server.test_client()
        for path in (
            "rank?rank=1",
            "event?id=0.op.3",
            "search?rank=0&text=nccl&at=0&direction=next",
        ):
            expected = json.loads(alone.get(f"/timeline/{path}").get_data())
            expected.pop("evidence", None)
            expected.pop("findings", None)
            shown = ask(f"/timeline-before/{path}")
            assert shown.pop("evidence", []) == []
            assert shown.pop("findings", {}) == {}
            assert {**shown, "is_all": True} == {**expected, "is_all": True}
    assert ask("/timeline-before/path?rank=0&start=0&end=1") is None
    assert ask("/timeline-before/collective?id=0.op.3") is None
    assert ask("/timeline-before/steps?rank=17") is None


def test_kernels_that_changed_are_marked_on_both_sides(
    analysis: Analysis, client: FlaskClient, compared: ComparedSides
) -> None:
    kernels = [kernel for kernel in compared.comparison.kernels if kernel.is_significant][:6]
    for path, side, name in (
        ("timeline-before", known(compared.before), "before"),
        ("timeline", known(compared.after), "after"),
    ):
        took: dict[int, list[int]] = {}
        for rank in side.ranks:
            for step in (step.measures for step in rank.steps if step.is_training):
                start, end = step.window_start_ns, step.window_start_ns + step.window_ns
                asked_for = f"/{path}/changed?rank={rank.rank}&start={start}&end={end}"
                marks = json.loads(client.get(asked_for).get_data())["changed"]
                for number in range(len(kernels)):
                    lengths = [
                        int(mark["end"]) - int(mark["start"])
                        for mark in marks
                        if mark["number"] == number
                    ]
                    took.setdefault(number, []).append(sum(lengths))
                assert {mark["severity"] for mark in marks} == {"high"}
                assert all(start <= int(mark["start"]) < end for mark in marks)
        assert len(took) == len(kernels) == 6
        for number, kernel in enumerate(kernels):
            assert mean(took[number]) == pytest.approx(getattr(kernel, f"{name}_ns"), rel=0.02)
    answer_by(analysis, lambda *_: None)
    nothing = create_app(analysis).server.test_client()
    for path in ("/timeline/changed?rank=0&start=0&end=1", "/timeline-before/rank?rank=0"):
        assert nothing.get(path).status_code == 404


def test_without_another_side_it_says_how(analysis: Analysis) -> None:
    assert "--before" in text(compare.layout(View(analysis, Address("/compare"))))


@pytest.mark.long
def test_a_side_that_cannot_be_read_is_said(page: Page, analysis: Analysis) -> None:
    with DashboardServer(has_token=False) as server:
        server.show(analysis, compared=CompareQuestion(("/nowhere.sqlite",), Options()))
        page.goto(f"{server.url}compare")
        expect(page.get_by_role("heading", name="No comparison")).to_be_visible()
        expect(page.locator("#page")).to_contain_text("/nowhere.sqlite")
        page.goto("about:blank")


@pytest.fixture
def compared_url(analysis: Analysis, compared: ComparedSides) -> Iterator[str]:
    """Return an address; a test asks for it before `page`, which is left before the server ends."""
    with DashboardServer(has_token=False) as server:
        server.show(analysis, ask=lambda *_: compared, compared=QUESTION)
        yield f"{server.url}compare"


def sides(page: Page) -> None:
    """Wait until the rows of both sides are drawn."""
    page.wait_for_function(
        """() => {
            const all = [...document.querySelectorAll(".timeline.linked")].map((e) => e.timeline);
            return all.length === 2 && all.every((t) => t?.view && t.root.dataset.state === "ready"
                && !t.frameAsked && !t.data.inFlight && !t.data.loading.size
                && t.rows.filter((row) => row.track).length > 2
                && t.rows.every((row) => !row.track || row.track.source === "sample"
                    || t.data.tiles.get(row.track.row)?.viewSpan === t.view.span));
        }"""
    )


def of_sides(page: Page, code: str) -> list[Any]:
    """Return the value of an expression on the timeline `t` of each side."""
    values: list[Any] = page.evaluate(
        "() => [...document.querySelectorAll('.timeline.linked')]"
        f".map(({{ timeline: t }}) => {code})"
    )
    return values


@pytest.mark.long
def test_two_timelines_on_the_clocks_of_their_steps(
    compared: ComparedSides, compared_url: str, page: Page
) -> None:
    page.goto(compared_url)
    expect(page.locator("#page .headline")).to_contain_text(compared.comparison.headline)
    sides(page)
    both = [compared.before, compared.after]
    steps = [shown_step(side) for side in both if side is not None]
    longest = max(step.window_ns for step in steps)
    assert of_sides(page, "String(t.data.base)") == [str(step.window_start_ns) for step in steps]
    assert of_sides(page, "[t.view.start, t.view.span]") == [[0, longest]] * 2
    labels = of_sides(page, "t.rows.map((row) => row.label)")
    assert all("stream 7 · compute" in rows and "host threads" in rows for rows in labels)
    assert all(any("communication" in row for row in rows) for rows in labels)
    keys = page.locator(".timeline.linked canvas").first.get_attribute("aria-label") or ""
    assert "Home: whole step" in keys
    assert "critical path" not in keys
    # One above the other, as wide, so that the same time stands below itself.
    boxes = [page.locator(".timeline.linked").nth(side).bounding_box() for side in (0, 1)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert (boxes[0]["x"], boxes[0]["width"]) == (boxes[1]["x"], boxes[1]["width"])
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    page.locator("#page .ag-root-wrapper").scroll_into_view_if_needed()  # it is drawn in sight only
    expect(page.locator("#page .ag-center-cols-container .ag-row").first).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280
    after = known(compared.after)
    page.get_by_role("link", name="on the timeline").click()
    page.wait_for_url("**/timeline?*")
    timeline = Timeline(page, page.url)
    step = shown_step(after)
    assert timeline.ask("Number(t.data.toTime(t.view.start))") == step.window_start_ns
    assert timeline.view[1] == step.window_ns


def shown_step(side: ComparedSide) -> Measures:
    (rank,) = (rank for rank in side.ranks if rank.rank == side.rank)
    (step,) = (step for step in rank.steps if step.number == side.step)
    return step.measures


@pytest.mark.long
def test_verdict_causes_split_and_kernels_are_on_the_first_screen(
    compared_url: str, page: Page
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(compared_url)
    for title in ("Where it comes from", "Kernels that changed"):
        shown = page.locator(".card").filter(has=page.get_by_role("heading", name=title))
        box = box_of(shown.locator("table").last)
        assert box["y"] + box["height"] <= 800
    expect(page.locator("#page .headline li").first).to_contain_text("command line")
    sides(page)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.timeline.linked')]"
        ".every(({ timeline: t }) => t.flags.some((flag) => flag.finding === 'changed kernel'))"
    )
    of_sides(page, "t.chooseEvidence(t.numbers[0], t.flags[0].source)")
    shown = page.locator(".timeline.linked .timeline-detail")
    for side in (0, 1):
        expect(shown.nth(side)).to_contain_text("ampere_bf16_s16816gemm_bf16_128x128")
        expect(shown.nth(side)).to_contain_text("804 µs before, 2.41 ms after a step")


@pytest.mark.long
def test_they_zoom_and_move_together(compared_url: str, page: Page) -> None:
    page.goto(compared_url)
    sides(page)
    canvas = page.locator(".timeline.linked canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    box = box_of(canvas)
    ((_, span), _) = of_sides(page, "[t.view.start, t.view.span]")
    page.mouse.move(box["x"] + 600, box["y"] + 70)
    assert of_sides(page, "t.pointer.x") == [600, 600]
    page.mouse.wheel(0, -400)
    sides(page)
    above, below = of_sides(page, "[t.view.start, t.view.span]")
    assert above == below
    assert 0 < above[1] < span
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 70, steps=3)
    page.mouse.up()
    sides(page)
    moved, also = of_sides(page, "[t.view.start, t.view.span]")
    assert moved == also
    assert moved[0] > above[0]
    page.keyboard.press("w")  # once, though both listen
    sides(page)
    nearer, also = of_sides(page, "t.view.span")
    assert nearer == also == pytest.approx(0.7 * above[1])
    page.keyboard.press("Home")
    sides(page)
    assert of_sides(page, "[t.view.start, t.view.span]") == [[0, span]] * 2


@pytest.mark.long
def test_rank_and_step_are_chosen_on_each_side(
    compared: ComparedSides, compared_url: str, page: Page
) -> None:
    page.goto(compared_url)
    sides(page)
    before, after = known(compared.before), known(compared.after)
    page.get_by_label("before: rank").select_option(str(before.ranks[0].rank))
    page.get_by_label("after: rank").select_option(str(after.ranks[1].rank))
    page.wait_for_url("**after=1.*")
    page.get_by_label("after: step").select_option("4")
    page.wait_for_url("**after=1.4*")
    sides(page)
    page.reload()
    sides(page)
    expect(page.get_by_label("after: step").locator("option:checked")).to_contain_text("step 4 ·")
    (chosen,) = (step.measures for step in after.ranks[1].steps if step.number == 4)
    assert of_sides(page, "String(t.data.base)")[1] == str(chosen.window_start_ns)
    assert of_sides(page, "t.numbers") == [[0], [1]]
    # A kernel of the other side can be asked for what it is.
    page.evaluate(
        "() => document.querySelector('.timeline.linked').timeline.select('0.op.20', { go: true })"
    )
    expect(page.locator(".timeline.linked .timeline-detail h2").first).to_be_visible()
