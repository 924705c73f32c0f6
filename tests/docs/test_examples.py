"""Examples, queries, links and pictures of the documents are what the code gives."""

import doctest
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import traceprof
from tests.support.claims import private_names
from tests.support.commands import blocks, output_of
from tests.support.traces import result_of
from traceprof.documents.analysis.records import TABLES
from traceprof.store import save, stored_runs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LIBRARY, STORE, ARCHITECTURE = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("library", "store", "architecture")
)
_EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # and their lines
_QUERIES = re.compile(r"^```sql\n(SELECT .*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDED = ("memsets", "clipping", "NAME")  # by the recipes


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("library", marks=pytest.mark.slow),
        pytest.param("store"),
        pytest.param("notebook", marks=pytest.mark.slow),
        pytest.param("trackers", marks=pytest.mark.long),
    ],
)
def test_examples_give_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("sample_traces", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    # Blank lines stand for what lies between the examples, so that line numbers are the page's.
    lines = [""] * len(text.splitlines())
    for block in _EXAMPLES.finditer(text):
        first = text.count("\n", 0, block.start(1))
        examples = block[1].splitlines()
        lines[first : first + len(examples)] = examples
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, page, f"{page}.md", lineno=0)
    assert len(test.examples) > 2
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_every_public_name_is_on_the_page() -> None:
    assert set(traceprof.__all__) <= set(re.findall(r"`(\w+)", LIBRARY))


def test_examples_use_nothing_private() -> None:
    examples = doctest.DocTestParser().get_examples("\n".join(blocks(LIBRARY, "pycon")))
    assert len(examples) > 10
    for example in examples:
        assert [*private_names(example.source)] == [], example.source


# -- docs/store.md --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    for name, sample in (("baseline", "late-allreduce"), ("better", "ddp")):
        save(path, result_of(ROOT / "sample_traces" / f"{sample}.sqlite"), name)
    return path


def test_queries_give_what_the_page_shows(store: Path) -> None:
    queries = _QUERIES.findall(STORE)
    assert len(queries) == 3
    with closing(sqlite3.connect(store)) as connection:
        for query, shown in queries:
            rows = connection.execute(query).fetchall()
            assert "".join(f"{'|'.join(map(str, row))}\n" for row in rows) == shown


def test_deleting_a_run_deletes_all_that_is_of_it(store: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(store, tmp_path))
    [script] = [block for block in blocks(STORE, "sql") if block.startswith("PRAGMA")]
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
    assert {name for name in names if f"`{name}`" not in STORE} == set()
    assert names - {"runs", "documents", "rank_kernels", "kernel_names"} <= set(TABLES)


# -- what the documents name ----------------------------------------------------------------------


def test_linked_files_and_goals_of_make_exist() -> None:
    goals = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert len(PAGES) > 20
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"
        assert set(re.findall(r"`make ([a-z]+)`", text)) <= goals, page


def test_modules_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = r"(?:traceprof|dashboards|instrument|tests|docs|sample_traces)"
    paths = re.findall(rf"`({folders}/[\w./]*)`", text)
    paths = [path for path in paths if not any(name in path for name in _ADDED)]
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("script", ["architecture.py", "picture.py"])
def test_pictures_are_what_the_code_gives(script: str) -> None:
    output_of(sys.executable, f"docs/{script}", "--check", cwd=ROOT)


def test_every_room_has_a_paragraph() -> None:
    rooms = [path.parent.name for path in (ROOT / "traceprof").glob("*/__init__.py")]
    assert len(rooms) > 10
    ground = {"kernel_names"}  # described together
    named = [f"{room}/" for room in sorted({*rooms, "dashboards", "instrument"} - ground)]
    named += ["testing.py", "analysis.py"]
    assert [name for name in named if f"\n* **`{name}`** " not in ARCHITECTURE] == []
