"""Queries: results are those of pandas, no file is read or written, and all come to an end."""

import csv
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from dashboards import queries
from dashboards.address import Address, parse
from dashboards.pages import query
from dashboards.queries import answer
from dashboards.questions import PendingAnswer
from dashboards.server.app import create_app
from dashboards.timeline.search import in_field
from dashboards.view import View
from tests.support.builders import TraceBuilder
from tests.support.dashboard import asking, named, text
from tests.support.traces import CPU_SAMPLE, SAMPLE, analysis_of
from traceprof.analysis import Analysis
from traceprof.errors import MissingExtraError, UsageError
from traceprof.frames.open_run import RunFrames

UTC = 1_700_000_000_000_000_000


def test_a_result_equals_that_of_pandas(analysis: Analysis) -> None:
    frame = RunFrames(analysis.run).kernels()
    sums = frame.groupby(["rank", "category"], observed=True)["duration_ns"].agg(["count", "sum"])
    asked = "SELECT rank, category, count(*), sum(duration_ns) FROM kernels GROUP BY ALL"
    result = answer(analysis, f"{asked} ORDER BY rank, category")
    rows = zip(sums.index, sums.to_numpy().tolist(), strict=True)
    expected = [(*key, *row) for key, row in rows]
    assert result.rows == sorted(expected) != []
    findings = answer(analysis, "SELECT id, metrics ->> 'coverage' FROM findings").rows
    assert findings == [(one.id, str(one.metrics["coverage"])) for one in analysis.findings]
    steps = answer(analysis, "select max(window_ns) from STEPS;  -- the longest").rows
    assert steps == [(analysis.to_pandas("steps")["window_ns"].max(),)]


