"""simulate_gloo: the export holds what its truth says, without anything of a GPU."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.reference.host_ranks import HostStep, host_ranks
from tests.support.databases import dump
from tests.support.traces import CPU_SAMPLE
from traceprof.analysis import analyze
from traceprof.documents.analysis.records import document
from traceprof.errors import UsageError
from traceprof.simulate import simulate_gloo

RUNS = [
    {"pairs": 1, "operations": 25, "seed": 0},
    {"pairs": 2, "operations": 60, "seed": 1},
    {"pairs": 3, "operations": 30, "seed": 2},
    {"pairs": 6, "operations": 25, "seed": 3},
]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: "-".join(map(str, run.values())))
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """An export and its truth."""
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
    assert found["breakdown"] == truth["breakdown"]
    for step in found["steps"]:
        del step["left_out"]
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


def test_the_same_arguments_make_the_same_export(tmp_path: Path) -> None:
    truths = [
        simulate_gloo(tmp_path / f"{index}.sqlite", pairs=2, seed=seed)
        for index, seed in enumerate((5, 5, 6))
    ]
    first, again, other = (dump(tmp_path / f"{index}.sqlite")[4:] for index in range(3))
    assert first == again != other
    texts = [truth.read_text() for truth in truths]
    assert texts[0] == texts[1] != texts[2]


def test_sample_is_what_the_simulation_makes(tmp_path: Path) -> None:
    path = tmp_path / "gloo.sqlite"
    truth = simulate_gloo(path)
    assert dump(path) == dump(CPU_SAMPLE)
    assert truth.read_text() == CPU_SAMPLE.with_suffix(".truth.json").read_text()


@pytest.mark.parametrize("arguments", [{"pairs": 0}, {"operations": 24}, {"seed": -1}])
def test_impossible_arguments(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="the least is"):
        simulate_gloo(tmp_path / "x.sqlite", **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x.sqlite", "x.truth.json"])
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UsageError, match=f"{name}: it exists already"):
        simulate_gloo(tmp_path / "x.sqlite")
    assert [file.name for file in tmp_path.iterdir()] == [name]
