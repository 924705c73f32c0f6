"""No answer and no saving is more than what runs lets go."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

import traceprof
from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.program_writer import SIDE, Host
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changes import recorded
from tests.support.databases import query
from tests.support.selection import known
from tests.support.traces import SAMPLE_FOLDER, analysis_of
from traceprof.analyses import breakdown
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.steps import mean_ns, step_ns
from traceprof.analyses.verdict.savings import Gate, within_reach
from traceprof.findings import Basis, Saving
from traceprof.replay.checked_replay import floor_gate, why_not
from traceprof.replay.whatif import whatif
from traceprof.run.steady_steps import StepUse

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
    assert "it overlaps kernels that ran one after the other" in (without.refused or "")
    assert without.step_ns is None
    assert faster.refused is None
    assert faster.change_ns is not None
    with analysis_of(path) as analysis:
        (result,) = analysis.result.breakdown
        assert mean_ns(result, "compute_ns") > 0.95 * step_ns(result)
        assert -faster.change_ns < 0.52 * step_ns(result)
        for finding in analysis.findings:
            rest_ns = step_ns(result) - mean_ns(result, "compute_ns")
            assert (known(finding.saving).high_ns or 0) <= rest_ns + 1


def test_savings_that_are_too_large_are_limited_at_one_place() -> None:
    too_much = Saving(_MUCH_NS, _MUCH_NS // 2, 2 * _MUCH_NS, Basis.REPLAY, "no-sync")
    num_limited = 0
    with analysis_of(SAMPLE_FOLDER / "training.sqlite") as analysis:
        breakdowns = analysis.result.breakdown
        rest = {one.rank: round(step_ns(one) - mean_ns(one, "compute_ns")) for one in breakdowns}
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


@pytest.mark.long  # simulated loaders with stages are held to the truth always
@pytest.mark.parametrize("name", ["a100_loader_2_dali", "a100_loader_3_dali_amp"])
def test_a_step_takes_no_less_than_the_loader_needs_for_a_batch(name: str, traces: Path) -> None:
    path = traces / "pairs" / f"{name}.sqlite"
    asked = ["kernel:.*=0.01x", "kernel:.*=0.635x", "no-data-loading"]
    answers = traceprof.whatif(path, assume=asked).whatif.answers[:3]
    no_kernels, faster, loaded = answers
    # Of two windows that follow each other, each has its part of a range.
    stage = "SELECT end - start FROM NVTX_EVENTS WHERE text = '[DALI][Executor] RunCPU'"
    begun = [query(path, f"{stage} AND start BETWEEN ? AND ?", *at) for at in steady_windows(path)]
    pace_ns = sum(length for rows in begun for (length,) in rows) / len(begun)
    assert all(one.is_bound for one in answers)
    assert 0.75 * pace_ns < known(no_kernels.step_ns) < pace_ns
    # Mixed precision left kernels 0.635 of their time, and steps of 150.6 ms.
    assert name.endswith("amp") or (faster.step_ns or 0) < 150.6e6
    shortest_ns = min(end - start for start, end in steady_windows(path))
    assert (loaded.step_ns or 0) < 1.05 * shortest_ns


def steady_windows(path: Path) -> list[tuple[int, int]]:
    """Return the windows of the steps that count."""
    with analysis_of(path) as analysis:
        (result,) = analysis.measured.of(breakdown)
    steady = [step.measures for step in result.steps if step.use is StepUse.STEADY]
    return [(step.window_start_ns, step.window_start_ns + step.window_ns) for step in steady]


def test_a_floor_that_is_broken_is_written_as_json() -> None:
    """The analysis and the what-if documents hold it: a number of numpy cannot be written."""
    written = msgspec.json.decode(msgspec.json.encode(floor_gate(np.float64(0.006))))
    assert (written["value"], written["holds"]) == (0.006, False)


def test_a_share_that_is_far_off_is_not_written_in_digits() -> None:
    shares = {0.056: "5.6 %", -0.07: "7.0 %", 5902.88: "over 1000 %", None: "an unknown share"}
    for share, text in shares.items():
        why = why_not(Gate(name="misfit", value=share, limit=0.02, holds=False))
        assert text in why
