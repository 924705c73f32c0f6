"""The timeline in a real browser: what it draws, and what mouse, keyboard and address do to it."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.support.builders import TraceBuilder
from tests.support.dashboard import FIND, Serve, Timeline, box_of, damage_host, drag
from tests.support.selection import long_after
from traceprof.analysis import Analysis
from traceprof.findings import by_id, worst_of
from traceprof.kernel_names.categories import kernel_kind

AXIS = 46  # as in geometry.js
UTC = 1_726_722_437_796_624_059
NAMES = ("<script>document.title='evil'</script>", "<img src=x onerror=document.title='evil'>")


@pytest.fixture
def timeline(page: Page, sample_url: str) -> Timeline:
    return Timeline(page, f"{sample_url}/timeline?rank=0")


def first_kernel(analysis: Analysis) -> tuple[int, int, str]:
    kernels = analysis.run.ranks[0].operations.kernels
    name = analysis.run.ranks[0].kernel_names[int(kernels.name[0])]
    return int(kernels.start_ns[0]), int(kernels.end_ns[0]), name


def test_rows_stand_in_order_and_the_whole_run_is_shown(
    timeline: Timeline, analysis: Analysis
) -> None:
    labels = timeline.labels
    order = ["steps on the GPU", "stream 7 · compute", "NVTX", "CUDA API"]
    places = [labels.index(label) for label in order]
    assert places == sorted(places)
    assert any(label.endswith("communication") for label in labels)
    start, span = timeline.view
    window = analysis.run.ranks[0].window
    assert start <= window.start_ns
    assert start + span >= window.end_ns
    timeline.wait_for_address("start", str(round(start)))


@pytest.mark.long
def test_the_page_fills_the_window_and_does_not_scroll(timeline: Timeline) -> None:
    below = "document.documentElement.scrollHeight - innerHeight"
    assert timeline.page.evaluate(below) == 0
    frame = timeline.page.locator("#timeline").bounding_box()
    height = timeline.page.evaluate("innerHeight")
    assert frame is not None
    assert height - 30 < frame["y"] + frame["height"] <= height


@pytest.mark.long
def test_a_kernel_has_the_colour_of_its_category(timeline: Timeline, analysis: Analysis) -> None:
    start, end, name = first_kernel(analysis)
    assert kernel_kind(name).category == "normalization"
    timeline.ask(f"t.setView({{start: {start} - 1000, span: {end - start} + 2000}})")
    timeline.wait()
    timeline.wait_for_frames()
    x, y = timeline.place("0.op.0")
    red, green, blue = timeline.color(x, y - 7)
    assert min(red, green) > blue + 60
    legend = timeline.page.locator(".timeline-bar .legend")
    expect(legend.get_by_text("normalization")).to_be_visible()
    expect(legend.get_by_text("optimizer")).to_be_hidden()


def test_wheel_and_keyboard_zoom_and_move(timeline: Timeline) -> None:
    canvas = box_of(timeline.page.locator("#timeline canvas"))
    x = canvas["x"] + 600
    timeline.page.mouse.move(x, canvas["y"] + 200)
    before, (whole, span) = timeline.ask("t.timeAt(600)"), timeline.view
    timeline.page.mouse.wheel(0, -400)
    timeline.wait_for(f"t.view.span < {0.9 * span}")
    assert timeline.view[1] == pytest.approx(span / 1.0018**400)
    assert timeline.ask("t.timeAt(600)") == pytest.approx(before, abs=span * 1e-6)
    timeline.page.mouse.wheel(0, 400)
    timeline.wait_for(f"t.view.span > {0.9 * span}")
    assert timeline.view[1] == pytest.approx(span)
    timeline.press("w", "w")
    assert timeline.view[1] == pytest.approx(span * 0.49)
    before = timeline.view[0]
    timeline.press("d")
    assert timeline.view[0] == pytest.approx(before + 0.15 * span * 0.49)
    timeline.press("ArrowLeft")
    assert timeline.view[0] == pytest.approx(before)
    timeline.press("s")
    assert timeline.view[1] == pytest.approx(span * 0.7)
    timeline.press("Home")
    assert timeline.view == pytest.approx((whole, span))


@pytest.mark.long
def test_dragging_moves_and_with_control_zooms(timeline: Timeline) -> None:
    timeline.press("w", "w")
    start, span = timeline.view
    width = timeline.ask("t.painter.plotWidth")
    canvas = box_of(timeline.page.locator("#timeline canvas"))
    y = canvas["y"] + 300
    drag(timeline.page, (canvas["x"] + 700, y), (canvas["x"] + 600, y))
    assert timeline.view[0] == pytest.approx(start + 100 / width * span)
    left = timeline.ask("t.timeAt(500)")
    timeline.page.keyboard.down("Control")
    drag(timeline.page, (canvas["x"] + 500, y), (canvas["x"] + 700, y))
    timeline.page.keyboard.up("Control")
    timeline.wait()
    assert timeline.view == pytest.approx((left, 200 / width * span))


def test_tooltip_and_click_say_what_the_trace_has(timeline: Timeline, analysis: Analysis) -> None:
    start, end, name = first_kernel(analysis)
    timeline.ask(f"t.setView({{start: {start} - 1000, span: {end - start} + 2000}})")
    timeline.wait()
    timeline.wait_for_frames()
    x, y = timeline.place("0.op.0")
    timeline.page.mouse.move(x, y)
    timeline.page.mouse.move(x + 2, y)
    tooltip = timeline.page.locator(".pointer-note")
    tooltip.wait_for()
    text = tooltip.inner_text()
    assert "stream: 7" in text
    assert "launched by: cudaLaunchKernel" in text
    timeline.page.mouse.click(x, y)
    timeline.page.get_by_text(f"{start} ns").wait_for()
    assert f"({end - start:,} ns)".replace(",", " ") in timeline.panel
    assert name in timeline.panel
    correlation = analysis.run.ranks[0].operations.kernels.correlation[0]
    assert f"correlation\n{correlation}" in timeline.panel
    timeline.wait_for_address("select", "0.op.0")


@pytest.mark.long
def test_from_a_kernel_to_its_launch_and_back(timeline: Timeline, analysis: Analysis) -> None:
    rank = analysis.run.ranks[0]
    timeline.ask("t.select('0.op.5', {go: true})")
    timeline.page.get_by_role("button", name="launched by cudaLaunchKernel").or_(
        timeline.page.get_by_text("launched by cudaLaunchKernel")
    ).first.click()
    call = int(rank.launched_by[0][5])
    timeline.wait_for(f"t.selected?.id === '0.call.{call}'")
    timeline.wait_for_address("select", f"0.call.{call}")
    assert rank.calls is not None
    start, span = timeline.view
    assert start <= rank.calls.start_ns[call]
    assert rank.operations.kernels.end_ns[5] <= start + span
    # Both ends of the arrow are in sight.
    for row in timeline.ask("[t.selected.row, t.selected.links[0].row]"):
        assert timeline.ask(f"t.layout.rowOf('{row}').top > {AXIS - 1}")
    timeline.page.get_by_text(re.compile("^launched .*")).locator("visible=true").last.click()
    timeline.wait_for("t.selected?.id.startsWith('0.op.')")


@pytest.mark.long
def test_a_block_tells_what_it_stands_for(timeline: Timeline) -> None:
    row = timeline.ask("t.rows.find((row) => row.label === 'stream 7 · compute')")
    x = timeline.page.evaluate(
        """(key) => {
            const t = document.getElementById("timeline")?.timeline;
            const tile = t.data.tiles.get(key);
            const most = tile.count.indexOf(Math.max(...tile.count));
            const box = t.panel.canvas.getBoundingClientRect();
            return [box.left + t.painter.x(tile.start
                + (tile.column[most] + 0.5) * tile.span / tile.columns), box.top];
        }""",
        row["track"]["row"],
    )
    timeline.page.mouse.click(x[0], x[1] + row["top"] + 10)
    timeline.page.get_by_role("button", name="zoom to these events").click()
    timeline.wait()
    assert timeline.view[1] < 1e7


def test_from_a_finding_to_its_evidence(page: Page, sample_url: str, analysis: Analysis) -> None:
    shown_on_cards = map(worst_of, by_id(analysis.findings))
    finding = next(finding for finding in shown_on_cards if len(finding.evidence) > 1)
    page.goto(sample_url)
    card = page.locator(f"#finding-{finding.id}")
    card.locator(".columns summary").first.click()  # all but the first are folded
    card.locator(".evidence a").nth(1).click()
    page.wait_for_url("**/timeline?*")
    page.get_by_role("heading", name=finding.id).wait_for()
    timeline = Timeline(page, page.url)
    shown = timeline.ask("t.chosenEvidence")
    assert (shown["finding"], shown["evidence"]) == (finding.id, 1)
    bands = timeline.ask("t.bands")
    assert [(band["start"], band["end"]) for band in bands] == [
        (interval.start_ns, interval.end_ns) for interval in finding.evidence
    ]
    # What the GPU did is in sight.
    last = timeline.ask("t.rows.filter((row) => row.track?.source === 'op').at(-1)")
    assert last["top"] + last["height"] <= timeline.ask("t.panel.scroller.clientHeight")
    start, span = timeline.view
    evidence = finding.evidence[1]
    assert start < evidence.start_ns < evidence.end_ns < start + span
    assert evidence.label in timeline.panel
    page.get_by_role("button", name=finding.evidence[0].label).first.click()
    timeline.wait()
    timeline.wait_for_address("evidence", "0")
    page.go_back()
    timeline.wait_for("t.chosenEvidence?.evidence === 1")


@pytest.mark.long
def test_what_is_seen_survives_reload_and_can_be_sent(timeline: Timeline, own_page: Page) -> None:
    timeline.ask("t.select('0.op.7', {go: true})")
    timeline.page.get_by_text("correlation").first.wait_for()
    timeline.press("w", "d")
    view, panel, address = timeline.view, timeline.panel, timeline.address
    url = timeline.page.url
    timeline.page.reload()
    timeline.wait()
    timeline.page.get_by_text("correlation").first.wait_for()
    assert timeline.view == pytest.approx(view, abs=1)
    assert timeline.panel == panel
    assert timeline.address == address
    assert Timeline(own_page, url).view == pytest.approx(view, abs=1)
    timeline.press("Escape")
    assert "correlation" not in timeline.panel
    timeline.wait_for_address("select", None)


@pytest.mark.long
def test_the_search_goes_from_match_to_match(timeline: Timeline, analysis: Analysis) -> None:
    rank = analysis.run.ranks[0]
    timeline.press("/")
    timeline.page.keyboard.type("AllReduce")
    timeline.page.locator(".timeline-names li").first.wait_for()
    timeline.page.keyboard.press("Enter")
    status = timeline.page.locator(".timeline-bar [role=status]")
    timeline.wait_for("t.selected !== null")
    first = timeline.ask("t.selected")
    assert "allreduce" in first["name"].lower()
    expect(status).to_have_text(re.compile(r"^\d+ of [\d\u2009]+$"), timeout=60_000)
    count = int(status.inner_text().split(" of ")[1].replace("\u2009", ""))
    assert count >= int(rank.is_communication_kernel.sum())
    timeline.press("Escape", "Escape")
    timeline.ask(f"t.select('{first['id']}')")
    timeline.wait_for("t.selected !== null")
    number = int(status.inner_text().split(" of ")[0])
    timeline.press("n")
    timeline.wait_for(f"t.selected.id !== '{first['id']}'")
    assert int(status.inner_text().split(" of ")[0]) == number + 1
    timeline.press("p")
    timeline.wait_for(f"t.selected?.id === '{first['id']}'")
    timeline.wait_for_address("search", "AllReduce")
    timeline.page.locator(".timeline-search input").fill("no such kernel")
    timeline.page.keyboard.press("Enter")
    timeline.page.get_by_text("nothing is found").wait_for(timeout=60_000)


@pytest.mark.long
def test_the_keyboard_reaches_everything(timeline: Timeline) -> None:
    timeline.page.locator(".timeline-search input").focus()
    names = []
    for _ in range(12):
        timeline.page.keyboard.press("Tab")
        names.append(timeline.page.evaluate("document.activeElement.ariaLabel"))
        if names[-1] and names[-1].startswith("timeline"):
            break
    assert names[-1].startswith("timeline; wheel")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert timeline.page.evaluate(outline) == "solid"


@pytest.mark.long
def test_names_are_never_markup(page: Page, serve: Serve, tmp_path: Path) -> None:
    trace = TraceBuilder().thread_name(NAMES[1])
    for index, name in enumerate(NAMES):
        trace.kernel(1000 * index, 1000 * index + 900, name)
        trace.nvtx(name, 1000 * index, 1000 * index + 950)
    url = serve(trace.write(tmp_path))
    timeline = Timeline(page, f"{url}/timeline?rank=0&search=%3Cimg")
    timeline.ask("t.select('0.op.1', {go: true})")
    page.locator(".timeline-detail h2").wait_for()
    assert NAMES[1] in timeline.panel
    x, y = timeline.place("0.op.1")
    page.mouse.move(x, y)
    page.mouse.move(x + 1, y)
    page.locator(".pointer-note").wait_for()
    page.locator(".timeline-search input").fill("<")
    page.locator(".timeline-names li").first.wait_for()
    assert page.locator("#timeline img, #timeline script").count() == 0
    assert page.title() != "evil"


@pytest.mark.long
def test_times_of_the_clock(page: Page, serve: Serve, tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(UTC, UTC + 1500, "a").kernel(UTC + 4001, UTC + 9003, "b")
    url = serve(trace.write(tmp_path))
    timeline = Timeline(page, f"{url}/timeline?start={UTC + 4000}&end={UTC + 4010}")
    assert timeline.view == pytest.approx((4000, 10))
    timeline.ask("t.select('0.op.1')")
    page.get_by_text(f"{UTC + 4001} ns").wait_for()
    assert "0.000 004 001 s" in timeline.panel
    assert "5.00 µs (5 002 ns)" in timeline.panel
    timeline.wait_for_address("start", str(UTC + 4000))


@pytest.mark.long
def test_what_cannot_be_read_is_said(
    own_page: Page, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_host(monkeypatch)
    url = serve(TraceBuilder().kernel(0, 10).nvtx("a", 0, 9).write(tmp_path))
    own_page.goto(f"{url}/timeline")
    own_page.wait_for_function(
        f"() => {{ {FIND} return t?.rows?.some((row) => row.label.includes(\"'soon'\")); }}"
    )


@pytest.mark.long
def test_when_the_server_is_gone_it_is_said(own_page: Page, sample_url: str) -> None:
    page = own_page
    timeline = Timeline(page, f"{sample_url}/timeline?rank=0")
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.abort()

    page.route("**/timeline/tiles*", refuse)
    page.keyboard.press("w")
    page.get_by_text("The dashboard cannot be reached").wait_for()
    assert asked
    page.unroute("**/timeline/tiles*")
    timeline.wait()  # it tries again by itself


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    long_after(
        1,
        [
            "a100x4_ddp_baseline_rank0.sqlite",
            "h100x2_command_buffer_full.sqlite",
            "rtx3090x9_3nodes_tree/report_0.sqlite",
        ],
    ),
)
def test_real_traces(page: Page, serve: Serve, traces: Path, name: str) -> None:
    timeline = Timeline(page, f"{serve(traces / name)}/timeline")
    whole = timeline.view[1]
    canvas = box_of(page.locator("#timeline canvas"))
    page.mouse.move(canvas["x"] + 700, canvas["y"] + 200)
    for turn in range(1, 13):
        page.mouse.wheel(0, -1500)
        timeline.wait_for(f"t.view.span < {max(whole / 10**turn, 11)}")
        timeline.wait()
    timeline.press("Home")
    assert timeline.view[1] == whole
