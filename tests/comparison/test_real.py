"""Real recordings before and after changes whose effect is known, and halves of real ones."""

from pathlib import Path

import numpy as np
import pytest

from traceprof.analysis import Options, analyze_captures, analyze_reports
from traceprof.comparison import statistics
from traceprof.comparison.ask import compare
from traceprof.comparison.series import series
from traceprof.documents.analysis.records import document

OPTIONS = Options(savings=False)
BASELINE, CHANGED = "a100x4_ddp_baseline_rank0.sqlite", "a100x4_ddp_nobroadcast_rank0.sqlite"


def test_gradient_copies_that_are_gone_make_the_step_two_per_cent_shorter(traces: Path) -> None:
    comparison = compare(
        traces / BASELINE, traces / CHANGED, gates=["step:-1%", "step:-2%"], options=OPTIONS
    )
    step = comparison.step
    assert comparison.comparable.is_comparable
    assert step.verdict == "faster"
    assert step.before_ns == pytest.approx(30.55e6, rel=2e-3)  # medians, start to start
    assert step.after_ns == pytest.approx(29.96e6, rel=2e-3)
    assert step.change == pytest.approx(-0.020, abs=0.002)
    assert (step.low, step.high) == pytest.approx((-0.023, -0.018), abs=0.003)
    assert comparison.parts.exposed_copy_ns == pytest.approx(-0.853e6, rel=0.15)
    assert [gate.outcome for gate in comparison.gates] == ["met", "inconclusive"]
    statuses = {finding.id: finding.status for finding in comparison.findings}
    assert statuses["exposed-copy"] == "better"
    words = [difference.after for difference in comparison.comparable.differences]
    assert "--disable_broadcast_buffers" in words
    assert comparison.kernel_matching[0].before == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("before", "after", "gain_ms", "cause"),
    [
        ("a100_loader_0_baseline", "a100_loader_1_8workers", 510, "data_loading"),
        ("a100_loader_1_8workers", "a100_loader_2_dali", 43.1, "data_loading"),
    ],
)
def test_a_quicker_loader_takes_idle_time_away(
    traces: Path, before: str, after: str, gain_ms: float, cause: str
) -> None:
    pairs = traces / "pairs"
    sides = pairs / f"{before}.sqlite", pairs / f"{after}.sqlite"
    comparison = compare(*sides, options=OPTIONS)
    parts = comparison.parts
    assert parts.mean_step_ns == pytest.approx(-1e6 * gain_ms, rel=0.1)
    assert min(parts.compute_ns, parts.exposed_copy_ns, parts.idle_ns) == parts.idle_ns
    assert comparison.idle[0].cause == cause
    assert comparison.idle[0].change_ns == pytest.approx(parts.idle_ns, rel=0.1)


def test_reports_of_real_runs_are_one_recording_each(traces: Path) -> None:
    for folder in ("jacobi_mpi", "rtx3090x9_3nodes_tree"):
        reports = sorted((traces / folder).glob("*.sqlite"))
        assert len(reports) > 1
        assert len(analyze_captures(reports, OPTIONS)) == 1
    assert len(analyze_captures([traces / BASELINE, traces / CHANGED], OPTIONS)) == 2
    loaders = sorted((traces / "pairs").glob("a100_loader_*.sqlite"))[:2]
    assert len(analyze_captures(loaders, OPTIONS)) == 2


@pytest.mark.long
@pytest.mark.parametrize("report", [BASELINE, CHANGED])
def test_halves_of_a_recording_differ_in_at_most_five_per_cent(traces: Path, report: str) -> None:
    (steps,) = series([document(analyze_reports([traces / report], OPTIONS))]).captures
    source = np.random.default_rng(8)
    blocks = np.array_split(np.arange(len(steps)), 12)
    false = 0
    for _ in range(500):
        order = source.permutation(len(blocks))
        halves = [
            steps[np.sort(np.concatenate([blocks[index] for index in some]))][:, :1]
            for some in (order[:6], order[6:])
        ]
        draws = [statistics.drawn(half, side)[:, 0] for side, half in enumerate(halves)]
        low, high = statistics.of_draws(draws[1] / draws[0] - 1)
        false += not low <= 0 <= high
    assert false / 500 <= 0.05
