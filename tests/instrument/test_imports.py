"""What the instrumentation may import: it runs inside of the training process of somebody else."""

import ast
from pathlib import Path

import instrument
from instrument.switch import PARTS

ROOT = Path(instrument.__file__).parent
OURS = ("traceprof", "dashboards", "instrument")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in ROOT.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, also for types and within functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import by a full name says which folder it is from"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name in FILES or node.module == "traceprof"
                modules.add(name if is_module else str(node.module))
    return {name for name in modules if name.split(".")[0] in OURS}


IMPORTS = {name: imports_of(path) for name, path in FILES.items()}


def test_labels_are_all_that_is_imported_of_the_other_packages() -> None:
    others = {
        module for modules in IMPORTS.values() for module in modules if "instrument" not in module
    }
    assert others == {"traceprof.labels"}


def test_wrappers_import_what_they_are_made_with_and_nothing_else() -> None:
    for name, modules in IMPORTS.items():
        if name.startswith("instrument.wraps."):
            for module in modules - {"traceprof.labels"}:
                assert module.startswith("instrument.core."), name


def test_what_wrappers_are_made_with_knows_none_of_them() -> None:
    for name, modules in IMPORTS.items():
        if name.startswith("instrument.core."):
            for module in modules - {"traceprof.labels"}:
                assert module.startswith("instrument.core."), name


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {name: modules & set(FILES) for name, modules in IMPORTS.items()}
    while left:
        free = [name for name, modules in left.items() if not modules & set(left)]
        assert free, f"in a circle: {sorted(left)}"
        for name in free:
            del left[name]


def test_every_wrapper_is_installed() -> None:
    wrappers = {name for name in FILES if name.startswith("instrument.wraps.")}
    assert {*PARTS} == wrappers
