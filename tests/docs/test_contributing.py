"""CONTRIBUTING followed to the letter: its code blocks are written, its commands run."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.traces import SAMPLE_FOLDER

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:traceprof|tests)/[\w/]+\.(?:py|md))`")


def steps(title: str) -> list[tuple[str, list[str]]]:
    """Return (path, code blocks) of the steps of a section that have code."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = []
    for step in re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]:
        blocks = [textwrap.dedent(code) for _, _, code in _BLOCK.findall(step)]
        if blocks:
            head = step.partition("```")[0]
            found.append((_PATH.findall(head)[0], blocks))
    return found


def follow(checkout: Path, title: str, table: str) -> None:
    """Write what a section shows into a checkout: whole files, then an import and an entry."""
    for path, blocks in steps(title):
        place = checkout / path
        if len(blocks) == 1:
            place.parent.mkdir(parents=True, exist_ok=True)
            assert not place.exists()
            place.write_text(blocks[0], encoding="utf-8")
            continue
        imported, entry = blocks
        text = place.read_text(encoding="utf-8")
        first, opening, rest = text.partition(f"\n{table}")
        assert opening
        body, closing, rest = rest.partition("\n)\n")
        assert closing
        head, future, imports = first.partition("from __future__ import annotations\n")
        entry = textwrap.indent(entry.rstrip("\n"), "    ")
        place.write_text(
            f"{head}{future}{imported}{imports}{opening}{body}\n{entry},{closing}{rest}",
            encoding="utf-8",
        )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, also as they are compiled, that all changes are made in."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("traceprof", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "sample_traces").symlink_to(SAMPLE_FOLDER)
    return folder


def run(checkout: Path, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_an_analysis_is_added_as_described(checkout: Path, tmp_path: Path) -> None:
    follow(checkout, "Add an analysis", "ANALYSES = (")
    report = TraceBuilder().kernel(0, 400).memset(500, 900).write(tmp_path / "memsets.sqlite")
    assert "The GPU sets memory" in run(checkout, "traceprof", "explain", "memsets")
    document = json.loads(run(checkout, "traceprof", "analyze", "--format", "json", report))
    (finding,) = (finding for finding in document["findings"] if finding["id"] == "memsets")
    assert finding["metrics"] == {"exposed_ns": 400, "num_memsets": 1, "coverage": 1.0}
    reports = checkout / "traceprof" / "reports"
    run(checkout, "traceprof.documents.schema", reports)
    assert '"memsets"' in (reports / "analysis-1.schema.json").read_text(encoding="utf-8")


def test_an_assumption_is_added_as_described(checkout: Path) -> None:
    follow(checkout, "Add an assumption", "ASSUMPTIONS")
    sample = SAMPLE_FOLDER / "healthy.sqlite"
    asked = ("traceprof", "whatif", sample, "--assume", "no-memsets", "--format", "json")
    (answer,) = json.loads(run(checkout, *asked))["answers"]
    assert answer["assume"] == "no-memsets"
    assert answer["change_ns"] <= 0
    assert "no-memsets" in run(checkout, "traceprof", "whatif", "--help")
    test = checkout / "tests" / "replay" / "assumptions" / "test_memsets.py"
    run(checkout, "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(checkout), test)
