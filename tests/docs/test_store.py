"""The queries and examples of docs/store.md give what the page shows."""

import doctest
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from traceprof.analysis import analyze_reports
from traceprof.documents.analysis.records import TABLES
from traceprof.store.runs import save, stored_runs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "store.md"
TEXT = PAGE.read_text(encoding="utf-8")
_QUERIES = re.compile(r"^```sql\n(SELECT .*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DELETION = re.compile(r"^```sql\n(PRAGMA .*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    for name, sample in (("baseline", "late-allreduce"), ("better", "ddp")):
        save(path, analyze_reports([ROOT / "sample_traces" / f"{sample}.sqlite"]), name)
    return path


def test_queries_give_what_the_page_shows(store: Path) -> None:
    queries = _QUERIES.findall(TEXT)
    assert len(queries) == 3
    with closing(sqlite3.connect(store)) as connection:
        for query, shown in queries:
            rows = connection.execute(query).fetchall()
            assert "".join(f"{'|'.join(map(str, row))}\n" for row in rows) == shown


def test_deleting_a_run_deletes_all_that_is_of_it(store: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(store, tmp_path))
    [script] = _DELETION.findall(TEXT)
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript(script)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            if table not in {"runs", "kernel_names"}:
                runs = connection.execute(f'SELECT DISTINCT run FROM "{table}"').fetchall()
                assert runs in ([(2,)], []), table
    assert [run.name for run in stored_runs(store)] == ["better"]


def test_every_table_is_on_the_page(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        names = {name for (name,) in connection.execute("SELECT tbl_name FROM sqlite_master")}
    assert names
    assert {name for name in names if f"`{name}`" not in TEXT} == set()
    assert names - {"runs", "documents", "rank_kernels", "kernel_names"} <= set(TABLES)


def test_examples_give_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    examples = "\n".join(_EXAMPLES.findall(TEXT))
    test = doctest.DocTestParser().get_doctest(examples, {}, PAGE.name, str(PAGE), lineno=0)
    assert len(test.examples) > 5
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=failures.append)
    assert not failures, "".join(failures)
