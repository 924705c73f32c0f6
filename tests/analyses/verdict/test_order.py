"""The order in which to act: by cost, then by what is expected; and as an expert acts."""

import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Busy
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.training import WORLD, programs
from tests.reference.expert_orders import EXPERT_ORDERS
from tests.support.builders import ALL_REDUCE, US, How, TraceBuilder
from tests.support.changes import recorded
from tests.support.kept_claims import Kept
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE_FOLDER, SAMPLES, analysis_of, result_of
from traceprof.analyses.verdict.headline import as_parts, in_order
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.three_lines import (
    MAX_WORDS,
    share_of_step,
    small_fixes,
    three_lines,
    why_more,
)
from traceprof.analyses.verdict.yields import expected_ns
from traceprof.analysis import Options, analyze, analyze_reports
from traceprof.findings import Basis, Finding, Saving, Severity, by_id, worst_of
from traceprof.reports import markdown, text

STEP_NS = 1000


def made(
    id_: str,
    saving: Saving | None = None,
    impact_ns: int = 50,
    rank: int = 0,
    severity: Severity = Severity.LOW,
) -> Finding:
    return Finding(id_, severity, rank, "it is so", impact_ns, impact_ns / 1000, {}, saving=saving)


def replayed(step_ns: int, low_ns: int, high_ns: int) -> Saving:
    return Saving(step_ns, low_ns, high_ns, Basis.REPLAY, "no-sync")


ORDERS = {
    # Their limit is all their time; they come after a wait that costs more.
    "of kernels with few blocks only what is idle is expected": [
        made("host-sync", Saving.at_most(90)),
        made("few-blocks", Saving.at_most(900)),
    ],
    "a cause of two fifths of a symptom stands before it": [
        made("host-sync", Saving.at_most(9), 20),
        made("gpu-idle", Saving.at_most(50), severity=Severity.HIGH),
        made("exposed-copy", Saving.at_most(900), severity=Severity.MEDIUM),
    ],
    "a cause of less does not": [
        made("gpu-idle", Saving.at_most(50), severity=Severity.HIGH),
        made("exposed-copy", Saving.at_most(900), severity=Severity.MEDIUM),
        made("host-sync", Saving.at_most(9), 19),
    ],
    "a cause stands before the symptom that is large": [
        made("pipeline-bubble", Saving.at_most(40), 100, severity=Severity.HIGH),
        made("exposed-communication", Saving.at_most(90), 90, severity=Severity.HIGH),
        made("gpu-idle", Saving.at_most(50), 95, severity=Severity.HIGH),
    ],
    "not before a small part of it": [
        made("pipeline-bubble", Saving.at_most(40), 100, severity=Severity.HIGH),
        made("gpu-idle", Saving.at_most(50), 95, severity=Severity.HIGH),
        made("exposed-communication", Saving.at_most(10), 10, severity=Severity.HIGH),
    ],
    "ranks of a finding stay together where the first is": [
        made("exposed-copy", Saving.at_most(60), rank=1),
        made("exposed-copy", Saving.at_most(40)),
        made("gpu-idle", Saving.at_most(50)),
    ],
    "what holds its stream up stands before what it explains": [
        made("nccl-serialization", Saving.at_most(400), 290),
        made("exposed-communication", Saving.at_most(400), 480, severity=Severity.HIGH),
    ],
    "what may be in order stands before nothing that is more": [
        made("exposed-communication", Saving.at_most(400), 480, severity=Severity.HIGH),
        made("nccl-serialization", Saving.at_most(400), 290, severity=Severity.INFO),
    ],
    # Its host launches late: fewer kernels gain more there than on other ranks.
    "a late rank stands before what gains more than it costs": [
        made("straggler", Saving.at_most(300), 600, severity=Severity.HIGH),
        made("unfused-kernels", Saving.at_most(900), 200, severity=Severity.HIGH),
    ],
    "the cost comes first, then what is expected": [
        made("exposed-copy", Saving.at_most(100), severity=Severity.HIGH),
        made("straggler", replayed(300, 250, 350)),
        made("link-saturated", Saving.at_most(400, "x")),  # seven tenths of it are expected
        made("unfused-kernels", replayed(700, 0, 300)),  # nothing is promised: a limit
        made("link-underused", impact_ns=98),
        made("launch-queue-stall", replayed(700, 690, 710), severity=Severity.INFO),
    ],
}


