"""What findings would save: beside the simulator's run without their cause, and together."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import astuple

import traceprof
from sample_traces.simulator import SCENARIOS, simulate_scenario
from sample_traces.simulator.ddp import simulate_ddp
from tests.reference.gpu_programs import PROGRAMS
from tests.reference.spans import length, union
from tests.reference.streams import Rank, read
from tests.reference.unfused import BY_MEMORY, is_list
from tests.support.builders import TraceBuilder
from tests.support.changes import damaged, step_ns, with_late_gpu
from tests.support.selection import known, long_after, rows_long_after
from tests.support.traces import SAMPLE, SAMPLE_FOLDER, analysis_of
from traceprof import whatif
from traceprof.analyses import breakdown
from traceprof.analyses.explanations import explanation
from traceprof.analyses.gpu_idle import BY_CAUSE, FASTEST_LAUNCHES
from traceprof.analyses.registry import FINDING_IDS, FINDINGS
from traceprof.analyses.verdict.run_result import RunResult, Verdict
from traceprof.analyses.verdict.savings import Replay, Savings
from traceprof.analysis import Analysis, Options, analyze, analyze_reports
from traceprof.execution import workers
from traceprof.findings import Basis, Finding, Saving, Severity, severity_of_cost
from traceprof.kernel_names.categories import kernel_kind
from traceprof.replay.assumptions.assumption import parse
from traceprof.replay.graph.columns import recorded
from traceprof.replay.graph.longest_path import CannotReplayError
from traceprof.replay.graph.run_graph import (
    in_this_process,
    measured_steps,
    replayed_steps,
    run_graph,
)
from traceprof.replay.graph.steps import MIN_LEAD, MIN_STEPS, Sample, sample_of, step_operations
from traceprof.replay.graph.weights import Variant
from traceprof.replay.results import Answer, Baseline
from traceprof.replay.savings import _together, savings
from traceprof.reports.text import plain, render, renderable
from traceprof.reports.whatif_text import answers_section
from traceprof.run.steady_steps import StepUse
from traceprof.run.step_ranges import StepsSource
from traceprof.units import duration

_NO_REPLAY = Options(savings=False)
_CHOSEN = {
    "gpu-idle": (*BY_CAUSE.values(), FASTEST_LAUNCHES),
    "pipeline-bubble": ("equal-stages",),
    "exposed-communication": ("communication=0", "perfect-overlap"),
}
"""The assumptions that findings choose among."""


def saving_of(result: RunResult | Verdict, id_: str) -> Saving:
    """Return what all findings of an id would save, which is the same."""
    (saving,) = {finding.saving for finding in result.findings if finding.id == id_}
    return known(saving)


def of_scenario(scenario: str, folder: Path, seed: int) -> RunResult:
    simulate_scenario(scenario, folder / "run.sqlite", seed=seed)
    return analyze_reports([folder / "run.sqlite"])


def by_finding(result: RunResult) -> list[tuple[Finding, Saving]]:
    return [(finding, finding.saving) for finding in result.findings if finding.saving is not None]


def savings_of(result: RunResult | Verdict) -> Savings:
    return known(result.headline).savings


def replay_of(result: RunResult | Verdict) -> Replay:
    return known(savings_of(result).replay)


def chosen(analysis: Analysis, max_operations: int) -> Sample:
    measured = {result.rank: result for result in analysis.result.of(breakdown)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traceprof.replay.graph.steps.MAX_OPERATIONS", max_operations)
        sample = sample_of(analysis.run, list(measured.values()))
    return known(sample)


@pytest.mark.parametrize("scenario", long_after(1, ["host-sync", "lost-run-ahead"]))
def test_a_finding_saves_what_the_simulator_gives_without_it(scenario: str, tmp_path: Path) -> None:
    setup = SCENARIOS[scenario].build(np.random.default_rng(0))
    gain = step_ns(setup.run()) - step_ns(setup.without_waits())
    saving = saving_of(of_scenario(scenario, tmp_path, 0), "host-sync")
    assert saving.basis is Basis.BOUND
    assert saving.assume == "no-sync"
    assert gain <= known(saving.high_ns) == pytest.approx(gain, rel=0.05)


def test_nothing_is_promised_that_may_not_come(tmp_path: Path) -> None:
    """Here communication may need the one before it: no communicator is recorded."""
    machine = PROGRAMS["serialized-unlabelled"].run(0)
    result = analyze_reports([machine.write(tmp_path / "run.sqlite")])
    saving, savings = saving_of(result, "nccl-serialization"), savings_of(result)
    assert saving.basis is Basis.BOUND
    assert savings.gains == ()
    assert savings.possible_high_ns == savings.possible_step_ns == known(result.headline).step_ns
    shown = " ".join(render(result, is_verbose=True).split())
    at_most = duration(saving.high_ns or 0)
    assert f"without it a step takes at most {at_most} less (no-serialization)" in shown
    assert "It could take" not in shown
    assert (saving.high_ns or 0) > 0


def test_nothing_counts_twice() -> None:
    """Of a step of 1 ms; what is gone with another finding, a limit, or noise counts nothing."""
    replay: Any = SimpleNamespace(baseline=Baseline(1000, 1000, 4, 4, ()), misfit_ns=50)
    headline: Any = SimpleNamespace(step_ns=1000)
    gains = {"a": 300, "b": 200, "a+b": 400, "c": 500, "d": 90, "a+b+d": 440}
    answers = {
        (*text.split("+"),): Answer(
            text, text == "c", 1000 - gain, 980 - gain, 1020 - gain, change_ns=-gain
        )
        for text, gain in gains.items()
    }
    assumed = {
        "host-stall": ("a",), "gpu-idle": ("a",), "nccl-serialization": ("b",),
        "exposed-copy": ("c",), "overlap-slowdown": ("d",),
    }  # fmt: skip
    found = _together(headline, replay, assumed, answers, map)
    assert [astuple(gain) for gain in found.gains] == [
        ("host-stall", "a", 300, 700), ("nccl-serialization", "b", 100, 600),
    ]  # fmt: skip
    possible = found.possible_low_ns, found.possible_step_ns, found.possible_high_ns
    assert possible == (580, 600, 620)


def test_nothing_is_promised_whose_interval_begins_below_the_least_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = of_scenario("nccl-serialization", tmp_path, 1)
    (gain,), headline = savings_of(result).gains, known(result.headline)
    low_ns = saving_of(result, gain.finding).low_ns or 0
    assert 0.01 * headline.step_ns < low_ns < gain.gain_ns
    between = (low_ns + gain.gain_ns) / 2 / headline.step_ns
    monkeypatch.setattr("traceprof.replay.savings.MIN_SHARE", between)
    assert savings_of(analyze_reports([tmp_path / "run.sqlite"])).gains == ()


def _by_memory_ns(rank: Rank) -> int:
    """Return how long kernels ran that only read and write memory, but for those on lists."""
    kernels = [
        op
        for op in rank.operations
        if str(kernel_kind(op.demangled).category) in BY_MEMORY and not is_list(op)
    ]
    return length(union([(op.start, op.end) for op in kernels]))


def test_without_a_replay_a_finding_saves_at_most_what_goes_with_it() -> None:
    result = analyze_reports([SAMPLE], _NO_REPLAY)
    assert savings_of(result).replay is None
    steps = {
        rank.rank: [step.measures for step in rank.steps if step.use is StepUse.STEADY]
        for rank in result.breakdown
    }
    assert len(by_finding(result)) == len(result.findings) > 0
    plain = read(SAMPLE)
    for finding, saving in by_finding(result):
        assert saving.basis is Basis.BOUND
        assert saving.assume is None
        rest = mean([step.window_ns - step.compute_ns for step in steps[finding.rank]])
        idle, copies, communication = (
            1.01
            * max(mean([getattr(step, part) for step in of_rank]) for of_rank in steps.values())
            for part in ("idle_ns", "exposed_copy_ns", "communication_ns")
        )
        # Beside four steady steps, one costs as much; and the host launches them. A compiler may
        # also fuse what is in no chain.
        fused = 1.01 * finding.impact_ns / 5
        by_memory = 1.01 * _by_memory_ns(plain[finding.rank]) / 5
        least, most = {
            "gpu-idle": (min(idle, rest),) * 2,
            "host-sync": (1.01 * finding.impact_ns / 5, rest),
            # No kernel beside it ever ran alone at its place: it may lose all of that time.
            "exposed-communication": (communication,) * 2,
            "exposed-copy": (min(copies, rest),) * 2,
            "unfused-kernels": (0.99 * fused, by_memory + idle),
        }[finding.id]
        assert least - 1 <= (saving.high_ns or 0) <= most + 1


@pytest.mark.parametrize(
    "selected", [Options(), Options(steps=(5, 9)), Options(time_range=(5_000_000, 20_000_000))]
)
def test_periods_without_calls_are_not_replayed(selected: Options, tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(40):
        for place, name in enumerate(("ampere_sgemm_nn", "relu", "softmax", "ampere_sgemm_tn")):
            start = 1_000_000 * step + 200_000 * place + 1000
            builder.kernel(start, start + 150_000, name=name, launch=False)
    result = analyze_reports([builder.write(tmp_path / "run.sqlite")], options=selected)
    assert {rank.steps_source for rank in result.breakdown} == {StepsSource.PERIOD}
    assert by_finding(result)
    assert all(saving.basis is Basis.BOUND for _, saving in by_finding(result))
    assert "no CUDA API calls" in str(savings_of(result).replay)


def test_steps_in_which_nothing_ends_cannot_be_replayed() -> None:
    with analysis_of(SAMPLE_FOLDER / "healthy.sqlite") as analysis:
        rank = analysis.run.ranks[0]
        assert rank.steps is not None
        steps = rank.steps.chosen(np.arange(2))
        steps = structs.replace(steps, end_ns=np.zeros(2, np.int64))
        sample = Sample({rank.rank: steps}, (0, 1), {})
        with pytest.raises(CannotReplayError, match=f"of rank {rank.rank} was over"):
            step_operations(rank, 0, recorded([(0, rank)]), sample)


def test_what_no_answer_is_known_of_is_unknown(tmp_path: Path) -> None:
    """A replay whose checks fail says nothing, and not that nothing makes a step shorter."""
    simulate_scenario("host-sync", tmp_path / "run.sqlite", seed=1)
    damaged(tmp_path / "run.sqlite", tmp_path / "cut.sqlite", "launch calls of a thread")
    result = analyze_reports([tmp_path / "cut.sqlite"])
    assert savings_of(result).possible_step_ns is None
    replay = replay_of(result)
    (lost,) = (known(gate.value) for gate in replay.gates if gate.name == "launches")
    assert lost > 0.01
    lacks = f"the report lacks the calls that launched {100 * lost:.1f} % of the operations"
    assert lacks in (replay.refused or "")
    assert f"What it could take is unknown: {lacks}" in " ".join(
        render(result, is_verbose=True).split()
    )


@pytest.mark.parametrize("jobs", long_after(1, [2, 1]))
def test_opened_again_or_still_open_it_is_the_same(jobs: int, tmp_path: Path) -> None:
    simulate_scenario("host-sync", tmp_path / "run.sqlite", seed=1)
    with closing(analyze(tmp_path / "run.sqlite")) as analysis:
        whole = analyze_reports([tmp_path / "run.sqlite"], jobs=jobs)
        assert analysis.findings == whole.findings
        assert savings_of(analysis.result) == savings_of(whole)


def test_what_cannot_be_read_again_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several reports: they were measured elsewhere, or would be too many."""
    for number in (0, 1):
        simulate_scenario("host-sync", tmp_path / f"{number}.sqlite", seed=number)
    monkeypatch.setattr("traceprof.replay.savings.MAX_READ_AGAIN", 10)
    paths = [tmp_path / "0.sqlite", tmp_path / "1.sqlite"]
    result = analyze_reports(paths)
    why = replay_of(result).refused
    assert "2 reports would have to be read again" in (why or "")
    assert savings_of(result).possible_step_ns is None
    assert replay_of(analyze_reports(paths, Options(savings=True))).refused != why


