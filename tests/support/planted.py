"""Runs of several machines with planted, known answers."""

import json
from pathlib import Path
from typing import Any

from sample_traces.simulator import simulate_run
from tests.support.opened import closed_analysis
from traceprof.analysis import Analysis


def made(name: str, folder: Path, **how: Any) -> dict[str, Any]:
    """Write the reports of a run and return what was planted."""
    truth: dict[str, Any] = json.loads(simulate_run(name, folder, **how).read_text())
    return truth


def analyzed(folder: Path, truth: dict[str, Any], **options: Any) -> Analysis:
    """Return what is found in the reports of a run."""
    files = [folder / report["file"] for report in truth["reports"]]
    return closed_analysis(*files, **options)


def assert_clocks(
    truth: dict[str, Any], analysis: Analysis, *, error_ns: int, uncertainty_ns: int
) -> None:
    """Hold each report's clock to the planted one, and its error to what is said of it."""
    for report, told in enumerate(truth["reports"]):
        clock = analysis.ranks.clocks.of(report)
        assert clock.host == told["host"]
        drifted = (told["at_ns"] - clock.at_ns) * clock.drift
        error = abs(clock.offset_ns + drifted - told["offset_ns"])
        assert clock.uncertainty_ns is not None
        assert error <= clock.uncertainty_ns < uncertainty_ns
        assert error < error_ns