@pytest.mark.parametrize("rule", ORDERS)
def test_rules(rule: str) -> None:
    expected = [(one.id, one.rank) for one in ORDERS[rule]]
    mixed = ORDERS[rule].copy()
    random.Random(1).shuffle(mixed)
    for findings in (mixed, mixed[::-1]):
        assert [(one.id, one.rank) for one in in_order(findings, STEP_NS)] == expected


def test_small_fixes_are_named_with_what_proves_them_whatever_their_place() -> None:
    copies = replace(
        made("exposed-copy", impact_ns=4_000_000),
        advice=("Copy less", "1.2 ms of gradients (12 times): gradient_as_bucket_view=True"),
    )
    pageable = replace(made("pageable-copy", impact_ns=3_000_000), advice=("pin_memory=True",))
    idle = replace(made("gpu-idle"), advice=("Overlap the copy: pin_memory=True",))
    assert small_fixes([idle]) is None
    assert small_fixes([idle, pageable, copies]) == (
        "Small and certain: gradient_as_bucket_view=True (1.2 ms of gradients);"
        " pin_memory=True (pageable-copy)."
    )


def test_a_part_says_of_what_and_stands_before_it_where_both_gain_as_much() -> None:
    same = replayed(200, 190, 210)
    findings = [
        made("gpu-idle", same, 300, 0),
        made("host-sync", same, 200, 0),
        made("host-sync", same, 200, 1),  # its rank does not idle
        made("pageable-copy", None, 200),
        made("exposed-copy", None, 199),  # cannot hold all of it
    ]
    ordered = in_order(as_parts(findings, findings), STEP_NS)
    assert [one.id for one in ordered[:3]] == ["host-sync", "host-sync", "gpu-idle"]
    parts = {(one.id, one.rank): one.part_of for one in ordered if one.part_of}
    assert parts == {("host-sync", 0): "gpu-idle"}


@cache
def _causes(path: Path) -> tuple[str, ...]:
    headline = analyze_reports([path]).headline
    return () if headline is None else tuple(finding.id for finding in headline.causes)


def _report(folder: Path, name: str) -> Path:
    (path, *_) = (
        path
        for path in (folder / f"{name}{end}" for end in ("", ".sqlite", ".json.gz", *_PROFILER))
        if path.exists()
    )
    return path


_PROFILER = (".pt.trace.json.gz", ".json")
_MISSES = 4  # of all of them; the first choice of 16 in 18 has to agree


@pytest.mark.long
def test_an_expert_acts_on_the_same_first(traces: Path) -> None:
    firsts = {
        name: (expected[0], _causes(_report(traces, name))[:1])
        for name, expected in EXPERT_ORDERS.items()
    }
    misses = {name: pair for name, pair in firsts.items() if pair[1] != pair[:1]}
    assert len(firsts) >= 18
    assert len(misses) <= _MISSES, misses


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_keep_the_order(sample: Path) -> None:
    with analysis_of(sample) as analysis:
        _check(analysis.result)


