"""Reports that are replaced, changed or gone: every page says so, and they can be read anew."""

import re
import shutil
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboards.server.app import create_app
from dashboards.server.serving import HOST
from dashboards.server.state import ANEW, FILES, Change, ReportFiles
from tests.support.dashboard import running
from tests.support.traces import SAMPLE
from tests.support.workers import MAX_WAIT_S


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
