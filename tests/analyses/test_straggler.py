"""Stragglers, of ranks with a GPU or without: planted ones are found, balanced runs are silent."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator import RUN_SCENARIOS
from tests.reference.gpu_machine import Change
from tests.reference.gpu_programs import NUM_STEPS, PROGRAMS
from tests.support.builders import TraceBuilder
from tests.support.claims import only_gap, validator
from tests.support.planted import analyzed, assert_clocks, made
from tests.support.selection import known, rows_long_after
from tests.support.traces import closed_analysis, ranks_of
from traceprof.analyses import straggler
from traceprof.analyses.straggler import StragglerResult
from traceprof.analysis import Analysis
from traceprof.ranks import arrivals
from traceprof.ranks.matching import LEAVE_TOGETHER
from traceprof.reports import json as json_report
from traceprof.reports import text

pytestmark = pytest.mark.slow

Runs = Callable[..., tuple[dict[str, Any], Analysis]]

OFTEN = [("straggler-data-loading", 0), ("straggler-host", 0)]
STRAGGLERS = [name for name in RUN_SCENARIOS if name.startswith("straggler-")]
OF_CPUS = [name for name in RUN_SCENARIOS if name.startswith("cpu-straggler-")]
# Of clocks of ranks with a GPU; those of others are up to 40 ms apart.
BOUNDS = {
    True: {"error_ns": 100_000, "uncertainty_ns": 100_000},
    False: {"error_ns": 20_000, "uncertainty_ns": 1_000_000},
}
HOWS: list[dict[str, Any]] = [
    {"per_rank": False, "is_labelled": True},
    {"per_rank": True, "is_labelled": False},
    {"per_rank": False, "is_labelled": False, "schema_version": "3.7.2"},  # no payloads either
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return a function that gives the truth of a run, and what is found in it, made once."""

    @cache
    def run(name: str, how: int) -> tuple[dict[str, Any], Analysis]:
        folder = tmp_path_factory.mktemp(name) / "run"
        options = HOWS[how] if name in STRAGGLERS else {"per_rank": bool(how)}
        truth = made(name, folder, seed=4 + how, **options)
        truth["folder"] = folder
        return truth, analyzed(folder, truth)

    return run


@pytest.mark.parametrize(("is_late", "found"), [(True, [1]), (False, [])])
def test_a_rank_late_to_the_first_of_three_operations_of_a_step(
    tmp_path: Path, is_late: bool, found: list[int]
) -> None:
    program, in_time = PROGRAMS["all-at-once"], Change(late=False)
    run = program.run(0, None if is_late else in_time)
    analysis = closed_analysis(run.write(tmp_path / "run.sqlite"))
    late = [finding for finding in analysis.findings if finding.id == "straggler"]
    assert [finding.rank for finding in late] == found
    for finding in late:
        gain_ns = run.step_ns(1, 12) - program.run(0, in_time).step_ns(1, 12)
        assert finding.impact_ns / NUM_STEPS == pytest.approx(gain_ns, rel=0.15)
        assert finding.metrics["share_last"] == 1 / 3


# One always, whose analysis other tests share, and one whose wait was over before its gap; all
# causes and ways with `make verify`.
@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, marks=[] if (name, how) in OFTEN else [pytest.mark.long],
                     id=f"{name}-{source}")
        for name in STRAGGLERS
        for how, source in enumerate(("labels", "payloads", "order"))
    ]
    + rows_long_after(1, [(name, place % 2) for place, name in enumerate(OF_CPUS)]),
)  # fmt: skip
def test_a_planted_straggler_is_found(runs: Runs, name: str, how: int) -> None:
    truth, analysis = runs(name, how)
    (found,) = [finding for finding in analysis.findings if finding.id == "straggler"]
    planted, has_gpu = truth["straggler"], name in STRAGGLERS
    assert (found.metrics["rank"], found.metrics["cause"]) == (planted["rank"], planted["cause"])
    most_off_ns = 100_000 if has_gpu else 500_000
    assert found.metrics["lateness_ns"] == pytest.approx(planted["lateness_ns"], abs=most_off_ns)
    if has_gpu:
        # Operations that follow another at once are last, too; the one at a step's end is not.
        assert 0.5 <= float(found.metrics["share_last"] or 0) <= 0.8
    assert not analysis.ranks.unmatched
    document = json.loads(json_report.render(analysis.result))
    validator().validate(document)
    assert len(document["run"]["lateness"]) == 8
    assert has_gpu or all(collective["num_matched"] for collective in document["collectives"])
    assert_clocks(truth, analysis, **BOUNDS[has_gpu])


