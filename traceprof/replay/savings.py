"""Savings: the gain of a step without each finding, and without all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.gpu_idle import BY_CAUSE
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.verdict.headline import MIN_SHARE, Headline, in_order
from traceprof.analyses.verdict.run_result import Verdict
from traceprof.analyses.verdict.savings import Gain, Gate, Replay, Savings, within_reach
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.findings import Basis, Finding, Saving, Severity, by_id, severity_of_cost, share
from traceprof.host.idle_causes import IdleCause
from traceprof.intervals import Int64
from traceprof.replay.assumptions.assumption import Assumption, combined, parse
from traceprof.replay.checked_replay import CheckedReplay, cannot_be_replayed, checked_replay
from traceprof.replay.graph.process_part import BRINGING, unseen_pace
from traceprof.replay.graph.run_graph import MapItems, in_this_process
from traceprof.replay.graph.steps import longest_phases, sample_of
from traceprof.replay.pass_model import EQUAL, equal_step, why_no_stages
from traceprof.replay.results import Answer, Refusal
from traceprof.replay.whatif import MAX_WITHOUT_STEPS, answered, with_floor
from traceprof.run.rank import WindowKind

MAX_READ_AGAIN = 2_000_000
"""Operations up to which reports that were measured elsewhere are read again for a replay."""
_PARTS = (WindowKind.STEPS, WindowKind.TIME_RANGE)


def savings(
    verdict: Verdict, analysis: OpenAnalysis, map_items: MapItems = in_this_process
) -> Verdict:
    """Return a verdict with the step's savings without each finding, and without all of them.

    If the replay does not agree with the measurement, findings keep their upper bound.
    """
    headline = verdict.headline
    assumed = {id_: atoms for id_, atoms in verdict.assumed.items() if atoms != _BY_PASSES}
    is_compute = {finding.id for finding in verdict.findings if FINDINGS[finding.id].only_compute}
    if headline is None or not (assumed or is_compute):
        return verdict
    distinct = list(dict.fromkeys([*assumed.values(), *([_NO_COMPUTE] if is_compute else [])]))
    assumptions = [combined(map(parse, atoms)) for atoms in distinct]
    replay = _replayed(analysis, assumptions, map_items)
    if isinstance(replay, Refusal):
        gates = () if replay.baseline is None else replay.baseline.gates
        return not_replayed(verdict, replay.why, replay.how_to_collect, gates)
    answers = {
        atoms: answered(replay, place, assumption)
        for place, (atoms, assumption) in enumerate(zip(distinct, assumptions, strict=True))
    }
    is_paced = unseen_pace(replay.graph.facts) is not None
    groups = by_id(verdict.findings)
    part_of_cost = {group[0].id: FINDINGS[group[0].id].share_of(group) for group in groups}
    costs = {group[0].id for group in groups if any(finding.impact_ns for finding in group)}
    saved = [
        replace(
            finding,
            saving=_saving_of(
                finding,
                answers[assumed[finding.id]],
                part_of_cost[finding.id],
                costs=finding.id in costs,
                limits_only=replay.brings_batches,
                sets_pace=is_paced and BY_CAUSE[IdleCause.DATA_LOADING] in assumed[finding.id],
            ),
        )
        if finding.id in assumed
        else finding
        for finding in verdict.findings
    ]
    within = within_reach(saved, analysis.measured.of(breakdown))
    if is_compute:
        within = _as_recorded(within, answers[_NO_COMPUTE], headline.step_ns)
    findings = in_order(within, headline.step_ns)
    atoms_of = {
        finding.id: assumed[finding.id]
        for finding in findings
        if finding.id in costs and finding.id in assumed
    }
    savings = _together(headline, replay, atoms_of, answers, map_items)
    headline = replace(headline.updated(findings), savings=savings)
    return replace(verdict, findings=findings, headline=headline)


_NO_COMPUTE = ("kernel:.=0x",)
_BY_PASSES = ("equal-stages",)  # the only assumption that the replay knows nothing of


def _as_recorded(findings: Sequence[Finding], answer: Answer, step_ns: int) -> tuple[Finding, ...]:
    """Limit findings about compute to what a step gains if compute takes no time.

    The host as recorded sets the pace then. `answer`: the replay without time for compute.
    """
    if answer.refused is not None:
        return tuple(findings)
    most_ns = _saving(answer).high_ns or 0
    return tuple(
        _held_by_host(finding, most_ns, step_ns)
        if FINDINGS[finding.id].only_compute and finding.elsewhere is None
        else finding
        for finding in findings
    )


def _held_by_host(finding: Finding, most_ns: int, step_ns: int) -> Finding:
    """Limit cost and saving of a finding to what a step gains without all its compute, in ns."""
    saving, most = finding.saving, share(most_ns, step_ns)
    if saving is not None and (saving.high_ns or 0) > most_ns and not saving.low_ns:
        saving = replace(saving, high_ns=most_ns, faster_host_ns=saving.high_ns)
    if finding.impact_fraction <= most:
        return replace(finding, saving=saving)
    return replace(
        finding,
        saving=saving,
        impact_ns=int(finding.impact_ns * most / finding.impact_fraction),
        impact_fraction=most,
        severity=min(finding.severity, severity_of_cost(most) or Severity.INFO),
    )


def not_replayed(
    verdict: Verdict, why: str, how: str | None, gates: tuple[Gate, ...] = ()
) -> Verdict:
    """Return a verdict that says why no step was replayed, and how to change that."""
    if verdict.headline is None or not verdict.assumed:
        return verdict
    savings = Savings(replay=Replay(0, gates, why, how))
    findings = tuple(
        replace(finding, saving=_without_answer(finding.saving, why))
        if finding.id in verdict.assumed
        else finding
        for finding in verdict.findings
    )
    headline = replace(verdict.headline.updated(findings), savings=savings)
    return replace(verdict, findings=findings, headline=headline)


def by_passes(verdict: Verdict, measured: MeasuredRun) -> Verdict:
    """Return a verdict with limits from the model of passes where the replay gave none."""
    if verdict.headline is None:
        return verdict
    findings = tuple(_by_passes(finding, verdict, measured) for finding in verdict.findings)
    if findings == verdict.findings:
        return verdict
    findings = in_order(findings, verdict.headline.step_ns)
    return replace(verdict, findings=findings, headline=verdict.headline.updated(findings))


def _by_passes(finding: Finding, verdict: Verdict, measured: MeasuredRun) -> Finding:
    atoms, saving = verdict.assumed.get(finding.id, ()), finding.saving
    if len(atoms) != 1 or atoms[0] not in EQUAL:
        return finding
    if saving is not None and saving.assume == atoms[0]:
        return finding
    known = equal_step(measured, atoms[0])
    if known is None and atoms == _BY_PASSES:
        why = why_no_stages(measured)
        saving = saving if why is None else _without_answer(saving, why.why)
        return replace(finding, saving=saving)
    if known is None or not finding.impact_ns:
        return finding
    share = FINDINGS[finding.id].share_of([f for f in verdict.findings if f.id == finding.id])
    limit = Saving.at_most(known.step_ns - known.equal_ns, atoms[0], known.sentence)
    return replace(finding, saving=replace(limit, share=share))


def num_operations(measured: MeasuredRun) -> int:
    """Return the number of GPU operations of all ranks in all that was asked for."""
    wholes = [rank.whole for rank in measured.of(breakdown)]
    return sum(whole.num_kernels + whole.num_communication + whole.num_copies for whole in wholes)


def _replayed(
    analysis: OpenAnalysis, assumptions: Sequence[Assumption], map_items: MapItems
) -> CheckedReplay | Refusal:
    breakdowns = analysis.measured.of(breakdown)
    steps: dict[int, Int64] | None = None
    if any(result.judged_kind in _PARTS for result in breakdowns):
        refusal = cannot_be_replayed(analysis)
        if refusal is not None:
            return refusal
        steps = {result.rank: _steps_inside(result) for result in breakdowns}
        steps.update(longest_phases(breakdowns) or {})
        if len(steps) < len(analysis.run.ranks) or not all(map(len, steps.values())):
            why = "some rank has no whole step in the selection"
            return Refusal(why, "select more steps, or all")
    sample = sample_of(analysis.run, breakdowns, steps)
    num = sum(len(rank.operations) for rank in analysis.run.ranks)
    if sample is None and steps is not None:
        return Refusal("the selected steps cannot be distinguished from others", None)
    if sample is None and num > MAX_WITHOUT_STEPS:
        return Refusal(
            f"{num} operations are too many to replay in every analysis, and no steps are known"
            " from which a sample could be taken",
            "mark steps, or run `traceprof whatif`, which replays all operations",
        )
    return checked_replay(analysis, assumptions, sample, map_items=map_items)


def _steps_inside(result: BreakdownResult) -> Int64:
    judged = result.judged
    end_ns = judged.window_end_ns
    return np.array(
        [
            step.number
            for step in result.steps
            if step.measures.window_start_ns >= judged.window_start_ns
            and step.measures.window_end_ns <= end_ns
        ],
        np.int64,
    )


def _gain(answer: Answer) -> int:
    return max(-(answer.change_ns or 0), 0)


def _without_answer(bound: Saving | None, why: str) -> Saving | None:
    """Return the upper bound of a saving, with the reason why no better one is known."""
    if bound is None or bound.high_ns is None:
        return bound
    return replace(bound, why=f"the limit is all time that it involves, since {why}")


def _saving_of(
    finding: Finding,
    answer: Answer,
    share: float | None,
    *,
    costs: bool,
    sets_pace: bool,
    limits_only: bool,
) -> Saving | None:
    """Return a finding's saving, or its bound without an answer; None if it costs nothing."""
    if answer.refused is not None:
        return _without_answer(finding.saving, answer.refused)
    saving = _saving(answer)
    if saving.high_ns and not costs:
        return None
    bound = finding.saving
    if limits_only and bound is not None and (bound.high_ns or 0) <= (saving.high_ns or 0):
        return _without_answer(bound, BRINGING)
    return replace(saving, share=share, sets_pace=sets_pace)


