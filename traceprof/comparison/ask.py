"""Public entry point of comparisons: what changed, its interval, and the parts it comes from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from traceprof.analyses.steps import CAUSES, PARTS
from traceprof.analyses.verdict.phases import phase_name
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Analysis
from traceprof.comparison.between import BothSides, spreads
from traceprof.comparison.findings import findings, sentence, to_decide, verdict_of
from traceprof.comparison.gates import GateLimit, judged, parse
from traceprof.comparison.kernels import communication, kernels, modules
from traceprof.comparison.series import Captures, Series, phases_of, series, unrecorded, why_unlike
from traceprof.comparison.sides import (
    LoadedSide,
    Source,
    check_allowed,
    comparable,
    loaded,
    stored_with,
    why_incomplete,
)
from traceprof.documents import comparison as d
from traceprof.documents.analysis.model import Document
from traceprof.errors import UsageError
from traceprof.execution.options import Options, checked, listed, num_jobs
from traceprof.progress import Progress
from traceprof.run.mean_change import (
    MIN_STEPS,
    Interval,
    MeanChange,
    mann_whitney,
    trend,
    usual_change,
)
from traceprof.run.periods import about_periods
from traceprof.units import duration
from traceprof.version import __version__

_ONE = (str, os.PathLike, Analysis, RunResult, Document)


def compare(
    before: Source | Iterable[Source],
    after: Source | Iterable[Source],
    *,
    gates: Iterable[str] = (),
    allow_different: Collection[str] = (),
    one_recording: bool = False,
    runs: str | os.PathLike[str] | None = None,
    labels: Mapping[str, str] | None = None,
    options: Options | None = None,
    listener: Progress | None = None,
    jobs: int | None = None,
) -> d.Comparison:
    """Compare two sides.

    Args:
        before: a report, a folder of them, a saved JSON analysis, `runs.db#NAME`, an `Analysis`, or
            several of these: reports of ranks are one recording, others are repetitions.
        after: the same, of the other side.
        gates: limits that must be kept, such as `step:+2%`.
        allow_different: what may differ without making the sides incomparable: `gpu`,
            `world-size`, `recording` (the same one on both sides), `steps`.
        one_recording: judge gates by two recordings alone, whatever others would differ by.
        runs: a store with runs of the unchanged program: how much these differ is taken from them.
        labels: which of its runs.
        options: what to analyse of reports.
        listener: receives progress updates.
        jobs: how many processes may analyse.

    Raises:
        TraceprofError: a side cannot be read, a gate is none, or a difference is none.
    """
    check_allowed(listed("allow_different", allow_different, str))
    limits = [parse(gate) for gate in listed("gates", gates, str)]
    options = checked(options)
    num_jobs(jobs)  # before anything is read
    sources = _sources("before", before), _sources("after", after)
    sides = [
        loaded(side, how, listener=listener, jobs=jobs)
        for side, how in zip(sources, (options, without_predictions(options)), strict=True)
    ]
    earlier = () if runs is None else stored_with(runs, labels or {})
    return compared(
        sides[0], sides[1], limits, allow_different, earlier, one_recording=one_recording
    )


def _sources(name: str, side: object) -> list[Source]:
    sources = [side] if isinstance(side, _ONE) else side if isinstance(side, Iterable) else None
    listed_sources = [*sources] if sources is not None else []
    if not listed_sources or not all(isinstance(source, _ONE) for source in listed_sources):
        raise UsageError(
            f"cannot compare {name}={side!r}"[:200],
            "it is not a report, analysis or stored run, or a list of these",
            "give a path, `runs.db#NAME`, an Analysis, or a list of these",
        )
    return listed_sources


def without_predictions(options: Options) -> Options:
    """Return options for a side whose findings need no savings."""
    return replace(options, savings=False)


def compared(
    before: LoadedSide,
    after: LoadedSide,
    gates: Sequence[GateLimit] = (),
    allow_different: Collection[str] = (),
    runs: Captures = (),
    *,
    one_recording: bool = False,
) -> d.Comparison:
    """Compare two sides that have been read; arguments are those of `compare`.

    `runs`: analyses of the unchanged program, recorded before.
    """
    unlike = why_unlike(before.captures, after.captures)
    if unlike is not None:
        before, after = before.without_periods(), after.without_periods()
    sides = BothSides(series(before.captures), series(after.captures), spreads(runs))
    old, new = sides.before, sides.after
    changes = _parts({name: new.means[name] - old.means[name] for name in old.means})
    matched = kernels(before.captures, after.captures, changes.compute_ns)
    checked = comparable(before.captures, after.captures, allow_different)
    step = _step(sides, is_comparable=checked.is_comparable)
    step.unrecorded = _unrecorded(before.captures, after.captures)
    unknown = next(why_incomplete(before.captures, after.captures), None)
    parts = [_part(part, sides, unknown) for part in get_args(d.Part)]
    for_gates = BothSides(old, new) if one_recording else sides
    comparison = d.Comparison(
        schema=d.SCHEMA,
        traceprof_version=__version__,
        before=_side(before, old),
        after=_side(after, new),
        comparable=checked,
        step=step,
        headline="",
        parts=changes,
        mean_before=_parts(old.means),
        mean_after=_parts(new.means),
        part_changes=parts,
        idle=[] if unknown else _idle(old.means, new.means),
        kernels=matched.changes,
        kernel_matching=matched.matching,
        kernels_beside_ns=matched.beside_ns,
        modules=modules(before.captures, after.captures),
        communication=communication(before.captures, after.captures),
        findings=findings(before.captures, after.captures, old.step_ns, parts),
        gates=[judged(gate, for_gates, after.captures, checked.reasons, unknown) for gate in gates],
        notes=[
            *_about_periods(after.captures, unlike),
            *_other_phases(before.captures[0], after.captures[0]),
            *_notes(sides, step),
        ],
    )
    comparison.headline = sentence(comparison)
    return comparison


def _parts(means: Mapping[str, int]) -> d.Parts:
    return d.Parts(
        mean_step_ns=means["window_ns"], **{name: means[name] for name in (*PARTS, "lost_ns")}
    )


def _step(sides: BothSides, *, is_comparable: bool) -> d.Step:
    before, after = sides.before, sides.after
    values = before.step_ns, after.step_ns
    change = sides.change() or MeanChange(0.0, None, None)
    judged, mix = change.judged, change.at_same_mix
    low, high = _fractions(change.interval)
    basis: d.Basis = "steps" if sides.is_single else "captures"
    basis = basis if sides.has_steps else "training"
    medians = [
        None if median is None or not sides.has_steps else round(median)
        for median in (before.median_ns, after.median_ns)
    ]
    between = None if judged is None else sides.beyond(judged)
    between_low, between_high = _fractions(between)
    verdict = verdict_of(judged, between) if is_comparable else "not comparable"
    step = d.Step(
        before_ns=round(values[0]),
        after_ns=round(values[1]),
        median_before_ns=medians[0],
        median_after_ns=medians[1],
        change=values[1] / values[0] - 1 if values[0] else None,
        low=low,
        high=high,
        at_same_mix=None
        if mix is None
        else d.AtSameMix(mix.change / 100, mix.interval.low / 100, mix.interval.high / 100),
        verdict=verdict,
        basis=basis,
        between_low=between_low,
        between_high=between_high,
        varying=sides.widest if verdict == "differs" else None,
        between=[] if between is None else list(sides.spread),
        usual=_usual(sides, is_comparable=is_comparable) if basis == "steps" else None,
    )
    step.to_decide = to_decide(step, sides)
    return step


def _fractions(interval: Interval | None) -> tuple[float | None, float | None]:
    """Return the ends of an interval in hundredths as fractions."""
    return (None, None) if interval is None else (interval.low / 100, interval.high / 100)


def _usual(sides: BothSides, *, is_comparable: bool) -> d.UsualStep | None:
    before, after = sides.before, sides.after
    change = usual_change((before.lengths[0], after.lengths[0]))
    if change is None:
        return None
    interval = Interval(*(100 * end for end in change.interval))
    between = sides.beyond(interval, of_usual=True)
    (first, second), (longer, longer_after) = change.medians, change.num_longer
    return d.UsualStep(
        before_ns=round(first),
        after_ns=round(second),
        num_longer_before=longer,
        num_longer_after=longer_after,
        longer_cause=_longer_cause(before.slow[0], longer)
        if longer > longer_after
        else _longer_cause(after.slow[0], longer_after),
        change=second / first - 1,
        low=change.interval.low,
        high=change.interval.high,
        p=mann_whitney(before.lengths[0], after.lengths[0]),
        verdict=verdict_of(interval, between) if is_comparable else "not comparable",
    )


def _longer_cause(slow: Counter[str], num: int) -> str | None:
    return next((cause for cause, of_cause in slow.most_common(1) if 2 * of_cause > num), None)


def _unrecorded(before: Captures, after: Captures) -> d.UnrecordedStep | None:
    old, new = unrecorded(before), unrecorded(after)
    if old is None or new is None:
        return None
    change = BothSides(old, new).change()
    low, high = _fractions(None if change is None else change.judged)
    return d.UnrecordedStep(
        before_ns=round(old.step_ns),
        after_ns=round(new.step_ns),
        num_before=old.num_steps,
        num_after=new.num_steps,
        change=new.step_ns / old.step_ns - 1,
        low=low,
        high=high,
    )


def _part(part: d.Part, sides: BothSides, unknown: str | None) -> d.PartChange:
    column = f"{part.replace(' ', '_')}_ns"
    change = sides.change(column, "ns")
    interval = None if change is None or unknown else change.interval
    values = sides.before.means[column], sides.after.means[column]
    return d.PartChange(
        part=part,
        before_ns=values[0],
        after_ns=values[1],
        change_ns=None if unknown else values[1] - values[0],
        low_ns=None if interval is None else round(interval.low),
        high_ns=None if interval is None else round(interval.high),
        unknown=unknown,
    )


def _idle(before: Mapping[str, int], after: Mapping[str, int]) -> list[d.IdleChange]:
    changes = [
        d.IdleChange(
            cause.removesuffix("_ns"), before[cause], after[cause], after[cause] - before[cause]
        )
        for cause in CAUSES
        if before[cause] or after[cause]
    ]
    return sorted(changes, key=lambda change: -abs(change.change_ns))


def _side(side: LoadedSide, steps: Series) -> d.Side:
    captures = side.captures
    return d.Side(
        name=side.name,
        reports=[report.path for capture in captures for report in capture.reports],
        num_captures=len(captures),
        ranks=sorted({rank.rank for capture in captures for rank in capture.ranks}),
        gpus=sorted({rank.gpu for capture in captures for rank in capture.ranks if rank.gpu}),
        num_steps=steps.num_steps,
        num_left_out=steps.num_left_out,
        left_out_reports=[lost.reason for capture in captures for lost in capture.lost_reports],
    )


def _about_periods(after: Captures, unlike: str | None) -> list[str]:
    if unlike is not None:
        return [f"no range marks steps, and both sides are compared without any: {unlike}"]
    headline = after[0].headline
    return [about_periods(headline.periods, headline.layers)] if headline.periods else []


def _other_phases(before: Document, after: Document) -> Iterator[str]:
    for old, new in zip(phases_of(before), phases_of(after), strict=False):
        if not old.counts:
            change = f"{100 * (new.step_ns / old.step_ns - 1):+.1f} %" if old.step_ns else "new"
            yield (
                f"the {phase_name(old.phase)} is not compared: {duration(old.step_ns)} a step"
                f" before and {duration(new.step_ns)} after ({change})"
            )


def _notes(sides: BothSides, step: d.Step) -> list[str]:
    notes = []
    by_name = {"before": sides.before, "after": sides.after}
    without = [name for name, side in by_name.items() if not side.has_steps]
    if without:
        notes.append(
            f"no training steps are known {' and '.join(without)}: all of the judged time counts"
            " as one step, and no interval can be given (name the range around a step with"
            " --step-pattern)"
        )
    for name, side in by_name.items():
        if not (sides.is_single and side.has_steps):
            continue
        (lengths,) = side.lengths
        if len(lengths) < MIN_STEPS:
            notes.append(
                f"{name}, steps to compare: {len(lengths)}; an interval needs at least {MIN_STEPS}"
            )
            continue
        longer = trend(lengths)
        if longer is not None:
            notes.append(
                f"{name}, the steps change within the recording: those of the second half take"
                f" {100 * longer:+.1f} % of those of the first"
            )
    medians = step.median_before_ns, step.median_after_ns
    is_said = step.usual is not None and step.usual.verdict in {"faster", "slower"}
    if step.verdict == "inconclusive" and medians[0] and medians[1] and not is_said:
        notes.append(
            f"the median step takes {duration(medians[0])} before and {duration(medians[1])} after"
            f" ({100 * (medians[1] / medians[0] - 1):+.1f} %); the mean is what the training pays"
        )
    if step.between_low is not None and step.between_high is not None:
        source = "as stored runs differ" if step.between[0].source == "runs" else "as is usual"
        notes.append(
            "one recording a side: with what runs of one program differ by"
            f" ({source}, by part), the change lies between {100 * step.between_low:+.1f} and"
            f" {100 * step.between_high:+.1f} %; three recordings a side measure it"
        )
    return notes