# A step of three operations, none of them late, is judged always.
@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_balanced_run_is_silent(tmp_path: Path, has_gpu: bool, seed: int) -> None:
    if has_gpu:
        truth = made("ranks-balanced", tmp_path / "run", seed=seed, is_labelled=seed % 2 == 0)
    else:
        truth = made("cpu-ranks-balanced", tmp_path / "run", seed=seed, per_rank=seed > 1)
    analysis = analyzed(tmp_path / "run", truth)
    assert_clocks(truth, analysis, **BOUNDS[has_gpu])
    assert [finding.title for finding in analysis.findings if finding.id == "straggler"] == []
    gaps = [gap for gap in analysis.not_applicable if gap.id == "straggler"]
    assert not has_gpu or gaps == []
    assert not analysis.ranks.unmatched


@pytest.mark.long
def test_one_report_of_a_run_is_no_comparison_of_machines(runs: Runs) -> None:
    truth, _ = runs("straggler-slow-kernels", 0)
    reports = [report for report in truth["reports"] if report["host"] == "node-0"]
    analysis = analyzed(truth["folder"], truth | {"reports": reports})
    assert [finding for finding in analysis.findings if finding.id == "straggler"] == []


@pytest.mark.long
def test_transfers_are_told_from_waiting(runs: Runs) -> None:
    truth, analysis = runs("straggler-slow-kernels", 0)
    late = truth["straggler"]["rank"]
    uses = {collective.rank: collective.uses[0] for collective in analysis.result.collectives}
    for rank, use in uses.items():
        assert not use.is_lower_bound
        assert use.scope == "inter-node"
        # 235 GB/s of the model's links, less 40 µs of latency for each operation.
        assert use.busbw_gb_per_s == pytest.approx(210, rel=0.05)
        planted = truth["all_reduce"]
        assert use.rate_gb_per_s == pytest.approx(planted["rate_gb_per_s"], rel=0.02)
        assert use.latency_ns is not None
        assert use.latency_ns == pytest.approx(planted["latency_ns"], rel=0.2)
        assert abs(use.latency_ns - planted["latency_ns"]) <= known(use.latency_uncertainty_ns)
        assert (known(use.wait_ns) < known(use.transfer_ns)) == (rank == late)
    waits = analysis.ranks.matrix_ns
    column = list(analysis.ranks.ranks).index(late)
    assert waits[:, column].sum() > 0.99 * waits.sum()
    assert waits[column].sum() < 0.01 * waits.sum()


@pytest.mark.long
@pytest.mark.parametrize("name", ["ranks-balanced", "straggler-data-loading"])
def test_intervals_of_latencies_hold_them(tmp_path: Path, name: str) -> None:
    holds = []
    for seed in range(20):
        truth = made(name, tmp_path / f"{seed}", seed=seed)
        use = analyzed(tmp_path / f"{seed}", truth).result.collectives[0].uses[0]
        planted = truth["all_reduce"]
        assert use.latency_ns is not None
        assert use.latency_uncertainty_ns is not None
        assert use.latency_uncertainty_ns < 0.2 * planted["latency_ns"]
        assert use.rate_gb_per_s == pytest.approx(planted["rate_gb_per_s"], rel=0.02)
        holds.append(abs(use.latency_ns - planted["latency_ns"]) <= use.latency_uncertainty_ns)
    assert sum(holds) >= 19  # of 20: 95 %


@pytest.mark.long
def test_the_peak_between_machines_is_what_the_user_says(runs: Runs) -> None:
    truth, analysis = runs("ranks-balanced", 0)
    unknown = analysis.result.collectives[0].uses[0]
    assert (unknown.peak_gb_per_s, unknown.utilization) == (None, None)
    analysis = analyzed(truth["folder"], truth, link_peaks=["network=250"])
    told = analysis.result.collectives[0].uses[0]
    assert told.peak_gb_per_s == 250
    assert told.utilization == pytest.approx(0.84, abs=0.02)


@pytest.mark.long
def test_the_order_of_the_reports_does_not_matter(runs: Runs) -> None:
    truth, one = runs("straggler-data-loading", 0)
    other = analyzed(truth["folder"], truth | {"reports": truth["reports"][::-1]})
    place = {rank.pid: rank.rank for rank in one.run.ranks}
    same = {rank.rank: place[rank.pid] for rank in other.run.ranks}
    (first,) = [finding for finding in one.findings if finding.id == "straggler"]
    (second,) = [finding for finding in other.findings if finding.id == "straggler"]
    assert same[second.rank] == first.rank
    assert second.metrics["cause"] == first.metrics["cause"]
    # The reference is another machine: differences of offsets stay what they are.
    offsets = [
        {clock.host: clock.offset_ns for clock in analysis.ranks.clocks.hosts}
        for analysis in (one, other)
    ]
    moved = [offsets[0][host] - offsets[1][host] for host in offsets[0]]
    assert max(moved) - min(moved) < 50_000


