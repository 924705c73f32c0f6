"""Notes of the reader: views that are kept with a text, in memory or in a file."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dashboards.clock import Clock
from dashboards.server.app import create_app
from dashboards.server.notes import SCHEMA, Note, Notes, described
from dashboards.server.serving import HOST, DashboardServer
from dashboards.server.state import ANEW, FILES, Change, ReportFiles
from tests.support.commands import run
from tests.support.dashboard import running
from tests.support.traces import SAMPLE, analysis_of
from tests.support.workers import MAX_WAIT_S
from traceprof.errors import UsageError

VIEW = Note("/timeline?rank=0&start=1&end=2", "what is <b>this</b>?")


def test_notes_are_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    notes = Notes(path)
    assert notes.read() == []
    assert not path.exists()
    for note in (VIEW, Note("/steps", ""), VIEW):  # the same twice is one
        notes.add(note)
    assert Notes(path).read() == [Note("/steps", ""), VIEW]
    Notes(path).remove(Note("/steps", ""))
    assert notes.read() == [VIEW]  # what another one wrote
    kept = {"schema": SCHEMA, "notes": [{"href": VIEW.href, "text": VIEW.text}]}
    assert json.loads(path.read_text()) == kept
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.json"]


@pytest.mark.parametrize(
    "written", ["", "[]", "{}", '{"schema": "traceprof.notes/2", "notes": []}', "[" * 100_000,
                f'{{"schema": "{SCHEMA}", "notes": [{{"href": "http://x/", "text": ""}}]}}'],
)  # fmt: skip
def test_another_file_is_not_overwritten(tmp_path: Path, written: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(written)
    with pytest.raises(UsageError, match=r"results\.json"):
        Notes(path)
    assert path.read_text() == written


def test_a_file_that_cannot_be_read_or_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="cannot read the notes"):
        Notes(tmp_path)
    with pytest.raises(UsageError, match=r"cannot write notes\.json"):
        Notes(tmp_path / "no" / "notes.json").add(VIEW)
    assert run("dashboard", SAMPLE, "--notes", SAMPLE) == 2
    assert "cannot read the notes" in capsys.readouterr().err


def test_the_view_of_a_note_is_described() -> None:
    assert described("/timeline?rank=0,3&start=1000&end=2000000", Clock(0)) == (
        "Timeline · ranks 0, 3 · 0.000001 s to 0.002000 s"
    )
    assert described("/", None) == "Overview"
    for href in ("/nowhere", "/timeline?rank=x", "//[", "/?surely=not"):
        assert described(href, None) == "a view that this version does not know"


def test_what_is_no_note_is_refused() -> None:
    with analysis_of(SAMPLE) as analysis:
        client = create_app(analysis).server.test_client()
    good = {"href": "/steps", "text": "a"}
    refused: list[Any] = [
        [], "x", {"href": "/steps"}, good | {"href": "https://elsewhere/"},
        *[good | {"href": href} for href in ("//host/", "/\\host/", "/\t/host/", "/\n/host/")],
        good | {"href": "/nowhere"}, good | {"text": 1}, good | {"text": "x" * 2001},
    ]  # fmt: skip
    for bad in refused:
        assert client.post("/notes", json=bad).status_code == 400
    assert client.post("/notes", json=good).json["notes"] == [good | {"where": "Steps"}]
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert client.post("/notes", json=good, headers=headers).status_code == 403
    assert client.delete("/notes", json=good).json["notes"] == []


@pytest.mark.long
@pytest.mark.slow
def test_notes_in_the_browser(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    with (
        analysis_of(SAMPLE) as analysis,
        DashboardServer(has_token=False, notes=Notes(path)) as server,
    ):
        server.show(analysis)
        url = server.url
        page.goto(f"{url}timeline?rank=1")
        page.wait_for_selector("#timeline[data-state=ready]")
        page.keyboard.press("m")
        notes = page.get_by_label("notes", exact=True)
        expect(notes).to_contain_text("kept in notes.json")
        notes.get_by_label("note", exact=True).fill(VIEW.text)
        # Kept at once after a movement, before the address follows by itself.
        t = "document.getElementById('timeline').timeline"
        keep = "document.querySelector('#notes > button').click()"
        page.evaluate(f"() => {{ {t}.zoom(0.5); {t}.pan(0.2); {keep} }}")
        expect(notes.locator("li")).to_have_count(1)
        expect(notes.locator("li p")).to_have_text(VIEW.text)  # as text, not as markup
        page.wait_for_function(f"() => {t}.notes.marks.length === 1")
        # The time of the mark, the middle of the view, and the place of the mark.
        at, middle, x = page.evaluate(
            f"(({{ notes, view, painter }}) => [notes.marks[0].at, view.start + view.span / 2, "
            f"painter.x(notes.marks[0].at)])({t})"
        )
        assert at == pytest.approx(middle, abs=2)
        page.locator("#timeline canvas").first.hover(position={"x": x + 3, "y": 5})
        expect(page.locator(".pointer-note")).to_contain_text(VIEW.text)
        page.keyboard.press("Escape")
        expect(notes).to_be_hidden()
        page.goto(f"{url}steps")
        page.wait_for_selector("h1:text('Steps')")
        page.get_by_role("button", name="Notes").click()
        notes.get_by_text("Keep this view").click()  # a bookmark
        expect(notes.locator("li")).to_have_count(2)
        notes.get_by_role("link", name="Timeline · rank 1").click()
        page.wait_for_selector("#timeline[data-state=ready]")
        assert "/timeline?rank=1" in page.url
        notes.get_by_role("button", name="remove the note on Steps").click()
        expect(notes.locator("li")).to_have_count(1)
        assert [note.text for note in Notes(path).read()] == [VIEW.text]
        page.goto("about:blank")


def test_what_became_of_a_file(tmp_path: Path) -> None:
    path, other, same = (tmp_path / name for name in ("a", "b", "c"))
    for each in (path, other, same):
        each.write_text("as it was")
    files = ReportFiles([path, other, same])
    assert files.changes() == []
    with path.open("a") as file:
        file.write(" and more")
    assert files.changes() == [Change("a", "changed")]
    newer = tmp_path / "newer"
    newer.write_text("as it was")
    newer.rename(path)
    other.unlink()
    assert files.changes() == [Change("a", "replaced"), Change("b", "no longer there")]


def test_they_are_read_anew_while_they_are_there(tmp_path: Path) -> None:
    report = tmp_path / "run.sqlite"
    report.write_text("as it was")
    asked: list[None] = []
    app = create_app(None, files=ReportFiles([report]), read_anew=lambda: asked.append(None))
    client = app.server.test_client()
    assert client.get(FILES).get_json() == {"changes": [], "can_read_anew": True}
    assert client.post(ANEW).status_code == 202
    report.unlink()
    gone = {"changes": [{"name": "run.sqlite", "what": "no longer there"}], "can_read_anew": False}
    assert client.get(FILES).get_json() == gone
    assert client.post(ANEW).status_code == 409
    assert len(asked) == 1


@pytest.mark.long
@pytest.mark.slow
def test_every_page_says_that_a_report_is_no_longer_what_was_read(
    page: Page, tmp_path: Path
) -> None:
    """It is served without a token, and ends cleanly by Ctrl-C."""
    report, newer = tmp_path / "run.sqlite", tmp_path / "newer.sqlite"
    shutil.copy(SAMPLE, report)
    shutil.copy(SAMPLE.with_stem("gloo"), newer)
    with running("--port", "0", "--no-token", report=report) as (process, url):
        assert re.fullmatch(rf"http://{re.escape(HOST)}:\d+/", url)
        page.goto(url)
        rows = page.locator("table.breakdown tbody tr")
        expect(rows).to_have_count(2)
        said = page.locator("#changed")
        expect(said).to_be_empty()
        newer.rename(report)
        expect(said).to_contain_text("run.sqlite was replaced since it was read")
        page.goto(f"{url}steps")
        expect(said).to_contain_text("run.sqlite was replaced since it was read")
        page.get_by_role("button", name="Read it anew").click()
        page.wait_for_selector("h1:text('Steps')")
        expect(said).to_be_empty()
        page.goto(url)
        expect(rows).to_have_count(8)
        report.unlink()
        expect(said).to_contain_text("run.sqlite is no longer there")
        expect(page.get_by_role("button", name="Read it anew")).to_have_count(0)
        assert page.request.post(f"{url}anew").status == 409
        page.goto("about:blank")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=MAX_WAIT_S)[1].strip() == ""
    assert process.returncode in {0, 130}
