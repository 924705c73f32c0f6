"""The page of what a watch wrote."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboards.pages import watched
from dashboards.server.app import create_app
from dashboards.server.serving import DashboardServer
from tests.support.commands import in_process
from tests.support.dashboard import charts, named, text
from tests.support.watches import MS, PEERS, third_is_slow, written


def test_the_late_rank_is_late_in_its_steps_and_others_are_not(tmp_path: Path) -> None:
    tree = watched.layout(written(tmp_path / "watch.jsonl", third_is_slow))
    (heat,) = charts(tree)
    assert heat["step"] == [100.0 * window for window in range(1, 21)]
    assert [row["title"] for row in heat["rows"]] == [f"rank {rank}" for rank in range(4)]
    of_third = heat["rows"][2]["length_ns"]
    assert of_third == [5 * MS if 6 <= window <= 12 else 0 for window in range(1, 21)]
    assert not any(any(row["length_ns"]) for row in heat["rows"] if row["title"] != "rank 2")
    (grid,) = named(tree, "AgGrid")
    (found,) = grid.rowData
    assert (found["rank"], found["since_step"], found["until_step"]) == (2, 500, 1200)
    assert found["line"].startswith("Rank 2 computes 1.50 x its peers since step 500")


def test_of_many_windows_a_column_has_the_largest(tmp_path: Path) -> None:
    def own_ns(rank: int, number: int) -> int:
        return 30 * MS if (rank, number) in {(1, 301), (1, 302)} else PEERS

    (heat,) = charts(watched.layout(written(tmp_path / "watch.jsonl", own_ns, num_windows=600)))
    assert len(heat["step"]) == 300
    assert max(heat["rows"][1]["length_ns"]) == 20 * MS
    assert sum(value > 0 for value in heat["rows"][1]["length_ns"]) in {1, 2}


def test_a_silent_rank_and_one_that_got_no_further_are_said(tmp_path: Path) -> None:
    path = written(tmp_path / "watch.jsonl", lambda *_: PEERS, 3, lambda n: [3] if n == 2 else [])
    with path.open("a") as file:
        file.write('{"step": 301, "ranks": [], "stuck": {"1": "train.py:88 (load)"}}\n')
    (grid,) = named(watched.layout(path), "AgGrid")
    assert [(row["rank"], row["since_step"]) for row in grid.rowData] == [(3, 200), (1, 301)]
    assert "got no further than train.py:88 (load)" in grid.rowData[1]["line"]


def test_without_a_line_the_page_says_so_and_a_calm_run_too(tmp_path: Path) -> None:
    calm = watched.layout(written(tmp_path / "calm.jsonl", lambda *_: PEERS, 2))
    assert "No rank took longer than its peers" in text(calm)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    client = create_app(None, watched=empty).server.test_client()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("arguments", [[], ["report.sqlite", "--watch", __file__]])
def test_reports_or_a_watch_are_named(arguments: list[str]) -> None:
    failed = in_process("dashboard", *arguments)
    assert failed.code == 2
    assert "--watch FILE" in failed.err


@pytest.mark.slow
def test_the_browser_shows_it_without_a_bar_of_choices(page: Page, tmp_path: Path) -> None:
    path = written(tmp_path / "watch.jsonl", third_is_slow)
    with DashboardServer(has_token=False, watched=path) as server:
        page.goto(server.url)
        expect(page.get_by_role("heading", name="Watch", exact=True)).to_be_visible()
        expect(page.locator("#watched-heat canvas").first).to_be_visible()
        expect(page.get_by_text("Rank 2 computes 1.50 x its peers")).to_be_visible()
        expect(page.locator("#choose")).to_be_hidden()
        expect(page.get_by_text("Reading the reports")).to_have_count(0)
