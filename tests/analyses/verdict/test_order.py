"""The order in which to act: proven gains, then limits, then costs; held on real traces, too.

Of limits that of a wait which may set the pace comes first.
"""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.traces import SAMPLES, analysis_of
from traceprof.analyses.verdict.headline import as_parts, in_order, limits
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.savings import Gain
from traceprof.findings import Basis, Finding, Saving, Severity, by_id
from traceprof.reports import markdown, text
from traceprof.reports.time_text import beyond_gains, limits_text

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


PACING = replace(Saving.at_most(300, "no-data-loading"), sets_pace=True)


def test_proven_gains_come_first_then_limits_then_costs() -> None:
    expected = [
        made("overlap-slowdown", replayed(300, 250, 350)),
        made("straggler", replayed(20, 11, 500)),  # proven, by little
        made("gpu-idle", PACING),  # others would only wait longer
        made("exposed-copy", Saving.at_most(900), severity=Severity.HIGH),
        made("launch-queue-stall", replayed(700, 10, 800)),  # it may be noise
        made("full-precision-matmul", Saving.at_most(400, "x")),
        made("link-saturated", Saving.unknown("nobody knows"), impact_ns=99),
        made("link-underused", impact_ns=98),
        made("unfused-kernels", Saving.at_most(900), impact_ns=9, severity=Severity.INFO),
        made("small-collectives", impact_ns=8, severity=Severity.INFO),
    ]
    mixed = expected.copy()
    random.Random(1).shuffle(mixed)
    assert [one.id for one in in_order(mixed, STEP_NS)] == [one.id for one in expected]


def test_a_wait_that_hardly_costs_anything_is_not_put_first_as_it_may_set_the_pace() -> None:
    findings = [
        made("gpu-idle", replace(PACING, high_ns=10)),
        made("straggler", Saving.at_most(11)),
    ]
    assert [one.id for one in in_order(findings, STEP_NS)] == ["straggler", "gpu-idle"]