def _saving(answer: Answer) -> Saving:
    before = (answer.step_ns or 0) - (answer.change_ns or 0)
    least = 0 if answer.is_too_small else max(before - (answer.high_ns or 0), 0)
    most = max(before - (answer.low_ns or 0), 0)
    if answer.is_bound:
        return Saving.at_most(most, answer.assume)
    return Saving(_gain(answer), least, most, Basis.REPLAY, answer.assume)


def _together(
    headline: Headline,
    replay: CheckedReplay,
    assumed: Mapping[str, tuple[str, ...]],
    answers: Mapping[tuple[str, ...], Answer],
    map_items: MapItems,
) -> Savings:
    """Return the step time without all findings that a replay can remove, one after the other.

    `assumed`: the assumptions of each finding. It counts if its additional saving is above noise,
    and its interval begins above 1 % of the step.
    """
    baseline = replay.baseline
    gates = with_floor(baseline, answers.values()).gates
    known = {id_: atoms for id_, atoms in assumed.items() if answers[atoms].refused is None}
    if assumed and not known:
        refused = answers[next(iter(assumed.values()))]
        return Savings(
            replay=Replay(baseline.num_steps, gates, refused.refused, refused.how_to_collect)
        )
    before = headline.step_ns
    least = MIN_SHARE * before
    worth = [
        (id_, atoms)
        for id_, atoms in known.items()
        if not answers[atoms].is_bound and (_saving(answers[atoms]).low_ns or 0) > least
    ]
    gains: list[Gain] = []
    atoms: tuple[str, ...] = ()
    last: Answer | None = None
    for id_, needed in worth:
        added = tuple(atom for atom in needed if atom not in atoms)
        if not added:
            continue
        together = (*atoms, *added)
        answer = answers.get(together)
        if answer is None:
            assumption = combined(map(parse, together))
            again = _replayed(replay.analysis, [assumption], map_items)
            if isinstance(again, Refusal):
                continue
            answer = answered(again, 0, assumption)
        if answer.refused is not None or (_saving(answer).low_ns or 0) <= least:
            continue
        gain = _gain(answer) - (0 if last is None else _gain(last))
        if gain <= max(replay.misfit_ns, least):
            continue
        step = max(before - _gain(answer), 0)
        gains.append(Gain(id_, " + ".join(added), gain, step))
        atoms, last = together, answer
    saving = None if last is None else _saving(last)
    return Savings(
        possible_step_ns=before if saving is None else max(before - (saving.step_ns or 0), 0),
        possible_low_ns=before if saving is None else max(before - (saving.high_ns or 0), 0),
        possible_high_ns=before if saving is None else max(before - (saving.low_ns or 0), 0),
        gains=tuple(gains),
        replay=Replay(baseline.num_steps, gates, None, None),
    )
