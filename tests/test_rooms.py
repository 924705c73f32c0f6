"""Rooms stay small, and a concept has one home: the limits of docs/architecture.md."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from traceprof.analyses.registry import ANALYSES

ROOT = Path(__file__).parents[1]
PACKAGES = ("traceprof", "dashboards", "instrument")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
MAX_LINES = 450
MAX_MODULES = 25  # side by side, without `__init__.py`


def test_no_module_is_too_long_to_be_read_in_one_sitting() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    assert len(lengths) > 400
    assert {str(path): num for path, num in lengths.items() if num > MAX_LINES} == {}


def test_no_room_has_too_many_modules_side_by_side() -> None:
    rooms = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert {str(room): num for room, num in rooms.items() if num > MAX_MODULES} == {}


def test_analyses_has_its_registry_and_registered_analyses_at_its_root() -> None:
    names = {path.stem for path in (ROOT / "traceprof" / "analyses").glob("*.py")}
    registered = {analysis.name.rpartition(".")[2] for analysis in ANALYSES}
    assert names - {"__init__", "registry"} <= registered


@pytest.mark.parametrize("name", ["Attribution", "Document", "Finding", "Gate", "Saving"])
def test_a_concept_is_defined_once(name: str) -> None:
    homes = [
        path
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    assert len(homes) == 1, homes