@pytest.mark.parametrize(
    ("limit_ns", "gain_ns", "named"),
    [(400, 150, True), (400, 200, False), (400, None, False), (None, 10, False)],
)
def test_a_limit_far_above_all_gains_is_named_beside_them(
    limit_ns: int | None, gain_ns: int | None, *, named: bool
) -> None:
    findings = [made("host-sync", replayed(500, 450, 550))]  # an estimate is no limit
    for rank, share in enumerate((1, 2) if limit_ns else ()):  # of a rank, what it can gain
        limit = Saving.at_most((limit_ns or 0) // share, "half-precision")
        findings.append(made("full-precision-matmul", limit, rank=rank))
    gains = () if gain_ns is None else (Gain("host-sync", "no-sync", gain_ns, STEP_NS - gain_ns),)
    said = " Far beyond that: at most 400 ns less without full-precision-matmul."
    assert beyond_gains(findings, STEP_NS, gains) == (said if named else "")


def test_the_limit_of_what_sets_the_pace_is_named_before_larger_ones() -> None:
    findings = in_order([made("exposed-copy", Saving.at_most(900)), made("gpu-idle", PACING)], 1000)
    gains = (Gain("host-sync", "no-sync", 20, STEP_NS - 20),)
    assert "at most 300 ns less without gpu-idle" in beyond_gains(findings, STEP_NS, gains)
    assert limits_text(findings, STEP_NS) == (
        "Of what a replay can remove, gpu-idle comes first: at most 300 ns less by no-data-loading"
    )


def test_limits_are_gains_above_noise_of_which_nothing_is_promised() -> None:
    bounds = [
        made("exposed-copy", Saving.at_most(900)),  # all time that it involves
        made("launch-queue-stall", replayed(500, 0, 800)),
        made("full-precision-matmul", Saving.at_most(10, "x")),
    ]
    others = [
        made("overlap-slowdown", replayed(300, 250, 350)),
        made("host-stall", replayed(700, 1, 800)),
        made("pageable-copy", Saving.at_most(9, "x")),
        made("straggler", Saving.unknown("nobody knows")),
        made("link-underused"),
    ]
    ordered = in_order([*others, *bounds], STEP_NS)
    assert limits(ordered, STEP_NS) == [(one, one.saving) for one in bounds]
    assert limits_text(ordered, STEP_NS) == (
        "At most 900 ns less without exposed-copy, which no replay can remove here; of what a"
        " replay can remove, launch-queue-stall comes first: at most 800 ns less by no-sync"
    )
    assert "no finding" in limits_text(bounds[:1], STEP_NS)


def test_ranks_of_a_finding_stay_together_where_the_first_is() -> None:
    findings = [
        made("exposed-copy", Saving.at_most(40), rank=0),
        made("gpu-idle", Saving.at_most(50), rank=0),
        made("exposed-copy", Saving.at_most(60), rank=1),
    ]
    ordered = [(one.id, one.rank) for one in in_order(findings, STEP_NS)]
    assert ordered == [("exposed-copy", 1), ("exposed-copy", 0), ("gpu-idle", 0)]


def test_a_part_says_of_what_and_stands_before_it_where_both_gain_as_much() -> None:
    same = replayed(200, 190, 210)
    findings = [
        made("gpu-idle", same, 300, 0),
        made("host-sync", same, 200, 0),
        made("host-sync", same, 200, 1),  # its rank does not idle
        made("pageable-copy", None, 300),
        made("exposed-copy", None, 299),  # cannot hold all of it
    ]
    ordered = in_order(as_parts(findings, findings), STEP_NS)
    assert [one.id for one in ordered[:3]] == ["host-sync", "host-sync", "gpu-idle"]
    parts = {(one.id, one.rank): one.part_of for one in ordered if one.part_of}
    assert parts == {("host-sync", 0): "gpu-idle"}


@pytest.mark.parametrize(
    ("saving", "severity"),
    [
        (replayed(12, 11, 13), Severity.LOW),
        (replayed(12, 10, 13), Severity.INFO),  # not above 1 %
        (Saving.at_most(900, "copies-hidden"), Severity.INFO),
        (None, Severity.INFO),
    ],
)
def test_a_proven_gain_is_no_mere_information(saving: Saving | None, severity: Severity) -> None:
    (finding,) = in_order([made("host-sync", saving, severity=Severity.INFO)], STEP_NS)
    assert finding.severity is severity
    high = made("host-sync", saving, severity=Severity.HIGH)
    assert in_order([high], STEP_NS)[0].severity is Severity.HIGH


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_samples_keep_the_order(sample: Path) -> None:
    with analysis_of(sample) as analysis:
        _check(analysis.result)


def test_real_traces_keep_the_order(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        _check(analysis.result)


def _check(result: RunResult) -> None:
    headline = result.headline
    if headline is None:
        assert not result.findings
        return
    least_ns = 0.01 * headline.step_ns
    groups = by_id(result.findings)
    assert [*result.findings] == [finding for group in groups for finding in group]
    kinds = [_kind(group, least_ns) for group in groups]
    assert kinds == sorted(kinds, key=lambda kind: (kind[0], -kind[1]))
    savings = headline.savings
    if savings.gains:
        assert (savings.possible_high_ns or 0) < headline.step_ns - least_ns
    named = [finding.id for finding in headline.causes]
    assert len(named) <= 3
    assert named == [group[0].id for group in groups if group[0].id in named]
    for finding in headline.causes:
        assert finding.saving is not None
        assert finding.saving.high_ns is None or finding.saving.high_ns >= least_ns
    assert all(gain.gain_ns > least_ns for gain in headline.savings.gains)
    for group in groups:
        for one in group:
            assert one.saving is not None
            assert bool(one.saving.why) == (one.saving.assume is None)
    for place, group in enumerate(groups[:3]):
        advised = [advice[:30] for one in group if one.impact_ns for advice in one.advice[:1]]
        for report in (text.render(result), markdown.render(result).replace("\\", "")):
            assert not advised or any(one in report for one in advised), place


def _kind(group: list[Finding], least_ns: float) -> tuple[int, int]:
    """Say how much is known of a gain, and how much it is."""
    best = (9, 0)
    for one in group:
        saving = one.saving
        assert saving is not None
        if saving.basis is Basis.REPLAY and (saving.low_ns or 0) > least_ns:
            assert one.severity > Severity.INFO
            kind = (0, saving.step_ns or 0)
        elif saving.sets_pace and (saving.high_ns or 0) > least_ns:
            kind = (1, saving.high_ns or 0)
        else:
            known = 3 if saving.high_ns is None else 2
            kind = (known + 2 * (one.severity is Severity.INFO), saving.high_ns or 0)
        best = min(best, kind, key=lambda kind: (kind[0], -kind[1]))
    return best