def test_ranks_closer_than_the_clocks_tell_are_not_resolvable(runs: Runs) -> None:
    _, analysis = runs("straggler-data-loading", 0)
    met = analysis.ranks
    blurred = tuple(
        replace(
            wait,
            uncertainty_ns=wait.uncertainty_ns + 50_000_000,
            is_last=np.zeros_like(wait.is_last),
        )
        for wait in met.waits
    )
    found = only_gap(straggler.findings(StragglerResult(replace(met, waits=blurred), ())))
    assert "not resolvable: the clocks of node-0, node-1, node-2, node-3" in found.reason
    assert straggler.findings(StragglerResult(replace(met, waits=()), ())) == []


def test_the_text_shows_the_ranks_on_one_clock(runs: Runs) -> None:
    _, analysis = runs("straggler-data-loading", 0)
    shown = " ".join(text.render(analysis.result, is_verbose=True).split())
    assert "Ranks on one clock" in shown
    assert "it waited for its data loader" in shown
    assert "come from their order" in shown
    assert "Communication, after all ranks have arrived" in shown
    assert "AllReduce …00000008 nodes" in shown


@pytest.mark.long
def test_steps_restrict_what_is_judged(runs: Runs) -> None:
    truth, whole = runs("straggler-data-loading", 0)
    some = analyzed(truth["folder"], truth, steps=(10, 15))
    (of_all,) = [finding for finding in whole.findings if finding.id == "straggler"]
    (of_some,) = [finding for finding in some.findings if finding.id == "straggler"]
    assert of_some.metrics["rank"] == of_all.metrics["rank"]
    assert of_some.metrics["num_operations"] == 5 * 4
    assert whole.ranks.clocks == some.ranks.clocks  # which all operations tell


def test_a_call_without_a_flight_is_done_if_another_flew_later(tmp_path: Path) -> None:
    builder = TraceBuilder()
    facts = "bytes=400 dtype=float32 group=0 rank=0 size=2"
    builder.label(f"all_reduce {facts} seq=0", 0, 10)  # synchronous
    builder.label(f"all_reduce {facts} seq=1", 20, 22)
    builder.label(f"all_reduce {facts} seq=1", 20, 40, in_flight=True)
    builder.label(f"all_reduce {facts} seq=2", 50, 52)  # cut off, or synchronous: nothing tells
    builder.label("barrier group=0 rank=0 size=2 seq=3", 60, 70)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        result = arrivals.run(rank, rank.window)
    assert result.sequence.tolist() == [0, 1, 3]
    assert result.end_ns.tolist() == [10, 40, 70]


def test_time_is_spent_by_the_ranges_and_the_rest_is_other(tmp_path: Path) -> None:
    builder = TraceBuilder()
    facts = "bytes=400 dtype=float32 group=0 rank=0 size=2"
    builder.label("data loading", 0, 10)
    builder.label("forward", 15, 40)
    builder.label(f"all_reduce {facts} seq=0", 20, 25)
    builder.label("backward", 40, 100)
    builder.label(f"all_reduce {facts} seq=1", 50, 52)
    builder.label(f"all_reduce {facts} seq=1", 50, 90, in_flight=True)
    builder.label("barrier group=0 rank=0 size=2 seq=2", 110, 120)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        result = arrivals.run(rank, rank.window)
    at = dict.fromkeys(arrivals.TIME_CATEGORIES, 0)
    first = at | {"compute": 5, "data loading": 10, "other": 5}
    assert result.cumulative_ns_at_start[0].tolist() == list(first.values())
    assert result.spent_inside_ns[0].tolist() == list((at | {"communication": 5}).values())
    last = at | {"compute": 78, "communication": 7, "data loading": 10, "other": 15}
    assert result.cumulative_ns_at_start[2].tolist() == list(last.values())
    for times, spent in (
        (result.start_ns, result.cumulative_ns_at_start),
        (result.end_ns, result.cumulative_ns_at_start + result.spent_inside_ns),
    ):
        assert spent.sum(axis=1).tolist() == times.tolist()
    names = [result.operations[index] for index in result.operation.tolist()]
    assert names == ["AllReduce", "AllReduce", "Barrier"]
    assert names[2] in LEAVE_TOGETHER
