"""The jobs of docs/ci.md do in a shell what the page says, as far as a shell can."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from sample_traces.simulator.ddp import simulate_ddp
from tests.support.commands import blocks, ended
from traceprof.analysis import analyze_reports
from traceprof.reports.json import render

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
SAMPLES = ROOT / "sample_traces"
_FAILING = """
def test_that_fails(recorded_run):
    recorded_run("reports").no_finding_above("info")
"""


def jobs() -> tuple[list[str], list[str], Any]:
    """Return the shell scripts of GitHub's and GitLab's job, and what GitLab keeps."""
    github, gitlab = map(yaml.safe_load, blocks(PAGE, "yaml"))
    steps = [step["run"] for step in github["jobs"]["compare"]["steps"] if "run" in step]
    job = gitlab["performance"]
    return steps, job["script"], job["artifacts"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with what a job finds: its programs, `record.sh` and a baseline."""
    (tmp_path / "bin").mkdir()
    for name, script in {
        "pip": "exit 0",
        "traceprof": f'exec "{sys.executable}" -m traceprof "$@"',
    }.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    for name, seed in (("before", 1), ("again", 2)):
        path = tmp_path / f"{name}.sqlite"
        simulate_ddp(path, gpus=2, steps=30, kernels_per_step=40, seed=seed)
    baseline = render(analyze_reports([tmp_path / "before.sqlite"]))
    shutil.copy(SAMPLES / "late-allreduce.sqlite", tmp_path)
    (tmp_path / "baseline.json").write_text(baseline)
    return tmp_path


def run(script: str, place: Path, report: str) -> subprocess.CompletedProcess[str]:
    record = place / "record.sh"
    record.write_text(f'#!/bin/sh\nmkdir -p "$1"\ncp {place / report}.sqlite "$1"\n')
    record.chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(place / "summary.md"),
    }
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
    return ended(*shell, script, cwd=place, env=environ)


@pytest.mark.long
@pytest.mark.parametrize(("report", "code"), [("again", 0), ("late-allreduce", 1)])
def test_the_job_of_github_tells_of_gates(place: Path, report: str, code: int) -> None:
    steps, _, _ = jobs()
    done = [run(step, place, report) for step in steps]
    assert [one.returncode for one in done] == [0, 0, code], done[-1].stderr
    summary = (place / "summary.md").read_text()
    assert re.match(r"### A step takes 3\.\d+ ms before", summary)
    lines = done[-1].stdout.splitlines()
    errors = [line for line in lines if line.startswith("::error title=")]
    assert len(errors) == (3 if code else 0)
    assert ("finding%3Alate-allreduce not met" in done[-1].stdout) == bool(code)
    suite = ET.parse(place / "gates.xml").getroot()  # noqa: S314  (our own)
    assert (suite.get("tests"), suite.get("failures")) == ("3", "3" if code else "0")


@pytest.mark.long
def test_the_test_of_a_project_asserts(place: Path) -> None:
    conftest, test = blocks(PAGE, "python")
    (place / "conftest.py").write_text(conftest)
    (place / "test_speed.py").write_text(test + _FAILING)
    options = "-q -p no:cacheprovider -p no:dash"
    script = f"./record.sh reports && '{sys.executable}' -m pytest {options} test_speed.py"
    done = run(script, place, "again")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: findings above info in reports:" in done.stdout


@pytest.mark.long
def test_the_job_of_gitlab_has_a_case_for_each_gate(place: Path) -> None:
    _, lines, kept = jobs()
    done = run("\n".join(lines), place, "late-allreduce")
    assert done.returncode == 1, done.stderr
    assert all((place / path).exists() for path in kept["paths"])
    cases = ET.parse(place / kept["reports"]["junit"]).iter("testcase")  # noqa: S314  (our own)
    failed = {case.get("name"): case.find("failure") is not None for case in cases}
    assert failed == {"step:+2%": True, "finding:late-allreduce": True}


def action(place: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the shell parts of action.yml, without the comment."""
    venv = place / "bin" / "python3"  # makes the environment of the action
    venv.write_text(f'#!/bin/sh\nmkdir -p "$3"\ncp -r {place}/bin "$3"\n')
    venv.chmod(0o755)
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    install, analyse, _, gate = (step["run"] for step in steps)
    places = {name: place / name for name in ("RUNNER_TEMP", "GITHUB_OUTPUT")}
    names = {name.upper().replace("-", "_") for name in ("reports", "baseline", "gates", "fail-on")}
    assert names == {*steps[1]["env"]}
    given = {**dict.fromkeys(names, ""), **inputs, **{k: str(v) for k, v in places.items()}}
    lines = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in given.items())
    read = 'STATUS=$(sed -n "s/^status=//p" "$GITHUB_OUTPUT")'
    return run(f"{lines}\nACTION=.\n{install}\n{analyse}\n{read}\n{gate}", place, "again")


@pytest.mark.long
@pytest.mark.parametrize(("report", "code"), [("again", 0), ("late-allreduce", 1)])
def test_the_action_fails_where_a_gate_is_not_met(place: Path, report: str, code: int) -> None:
    gates = "step:+2%\nfinding:late-allreduce"
    done = action(place, REPORTS=f"{report}.sqlite\n", BASELINE="baseline.json", GATES=gates)
    assert done.returncode == code, done.stderr
    results = place / "RUNNER_TEMP" / "traceprof-results"
    assert f"folder={results}" in (place / "GITHUB_OUTPUT").read_text().splitlines()
    names = {"analysis.json", "comment.md", "comparison.md", "gates.xml", "report.html"}
    assert {path.name for path in results.iterdir()} == names
    comment = (results / "comment.md").read_text()
    assert comment.startswith("### A step takes ")
    assert comment == (place / "summary.md").read_text()
    assert ("::error title=" in done.stdout) == bool(code)


@pytest.mark.long
def test_the_action_fails_on_a_severe_finding(place: Path) -> None:
    done = action(place, REPORTS="late-allreduce.sqlite", FAIL_ON="low")
    assert done.returncode == 1, done.stderr
    assert "late-allreduce" in (place / "summary.md").read_text()