@pytest.mark.cpu_export
def test_real_traces_keep_the_order(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        _check(analysis.result)


def with_checkpoints(idle_us: int) -> TraceBuilder:
    """Build 60 steps of 10 ms; in three a checkpoint takes 100 ms, which the mean leaves out."""
    trace, at = TraceBuilder(), 0
    for step in range(60):
        for place in range(5):
            busy = (10_000 - idle_us) * US // 5
            trace.kernel(at, at + busy, f"gemm_{place}", launch=(at - 5 * US, at - 4 * US))
            at += busy
        at += idle_us * US
        if step % 16 == 15:
            trace.nvtx("save_checkpoint", at, at + 100_000 * US - 10 * US)
            at += 100_000 * US
    return trace


def with_rare_work(name: str, num_steps: int = 40, every: int = 8, first: int = 7) -> TraceBuilder:
    """Build marked steps of 10 ms; in some the host is for 50 ms in a range, and they count."""
    trace, at = TraceBuilder(), 0
    for step in range(num_steps):
        begin = at
        for place in range(5):
            trace.kernel(at, at + 2_000 * US, f"gemm_{place}", launch=(at, at + US))
            at += 2_000 * US
        if step % every == first:
            trace.nvtx(name, at - 3_000 * US, at + 50_000 * US - 10 * US)
            at += 50_000 * US
        trace.nvtx(f"step {step}", begin, at - US)
    return trace


def that_changes(second_half: float, idle_us: int = 0) -> TraceBuilder:
    """Build 80 steps, whose kernels take so many times as long in the second half."""
    noise, trace, at = np.random.default_rng(1), TraceBuilder(), 300_000 * US
    trace.kernel(0, at // 2, "warm_up", launch=(-5 * US, -4 * US))  # a doubt: it is not judged
    for step in range(80):
        usual = 2_000 * US * (second_half if step >= 40 else 1)
        for place in range(5):
            end = at + round(usual * noise.normal(1, 0.02))
            trace.kernel(at, end, f"gemm_{place}", launch=(at - 5 * US, at - 4 * US))
            at = end
        at += idle_us * US
    return trace


def that_grows() -> TraceBuilder:
    """Build 40 steps, each a twentieth of the first one longer than the one before."""
    trace, at = TraceBuilder(), 0
    for step in range(40):
        for place in range(5):
            end = at + (20 + step) * 100 * US
            trace.kernel(at, end, f"gemm_{place}", launch=(at - 5 * US, at - 4 * US))
            at = end
    return trace


def computing(idle_us: int = 0, **kernels_us: int) -> TraceBuilder:
    """Build 20 steps of these kernels, after which the GPU idles."""
    trace, at = TraceBuilder(), 0
    for _ in range(20):
        for name, length_us in kernels_us.items():
            end = at + length_us * US
            trace.kernel(at, end, f"{name}(float*)", launch=(at - 5 * US, at - 4 * US))
            at = end
        at += idle_us * US
    return trace


def reducing(num_ranks: int) -> TraceBuilder:
    """Build ranks that reduce: of one alone nothing shows how long its collectives wait."""
    trace, reduced = TraceBuilder(), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(void*)"
    for step in range(20):
        for rank in range(num_ranks):
            at, how = step * 1_000 * US, How(pid=1000 + rank, device=rank)
            how["launch"] = at - 9 * US, at - 8 * US
            trace.kernel(at, at + 500 * US, "gemm(float*)", **how)
            how["launch"], how["stream"] = (at - 7 * US, at - 6 * US), 20
            trace.kernel(at + 502 * US, at + 990 * US, reduced, **how)
    return trace


def on_a_rank_whose_clock_falls() -> TraceBuilder:
    """That is rank 1; rank 0, whose step takes as long, waits in the all-reduce."""
    trace, at = TraceBuilder(), 0
    noise = np.random.default_rng(1)
    for step in range(40):
        long = [round(2_000 * US * noise.normal(1, 0.01)) for _ in range(2)]
        long[1] = long[1] * 13 // 10 if step >= 20 else long[1]
        end = at + max(long) + 100 * US
        for rank in range(2):
            how = How(pid=1000 + rank, device=rank, launch=(at - 9 * US, at - 8 * US))
            trace.kernel(at, at + long[rank], "gemm(float*)", **how)
            how["launch"], how["stream"] = (at - 7 * US, at - 6 * US), 20
            trace.kernel(at + long[rank], end - rank * US, ALL_REDUCE, **how)
        at = end + 5 * US
    return trace


PROGRAMS: dict[str, Callable[[], TraceBuilder]] = {
    "rare checkpoints": lambda: with_checkpoints(0),
    "more idle time than rare checkpoints": lambda: with_checkpoints(9_000),
    "checkpoints in steps that count": lambda: with_rare_work("save_checkpoint"),
    "a checkpoint is read in the first step": lambda: with_rare_work("load_checkpoint", 40, 40, 0),
    "code of the host in steps that count": lambda: with_rare_work("upload"),
    "one slow step that counts": lambda: with_rare_work("data loading", 13, 13),
    "steps that become longer": lambda: that_changes(1.3),
    "steps that grow, none of them slow": that_grows,
    "more idle time than steps become longer by": lambda: that_changes(1.3, 9_000),
    "steps that become shorter, as after a warm-up": lambda: that_changes(0.7),
    "steps that stay as they are": lambda: that_changes(1),
    "steps that become longer on one of two ranks": on_a_rank_whose_clock_falls,
    "mostly one kernel": lambda: computing(sweep=900, norm=500, update=50),
    "mostly one category": lambda: computing(sweep=450, norm=400, gemm_a=500, gemm_b=500),
    "mostly two kernels": lambda: computing(sweep=450, update=450, scale=300),
    "five kernels": lambda: computing(sweep=450, update=450, scale=450, shift=450, sum=450),
    "compute and little idle time": lambda: computing(80, sweep=900, norm=500),
    "compute and more idle time": lambda: computing(300, sweep=900, norm=500),
    "communication of one rank alone": lambda: reducing(1),
    "communication of two ranks": lambda: reducing(2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    result = result_of(PROGRAMS[name]().write(tmp_path))
    _, _, page = text.render(result).partition("\n\n")
    kept(filter(None, page[: page.index("Where the time went")].splitlines()))
    assert len(" ".join(known(three_lines(result)).lines).split()) <= MAX_WORDS


def test_a_rank_that_starts_late_is_no_cost_of_a_step(tmp_path: Path, kept: Kept) -> None:
    """Others wait for it once: no remedy is due, and no gain of a usual step."""

    def step(host: Host) -> None:
        host.operator(host.compute, "aten::linear", *kernels.FORWARD * 3)
        host.collective("all_reduce", WORLD, host.nccl, 40 << 20, after=host.compute)
        host.follow(host.compute, host.nccl)

    first, late = programs(np.random.default_rng(2), 12, step)
    late.actions.insert(0, Busy(200_000 * US))
    path = recorded(Setup((first, late), lambda _: []), tmp_path / "late.sqlite")
    kept(known(three_lines(result_of(path))).lines)


@pytest.mark.parametrize(
    ("copy_us", "is_apart", "severity"),
    [(50, False, Severity.INFO), (5_000, False, Severity.HIGH), (50, True, Severity.HIGH)],
)
def test_findings_of_a_rank_that_hardly_ran(
    tmp_path: Path, copy_us: int, is_apart: bool, severity: Severity
) -> None:
    """A copy is all that a second process did, a moment or a third of the other one's time.

    In a report of its own it was given to be judged.
    """
    trace = TraceBuilder()
    other = TraceBuilder() if is_apart else trace
    for number in range(20):
        at = number * 700 * US
        trace.kernel(at, at + 600 * US, "sweep(float*)", launch=(at - 5 * US, at - 4 * US))
    other.memcpy(0, copy_us * US // 2, pid=2000, device=1)
    other.memcpy(copy_us * US // 2, copy_us * US, pid=2000, device=1)
    paths = [trace.write(tmp_path / "0.sqlite")]
    paths += [other.write(tmp_path / "1.sqlite")] if is_apart else []
    findings = analyze(*paths).findings
    (copied,) = [finding for finding in findings if finding.id == "exposed-copy"]
    assert (copied.rank, copied.severity) == (1, severity)


def test_a_cause_that_gains_nothing_hides_no_symptom() -> None:
    headline = result_of(SAMPLE_FOLDER / "host-stall.sqlite").headline
    assert headline is not None
    step_ns = headline.step_ns
    idle = made("gpu-idle", Saving.at_most(step_ns // 2), step_ns // 2)
    for gain, named in ((0, "gpu-idle"), (step_ns // 3, "host-sync")):
        waits = made("host-sync", Saving.at_most(gain), step_ns // 3)
        said = replace(headline, worst=(waits, idle)).causes
        assert [one.id for one in said] == [named]


@pytest.mark.parametrize("name", long_after(1, ["host-stall", "exposed-waiting", "warm-up"]))
def test_a_filter_changes_no_verdict(name: str) -> None:
    """What is skipped is not listed; `only` measures too little for a verdict on the run."""
    path = SAMPLE_FOLDER / f"{name}.sqlite"
    whole = result_of(path)
    said = three_lines(whole)
    first = whole.findings[0].id
    options = (
        Options(skip=[first]),
        Options(skip=[finding.id for finding in whole.findings]),
        Options(only=["few-blocks"], measures_all=True),
        Options(only=[first], measures_all=True),
    )
    for some in options:
        listed = analyze_reports([path], options=some)
        assert three_lines(listed) == said is not None
        assert listed.headline == whole.headline
        assert listed.findings == tuple(
            finding
            for finding in whole.findings
            if finding.id not in some.skip and (not some.only or finding.id in some.only)
        )
        hidden = {gap.id for gap in listed.not_applicable} & {*some.skip}
        assert not hidden
    assert three_lines(analyze_reports([path], options=Options(only=[first]))) is None


def _check(result: RunResult) -> None:
    headline = result.headline
    if headline is None:
        assert not result.findings
        return
    least_ns = 0.01 * headline.step_ns
    groups = by_id(result.findings)
    assert [*result.findings] == [finding for group in groups for finding in group]
    for before, after in pairwise(groups):  # a cause may stand before what it explains
        # The cost of a rank that computes longer lies beyond the mean: of two, half of the wait.
        if before[0].severity < after[0].severity and before[0].id != "uneven-kernels":
            assert before[0].impact_ns >= 0.4 * after[0].impact_ns
    if headline.savings.gains:
        assert (headline.savings.possible_high_ns or 0) < headline.step_ns - least_ns
    named = [finding.id for finding in headline.causes]
    assert len(named) <= 3
    assert named == [group[0].id for group in groups if group[0].id in named]
    for finding in headline.causes:
        assert finding.saving is not None
        assert finding.most_ns is None or finding.most_ns >= least_ns
        assert expected_ns(finding, headline.step_ns) <= headline.step_ns
    assert all(gain.gain_ns > least_ns for gain in headline.savings.gains)
    for group in groups:
        for one in group:
            assert one.saving is not None
            is_modelled = "a model of passes" in (one.saving.why or "")
            assert bool(one.saving.why) == (one.saving.assume is None or is_modelled)
    verdict = three_lines(result)
    assert verdict is not None
    assert len(" ".join(verdict.lines).split()) <= MAX_WORDS
    short = " ".join(text.render(result).split())
    assert len(short.split()) <= _MAX_PAGE
    _check_gains_beyond_costs(result, short)
    for report in (short, " ".join(text.render(result, is_verbose=True).split())):
        assert all(" ".join(line.split()) in report for line in verdict.lines)
    page = markdown.render(result).replace("\\", "")
    assert verdict.problem in page
    assert verdict.action is None or verdict.action.rstrip(".") in page


def _check_gains_beyond_costs(result: RunResult, short: str) -> None:
    """A report says why a step gains clearly more without a finding than that costs."""
    assert result.headline is not None
    for group in by_id(result.findings)[:4]:
        worst = worst_of(group)
        cost_ns = round(share_of_step(worst, result.breakdown) * result.headline.step_ns)
        why = why_more(worst, round(1.51 * cost_ns)) if cost_ns else None
        if why is not None and worst.severity > Severity.INFO:
            assert f"{worst.id} ({why})" in short


def test_waits_of_a_host_gain_more_than_their_idle_time_and_why_is_said() -> None:
    finding = made("host-sync", Saving.at_most(300), 100)
    assert why_more(finding, 100) == "waits while the GPU works go, too"
    assert why_more(finding, 290) is None


@pytest.mark.parametrize(
    ("id_", "assume", "others_wait_ns", "why"),
    [
        ("uneven-kernels", "equal-kernels", 90, "other ranks wait for them"),
        (
            "uneven-kernels",
            "equal-kernels",
            None,
            "that is only what lies beyond the mean of all ranks",
        ),
        ("host-stall", "no-host-stall", None, None),
    ],
)
def test_what_gains_more_than_it_costs_where_waits_of_others_are_not_known(
    id_: str, assume: str, others_wait_ns: int | None, why: str | None
) -> None:
    finding = replace(
        made(id_, Saving.at_most(300, assume)), metrics={"others_wait_ns": others_wait_ns}
    )
    assert why_more(finding, 100) == why


_MAX_PAGE = 400  # words
