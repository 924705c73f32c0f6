"""What the documents name is there: linked files, modules, goals of the Makefile."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = ("memsets", "clipping", "NAME")  # what the recipes add


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_linked_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_modules_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = r"(?:traceprof|dashboards|instrument|tests|docs|sample_traces)"
    paths = re.findall(rf"`({folders}/[\w./]*)`", text)
    paths = [path for path in paths if not any(name in path for name in EXAMPLES)]
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_goals_of_make_exist(page: Path) -> None:
    goals = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`", page.read_text(encoding="utf-8"))) <= goals
