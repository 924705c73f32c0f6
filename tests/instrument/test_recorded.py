"""A real recording, from the training script to the report: held to what the script did."""

import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import output_of
from tests.support.recording import profile
from tests.support.selection import long_after, once

STEPS = 6
PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "train.py"


# Tracing the runtime of the system, too, doubles the time that imports take.
@pytest.fixture(scope="module", params=long_after(1, ["nvtx", "nvtx,osrt"]))
def recorded(
    request: pytest.FixtureRequest, nsys: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the report of a recorded run of two ranks, and what each of them says it did."""
    record = partial(_record, nsys, request.param)
    folder = once(tmp_path_factory, f"recorded-{request.param}", record)
    report, *truths = (
        json.loads((folder / name).read_text())
        for name in ("report.json", "truth-0.json", "truth-1.json")
    )
    return report, truths


def _record(nsys: str, traced: str, folder: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    script = ["-m", "instrument", str(PROGRAM), "--steps", str(STEPS), "--truth", str(folder)]
    options = [f"--trace={traced}", "--sample=none", "--cpuctxsw=none"]
    profile(nsys, options, folder / "run", [*launch, *script], environment)
    sqlite = folder / "run.sqlite"
    export = [nsys, "export", "--type=sqlite", "--output"]
    output_of(*export, sqlite, folder / "run.nsys-rep", env=environment)
    analyze = [sys.executable, "-m", "traceprof", "analyze", "--format", "json"]
    (folder / "report.json").write_text(output_of(*analyze, sqlite, env=environment))


Recorded = tuple[dict[str, Any], list[dict[str, Any]]]


def test_ranks_are_the_processes_of_the_script(recorded: Recorded) -> None:
    report, truths = recorded
    ranks = [(rank["rank"], rank["pid"], rank["device"]) for rank in report["ranks"]]
    assert ranks == [(truth["rank"], truth["pid"], None) for truth in truths]


def test_steps_begin_when_the_script_began_them(recorded: Recorded) -> None:
    report, truths = recorded
    for truth in truths:
        steps = [step for step in report["steps"] if step["rank"] == truth["rank"]]
        assert [step["step"] for step in steps] == list(range(STEPS))
        offsets = [
            step["start_ns"] - began for step, began in zip(steps, truth["began_ns"], strict=True)
        ]
        # The clocks' zeros differ, and a busy machine interrupts between looking and beginning.
        assert statistics.median(offset - min(offsets) for offset in offsets) < 1_000_000


def test_each_gradient_is_in_one_bucket(recorded: Recorded) -> None:
    report, truths = recorded
    for truth in truths:
        buckets = [bucket for bucket in report["buckets"] if bucket["rank"] == truth["rank"]]
        sizes = {(bucket["index"], bucket["bytes"]): bucket["count"] for bucket in buckets}
        # DDP reduces all in one bucket in the first step, and makes the buckets anew after it.
        half = truth["gradient_bytes"] // 2
        assert sizes == {
            (0, truth["gradient_bytes"]): 1,
            (0, half): STEPS - 1,
            (1, half): STEPS - 1,
        }


def test_every_byte_is_seen_once(recorded: Recorded) -> None:
    report, truths = recorded
    for truth in truths:
        reduced = _operations(report, truth["rank"], "AllReduce")
        assert [use["communicator"] for use in reduced] == ["group 0"]
        # One bucket in the first step, two in the others, and the loss in each.
        assert reduced[0]["count"] == 1 + 2 * (STEPS - 1) + STEPS
        assert reduced[0]["bytes"] == STEPS * (truth["gradient_bytes"] + 4)


def test_transfers_name_their_peers(recorded: Recorded) -> None:
    report, (sender, receiver) = recorded
    for truth, operation in ((sender, "Send"), (receiver, "Recv")):
        (ranges,) = _operations(report, truth["rank"], operation)
        assert ranges["peer"] == 1 - truth["rank"]
        assert ranges["communicator"] == f"group {truth['pair']}"
        assert (ranges["count"], ranges["bytes"]) == (STEPS, STEPS * truth["parcel_bytes"])
    assert not _operations(report, 0, "Recv")
    assert not _operations(report, 1, "Send")


def _operations(report: dict[str, Any], rank: int, operation: str) -> list[dict[str, Any]]:
    return [
        use for use in report["collectives"] if (use["rank"], use["operation"]) == (rank, operation)
    ]