# -- samples --------------------------------------------------------------------------------------


def test_a_sample_is_replayed_as_it_was_measured(tmp_path: Path) -> None:
    """What was launched before the sample is left out, and changes nothing in it."""
    simulate_ddp(tmp_path / "run.sqlite", gpus=2, steps=40, kernels_per_step=60, seed=3)
    with closing(analyze(tmp_path / "run.sqlite", options=_NO_REPLAY)) as analysis:
        sample = chosen(analysis, 1)
        graph = run_graph(analysis, [Variant(), Variant(parse("no-sync").change)], sample)
        steps, *_ = replayed_steps(graph)
        assert len(steps) == MIN_STEPS
        assert np.array_equal(steps[:, 0], measured_steps(graph))
        for rank in sample.steps.values():
            assert len(rank) == MIN_STEPS + MIN_LEAD + 1
        middle = mean([step.number for step in analysis.result.breakdown[0].steps])
        assert np.mean(sample.compared) == pytest.approx(middle, abs=1)
        by_number = {
            step.number: [rank.steps[step.number].measures.window_ns for rank in
                          analysis.result.breakdown]
            for step in analysis.result.breakdown[0].steps
        }  # fmt: skip
        numbers = range(sample.compared[0], sample.compared[1] + 1)
        assert steps[:, 0].tolist() == [np.mean(by_number[number]) for number in numbers]