def test_rows_beyond_those_shown_are_counted(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_ROWS", 3)
    frame = RunFrames(analysis.run).kernels()
    result = answer(analysis, "SELECT start_ns, rank, end_ns FROM kernels ORDER BY 1, 2")
    assert (len(result.rows), result.num_rows) == (3, len(frame))
    assert len(result.times) == len(frame)
    first = frame.sort_values(["start_ns", "rank"]).iloc[0]
    assert result.times[0] == (first["rank"], first["start_ns"], first["duration_ns"])
    view = View(analysis, Address("/query", sql="x"))
    note = text(query.drawn(PendingAnswer(result, is_over=True), view))
    assert f"{len(frame):,} rows" in note.replace("\N{NO-BREAK SPACE}", " ")
    assert "the first 3 are shown and saved" in note
    assert "mark these events" in note
    more = PendingAnswer(result._replace(num_rows=20_001), is_over=True)
    assert "mark the first 20,000 events" in text(query.drawn(more, view))


@pytest.mark.parametrize("sql", query.EXAMPLES.values(), ids=query.EXAMPLES)
@pytest.mark.parametrize("path", [SAMPLE, CPU_SAMPLE], ids=lambda path: path.stem)
def test_examples_can_be_asked_of_any_report(path: Path, sql: str) -> None:
    with analysis_of(path) as opened:
        assert answer(opened, sql).num_rows > 0 or path == CPU_SAMPLE


ONE_SELECT = "it must be one SELECT"
NO_FILE = "no file|does not exist|not in the catalog"
REFUSED = {
    "SELECT * FROM read_csv('/etc/passwd')": NO_FILE,
    "SELECT * FROM read_text('FILE')": NO_FILE,
    "FROM 'FILE'": NO_FILE,
    "FROM glob('/*')": NO_FILE,
    "FROM sqlite_scan('FILE', 'x')": NO_FILE,
    "SELECT * FROM query('DROP TABLE kernels')": "single SELECT",
    "COPY kernels TO 'FILE'": ONE_SELECT,
    "ATTACH 'FILE'": ONE_SELECT,
    "LOAD httpfs": ONE_SELECT,
    "SET memory_limit = '1TB'": ONE_SELECT,
    "PRAGMA threads = 64": ONE_SELECT,
    "EXPLAIN ANALYZE COPY kernels TO 'FILE'": ONE_SELECT,
    "SELECT 1; SELECT 2": "2 statements",
    "SELECT 1; COPY kernels TO 'FILE'": "2 statements",
    "": "empty",
    "-- nothing": "empty",
    "SELEC": "syntax error",
    "SELECT colour FROM kernels": "colour",
    "FROM analysis": "does not exist",
    "FROM connection": "does not exist",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_nothing_but_tables_is_read_and_nothing_is_changed(
    analysis: Analysis, sql: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.csv"
    path.write_text("secret\n1\n", encoding="utf-8")
    with pytest.raises(UsageError, match=REFUSED[sql]) as raised:
        answer(analysis, sql.replace("FILE", str(path)))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text(encoding="utf-8") == "secret\n1\n"


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
        "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range % 7 = b.range",
    ],
    ids=["recursion", "cross join"],
)
def test_what_does_not_end_is_stopped(
    analysis: Analysis, sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_S", 0.5)
    with pytest.raises(UsageError, match="it was stopped after"):
        answer(analysis, sql)


def test_what_needs_much_memory_is_stopped(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(queries._SETTINGS, "memory_limit", "50MiB")
    with pytest.raises(UsageError, match="needs more than 2 GiB of memory"):
        answer(analysis, "SELECT a.range FROM range(1000000) a, range(1000) b")
    assert answer(analysis, "SELECT 1").rows == [(1,)]


def test_values_are_shown_as_they_are(tmp_path: Path) -> None:
    name = "<img src=x onerror=window.evil=1>"
    trace = TraceBuilder().kernel(UTC, UTC + 1_000, name, launch=(UTC - 20, UTC - 10))
    with analysis_of(trace.write(tmp_path / "t.sqlite")) as opened:
        selected = 'rank, start_ns, name AS "<b>(%)", 0.5, NULL AS nothing, true, duration_ns'
        asked = f"SELECT {selected} FROM kernels"
        result = answer(opened, asked)
        assert result.rows == [(0, str(UTC), name, 0.5, None, "true", 1_000)]
        view = View(opened, Address("/query", sql=asked))
        tree = query.drawn(PendingAnswer(result, is_over=True), view)
        (table,) = named(tree, "AgGrid")
        (row,) = table.rowData
        assert row["c2"] == name
        heads = {one["headerName"]: one for one in table.columnDefs}
        assert "valueGetter" not in heads["<b>(%)"]  # its name is no unit
        assert not heads["nothing"].get("hide")
        assert heads["start_ns"]["cellRenderer"] == "Place"
        place = parse(*row["href"].split("?"))
        assert place.start_ns is not None
        assert place.end_ns is not None
        assert place.start_ns < UTC < UTC + 1_000 < place.end_ns


@pytest.mark.parametrize("rank", ["7", "NULL", "'x'", str(1 << 100), "-1", "0.5"])
def test_rows_of_no_rank_have_no_link(analysis: Analysis, rank: str) -> None:
    asked = f"SELECT {rank} AS rank, start_ns, {1 << 90} AS end_ns FROM kernels LIMIT 5"
    view = View(analysis, Address("/query", sql=asked))
    known = PendingAnswer(answer(analysis, asked), is_over=True)
    (table,) = named(query.drawn(known, view), "AgGrid")
    assert len(table.rowData) == 5
    assert not any("href" in row for row in table.rowData)


def test_the_page_lists_tables_with_their_columns(analysis: Analysis) -> None:
    (table,) = named(query.layout(View(analysis, Address("/query"))), "AgGrid")
    rows = {(row["table"], row["name"]): row for row in table.rowData}
    assert rows["kernels", "duration_ns"]["unit"] == "ns"
    assert rows["steps", "left_out"]["meaning"]
    assert {table for table, _ in rows} >= {"kernels", "kernels_totals", "steps", "findings"}


def test_without_duckdb_the_page_says_how_to_install_it(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "find_spec", lambda _: None)
    said = text(query.layout(View(analysis, Address("/query", sql="SELECT 1"))))
    assert "Queries need DuckDB, which is not installed here." in said
    assert "'.[query]'" in said
    with pytest.raises(MissingExtraError, match="duckdb is not installed"):
        answer(analysis, "SELECT 1")


def test_selected_events_are_found_on_the_timeline(analysis: Analysis) -> None:
    ask = asking(analysis)
    frame = RunFrames(analysis.run).kernels()
    chosen = frame[(frame["rank"] == 1) & (frame["category"] == "communication")]

    def found(columns: str) -> Any:
        where = "rank = 1 AND category = 'communication'"
        sql = f"SELECT {columns} -- two lines\nFROM kernels WHERE {where}"
        return ask("matches", text=in_field(sql), order="start", most=1000)

    with_length = found("rank, start_ns, duration_ns")
    assert with_length["count"] == len(chosen) > 0
    assert [int(event["start"]) for event in with_length["events"]] == sorted(chosen["start_ns"])
    assert {event["id"].split(".")[1] for event in with_length["events"]} == {"op"}
    assert found("rank, start_ns, end_ns") == with_length
    # Without lengths, all events count that begin at these times.
    assert found("rank, start_ns")["count"] >= with_length["count"]
    assert found("rank, start_ns, duration_ns + 1 AS duration_ns")["count"] == 0
    assert found("rank + 7 AS rank, start_ns")["count"] == 0


def test_what_selects_no_times_marks_nothing(analysis: Analysis) -> None:
    browser = create_app(analysis).server.test_client()

    def refused(sql: str) -> str:
        given = {"text": in_field(sql), "order": "start", "most": 10}
        while (reply := browser.get("/timeline/matches", query_string=given)).status_code != 400:
            assert reply.json == {"count": 0, "events": [], "is_all": False}
        return str(reply.get_data(as_text=True))

    assert "rank and start_ns" in refused("SELECT 1 AS x")
    assert "no file" in refused("FROM 'x.csv'")
    hits = {"text": in_field("FROM 'x.csv'"), "start": 0, "end": 9, "columns": 3}
    assert browser.get("/timeline/hits", query_string=hits).json == {"columns": [], "is_all": True}


@pytest.mark.slow
def test_a_query_in_the_browser(page: Page, sample_url: str, tmp_path: Path) -> None:
    sql = "SELECT rank, start_ns, duration_ns\nFROM kernels ORDER BY duration_ns DESC LIMIT 20"
    page.goto(f"{sample_url}/query")
    page.fill("#query-text", sql)
    page.press("#query-text", "Control+Enter")
    expect(page.get_by_text("20 rows")).to_be_visible()
    assert parse("/query", page.url.partition("?")[2]).sql == sql  # so that it can be linked
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    download.value.save_as(tmp_path / "query.csv")
    saved = list(csv.DictReader((tmp_path / "query.csv").read_text("utf-8-sig").splitlines()))
    with analysis_of(SAMPLE) as analysis:
        lengths = np.sort(RunFrames(analysis.run).kernels()["duration_ns"])[::-1][:20]
    assert [int(row["duration_ns"]) for row in saved] == lengths.tolist()
    page.get_by_text("mark these events on the timeline").click()
    expect(page.get_by_role("heading", name="20 events")).to_be_visible()
    page.go_back()
    page.locator("#page .ag-row a").first.click()
    page.wait_for_selector("#timeline[data-state=ready]")
    place = parse("/timeline", page.url.partition("?")[2])
    assert place.rank == (int(saved[0]["rank"]),)
    start = int(saved[0]["start_ns"])
    assert place.start_ns is not None
    assert place.end_ns is not None
    assert place.start_ns < start < start + lengths[0] < place.end_ns


@pytest.mark.slow
def test_what_is_refused_is_said_in_one_line(page: Page, sample_url: str) -> None:
    page.goto(f"{sample_url}/query?sql={quote('<script>; COPY kernels')}")
    expect(page.locator(".card p[role=alert]")).to_contain_text("syntax error")
    assert page.locator("#page script").count() == 0
