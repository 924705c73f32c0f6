"""No answer and no saving is more than what runs lets go."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

import traceprof
from tests.support.changes import recorded
from tests.support.opened import analysis_of
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses import breakdown
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.steps.step_lengths import compute_ns, step_ns
from traceprof.analyses.verdict.savings import within_reach
from traceprof.findings import Basis, Saving
from traceprof.replay.answers.ask import whatif
from traceprof.run.steps.steady_rules import StepUse
from traceprof.simulate import kernels
from traceprof.simulate.event_model.program_writer import SIDE, Host
from traceprof.simulate.scenarios.setup import Setup

_MUCH_NS = 10**12


def in_turns() -> Setup:
    """Let two streams compute in turns, held apart by nothing but the host's waits."""
    host = Host(0, np.random.default_rng(0))
    for step in range(6):
        with host.step(step):
            for stream in (host.compute, host.stream(SIDE)):
                host.launch(stream, *[kernels.QKV] * 20)
                host.synchronize(stream)
    return Setup((host,), lambda _: [])


def test_kernels_side_by_side_are_not_taken_to_be_as_fast(tmp_path: Path) -> None:
    """The replay would halve a step that is nothing but compute."""
    path = recorded(in_turns(), tmp_path / "run.sqlite")
    without, faster = whatif(path, assume=["no-sync", "kernel:.=0.5x"]).whatif.answers[:2]
    assert "side by side" in (without.refused or "")
    assert without.step_ns is None
    assert faster.refused is None
    assert faster.change_ns is not None
    with analysis_of(path) as analysis:
        (result,) = analysis.result.breakdown
        assert compute_ns(result) > 0.95 * step_ns(result)
        assert -faster.change_ns < 0.52 * step_ns(result)
        for finding in analysis.findings:
            assert finding.saving is not None
            assert (finding.saving.high_ns or 0) <= step_ns(result) - compute_ns(result) + 1


def test_savings_that_are_too_large_are_limited_at_one_place() -> None:
    too_much = Saving(_MUCH_NS, _MUCH_NS // 2, 2 * _MUCH_NS, Basis.REPLAY, "no-sync")
    num_limited = 0
    with analysis_of(SAMPLE_FOLDER / "training.sqlite") as analysis:
        breakdowns = analysis.result.breakdown
        rest = {one.rank: round(step_ns(one) - compute_ns(one)) for one in breakdowns}
        damaged = [msgspec.structs.replace(one, saving=too_much) for one in analysis.findings]
        for finding in within_reach(damaged, breakdowns):
            most = rest[finding.rank]
            if FINDINGS[finding.id].changes_kernels:
                assert finding.saving == too_much
            else:
                assert finding.saving == Saving(most, most, most, Basis.REPLAY, "no-sync")
                num_limited += 1
        assert within_reach(analysis.findings, breakdowns) == analysis.findings
    assert num_limited > 1


@pytest.mark.parametrize("name", ["a100_loader_2_dali", "a100_loader_3_dali_amp"])
def test_threads_that_pace_each_other_leave_limits_by_the_busiest_stream(
    name: str, traces: Path
) -> None:
    path = traces / "pairs" / f"{name}.sqlite"
    asked = ["kernel:.*=0.5x", "no-data-loading", "no-sync"]
    answers = {one.assume: one for one in traceprof.whatif(path, assume=asked).whatif.answers}
    assert answers["no-sync"].refused is not None  # kernels may take another time without waits
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        streams = [
            database.execute(
                "SELECT streamId, sum(end - start), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL"
                " WHERE start BETWEEN ? AND ? GROUP BY 1 ORDER BY 2 DESC",
                window,
            ).fetchone()
            for window in steady_windows(path)
        ]
    kernels_ns = sum(total for _, total, _ in streams) / len(streams)
    loaded, halved = answers["no-data-loading"], answers["kernel:.*=0.5x"]
    assert loaded.is_bound
    assert halved.is_bound
    assert loaded.step_ns is not None
    assert halved.step_ns is not None
    # Copies and memory sets of that stream come on top.
    assert kernels_ns <= loaded.step_ns <= 1.05 * kernels_ns
    assert loaded.step_ns - halved.step_ns == pytest.approx(kernels_ns / 2, rel=0.05)


def steady_windows(path: Path) -> list[tuple[int, int]]:
    """Return the windows of the steps that count."""
    with analysis_of(path) as analysis:
        (result,) = analysis.measured.of(breakdown)
    steady = [step.measures for step in result.steps if step.use is StepUse.STEADY]
    return [(step.window_start_ns, step.window_start_ns + step.window_ns) for step in steady]
