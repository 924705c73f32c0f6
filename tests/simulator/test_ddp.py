"""simulate_ddp: the export holds what its truth says, and looks like a run of DDP."""

import json
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import ddp, simulate_ddp
from tests.reference.breakdown import as_truth, reference
from tests.support.databases import query
from tests.support.selection import long_after

RUNS = [
    {"gpus": 1, "steps": 1, "kernels_per_step": 20, "seed": 0},
    {"gpus": 3, "steps": 23, "kernels_per_step": 24, "seed": 5},  # the last steps are repeated
    {"gpus": 2, "steps": 6, "kernels_per_step": 40, "seed": 1},
    {"gpus": 3, "steps": 4, "kernels_per_step": 21, "seed": 2},
    {"gpus": 5, "steps": 3, "kernels_per_step": 57, "seed": 3},
    {"gpus": 2, "steps": 2, "kernels_per_step": 1000, "seed": 4},
]

Run = tuple[Path, dict[str, Any]]


@pytest.fixture(
    scope="module", params=long_after(4, RUNS), ids=lambda run: "-".join(map(str, run.values()))
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("ddp") / "run.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ddp, "MAX_SIMULATED", 100)
        truth: dict[str, Any] = json.loads(simulate_ddp(path, **request.param).read_text())
    assert truth["arguments"] == request.param
    return path, truth


def test_truth_is_what_the_reference_measures(run: Run) -> None:
    path, truth = run
    assert truth["schema"] == "traceprof.truth/1"
    assert truth["scenario"] == "ddp"
    assert {name: truth[name] for name in ("breakdown", "steps")} == as_truth(reference(path))


def test_every_step_has_the_kernels_asked_for(run: Run) -> None:
    path, truth = run
    arguments = truth["arguments"]
    assert len(truth["steps"]) == arguments["gpus"] * arguments["steps"]
    for step in truth["steps"]:
        assert step["num_kernels"] + step["num_communication"] == arguments["kernels_per_step"]
        assert (step["num_communication"] == 1) == (step["step"] == 0)  # DDP's first is one bucket
    (count,) = query(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")[0]
    assert count == arguments["gpus"] * arguments["steps"] * arguments["kernels_per_step"]


def test_repeated_steps_have_the_times_of_those_before(run: Run) -> None:
    _, truth = run
    by_rank: dict[int, list[int]] = {}
    for step in truth["steps"]:
        by_rank.setdefault(step["rank"], []).append(step["compute_ns"])
    for times in by_rank.values():
        assert len(set(times)) == min(len(times), 7)
