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
_PATH = re.compile(r"`((?:traceprof|tests|sample_traces)/[\w/]+\.(?:py|md))`")


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


def follow(checkout: Path, title: str, table: str) -> list[Path]:
    """Write what a section shows into a checkout: whole files, imports and entries of tables.

    Return the files.
    """
    places = []
    for path, blocks in steps(title):
        place = checkout / path
        places.append(place)
        if len(blocks) == 1:
            place.parent.mkdir(parents=True, exist_ok=True)
            assert not place.exists()
            place.write_text(blocks[0], encoding="utf-8")
            continue
        if path.startswith("sample_traces/"):
            function, entry = (block.rstrip("\n") for block in blocks)
            before, opening, rest = place.read_text(encoding="utf-8").partition("SCENARIOS = {")
            body, closing, after = rest.partition("\n}\n")
            assert opening
            assert closing
            text = f"{before}{function}\n\n\n{opening}{body}\n{entry},{closing}{after}"
            place.write_text(text, encoding="utf-8")
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
    return places


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
    for name in ("traceprof", "tests", "sample_traces"):
        shutil.copytree(ROOT / name, checkout / name)
    written = follow(checkout, "Add an analysis", "ANALYSES = (")
    by_hand = (
        "README.md",
        "sample_traces/README.md",
        "CHANGELOG.md",
        "tests/analyses/test_memsets.py",
    )
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add an analysis")[2]
    assert all(Path(name).name in section.partition("\n## ")[0] for name in by_hand)
    assert len(written) + len(["the schema"]) + len(by_hand) == 9
    follow(checkout, "Add an assumption", "ASSUMPTIONS")
    simulated = tmp_path / "memory-sets.sqlite"
    report = TraceBuilder().kernel(0, 400).memset(500, 900).write(tmp_path / "memsets.sqlite")
    reports = checkout / "traceprof" / "reports"
    test = checkout / "tests" / "replay" / "assumptions" / "test_memsets.py"
    asked = ("--assume", "no-memsets", "--format", "json")
    commands = [
        ("traceprof", "explain", "memsets"),
        ("traceprof", "analyze", "--format", "json", str(report)),
        ("sample_traces.simulator", "memory-sets", "-o", str(simulated)),
        ("traceprof", "analyze", "--format", "json", str(simulated)),
        ("traceprof.documents.schema", str(reports)),
        ("traceprof", "whatif", str(SAMPLE_FOLDER / "healthy.sqlite"), *asked),
        ("traceprof", "whatif", "--help"),
        ("pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(checkout), str(test)),
    ]
    environ, given = {**os.environ, "PYTHONPATH": str(checkout)}, json.dumps(commands)
    printed = output_of(sys.executable, "-c", _PROGRAM, cwd=checkout, env=environ, input=given)
    explained, analyzed, _, of_simulated, _, answered, options, _ = json.loads(printed)
    assert "The GPU sets memory" in explained
    (finding,) = (one for one in json.loads(analyzed)["findings"] if one["id"] == "memsets")
    assert finding["metrics"] == {"exposed_ns": 400, "num_memsets": 1, "coverage": 1.0}
    truth = json.loads(simulated.with_suffix(".truth.json").read_text(encoding="utf-8"))
    found = {
        one["rank"]: one for one in json.loads(of_simulated)["findings"] if one["id"] == "memsets"
    }
    assert [one["rank"] for one in truth["findings"]] == [0, 1] == sorted(found)
    for one in truth["findings"]:
        metrics = found[one["rank"]]["metrics"]
        assert {name: metrics[name] for name in one["metrics"]} == one["metrics"]
    assert '"memsets"' in (reports / "analysis-1.schema.json").read_text(encoding="utf-8")
    (answer,) = json.loads(answered)["answers"]
    assert answer["assume"] == "no-memsets"
    assert answer["change_ns"] <= 0
    assert "no-memsets" in options
