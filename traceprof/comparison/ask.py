"""Public entry point of comparisons: what changed, its interval, and the parts it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from traceprof.analyses.steps.step_means import CAUSES, COLUMNS
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Analysis
from traceprof.comparison.communication import communication
from traceprof.comparison.comparable import check_allowed, comparable
from traceprof.comparison.findings import findings
from traceprof.comparison.gates import change_of, judged, parse
from traceprof.comparison.kernels import kernels, modules
from traceprof.comparison.mean_change import MIN_STEPS, steps_to_find, trend
from traceprof.comparison.series import series, why_unlike
from traceprof.comparison.sides import LoadedSide, loaded
from traceprof.documents import comparison as d
from traceprof.documents.analysis.model import Document
from traceprof.errors import UsageError
from traceprof.execution.options import checked, listed, num_jobs
from traceprof.run.period_steps import about_periods
from traceprof.units import duration
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from traceprof.comparison.gates import GateLimit
    from traceprof.comparison.series import Series
    from traceprof.comparison.sides import Source
    from traceprof.comparison.statistics import Interval
    from traceprof.execution.options import Options
    from traceprof.progress import Progress

SAME = 0.01
"""A step is the same where the interval lies within this fraction of it."""
_ONE = (str, os.PathLike, Analysis, RunResult, Document)
_PARTS: tuple[tuple[d.Part, str], ...] = (
    ("compute", "compute"),
    ("exposed communication", "exposed-communication"),
    ("exposed copy", "exposed-copy"),
    ("idle", "idle"),
)  # as they are called, and as gates are


def compare(
    before: Source | Iterable[Source],
    after: Source | Iterable[Source],
    *,
    gates: Iterable[str] = (),
    allow_different: Collection[str] = (),
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
            `world-size`, `recording` (the same one on both sides), `recorded-parts`, `clocks`,
            `steps`, `completeness`.
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
    return compared(sides[0], sides[1], limits, allow_different)


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
) -> d.Comparison:
    """Compare two sides that have been read.

    Args:
        before: one side.
        after: the other.
        gates: limits that must be kept.
        allow_different: as in `compare`.
    """
    unlike = why_unlike(before.captures, after.captures)
    if unlike is not None:
        before, after = before.without_periods(), after.without_periods()
    steps = series(before.captures), series(after.captures)
    means = [d.Parts(*(side.means[name] for name in COLUMNS)) for side in steps]
    changes = _differences(*means)
    matched = kernels(before.captures, after.captures, changes.compute_ns)
    checked = comparable(before.captures, after.captures, allow_different)
    step = _step(*steps, is_comparable=checked.is_comparable)
    parts = [_part(part, name, *steps) for part, name in _PARTS]
    return d.Comparison(
        schema=d.SCHEMA,
        traceprof_version=__version__,
        before=_side(before, steps[0]),
        after=_side(after, steps[1]),
        comparable=checked,
        step=step,
        parts=changes,
        mean_before=means[0],
        mean_after=means[1],
        part_changes=parts,
        idle=_idle(steps[0].means, steps[1].means),
        kernels=matched.changes,
        kernel_matching=matched.matching,
        kernels_beside_ns=matched.beside_ns,
        modules=modules(before.captures, after.captures),
        communication=communication(before.captures, after.captures),
        findings=findings(before.captures, after.captures, steps[0].step_ns, parts),
        gates=[judged(gate, *steps, after.captures, checked.reasons) for gate in gates],
        notes=[*_about_periods(after.captures, unlike), *_notes(*steps, step)],
    )


def _differences(before: d.Parts, after: d.Parts) -> d.Parts:
    return d.Parts(
        after.mean_step_ns - before.mean_step_ns,
        after.compute_ns - before.compute_ns,
        after.exposed_communication_ns - before.exposed_communication_ns,
        after.exposed_copy_ns - before.exposed_copy_ns,
        after.idle_ns - before.idle_ns,
    )


def _step(before: Series, after: Series, *, is_comparable: bool) -> d.Step:
    values = before.step_ns, after.step_ns
    change = change_of(parse("step:+0%"), before, after)
    interval = None if change is None else change.interval
    mix = None if change is None else change.at_same_mix
    judged = None if change is None else change.judged
    is_several = max(len(before.captures), len(after.captures)) > 1
    has_steps = before.has_steps and after.has_steps
    basis: d.Basis = "training" if not has_steps else "captures" if is_several else "steps"
    medians = [
        None if median is None or not has_steps else round(median)
        for median in (before.median_ns, after.median_ns)
    ]
    return d.Step(
        before_ns=round(values[0]),
        after_ns=round(values[1]),
        median_before_ns=medians[0],
        median_after_ns=medians[1],
        change=values[1] / values[0] - 1 if values[0] else None,
        low=None if interval is None else interval.low / 100,
        high=None if interval is None else interval.high / 100,
        at_same_mix=None
        if mix is None
        else d.AtSameMix(mix.change / 100, mix.interval.low / 100, mix.interval.high / 100),
        verdict=_verdict(judged) if is_comparable else "not comparable",
        basis=basis,
    )


def _verdict(interval: Interval | None) -> d.Verdict:
    """Return the verdict of an interval in hundredths."""
    if interval is None:
        return "inconclusive"
    if interval.high < 0:
        return "faster"
    if interval.low > 0:
        return "slower"
    return "same" if max(-interval.low, interval.high) <= 100 * SAME else "inconclusive"


def _part(part: d.Part, name: str, before: Series, after: Series) -> d.PartChange:
    column = f"{part.replace(' ', '_')}_ns"
    change = change_of(parse(f"{name}:+0ns"), before, after)
    interval = None if change is None else change.interval
    values = before.means[column], after.means[column]
    return d.PartChange(
        part=part,
        before_ns=values[0],
        after_ns=values[1],
        change_ns=values[1] - values[0],
        low_ns=None if interval is None else round(interval.low),
        high_ns=None if interval is None else round(interval.high),
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


def _about_periods(after: Sequence[Document], unlike: str | None) -> list[str]:
    """Return what a step is if no range marks steps, or why both sides have none."""
    if unlike is not None:
        return [f"no range marks steps, and both sides are compared without any: {unlike}"]
    headline = after[0].headline
    return [about_periods(headline.periods, headline.layers)] if headline.periods else []


def _notes(before: Series, after: Series, step: d.Step) -> list[str]:
    notes = []
    is_single = len(before.captures) == len(after.captures) == 1
    sides = {"before": before, "after": after}
    without = [name for name, side in sides.items() if not side.has_steps]
    if without:
        notes.append(
            f"no training steps are known {' and '.join(without)}: all of the judged time counts"
            " as one step, and no interval can be given (name the range around a step with"
            " --step-pattern)"
        )
    for name, side in sides.items():
        if not (is_single and side.has_steps):
            continue
        (lengths,) = side.lengths
        if len(lengths) < MIN_STEPS:
            notes.append(
                f"{name}, steps to compare: {len(lengths)}; an interval needs at least {MIN_STEPS}"
            )
            continue
        longer = None if side.has_phases else trend(lengths)
        if longer is not None:
            notes.append(
                f"{name}, the steps change within the recording: those of the second half take"
                f" {100 * longer:+.1f} % of those of the first"
            )
        size = max(abs(step.change or 0.0), SAME)
        needed = steps_to_find(lengths, size)
        if step.verdict == "inconclusive" and step.at_same_mix is None and needed > len(lengths):
            notes.append(
                f"{name}, steps vary so much that it takes about {needed} steps per side to show"
                f" a change of the mean by {100 * size:.1f} %: there are {len(lengths)}"
            )
    medians = step.median_before_ns, step.median_after_ns
    if step.verdict == "inconclusive" and medians[0] and medians[1]:
        notes.append(
            f"the median step takes {duration(medians[0])} before and {duration(medians[1])} after"
            f" ({100 * (medians[1] / medians[0] - 1):+.1f} %); the mean is what the training pays"
        )
    if is_single:
        notes.append(
            "one recording per side: the interval does not include how much two runs of the same"
            " program differ (1 to 2 %, by clocks and placement); give several to include it"
        )
    return notes
