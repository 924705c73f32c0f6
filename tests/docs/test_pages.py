"""What the pages on trackers, notebooks, DuckDB and coding agents show is what comes."""

import doctest
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import traceprof
from tests.support import commands
from tests.support.commands import ended, output_of, run
from tests.support.selection import missing
from traceprof.cli.main import EXIT_DONE
from traceprof.documents.analysis.model import Document

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TRACKERS = Path(sys.prefix) / "trackers" / "bin" / "python"
_QUERY = re.compile(r"^```sql\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return commands.blocks((DOCS / page).read_text(encoding="utf-8"), language)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, where the process is, with the samples and our command."""
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    (tmp_path / "bin").mkdir()
    for name, module in (("traceprof", "-m traceprof"), ("python", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def shell(script: str) -> subprocess.CompletedProcess[str]:
    return ended(shutil.which("bash") or "/bin/bash", "-e", "-c", script)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_duckdb_answers_what_the_page_shows() -> None:
    import duckdb  # noqa: PLC0415

    [install] = blocks("duckdb.md", "sh")
    done = shell(install.splitlines()[1])
    assert done.returncode == 0, done.stderr
    queries = _QUERY.findall((DOCS / "duckdb.md").read_text(encoding="utf-8"))
    assert len(queries) > 5
    for query, shown in queries:
        rows = duckdb.execute(query).fetchall()
        assert "".join(f"{'|'.join(map(str, row))}\n" for row in rows) == shown, query
    [code] = blocks("duckdb.md", "python")
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102  (of our own page)
    assert len(names["frame"]) == 8  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_every_command_for_agents_answers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(blocks("skill/SKILL.md", "sh")).splitlines()
    assert len(lines) > 9
    for line in lines:
        program, *arguments = shlex.split(line)
        if program == "traceprof":
            assert run(*arguments) == EXIT_DONE, f"{line}: {capsys.readouterr().err}"
            printed = capsys.readouterr().out
        else:
            printed = shell(line).stdout
        assert printed or "-o" in arguments, line
    asked = {shlex.split(line)[1] for line in lines}
    assert {"info", "analyze", "explain", "whatif", "compare", "export"} <= asked


def test_the_fields_for_agents_exist() -> None:
    text = (DOCS / "skill" / "SKILL.md").read_text(encoding="utf-8")
    schemas = "".join(p.read_text() for p in (ROOT / "traceprof" / "reports").glob("*.schema.json"))
    names = {
        part
        for quoted in re.findall(r"`((?:[a-z]+(?:\[\])?\.)?[a-z_]+(?:\[\])?)`", text)
        for part in quoted.replace("[]", "").split(".")
        if "_" in part.strip("_") or "." in quoted
    }
    assert len(names) > 15
    others = {"analysis", "json", "runs", "db", "sample_traces"}  # files
    assert {name for name in names - others if f'"{name}"' not in schemas} == set()
    lists = re.findall(r"`(\w+)\[\]", text)
    assert {*lists} <= {*Document.__struct_fields__, "answers"}


def run_tracker(name: str, place: Path) -> None:
    """Run the block of a page's section in the environment that has the trackers."""
    if not TRACKERS.exists():
        missing("the trackers, which `make verify` installs")
    codes = [code for code in blocks("trackers.md", "python") if name in code]
    assert len(codes) == 1
    examples = doctest.DocTestParser().get_examples("\n".join(blocks("trackers.md", "pycon")))
    before = "".join(example.source for example in examples)
    script = place / "code.py"
    script.write_text(before + codes[0])
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    output_of(TRACKERS, script, env=environ)


def scalars() -> dict[str, int]:
    with closing(traceprof.analyze(ROOT / "sample_traces" / "training.sqlite")) as analysis:
        return analysis.scalars()


def tensorboard_scalars() -> dict[str, list[tuple[int, Any]]]:
    """Return steps and values in the run of the current folder, by tag."""
    code = """
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("runs/training")
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags}))
"""
    found = json.loads(output_of(TRACKERS, "-c", code))
    return {tag: [(step, value) for step, value in values] for tag, values in found.items()}


@pytest.mark.long
def test_tensorboard_has_the_scalars(place: Path) -> None:
    run_tracker("tensorboard", place)
    found = tensorboard_scalars()
    for name, ns in scalars().items():
        [(step, value)] = found[f"traceprof/{name}"]
        assert (step, value) == (1200, pytest.approx(ns, rel=1e-6))  # it keeps 32 bits


@pytest.mark.long
def test_mlflow_has_the_scalars(place: Path) -> None:
    run_tracker("mlflow", place)
    with closing(sqlite3.connect(place / "mlflow.db")) as connection:
        rows = connection.execute("SELECT key, value, step FROM metrics").fetchall()
    assert {key: (value, step) for key, value, step in rows} == {
        f"traceprof/{name}": (ns, 1200) for name, ns in scalars().items()
    }


@pytest.mark.long
def test_wandb_writes_an_offline_run_with_the_scalars(place: Path) -> None:
    run_tracker("wandb", place)
    [path] = place.glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes()
    for name, ns in scalars().items():
        assert f"traceprof/{name}".encode() in written
        assert str(ns).encode() in written


WATCHED = """
import threading
from pathlib import Path
from typing import Any
import torch
import torch.distributed as dist
import instrument
store = dist.FileStore(str(Path("store").absolute()), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
{block}
parameter = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([parameter], lr=0.01)
for _ in range(200):
    parameter.square().sum().backward()
    optimizer.step()
instrument.disable()
for thread in threading.enumerate():
    if thread.name == "traceprof-watch":
        thread.join(60)
"""


def watch_with(name: str, place: Path) -> None:
    """Run a tracker's block of the page on the watch with 200 steps of one rank."""
    if not TRACKERS.exists():
        missing("the trackers, which `make verify` installs")
    [block] = [code for code in blocks("watch.md", "python") if name in code]
    (place / "code.py").write_text(WATCHED.replace("{block}", block))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    output_of(TRACKERS, place / "code.py", env=environ)


@pytest.mark.long
def test_tensorboard_gets_what_is_watched(place: Path) -> None:
    watch_with("tensorboard", place)
    own_ms = tensorboard_scalars()["own_ms/rank0"]
    assert [(step, value > 0) for step, value in own_ms] == [(100, True), (200, True)]


@pytest.mark.long
def test_mlflow_gets_what_is_watched(place: Path) -> None:
    watch_with("mlflow", place)
    with closing(sqlite3.connect(place / "mlflow.db")) as connection:
        rows = connection.execute("SELECT key, step, value > 0, run_uuid FROM metrics").fetchall()
        [(run_id,)] = connection.execute("SELECT run_uuid FROM runs").fetchall()
    assert sorted(rows) == [("own_ms/rank0", step, 1, run_id) for step in (100, 200)]


@pytest.mark.long
def test_wandb_gets_what_is_watched(place: Path) -> None:
    watch_with("wandb", place)
    [path] = place.glob("wandb/offline-run-*/*.wandb")
    written = path.read_bytes()
    assert b"own_ms/rank0" in written
    steps = re.findall(rb"training_step\W{1,8}(\d+)", written)
    assert {b"100", b"200"} <= {*steps}, steps
