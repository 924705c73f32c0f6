"""What-if questions: the length of a step under assumptions, from a validated replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown
from traceprof.analyses.verdict.savings import RESOLUTION
from traceprof.errors import REPORT_IT, UsageError
from traceprof.execution.open_reports import Measurer, OpenAnalysis, close_reports
from traceprof.execution.options import Options, checked, listed
from traceprof.intervals import Float64
from traceprof.progress import UNHEARD, Progress
from traceprof.replay.assumptions.assumption import (
    Assumption,
    Way,
    combined,
    defaults,
    parse,
    ways_of,
)
from traceprof.replay.assumptions.run_change import missing_event_records
from traceprof.replay.checked_replay import (
    MAX_BELOW_FLOOR,
    MIN_HELD_OUT,
    CheckedReplay,
    checked_replay,
    floor_gate,
)
from traceprof.replay.critical_path import critical_paths, step_path
from traceprof.replay.graph.process_part import BRINGING
from traceprof.replay.graph.steps import sample_of
from traceprof.replay.pass_model import EQUAL, equal_step
from traceprof.replay.results import Answer, Asked, Baseline, Refusal, StepPath, WhatIf
from traceprof.run.guard import collected_failures, optional
from traceprof.trace.grouping import quantiles_of
from traceprof.trace.open import AnyPath, report_paths
from traceprof.units import duration

_DRAWS, _SEED = 1000, 1
MAX_WITHOUT_STEPS = 1_000_000
"""Without known steps the whole training is replayed, up to this number of operations."""
MIN_SURE = 0.1
"""Least over greatest gain, of all readings of what is not recorded; with less, a limit is said."""
_OTHER_COMMUNICATORS = (
    "operations that wait for communication are assumed not to need earlier communication of"
    " other communicators on its stream; if they do, the gain is smaller"
)
_HIDDEN_WAITS = (
    "threads without recorded activity until the GPU had finished its work"
    " may or may not have waited for it, and waiting calls may disappear or"
    " stay: the interval covers both"
)
_WITHOUT_EVENTS = (
    "what streams waited for is not recorded: they are assumed to have waited for everything"
    " launched before; if they waited for less, the gain is larger"
)


def _refused(assumption: Assumption, why: Refusal, *, is_bound: bool = False) -> Answer:
    is_bound |= assumption.is_bound
    return Answer(assumption.text, is_bound, refused=why.why, how_to_collect=why.how_to_collect)


def _no_answers(_: OpenAnalysis, assume: Iterable[str] = (), __: object = None) -> WhatIf:
    why = Refusal("the replay failed", REPORT_IT)
    refused = tuple(_refused(assumption, why, is_bound=True) for assumption in _chosen(assume))
    return WhatIf(None, refused, (), why.why, REPORT_IT)


@optional("replay", otherwise=_no_answers)
def answers_to(
    analysis: OpenAnalysis, assume: Iterable[str] = (), progress: Progress = UNHEARD
) -> WhatIf:
    """Estimate the step time under each assumption, and all together; without any, the defaults.

    For a long run, steps from the middle of the training are replayed.
    """
    assumptions = _chosen(assume)
    questions = assumptions or defaults()
    progress.expect(len(questions))
    sample = sample_of(analysis.run, analysis.measured.of(breakdown))
    replay = checked_replay(analysis, questions, sample, progress=progress)
    if isinstance(replay, Refusal):
        known = tuple(_by_passes(analysis, _refused(question, replay)) for question in questions)
        return WhatIf(replay.baseline, known, (), replay.why, replay.how_to_collect)
    answers = []
    for place, assumption in enumerate(questions):
        answers.append(_by_passes(analysis, answered(replay, place, assumption)))
        progress.advance(1)
    if not assumptions:  # what cannot be assumed of this run, however recorded, is no answer then
        answers = [reply for reply in answers if reply.refused is None or reply.how_to_collect]
    baseline = with_floor(replay.baseline, answers)
    return WhatIf(baseline, tuple(answers), critical_paths(replay.graph), None, None)


def _by_passes(analysis: OpenAnalysis, reply: Answer) -> Answer:
    """Answer with the model of passes if the replay has no answer and the model has one."""
    if reply.refused is None or reply.assume not in EQUAL:
        return reply
    known = equal_step(analysis.measured, reply.assume)
    if known is None:
        return reply
    is_too_small = known.step_ns - known.equal_ns < RESOLUTION * known.step_ns
    note = known.sentence
    if reply.assume != "equal-stages":
        note = f"{note}; no replay says it, since {reply.refused}"
    return _limit(reply.assume, known.equal_ns, known.step_ns, is_too_small, note)


def with_floor(baseline: Baseline, answers: Iterable[Answer]) -> Baseline:
    """Return a baseline with the gate that no answer lies below a step's least time."""
    below = max((reply.below_floor for reply in answers), default=0.0)
    return replace(baseline, gates=(*baseline.gates, floor_gate(below)))


