"""CONTRIBUTING followed to the letter: its code blocks are written, its commands run."""

import json
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.commands import output_of
from tests.support.traces import SAMPLE_FOLDER

pytestmark = pytest.mark.long

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
        first, opening, rest = place.read_text(encoding="utf-8").partition(f"\n{table}")
        assert opening
        body, closing, rest = rest.partition("\n)\n")
        assert closing
        head, future, imports = first.partition("from __future__ import annotations\n")
        entry = textwrap.indent(entry.rstrip("\n"), "    ")
        place.write_text(
            f"{head}{future}{imported}{imports}{opening}{body}\n{entry},{closing}{rest}",
            encoding="utf-8",
        )


_PROGRAM = """
import contextlib, io, json, runpy, sys
from traceprof.cli.main import main
printed = []
for module, *arguments in json.load(sys.stdin):
    sys.argv[1:] = arguments
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(arguments) if module == "traceprof" else runpy.run_module(module, None, "__main__")
        except SystemExit as end:
            assert not end.code, out.getvalue()
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


def test_an_analysis_and_an_assumption_are_added_as_described(tmp_path: Path) -> None:
    """All in a copy of the packages, also as they are compiled."""
    checkout = tmp_path / "checkout"
    for name in ("traceprof", "tests"):
        shutil.copytree(ROOT / name, checkout / name)
    (checkout / "sample_traces").symlink_to(SAMPLE_FOLDER)
    follow(checkout, "Add an analysis", "ANALYSES = (")
    follow(checkout, "Add an assumption", "ASSUMPTIONS")
    report = TraceBuilder().kernel(0, 400).memset(500, 900).write(tmp_path / "memsets.sqlite")
    reports = checkout / "traceprof" / "reports"
    test = checkout / "tests" / "replay" / "assumptions" / "test_memsets.py"
    asked = ("--assume", "no-memsets", "--format", "json")
    commands = [
        ("traceprof", "explain", "memsets"),
        ("traceprof", "analyze", "--format", "json", str(report)),
        ("traceprof.documents.schema", str(reports)),
        ("traceprof", "whatif", str(SAMPLE_FOLDER / "healthy.sqlite"), *asked),
        ("traceprof", "whatif", "--help"),
        ("pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(checkout), str(test)),
    ]
    environ, given = {**os.environ, "PYTHONPATH": str(checkout)}, json.dumps(commands)
    printed = output_of(sys.executable, "-c", _PROGRAM, cwd=checkout, env=environ, input=given)
    explained, analyzed, _, answered, options, _ = json.loads(printed)
    assert "The GPU sets memory" in explained
    (finding,) = (one for one in json.loads(analyzed)["findings"] if one["id"] == "memsets")
    assert finding["metrics"] == {"exposed_ns": 400, "num_memsets": 1, "coverage": 1.0}
    assert '"memsets"' in (reports / "analysis-1.schema.json").read_text(encoding="utf-8")
    (answer,) = json.loads(answered)["answers"]
    assert answer["assume"] == "no-memsets"
    assert answer["change_ns"] <= 0
    assert "no-memsets" in options
