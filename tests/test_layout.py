"""Tests stand where their subject does, and share things only by way of `support`."""

import re
from pathlib import Path

import grimp

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
    r".*\.__main__|traceprof\.(cli\.\w+|reports\.(comparison\.)?\w+|testing|documents\.schema)"
    r"|instrument\.(wraps\.\w+|lightning|transformers)"
)
SHARED = ("tests.support", "tests.reference", "tests.touched", "tests.gpu.changes")


def imported(path: Path) -> set[str]:
    """Return the modules of `tests` that a module imports, wherever in it."""
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


def test_each_folder_of_tests_has_the_name_of_what_it_tests() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    assert folders
    wrong = []
    for folder in sorted(folders):
        beside = BESIDE.get(folder.parts[0], ROOT / "traceprof")
        if folder not in OF_NO_PACKAGE and not (beside / folder).is_dir():
            wrong.append(str(folder))
    assert wrong == []


def test_each_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in TESTS.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


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