def answered(replay: CheckedReplay, place: int, assumption: Assumption) -> Answer:
    """Return the step time under an assumption; `place`: its index in the replay."""
    text, now = assumption.text, replay.baseline.step_ns
    condition = assumption.condition(replay.analysis)
    under, ways, entries = replay.of(place, assumption), ways_of(assumption), assumption.entries
    # A limit without the spread of an estimate is what the replay says.
    is_bound = any(entry.is_bound and not entry.has_spread for entry in entries)
    is_bound |= replay.brings_batches
    if isinstance(under, Refusal):
        return _refused(assumption, under, is_bound=is_bound)
    lengths, before = under.steps[:, ways], replay.as_it_is[:, ways]
    step, share, misfit = float(replay.baseline.step_ns), replay.share, replay.misfit_ns
    paced = [] if under.paced is None else [under.paced[:, ways]]
    others = [other[:, ways] for other in under.otherwise]
    changes = [
        change for some in (lengths, *paced) for change in (share @ (some - before)).tolist()
    ]
    change = changes[0]
    floor, least = (min(ns, step) for ns in replay.least_ns(place, assumption))
    is_open = assumption.is_bound or (
        -min(changes) > misfit and max(changes) > MIN_SURE * min(changes)
    )
    changes += [change for some in others for change in (share @ (some - before)).tolist()]
    if any(entry.frees_host for entry in entries):
        gained = np.maximum(before - lengths, 0.0)[:, Way.PLAIN]
        quick = before[:, Way.PLAIN] - lengths[:, Way.QUICK_HOST]
        changes.append(-float(share @ np.minimum(2 * gained, np.maximum(quick, gained))))
    resolution = max(misfit / step if step else 0.0, RESOLUTION)
    off = abs(min(changes) if is_bound else change) * resolution
    if is_bound or is_open:
        # By its end, the first step counts nothing: it may be the one that gains most.
        by_begin = [replay.share_by_begin @ (some - before) for some in (lengths, *others)]
        changes += [*np.concatenate(by_begin).tolist(), replay.own_change_ns(place, assumption)]
    if is_bound:  # whatever is not known of the run, no change gains more
        if all(entry.is_bound for entry in entries) and min(changes) >= 0:
            # What only removes time makes no step longer: that is noise.
            changes.append(float(share @ np.minimum(lengths - before, 0.0)[:, Way.PLAIN]))
        loading_ns = max(part.loader_ns for part in replay.graph.facts) * assumption.keeps_loading
        at = max(round(step + min(changes) - off), round(max(floor, min(loading_ns, step))), 0)
        is_of_communication = all(entry.of_communication for entry in entries)
        if replay.brings_batches and is_of_communication and not replay.communication.any():
            at = now
        is_too_small = min(abs(min(changes)), abs(now - at)) <= misfit
        return _limit(text, at, now, is_too_small, condition, BRINGING * replay.brings_batches)
    spreads = [
        np.minimum(_spreads(some, share), _spreads(some - before, share))
        for some in (lengths, *paced, *others)
    ]
    more = [spreads[0].max()] * (len(changes) - len(ways) * len(spreads))
    spread = np.concatenate([*spreads, more])
    # Steps that are cut elsewhere count one less at either end.
    gained = (lengths - before)[:, Way.PLAIN]
    cut = [float(shares @ gained) for shares in _without_ends(share)]
    low = step + min(*(changes - spread), *cut) - max(off, -min(changes) * resolution)
    high = step + max(*(changes + spread), *cut) + off
    high = min(high, step) if max(changes) <= 0 else high
    below = max(1 - high / least, 0.0) if least else 0.0
    if below > MAX_BELOW_FLOOR:
        why = (
            f"the replay gives {duration(round(step + change))}, less than the"
            f" {duration(round(least))} that the remaining work takes on the GPU: it overlaps"
            " kernels that ran one after the other"
        )
        missing = missing_event_records(replay.analysis, replay.graph, "what streams waited for")
        how = None if missing is None else missing.how_to_collect
        return Answer(text, is_bound=is_open, refused=why, how_to_collect=how, below_floor=below)
    change, low, high = max(change, least - step), max(low, floor), max(high, least)
    low = max(round(low), 0)
    at = low if is_open else max(round(step + change), 0)
    return Answer(
        text,
        is_bound=is_open,
        step_ns=at,
        low_ns=low,
        high_ns=low if is_open else round(high),
        change_ns=at - round(step),
        is_too_small=abs(min(changes) if is_open else change) <= misfit,
        note=_note(condition, under.note, changes, off),
    )


def _limit(text: str, at: int, now: int, is_too_small: bool, *notes: str) -> Answer:
    note = "; ".join(filter(None, notes))
    return Answer(text, True, at, at, at, at - now, is_too_small=is_too_small, note=note)


