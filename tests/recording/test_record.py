"""`traceprof record`: two ranks of Gloo, from the command to the report."""

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import output_of
from tests.support.recording import recorded
from tests.support.selection import rows_long_after

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "programs" / "unmarked.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
FORKED = (sys.executable, str(PROGRAM), "8", "5")
LAUNCHED = (*TORCHRUN, str(PROGRAM), "8", "5")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def analysis(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "traceprof", "analyze", "--format", "json"]
    document: dict[str, Any] = json.loads(output_of(*command, folder, env=environment()))
    return document


def labels_of(trace: Path) -> list[tuple[str, bool]]:
    """Return the labels of what was communicated, and whether each has an end."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [
        (event["name"], event.get("args", {}).get("finished", True))
        for event in events
        if event.get("cat") == "user_annotation" and " bytes=" in event["name"]
    ]


@pytest.mark.usefixtures("nsys")
@pytest.mark.parametrize(
    ("tool", "training"),
    rows_long_after(1, [("torch", FORKED), ("torch", LAUNCHED), ("nsys", LAUNCHED)]),
    ids=["torch, forked", "torch, torchrun", "nsys, torchrun"],
)
def test_only_the_steps_asked_for_on_all_ranks_alike(
    tmp_path: Path, tool: str, training: tuple[str, ...]
) -> None:
    # One of the ranks exits with 5, and what launched them with 1.
    folder = tmp_path / "out"
    code, printed = recorded(folder, tool, *training, options=("--steps", "3:6"))
    assert code == 1, printed
    host = os.uname().nodename
    names = {
        "nsys": {f"{host}.nsys-rep", f"{host}.sqlite"},
        "torch": {f"{host}-rank{rank}.pt.trace.json.gz" for rank in range(2)},
    }
    beside = {"report.html", f"doctor-{host}.json"}
    assert {path.name for path in folder.iterdir()} == names[tool] | beside
    assert "Where the time went" in printed
    assert "report.html" in printed
    # The text has room for it only if little else is found.
    assert "Gradient buckets" in (folder / "report.html").read_text()
    if tool == "torch":
        for file in folder.glob("*.json.gz"):
            named = labels_of(file)
            assert {label.partition(" ")[0] for label, _ in named} >= {"bucket", "all_reduce"}
            assert all(is_finished for _, is_finished in named)
    # The same, whoever recorded it.
    document = analysis(folder)
    steps = [(step["rank"], step["step"]) for step in document["steps"]]
    assert steps == [(rank, step) for rank in range(2) for step in range(3, 6)]
    half = 2 * 96 * 96 * 4  # two of four layers
    buckets = [
        (bucket["rank"], bucket["index"], bucket["bytes"], bucket["count"])
        for bucket in document["buckets"]
    ]
    assert buckets == [(rank, index, half, 3) for rank in range(2) for index in range(2)]
    assert all(bucket["median_ready_to_done_ns"] > 0 for bucket in document["buckets"])
    reduced = [use for use in document["collectives"] if use["operation"] == "AllReduce"]
    assert [(use["communicator"], use["bytes"]) for use in reduced] == [("group 0", 6 * half)] * 2


@pytest.mark.long
def test_steps_before_the_recording_are_timed_without_it(tmp_path: Path) -> None:
    folder, training = tmp_path / "out", (sys.executable, str(PROGRAM))
    steps = ("--steps", "10:13")
    _, printed = recorded(folder, "torch", *training, "14", "0", options=steps)
    assert "traceprof: recording made a step " in printed
    timed = [one for report in analysis(folder)["reports"] for one in report["timed"]]
    assert [one["rank"] for one in timed] == [0, 1]
    assert {(len(one["unrecorded_ns"]), len(one["recorded_ns"])) for one in timed} == {(6, 3)}
    options = ("--no-baseline", "--watch", "4", *steps)
    _, printed = recorded(folder, "torch", *training, "30", "0", options=options)
    tables = [json.loads(line) for line in (folder / "watch.jsonl").read_text().splitlines()]
    # Before the recording, in it and after it; a forked process may end before its last line.
    assert [table["step"] for table in tables][:4] == [4, 8, 12, 16]
    assert all(rank["wait_ns"] > 0 for table in tables for rank in table["ranks"])
    assert "recording made" not in printed
    assert not list(folder.glob("*.baseline.json"))


@pytest.mark.usefixtures("nsys")
def test_dry_run_prints_commands(tmp_path: Path) -> None:
    options = ("--dry-run", "--steps", "10:20", "--watch", "50", "-o", str(tmp_path / "out"))
    words = ["record", *options, "--", "torchrun", "train.py"]
    command = [sys.executable, "-m", "traceprof", *words]
    lines = output_of(*command, env=environment()).splitlines()
    (line,) = [line for line in lines if line.startswith("nsys profile ")]
    assert line.endswith("torchrun -m instrument --steps 10:20 train.py")
    assert f"--output={tmp_path}/out/%h" in line
    assert f"TRACEPROF_WATCH=50,TRACEPROF_WATCH_TO={tmp_path}/out/watch.jsonl" in line
    assert not (tmp_path / "out").exists()
