"""Only what reads, writes and records exports knows which program made them.

That nothing else imports it, import-linter sees; what texts say of it is counted here.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Of the formats: how to record and to export is theirs to say. The command line says
# in its help what may be given.
KNOW_FORMATS = ("trace", "recording", "cli")
NAMES = re.compile(r"\bnsys\b|Nsight", re.IGNORECASE)


def texts_of(path: Path) -> list[tuple[int, str]]:
    """Return the line and the text of the literals of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    alone = {  # docstrings of modules, classes, functions and attributes
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    ]


def modules() -> list[Path]:
    """Return the modules that are to know no format."""
    packages = [ROOT / "dashboards", ROOT / "traceprof"]
    paths = [path for package in packages for path in sorted(package.rglob("*.py"))]
    return [path for path in paths if path.relative_to(ROOT).parts[1] not in KNOW_FORMATS]


def test_what_says_how_to_collect_asks_the_trace() -> None:
    paths = modules()
    assert len(paths) > 100
    named = [
        f"{path.relative_to(ROOT)}:{line} says {text[:60]!r}"
        for path in paths
        if NAMES.search(path.read_text())  # few do, in docstrings
        for line, text in texts_of(path)
        if NAMES.search(text)
    ]
    assert named == []


def test_the_count_sees_texts_and_no_docstrings(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text('"""Of Nsight."""\nHOW = f"nsys {1} profile"\nX = 1\n"""nsys"""\n')
    assert [text for _, text in texts_of(module) if NAMES.search(text)] == ["nsys "]
    known = ROOT / "traceprof" / "trace" / "nsight" / "parts.py"
    assert [text for _, text in texts_of(known) if NAMES.search(text)]
