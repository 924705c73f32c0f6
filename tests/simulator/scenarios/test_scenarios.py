"""Scenarios: each export holds what its truth says, in every schema version."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import SCENARIOS, nsight_writer, simulate_scenario
from sample_traces.simulator.event_model.lost_time import IDLE_CAUSES
from tests.reference import exposed_communication
from tests.reference.breakdown import Measures, reference
from tests.reference.nsight_export import export_of
from tests.reference.training import marks_steps, training
from tests.support.databases import dump
from tests.support.recording import stats
from tests.support.selection import in_turn
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses.registry import FINDING_IDS

pytestmark = pytest.mark.slow

VERSIONS = tuple(nsight_writer.PRODUCTS)
LATEST = VERSIONS[-1]
Truth = dict[str, Any]

_SAMPLED = [name for name, scenario in SCENARIOS.items() if scenario.is_sample]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Truth]]:
    """Make each export once."""
    known: dict[tuple[str, str], tuple[Path, Truth]] = {}

    def make(name: str, version: str) -> tuple[Path, Truth]:
        if (name, version) not in known:
            path = tmp_path_factory.mktemp("scenario") / f"{name}.sqlite"
            truth = simulate_scenario(name, path, schema_version=version)
            known[name, version] = path, json.loads(truth.read_text())
        return known[name, version]

    return make


def without_losses(measures: Measures) -> Truth:
    """What a truth says of a window; nothing of a simulated run is lost."""
    values = asdict(measures)
    assert values.pop("lost_ns") == 0
    return values


def metrics(truth: Truth, finding: str, rank: int = 0) -> Truth:
    (found,) = [
        planted["metrics"]
        for planted in truth["findings"]
        if (planted["id"], planted["rank"]) == (finding, rank)
    ]
    values: Truth = found
    return values


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, VERSIONS))
def test_truth_is_what_the_reference_measures(name: str, version: str, made: Any) -> None:
    path, truth = made(name, version)
    breakdown, steps = [], []
    for rank, found in enumerate(reference(path)):
        breakdown.append({"rank": rank, **without_losses(found.whole)})
        for step in found.steps:
            measures = without_losses(step.measures)
            start = measures.pop("window_start_ns")
            window = {"start_ns": start, "end_ns": start + measures["window_ns"]}
            steps.append({"rank": rank, "step": step.number, **window, **measures})
    assert truth["schema"] == "traceprof.truth/1"
    assert truth["scenario"] == name
    assert truth["arguments"] == {"seed": 0, "schema_version": version}
    assert truth["breakdown"] == breakdown
    assert truth["steps"] == steps


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, VERSIONS))
def test_training_is_what_the_reference_finds(name: str, version: str, made: Any) -> None:
    path, truth = made(name, version)
    export = export_of(path)
    if not marks_steps(export):
        return  # its periods are the steps
    for expected, key in zip(truth["training"], sorted(export.ranks), strict=True):
        found = training(export, *key)
        spans = {"start_ns": found.start, "end_ns": found.end}
        around = {"before_ns": found.before_ns, "after_ns": found.after_ns}
        assert expected == {"rank": expected["rank"], **spans, **around}


CAUSES = {
    "host-sync": "sync_ns", "lost-run-ahead": "sync_ns", "launch-bound": "launch_bound_ns",
    "data-loading": "data_loading_ns", "sleeping-loader": "data_loading_ns",
    "sleeping-checkpoint": "waiting_ns", "mpi-wait": "mpi_ns", "initialisation": "setup_ns",
    "allocation-in-steps": "allocation_ns", "busy-python": "host_code_ns",
    "turnaround": "turnaround_ns", "host-stall": "stalled_ns",
}  # fmt: skip
REASONS = {
    "compute-stream-collective": "same_stream_ns",
    "exposed-late-launch": "late_launch_ns",
    "exposed-queued": "queued_ns",
    "exposed-needed-at-once": "needed_at_once_ns",
    "exposed-late-input": "late_input_ns",
    "exposed-waiting": "waiting_ns",
}


def test_every_cause_of_idle_time_has_a_scenario() -> None:
    assert {*CAUSES.values(), "unknown_ns"} == set(IDLE_CAUSES)


@pytest.mark.parametrize(("name", "cause"), CAUSES.items())
def test_idle_time_has_its_cause(name: str, cause: str, made: Any) -> None:
    _, truth = made(name, LATEST)
    idle = [finding["rank"] for finding in truth["findings"] if finding["id"] == "gpu-idle"]
    assert idle == ([1] if name == "host-stall" else [*range(len(truth["breakdown"]))])
    for rank in idle:
        breakdown, found = truth["breakdown"][rank], metrics(truth, "gpu-idle", rank)
        after_ns = 0 if truth["steps"] else truth["training"][rank]["after_ns"]
        assert 0 <= breakdown["idle_ns"] - found["idle_ns"] <= after_ns
        assert found["idle_ns"] > 0.05 * breakdown["window_ns"]
        assert found[cause] > 0.9 * found["idle_ns"]


def test_every_reason_of_exposed_communication_has_a_scenario() -> None:
    # Transfers longer than all compute have the programs of test_exposed_communication.
    assert {*REASONS.values(), "transfer_ns", "unknown_ns"} == set(exposed_communication.REASONS)


@pytest.mark.parametrize(("name", "reason"), REASONS.items())
def test_exposed_communication_has_its_reason(name: str, reason: str, made: Any) -> None:
    _, truth = made(name, LATEST)
    found = metrics(truth, "exposed-communication")
    window = truth["breakdown"][0]["window_ns"]
    assert found[reason] > 0.8 * found["exposed_ns"] > 0.05 * window


@pytest.mark.parametrize("name", SCENARIOS)
def test_findings_are_those_of_the_design(name: str, made: Any) -> None:
    _, truth = made(name, LATEST)
    ids = {finding["id"] for finding in truth["findings"]}
    assert ids <= set(FINDING_IDS)
    assert ("only" in truth) != ("silent" in truth)
    listed = set(truth["only"] if "only" in truth else truth["silent"])
    assert listed <= set(FINDING_IDS)
    # A launch queue that is full, and the GPU's own time, are told of at info where all is well.
    if "healthy" not in truth["scenario"] and truth["scenario"] != "turnaround":
        assert ids <= listed if "only" in truth else not ids & listed


@pytest.mark.parametrize("name", _SAMPLED)
def test_sample_is_what_the_simulation_makes(name: str, made: Any) -> None:
    path, truth = made(name, LATEST)
    sample = SAMPLE_FOLDER / path.name
    assert dump(path) == dump(sample)
    assert truth == json.loads(sample.with_suffix(".truth.json").read_text())


def test_samples_are_small() -> None:
    files = [file for kind in ("*.sqlite", "*.json") for file in SAMPLE_FOLDER.glob(kind)]
    assert sum(file.stat().st_size for file in files) < 6_000_000
    assert max(file.stat().st_size for file in files) < 300_000
    named = {file.name.partition(".")[0] for file in files} - {"ddp", "gloo"}
    assert named == set(_SAMPLED)


def test_every_sample_is_described() -> None:
    text = (SAMPLE_FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in SCENARIOS)


@pytest.mark.parametrize("version", VERSIONS[1:])  # nsys itself reads no schema before 3
def test_nsys_stats_reads_it(version: str, made: Any, nsys: str) -> None:
    path, truth = made("host-sync", version)
    parts = stats(nsys, path)
    busy = [
        sum(int(line.split(",")[1]) for line in part.splitlines()[2:] if line) for part in parts
    ]
    ranks = truth["breakdown"]
    # Kernels of one stream do not overlap each other.
    assert busy[0] == sum(rank["compute_ns"] + rank["communication_ns"] for rank in ranks)
    assert busy[2] == sum(rank["copy_ns"] for rank in ranks)
    assert "dataloader" not in parts[3]
    assert ":step 7" in parts[3]
