"""Rules of the code and of the tests that no linter knows.

Who stands where, and knows what; tests assert something; workers give back what they take.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import grimp

from tests.support.kept_claims import kept_texts
from traceprof.analyses.registry import ANALYSES

TESTS = Path(__file__).parent
ROOT = TESTS.parent
# Where the subjects of a folder of tests stand, if not in `traceprof`.
BESIDE = {
    **dict.fromkeys(("dashboards", "instrument", "docs"), ROOT),
    "simulator": ROOT / "sample_traces",
}
# The references' own tests, those of the scripts in dashboards/assets, and what only a GPU shows.
OF_NO_PACKAGE = {Path("reference"), Path("dashboards/javascript"), Path("gpu")}
# Modules that are imported by their names: commands, formats, wraps, a plugin of pytest, programs.
STARTED = (
    r".*\.__main__|traceprof\.(cli\.\w+|reports\.\w+|testing|instrument|documents\.schema)"
    r"|instrument\.(wraps\.\w+|lightning|transformers)"
)
SHARED = ("tests.support", "tests.reference", "tests.touched")


def imported(path: Path) -> set[str]:
    lines = re.findall(r"^ *(?:from|import) +(\S+)", path.read_text(), re.MULTILINE)
    assert not any(module.startswith(".") for module in lines), f"{path}: a relative import"
    return {module for module in lines if module.split(".")[0] == "tests"}


def test_what_tests_share_is_in_support_or_reference() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    imports = {(path, module) for path in paths for module in imported(path)}
    assert len(imports) > 100
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path, module in sorted(imports)
        if not module.startswith(SHARED)
    ]
    assert wrong == []


def test_there_are_no_tests_in_support() -> None:
    assert list((TESTS / "support").rglob("*.py"))
    assert list((TESTS / "support").rglob("test_*")) == []


def test_each_text_that_is_kept_is_of_a_test() -> None:
    texts = sorted(TESTS.rglob("test_*.txt"))
    assert texts
    for path in texts:
        tests = set(re.findall(r"(?m)^def (test_\w+)", path.with_suffix(".py").read_text()))
        assert {name.partition("[")[0] for name in kept_texts(path)} <= tests, path


def test_each_folder_of_tests_has_the_name_of_what_it_tests() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    assert folders
    wrong = []
    for folder in sorted(folders):
        beside = BESIDE.get(folder.parts[0], ROOT / "traceprof")
        if folder not in OF_NO_PACKAGE and not (beside / folder).is_dir():
            wrong.append(str(folder))
    assert wrong == []


def test_no_module_that_ships_is_there_for_tests_alone() -> None:
    graph = grimp.build_graph("traceprof", "instrument", "dashboards", cache_dir=None)
    unused = [
        module
        for module in sorted(graph.modules)
        if not graph.find_modules_that_directly_import(module)
        and not (ROOT / module.replace(".", "/")).is_dir()
        and not re.fullmatch(STARTED, module)
    ]
    assert unused == []


PACKAGES = ("traceprof", "dashboards", "instrument")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


SHARED_BY_ANALYSES = {"compute_parts", "gradient_buckets", "rank_work", "steps"}
BASE_OF_ANALYSES = {"__init__", "hidden", "measurements", "registry", "remedies", "results"}


def test_analyses_has_at_its_root_what_is_registered_and_what_that_shares() -> None:
    names = {path.stem for path in (ROOT / "traceprof" / "analyses").glob("*.py")}
    registered = {analysis.name.rpartition(".")[2] for analysis in ANALYSES}
    assert names - registered == SHARED_BY_ANALYSES | BASE_OF_ANALYSES


def test_a_concept_is_defined_once() -> None:
    homes = Counter(
        name
        for path in SOURCES
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE)
    )
    concepts = ("Attribution", "Document", "Finding", "Gate", "Saving")
    assert {name: homes[name] for name in concepts} == dict.fromkeys(concepts, 1)


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
    known = ROOT / "traceprof" / "trace" / "nsight" / "metadata.py"
    assert [text for _, text in texts_of(known) if NAMES.search(text)]


_ASSERTING = ("assert", "check", "expect", "until", "pytest.raises", "pytest.fail", "pytest.warns")
"""Beginnings of functions that fail where something is not so."""


def _called(function: ast.FunctionDef) -> set[str]:
    """Return what a function calls: by its name, and with what stands before it."""
    calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return calls | {name.rpartition(".")[2] for name in calls}


def test_every_test_asserts_something() -> None:
    functions = [
        (path, node)
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    called = {id(node): _called(node) for _, node in functions}
    asserting: set[str] = set()
    while True:
        more = {
            node.name
            for _, node in functions
            if node.name not in asserting
            and (
                any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
                or any(name.startswith(_ASSERTING) for name in called[id(node)])
                or called[id(node)] & asserting
            )
        }
        if not more:
            break
        asserting |= more
    tests = [(path, node) for path, node in functions if node.name.startswith("test_")]
    assert len(tests) > 2000
    empty = [f"{path}: {node.name}" for path, node in tests if node.name not in asserting]
    assert empty == []


_TAKES = {"acquire", "get_nowait"}  # of locks, semaphores and queues
_QUEUES = {"queue", "multiprocessing"}  # modules that have some


def test_locks_and_queues_are_taken_by_with() -> None:
    taken = [
        (str(path.relative_to(ROOT)), call.lineno)
        for path in SOURCES
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and (
            call.func.attr in _TAKES
            or (ast.unparse(call.func.value) in _QUEUES and call.func.attr.endswith("Queue"))
        )
    ]
    assert taken == []