def _note(condition: str, paced: str, changes: Sequence[float], off: float) -> str:
    """Return an answer's caveats.

    `paced`: that about data loading. `changes`: of a step, by `Way`, with an error of `off`, ns.
    """
    change, hidden = changes[Way.PLAIN], changes[Way.HIDDEN_WAITS : Way.FREED_WAITS + 1]
    notes = {
        condition: True,
        paced: True,
        _OTHER_COMMUNICATORS: changes[Way.WHOLE_STREAMS] > change + off,
        _WITHOUT_EVENTS: changes[Way.FEWEST_WAITS] < change - off,
        _HIDDEN_WAITS: min(hidden) < change - off or max(hidden) > change + off,
    }
    return "; ".join(note for note, holds in notes.items() if note and holds)


def _without_ends(share: Float64) -> list[Float64]:
    """Return the weights of steps without the first step, and without the last one."""
    counted = np.flatnonzero(share)
    if len(counted) <= MIN_HELD_OUT:
        return []
    left = [np.where(np.arange(len(share)) == end, 0.0, share) for end in counted[[0, -1]]]
    return [shares / shares.sum() for shares in left]


def _spreads(lengths: Float64, share: Float64) -> Float64:
    """Return half widths of 95 % bootstrap intervals of mean steps, float64[w], ns.

    `lengths`: float64[s, w], ns; `share`: float64[s], weights of the steps.
    """
    counts = np.flatnonzero(share)
    if len(counts) < 2:
        return np.zeros(lengths.shape[1])
    draws = counts[np.random.default_rng(_SEED).integers(0, len(counts), (_DRAWS, len(counts)))]
    whole = share[draws].sum(axis=1)
    means = [of_way[draws].sum(axis=1) / whole for of_way in lengths.T * share]
    return np.diff(quantiles_of(means, (0.025, 0.975)), axis=0)[0] / 2


def whatif(
    *paths: AnyPath | Iterable[AnyPath],
    assume: Iterable[str] = (),
    paths_of: Iterable[int] = (),
    options: Options | None = None,
    listener: Progress | None = None,
    jobs: int | None = None,
) -> Asked:
    """Estimate the time of a training step of a run under assumptions.

    Args:
        paths: the reports of one run, folders of them, patterns, or lists of these.
        assume: assumptions, such as `no-sync` or `link=2x`: each is answered, and if there are
            several, then all of them together. Without any, every single one that needs no value.
        paths_of: the numbers of the steps whose critical paths are wanted.
        options: how to read the reports.
        listener: receives the number of rows read.
        jobs: the maximum number of processes; by default one for each processor core.

    Raises:
        TraceprofError: no report can be read, or there is no such assumption or step.
    """
    texts = listed("assume", assume, str)
    _chosen(texts)  # report mistakes before any report is read
    steps = listed("paths_of", paths_of, int)
    measurer = Measurer.of(dataclasses.replace(checked(options), measures_all=True), listener, jobs)
    analysis = measurer.measured(measurer.opened(report_paths(paths)))
    try:
        with collected_failures() as failures:
            result = answers_to(analysis, texts)
            critical = tuple(_path_of(analysis, step) for step in steps)
    finally:
        close_reports(analysis.run.traces)
    missing = (*analysis.measured.failures, *failures)
    return Asked(analysis.measured.run, result, analysis.measured.failed, critical, missing)


def _chosen(texts: Iterable[str]) -> list[Assumption]:
    chosen = [parse(text) for text in texts]
    return [*chosen, combined(chosen)] if len(chosen) > 1 else chosen


def _path_of(analysis: OpenAnalysis, step: int) -> StepPath:
    path = step_path(analysis, step)
    if path is not None:
        return path
    steps = [
        {step.number for step in result.steps if step.is_training}
        for result in analysis.measured.of(breakdown)
    ]
    known = sorted(set.intersection(*steps)) if steps else []
    raise UsageError(
        f"cannot follow the critical path of step {step}",
        "it is not a training step in which every rank has calls and work on a GPU",
        f"choose one of its {len(known)} from {known[0]} to {known[-1]}"
        if known
        else "this run has no training step that every rank has",
    )


def refusal_of(analysis: OpenAnalysis) -> Refusal | None:
    """Return why the steps of a run, or its training, cannot be replayed; None if they can."""
    measured = analysis.measured.of(breakdown)
    sample = sample_of(analysis.run, measured) if measured else None
    num = sum(len(rank.operations) for rank in analysis.run.ranks)
    if sample is None and num > MAX_WITHOUT_STEPS:
        return Refusal(f"no steps are known, and {num} operations are too many", "mark steps")
    replay = checked_replay(analysis, (), sample)
    return replay if isinstance(replay, Refusal) else None
