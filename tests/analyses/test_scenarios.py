"""Every finding is held to the truth of the scenarios that the simulator writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator import SCENARIOS, nsight_writer, simulate_scenario
from tests.support.selection import in_turn
from tests.support.traces import SAMPLES, analysis_of, closed_analysis
from traceprof.analyses.registry import ANALYSES, FINDING_IDS
from traceprof.analysis import Analysis
from traceprof.findings import Severity

pytestmark = pytest.mark.slow

# The model tells what it did; one report cannot tell waiting from transfer.
_UNKNOWABLE = {"communication_slowdown"}
# Counters are sampled in whole per cent: 2 %. Small causes of idle time are told apart otherwise
# by the model, which lays a whole gap to one cause: 1 % of all idle time.
_SAMPLED = 0.02
_EXACT = 0.01
# Between two kernels that hide it, communication is exposed for a moment, for its own reason.
_BETWEEN = 0.03
# Where stalls are inferred, those that are no longer than other launches are not seen.
_INFERRED = 0.04


def truth_of(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.with_suffix(".truth.json").read_text())
    return loaded


def assert_true(analysis: Analysis, truth: dict[str, Any]) -> None:
    for finding in analysis.findings:
        if finding.id in truth.get("silent", ()) or finding.id not in truth.get(
            "only", FINDING_IDS
        ):
            assert finding.severity == Severity.INFO, finding.title
    for expected in truth.get("findings", ()):
        candidates = [
            finding
            for finding in analysis.findings
            if (finding.id, finding.rank) == (expected["id"], expected["rank"])
        ]
        assert candidates, expected
        assert any(
            _agrees(dict(candidate.metrics), expected["metrics"]) for candidate in candidates
        ), (expected["metrics"], [candidate.metrics for candidate in candidates])


def _agrees(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    slack = _EXACT * expected["idle_ns"] if "idle_ns" in expected else 0
    if "late_input_ns" in expected:
        slack = _BETWEEN * expected["exposed_ns"]
    if "bubble_ns" in expected:  # the model's streams take some microseconds from gap to gap
        slack = _EXACT * expected["bubble_ns"]
    source = str(expected.get("source"))
    near = _SAMPLED if "metrics" in source else _INFERRED if source == "inferred" else _EXACT
    return all(
        found[name] == pytest.approx(value, rel=near, abs=slack)
        if isinstance(value, int | float)
        else found[name] == value
        for name, value in expected.items()
        if not name.startswith("model_") and name in found and name not in _UNKNOWABLE
    )


def showing_all() -> set[Path]:
    """Return samples that together show every finding that samples show, the smallest ones."""
    chosen = {
        path: {finding["id"] for finding in truth_of(path).get("findings", ())}
        for path in sorted(SAMPLES, key=lambda path: -path.stat().st_size)
    }
    for path in [*chosen]:
        if chosen[path] <= {id_ for other in chosen.keys() - {path} for id_ in chosen[other]}:
            del chosen[path]
    return {*chosen}


_SHOWING_ALL = showing_all()


@pytest.mark.all_samples
@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(path, id=path.stem, marks=[] if path in _SHOWING_ALL else [pytest.mark.long])
        for path in SAMPLES
    ],
)
def test_findings_agree_with_the_truth(sample: Path) -> None:
    with analysis_of(sample) as analysis:
        assert_true(analysis, truth_of(sample))


@pytest.mark.parametrize(("name", "version"), in_turn(SCENARIOS, [*nsight_writer.PRODUCTS]))
def test_other_seeds_and_schema_versions(tmp_path: Path, name: str, version: str) -> None:
    path = tmp_path / f"{name}.sqlite"
    simulate_scenario(name, path, seed=7, schema_version=version)
    truth = truth_of(path)
    if version != "3.25.0":
        # Sizes and communicators come with payloads, which older schemas cannot hold.
        truth["findings"] = [
            {**finding, "metrics": _without_payloads(finding["metrics"])}
            for finding in truth["findings"]
        ]
    assert_true(closed_analysis(path), truth)


def _without_payloads(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if "independent" not in name}


def test_every_finding_has_a_scenario(tmp_path: Path) -> None:
    unkept = [name for name, scenario in SCENARIOS.items() if not scenario.is_sample]
    written = [tmp_path / f"{name}.sqlite" for name in unkept]
    for path in written:
        simulate_scenario(path.stem, path)
    truths = map(truth_of, [*SAMPLES, *written])
    shown = {finding["id"] for truth in truths for finding in truth.get("findings", ())}
    # Runs of several reports are too large to be samples: test_straggler.py makes them.
    of_runs = {id_ for one in ANALYSES if one.measure is None for id_ in one.findings}
    # The simulator has no unified memory: test_unified_memory.py draws exports that have.
    assert shown | of_runs | {"unified-memory"} >= set(FINDING_IDS)