def test_processes_prepare_the_replay_that_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "can_fork", lambda: True)  # although tests leave threads behind
    monkeypatch.setattr(workers, "MIN_OPERATIONS_OF_A_PROCESS", 1)
    simulate_ddp(tmp_path / "run.sqlite", gpus=3, steps=20, kernels_per_step=60, seed=3)
    variants = [Variant(), Variant(parse("no-sync").change), Variant(parse("link=2x").change)]
    with closing(analyze(tmp_path / "run.sqlite", options=_NO_REPLAY)) as analysis:
        sample = chosen(analysis, 1)
        alone, shared = (
            run_graph(analysis, variants, sample, map_items=map_items)
            for map_items in (in_this_process, partial(workers.map_items, num_processes=2))
        )
        assert len(alone.facts) == 3
        assert all(map(np.array_equal, astuple(alone.edges), astuple(shared.edges)))
        for ours, theirs in zip(alone.matched, shared.matched, strict=True):
            assert all(map(np.array_equal, astuple(ours), astuple(theirs)))
        for number in range(alone.weights.num):
            assert np.array_equal(alone.weights.of(number), shared.weights.of(number))
        assert all(map(np.array_equal, replayed_steps(alone)[:2], replayed_steps(shared)[:2]))


def test_some_steps_say_what_all_say_and_whatif_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.sqlite"
    simulate_scenario("host-sync", path, seed=0)
    whole = saving_of(analyze_reports([path]), "host-sync")
    monkeypatch.setattr("traceprof.replay.graph.steps.MAX_OPERATIONS", 1)
    monkeypatch.setattr("traceprof.replay.graph.steps.MIN_STEPS", 3)
    result = analyze_reports([path])
    assert replay_of(result).num_steps == 3
    saving = saving_of(result, "host-sync")
    assert saving.high_ns == pytest.approx(whole.high_ns, rel=0.05)
    asked = traceprof.whatif(path, assume=["no-sync"])
    (answer,), baseline = asked.whatif.answers, known(asked.whatif.baseline)
    assert baseline.num_steps == 3 < baseline.num_measured
    assert saving.high_ns == -known(answer.change_ns) > 0
    text = plain(renderable([answers_section(asked)]))
    assert f"mean of {baseline.num_measured}, 3 of them replayed" in text


