"""The page docs/trends.md finds a planted change with Apache Otava."""

import re
import shutil
import sqlite3
import sys
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sample_traces.simulator.ddp import simulate_ddp
from tests.support.builders import stretch
from tests.support.commands import blocks, output_of
from tests.support.selection import missing
from traceprof.analysis import Options, analyze_reports
from traceprof.store import save

PAGE = (Path(__file__).parents[2] / "docs" / "trends.md").read_text(encoding="utf-8")
OTAVA = Path(sys.prefix) / "otava" / "bin" / "otava"
NUM_RUNS, FIRST_SLOWER = 30, 18


def store_with_a_change(path: Path) -> None:
    """Save runs of one program, a day after each other; from one on each takes 3 % longer."""
    for number in range(NUM_RUNS):
        report = path.with_name(f"{number}.sqlite")
        simulate_ddp(report, gpus=1, steps=12, kernels_per_step=20, seed=number)
        if number >= FIRST_SLOWER:
            stretch(report, 1.03)
        result = analyze_reports([report], Options(savings=False))
        save(path, result, f"night-{number:02}", {"commit": f"{number:040x}"})
    first = datetime.now(timezone.utc) - timedelta(days=NUM_RUNS)
    with closing(sqlite3.connect(path)) as connection, connection:
        for number in range(NUM_RUNS):
            time = (first + timedelta(days=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
            connection.execute(
                "UPDATE runs SET recorded_utc = ? WHERE name = ?", (time, f"night-{number:02}")
            )


@pytest.mark.long
def test_otava_finds_the_run_from_which_a_step_is_longer(tmp_path: Path) -> None:
    if not OTAVA.exists():
        missing("Apache Otava, which `make verify` installs")
    store_with_a_change(tmp_path / "runs.db")
    [config] = blocks(PAGE, "yaml")
    (tmp_path / "otava.yaml").write_text(config)
    [shown] = blocks(PAGE, "console")
    commands = [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]
    assert len(commands) == 2
    programs = {"traceprof": f"{sys.executable} -m traceprof", "otava": str(OTAVA)}
    for command in commands:
        name, _, arguments = command.partition(" ")
        bash = shutil.which("bash") or "/bin/bash"
        printed = output_of(bash, "-c", f"{programs[name]} {arguments}", cwd=tmp_path)
    lines = printed.splitlines()
    [row] = [place for place, line in enumerate(lines) if f"night-{FIRST_SLOWER:02}" in line]
    found = lines[row - 2 : row]  # above the run at which it changes
    assert re.search(r"\+(2\.[5-9]|3\.[0-5])%", " ".join(found)), printed
    rows = re.compile(r"night-.*")
    assert {*rows.findall(shown)} <= {*rows.findall(printed)}
    assert "".join(re.findall(r"night-00,.*", PAGE)) in (tmp_path / "runs.csv").read_text()
    changes = [line for line in lines if re.search(r"[+-]\d+\.\d+%", line)]
    assert len(changes) == 1, printed
