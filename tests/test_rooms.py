"""Rooms stay small, and a concept has one home: the limits of docs/architecture.md."""

import re
from collections import Counter
from pathlib import Path

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


def test_a_concept_is_defined_once() -> None:
    homes = Counter(
        name
        for path in SOURCES
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE)
    )
    concepts = ("Attribution", "Document", "Finding", "Gate", "Saving")
    assert {name: homes[name] for name in concepts} == dict.fromkeys(concepts, 1)