def test_only_the_steps_that_are_judged_are_replayed(tmp_path: Path) -> None:
    simulate_ddp(tmp_path / "run.sqlite", gpus=2, steps=12, kernels_per_step=60, seed=3)
    result = analyze_reports([tmp_path / "run.sqlite"], Options(steps=(4, 7)))
    assert replay_of(result).num_steps == 3
    ranges = Options(time_range=(None, None))
    begin = result.breakdown[0].steps[0].measures.window_start_ns
    short = replace(ranges, time_range=(begin, begin + 1000))
    result = analyze_reports([tmp_path / "run.sqlite"], short)
    if result.headline is not None and result.headline.savings.replay is not None:
        assert "no whole step" in (result.headline.savings.replay.refused or "")


@pytest.mark.parametrize(
    ("program", "sets_pace"), [("worker-slow", True), ("loader-steady", False)]
)
def test_a_wait_for_who_loads_without_calls_may_set_the_pace(
    program: str, sets_pace: bool, tmp_path: Path
) -> None:
    path = PROGRAMS[program].run(0).write(tmp_path / "run.sqlite")
    result = analyze_reports([path], Options(savings=True))
    saving = saving_of(result, "gpu-idle")
    assert (saving.assume, saving.sets_pace) == ("no-data-loading", sets_pace)
    assert ("may set the pace" in " ".join(render(result, is_verbose=True).split())) == sets_pace


