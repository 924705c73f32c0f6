"""Answers where ranks were recorded for different numbers of steps."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest

import traceprof
from sample_traces.simulator.scenarios.runs import simulate_run
from tests.support.databases import change, query
from traceprof.replay.results import Answer

TABLES = [
    "NVTX_EVENTS",
    *(f"CUPTI_ACTIVITY_KIND_{of}" for of in ("RUNTIME", "KERNEL", "MEMCPY", "SYNCHRONIZATION")),
]
STEP = "SELECT start FROM NVTX_EVENTS JOIN StringIds ON textId = id WHERE value = 'step 24'"


def answered(folder: Path, ended: Collection[int], late: int) -> Answer:
    """Return what a run gains without its late rank, some of its reports ended two steps early."""
    truth = simulate_run("straggler-slow-kernels", folder, seed=1, per_rank=True)
    assert json.loads(truth.read_text())["straggler"]["rank"] == late
    for rank in ended:
        report = folder / f"rank_{rank}.sqlite"
        ((begin,),) = query(report, STEP)
        for table in TABLES:
            change(report, f"DELETE FROM {table} WHERE start >= {begin}")
    (answer,) = traceprof.whatif(folder, assume=["no-straggler"]).whatif.answers
    return answer


def test_steps_that_only_the_late_rank_has(tmp_path: Path) -> None:
    late, ranks = 3, range(8)
    both = answered(tmp_path / "both", ranks, late)
    others = answered(tmp_path / "others", {*ranks} - {late}, late)
    assert others.change_ns == pytest.approx(both.change_ns, rel=0.02)
