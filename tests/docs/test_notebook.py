"""The notebook of docs/ gives what it shows, and uses nothing private."""

import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.claims import private_names

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "where-does-the-step-go.ipynb"


def notebook() -> nbformat.NotebookNode:
    content: nbformat.NotebookNode = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    return content


def cells_of(content: nbformat.NotebookNode) -> list[tuple[str, list[str]]]:
    def text(output: Any) -> str:
        return str(output.get("text") or output["data"]["text/plain"])

    return [
        (cell.source, [text(output) for output in cell.outputs])
        for cell in content.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.long
def test_it_gives_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = runpy.run_path(str(ROOT / "docs" / "notebook.py"))["executed"]()
    shown = cells_of(notebook())
    assert sum(bool(outputs) for _, outputs in shown) > 5
    assert cells_of(made) == shown, "run python docs/notebook.py"


def test_it_uses_nothing_private() -> None:
    code = "\n".join(source for source, _ in cells_of(notebook()))
    assert [*private_names(code)] == []
    private = "from traceprof.run import rank; import traceprof.host; traceprof.run.rank._x"
    assert {*private_names(private)} == {"traceprof.run", "traceprof.host", "run", "_x"}
    reports = {part for part in code.split('"') if part.endswith(".sqlite")}
    assert reports
    for report in reports:
        assert report.startswith("sample_traces/")
        assert (ROOT / report).is_file()