@pytest.mark.parametrize("id_", FINDING_IDS)
def test_the_page_of_a_finding_says_what_its_saving_is(id_: str) -> None:
    page = explanation(id_).split("**What a step would gain**")[1].split("**Severity**")[0]
    page = " ".join(page.split())
    removed_by = FINDINGS[id_].removed_by
    if callable(removed_by):
        assert all(f"`{text}`" in page for text in _CHOSEN[id_])
    elif removed_by:
        (text,) = removed_by
        assert f"`{text}`" in page
        assert ("limit" in page) == parse(text).is_bound
    else:
        assert "no replay can remove it" in page


# -- real runs ------------------------------------------------------------------------------------


def test_clocks_that_disagree_leave_bounds(tmp_path: Path) -> None:
    """Calls seem to be over before what they waited for: the GPU would not matter at all."""
    path = with_late_gpu(
        SAMPLE_FOLDER / "host-sync.sqlite", tmp_path / "t.sqlite", 325_000_000, 0.01
    )
    result = analyze_reports([path])
    assert "clocks of host and GPU disagree" in (replay_of(result).refused or "")
    assert all(saving.basis is Basis.BOUND for _, saving in by_finding(result))
    assert savings_of(result).possible_step_ns is None


@pytest.mark.long
def test_a_real_sample_says_what_the_whole_run_says(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = traces / "a100x4_ddp_baseline_rank0.sqlite"
    with closing(analyze(path, options=_NO_REPLAY)) as analysis:
        whole = savings(analysis.result.verdict, analysis)
        monkeypatch.setattr("traceprof.replay.graph.steps.MAX_OPERATIONS", 10_000)
        some = savings(analysis.result.verdict, analysis)
        assert 10 <= replay_of(some).num_steps < replay_of(whole).num_steps
        assert whole.headline is not None
        for id_ in ("host-sync", "overlap-slowdown"):
            one, other = saving_of(whole, id_).step_ns, saving_of(some, id_).step_ns
            assert other == pytest.approx(one, abs=0.01 * whole.headline.step_ns)


@pytest.mark.parametrize(
    ("sample", "id_"),
    rows_long_after(
        1,
        [
            ("nccl-serialization", "nccl-serialization"), ("link-counters", "host-sync"),
            ("pipeline-sends", "nccl-serialization"), ("host-sync", "host-sync"),
            ("mpi-wait", "gpu-idle"), ("training", "gpu-idle"),
        ],
    ),
)  # fmt: skip
def test_a_limit_by_cost_allows_what_a_replay_gains(sample: str, id_: str) -> None:
    """Waits that go let copies hide, too, and each operation may wait some microseconds less."""
    path = SAMPLE_FOLDER / f"{sample}.sqlite"
    limits = {
        finding.rank: saving
        for finding, saving in by_finding(analyze_reports([path], _NO_REPLAY))
        if finding.id == id_
    }
    for finding, saving in by_finding(analyze_reports([path])):
        if finding.id == id_:
            assert (limits[finding.rank].high_ns or 0) >= (saving.step_ns or 0)


def test_compute_promises_no_more_than_it_takes_on_the_host_as_recorded(real_trace: Path) -> None:
    result = analyze_reports([real_trace])
    (answer,) = whatif(real_trace, assume=["kernel:.=0x"]).whatif.answers
    if answer.refused is not None or answer.change_ns is None or answer.low_ns is None:
        return
    most_ns = (answer.step_ns or 0) - answer.change_ns - answer.low_ns
    headline = known(result.headline)
    for finding in result.findings:
        saving = finding.saving
        if not FINDINGS[finding.id].only_compute or saving is None:
            continue
        assert (saving.high_ns or 0) <= most_ns + 1
        assert (saving.faster_host_ns or most_ns + 1) > (saving.high_ns or 0)
        assert finding.impact_fraction <= most_ns / headline.step_ns + 1e-6
        least = severity_of_cost(finding.impact_fraction)
        assert finding.severity <= (least or Severity.INFO)
