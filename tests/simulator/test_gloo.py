"""simulate_gloo: the export holds what its truth says, without anything of a GPU."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sample_traces.simulator import simulate_gloo
from tests.reference.host_ranks import HostStep, host_ranks
from tests.support.selection import long_after
from traceprof.analysis import analyze
from traceprof.documents.analysis.records import document

RUNS = [
    {"pairs": 1, "operations": 25, "seed": 0},
    {"pairs": 2, "operations": 60, "seed": 1},
    {"pairs": 3, "operations": 30, "seed": 2},
    {"pairs": 6, "operations": 25, "seed": 3},
]


@pytest.fixture(
    scope="module", params=long_after(3, RUNS), ids=lambda run: "-".join(map(str, run.values()))
)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("gloo") / "run.sqlite"
    truth: dict[str, Any] = json.loads(simulate_gloo(path, **request.param).read_text())
    assert truth["arguments"] == request.param
    return path, truth


def parts(row: dict[str, int] | HostStep) -> list[int]:
    names = ("window_ns", "compute_ns", "communication_ns", "exposed_communication_ns", "idle_ns")
    return [row[name] if isinstance(row, dict) else getattr(row, name) for name in names]


def test_truth_is_what_the_reference_measures(run: tuple[Path, dict[str, Any]]) -> None:
    path, truth = run
    expected = host_ranks(path)
    assert [parts(row) for row in truth["breakdown"]] == [parts(rank.whole) for rank in expected]
    assert [[row["step"], row["start_ns"], *parts(row)] for row in truth["steps"]] == [
        [step.number, step.start_ns, *parts(step)] for rank in expected for step in rank.steps
    ]


def test_truth_is_what_the_analysis_finds(run: tuple[Path, dict[str, Any]]) -> None:
    path, truth = run
    analysis = analyze(path)
    found = msgspec.to_builtins(document(analysis.result))
    analysis.close()
    for row in (*found["breakdown"], *found["steps"]):
        assert row.pop("lost_ns") == 0  # all that was launched is recorded
    assert found["breakdown"] == truth["breakdown"]
    for step in found["steps"]:
        del step["left_out"]
        assert step.pop("phase") == 0
    assert found["steps"] == truth["steps"]
    scaling = [finding for finding in found["findings"] if finding["id"] == "process-group-scaling"]
    assert [finding["rank"] for finding in scaling] == [
        finding["rank"] for finding in truth["findings"]
    ]
    for finding, true in zip(scaling, truth["findings"], strict=True):
        assert finding["metrics"] == pytest.approx(true["metrics"], rel=0.01)


def test_a_pair_alone_is_no_finding(tmp_path: Path) -> None:
    truth = json.loads(simulate_gloo(tmp_path / "t.sqlite", pairs=1).read_text())
    assert (truth["findings"], truth["silent"]) == ([], ["process-group-scaling"])
