"""A concept has one home: the rules of docs/architecture.md."""

import re
from collections import Counter
from pathlib import Path

from traceprof.analyses.registry import ANALYSES

ROOT = Path(__file__).parents[1]
PACKAGES = ("traceprof", "dashboards", "instrument")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


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
