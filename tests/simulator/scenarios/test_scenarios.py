"""Scenarios: each export holds what its truth says, in every schema version."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import SCENARIOS, nsight_writer, simulate_scenario
from sample_traces.simulator.event_model.lost_time import IDLE_CAUSES
from tests.reference import exposed_communication
from tests.reference.breakdown import as_truth, reference
from tests.reference.nsight_export import export_of
from tests.reference.training import training
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


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, VERSIONS))
def test_truth_is_what_the_reference_measures(name: str, version: str, made: Any) -> None:
    path, truth = made(name, version)
    assert truth["schema"] == "traceprof.truth/1"
    assert truth["scenario"] == name
    assert truth["arguments"] == {"seed": 0, "schema_version": version}
    assert {name: truth[name] for name in ("breakdown", "steps")} == as_truth(reference(path))


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, VERSIONS))
def test_training_is_what_the_reference_finds(name: str, version: str, made: Any) -> None:
    path, truth = made(name, version)
    export = export_of(path)
    for expected, key in zip(truth["training"], sorted(export.ranks), strict=True):
        found = training(export, *key)
        spans = {"start_ns": found.start, "end_ns": found.end}
        around = {"before_ns": found.before_ns, "after_ns": found.after_ns}
        assert expected == {"rank": expected["rank"], **spans, **around}


@pytest.mark.parametrize(
    ("finding", "whole", "causes"),
    [
        ("gpu-idle", "idle_ns", {*IDLE_CAUSES} - {"unknown_ns"}),
        # Transfers longer than all compute have the programs of test_exposed_communication.
        (
            "exposed-communication",
            "exposed_ns",
            {*exposed_communication.REASONS} - {"transfer_ns", "unknown_ns"},
        ),
    ],
)
def test_every_cause_has_a_sample_that_is_about_it(
    finding: str, whole: str, causes: set[str]
) -> None:
    truths = [json.loads(path.read_text()) for path in SAMPLE_FOLDER.glob("*.truth.json")]
    planted = [
        one["metrics"]
        for truth in truths
        for one in truth.get("findings", ())
        if one["id"] == finding
    ]
    assert causes == {
        cause
        for metrics in planted
        for cause in causes
        if metrics.get(cause, 0) > 0.8 * metrics[whole]
    }


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
