"""What a step takes and is made of, in words and as tables of each rank and of its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from traceprof.analyses import rank_work
from traceprof.analyses.breakdown import BreakdownResult, Measures, Surroundings, judged_kind
from traceprof.analyses.steps import (
    CAUSE_WORDS,
    SPOKEN,
    SlowStep,
    StepLengths,
    cause_text,
    counted_steps,
    phases,
    slow_for_themselves,
    step_lengths,
    step_trend,
)
from traceprof.analyses.verdict.headline import MAX_CAUSES, Headline
from traceprof.analyses.verdict.phases import name_of_counted_phase, phase_name
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.savings import Replay, Savings
from traceprof.analyses.verdict.three_lines import ThreeLines, lost_lines, part_judged, three_lines
from traceprof.errors import one_line
from traceprof.host.units import StepUnit
from traceprof.reports.blocks import (
    LOST,
    MAX_NAME,
    MAX_RANKS,
    PARTS,
    Cell,
    Section,
    TableBlock,
    bar_of,
    section,
    table,
)
from traceprof.run.completeness import is_doubtful
from traceprof.run.periods import about_periods
from traceprof.units import between, counted, duration, percent, ranks_text, size_text

_MIN_OUTSIDE = 0.01  # of a rank's window: less outside the training is not worth a line
_MIN_BETWEEN = 0.03  # of the training: less between phases is not worth a line
_MIN_SPOKEN = 0.005  # of the time: less is not worth a word
_LEFT_OUT = {
    "cut": "cut by the recording's edge",
    "opening": "slow at the beginning",
    "rare": "rare, in which something else ran",
}
_HEADINGS = dict(zip(PARTS, ("compute", "exposed\ncomm", "exposed\ncopy", "idle"), strict=True))


def _parts(analysis: RunResult) -> dict[str, str]:
    has_lost = any(result.whole.lost_ns for result in analysis.breakdown)
    return {**_HEADINGS, LOST: "lost"} if has_lost else _HEADINGS


def shown_ranks(
    analysis: RunResult, ranks: Collection[int], max_ranks: int = MAX_RANKS
) -> list[int]:
    """Return the ranks that a table shows: all, or of many those to be noted first."""
    if len(ranks) <= max_ranks:
        return sorted(ranks)
    noted = (rank for rank in rank_work.by_note(analysis.measured) if rank in ranks)
    return list(islice(noted, max_ranks))


def _shown(analysis: RunResult, max_ranks: int) -> list[BreakdownResult]:
    of_rank = {result.rank: result for result in analysis.breakdown}
    return [of_rank[rank] for rank in shown_ranks(analysis, of_rank, max_ranks)]


def parts_table(analysis: RunResult, max_ranks: int = MAX_RANKS) -> TableBlock:
    """Return the parts of the judged time: a line for each rank."""
    kind, parts = str(judged_kind(analysis.breakdown)), _parts(analysis)
    ranks = {rank.rank: rank for rank in analysis.run.ranks}
    rows: list[tuple[Cell, ...]] = []
    for result in _shown(analysis, max_ranks):
        judged, rank = result.judged, ranks[result.rank]
        gpu = f"{rank.device} {one_line(rank.gpu or '', MAX_NAME)}".strip()
        hidden = judged.hidden_fraction
        rows.append(
            (
                str(result.rank),
                "CPU" if rank.device is None else gpu,
                duration(judged.window_ns),
                bar_of(judged),
                *(percent(judged.fraction(part)) if judged.window_ns else "-" for part in parts),
                "-" if hidden is None else percent(hidden),
            )
        )
    headings = ("rank", "GPU", kind, "", *parts.values(), "comm\nhidden")
    return table(headings, rows, text=("",), cut=("GPU",))


def outside_the_training(results: Sequence[BreakdownResult]) -> list[str]:
    """Describe the time before and after the training, which is not a finding."""
    lines = []
    for word, parts in (
        ("Before", [(result.rank, result.before, result.seen_before) for result in results]),
        ("After", [(result.rank, result.after, result.seen_after) for result in results]),
    ):
        known = [(rank, part, around) for rank, part, around in parts if part is not None]
        if not known:
            continue
        rank, longest, around = max(known, key=lambda item: item[1].window_ns)
        whole = next(result.whole for result in results if result.rank == rank)
        if longest.window_ns < _MIN_OUTSIDE * whole.window_ns:
            continue
        at_most = "" if len(known) == 1 else f", at most (rank {rank})"
        lines.append(
            f"{word} the {judged_kind(results)} of {ranks_text([rank for rank, *_ in known])}:"
            f" {duration(longest.window_ns)}{at_most}: {_made_of(longest, around)}."
        )
    left_out = [result for result in results if result.training and result.training.num_left_out]
    for result in left_out[:1]:
        training = result.training
        assert training is not None  # noqa: S101  (chosen by it)
        what = []
        if training.num_warm_up:
            what.append(f"{training.num_warm_up} lie in a range of warm-up")
        if training.num_distorted:
            what.append(
                f"in {training.num_distorted} the profiler itself took over 10 % of the time"
            )
        lines.append(
            f"Of rank {result.rank}'s first steps {training.num_left_out} are not training:"
            f" {', '.join(what)}."
        )
    return lines


def _made_of(part: Measures, around: Surroundings | None) -> str:
    num_bytes = 0 if around is None else around.bytes_to_gpu  # also 0 if sizes are unknown
    uploaded = f", {size_text(num_bytes)} to the GPU" if num_bytes else ""
    is_tried = around is not None and around.tries_algorithms
    trials = ", set-up: a library tries algorithms" if is_tried else ""
    shares = [
        (part.compute_ns, f"compute ({counted(part.num_kernels, 'kernel')}{trials})"),
        (part.exposed_communication_ns, "communication"),
        (part.exposed_copy_ns, f"copies ({part.num_copies}{uploaded})"),
        (part.idle_ns, f"idle{_idle_causes(part, around)}"),
        (part.lost_ns, "lost"),
    ]
    shares.sort(key=lambda item: -item[0])
    return ", ".join(f"{duration(ns)} {what}" for ns, what in shares if ns)


def _idle_causes(part: Measures, around: Surroundings | None) -> str:
    causes = {} if around is None else around.idle_by_cause
    by_size = sorted(causes.items(), key=lambda item: -item[1])
    words = [
        f"{duration(idle_ns)} {CAUSE_WORDS[f'{cause.value}_ns']}"
        for cause, idle_ns in by_size
        if 10 * idle_ns >= part.idle_ns
    ]
    return f" ({', '.join(words)})" if words else ""


def steps_section(analysis: RunResult) -> Section | None:
    """Return the mean steady step of each rank; None if no rank has steps."""
    if not any(result.steps for result in analysis.breakdown):
        return None
    results = _shown(analysis, MAX_RANKS)
    rows: list[tuple[str, ...]] = []
    parts = _parts(analysis)
    notes: list[str] = []
    for result in results:
        lengths = step_lengths(result)
        if lengths is None:
            rows.append((str(result.rank), "0"))
            continue
        steps = [step.measures for step in counted_steps(result)]
        means = [sum(getattr(step, part) for step in steps) / len(steps) for part in parts]
        rows.append(
            (
                str(result.rank),
                str(lengths.num_steps),
                duration(lengths.mean_ns),
                duration(lengths.median_ns),
                *(duration(round(mean)) for mean in means),
                f"{lengths.slowest.number} ({duration(lengths.slowest.measures.window_ns)})",
            )
        )
        notes = notes or about_steps(result, lengths)
    unit = results[0].unit.unit
    word, title = unit.value, "training step" if unit is StepUnit.STEP else unit.word
    mean, slowest = f"{word}\n(mean)", f"slowest\n{word}"
    headings = ("rank", unit.several, mean, "median", *parts.values(), slowest)
    return section(f"Per {title}", table(headings, rows), *notes)


def about_steps(result: BreakdownResult, lengths: StepLengths) -> list[str]:
    """Return notes on kinds of steps, and on steps that do not count."""
    notes, rank, several = [], result.rank, result.unit.unit.several
    if len(lengths.kinds) > 1:
        kinds = " and ".join(f"{one.num_steps} of {duration(one.mean_ns)}" for one in lengths.kinds)
        notes.append(f"The {several} of rank {rank} are of two kinds: {kinds}.")
    if of_program := phases(result):
        each = ", ".join(
            f"{one.num_steps} of {duration(one.step_ns)}{', which count' * one.counts}"
            for one in of_program
        )
        notes.append(f"The {several} of rank {rank} are of {len(of_program)} phases: {each}.")
    left_out = "; ".join(
        f"{part.num_steps} {_LEFT_OUT[part.why]} ({duration(part.total_ns)})"
        for part in lengths.left_out
        if part.why in _LEFT_OUT
    )
    if left_out:
        notes.append(
            f"{several[0].upper()}{several[1:]} of rank {rank} that do not count: {left_out}."
        )
    return notes


def where_it_went(measures: Measures) -> str:
    """Return the parts of a time, such as `75 % idle`, in the order of the tables."""
    return ", ".join(
        f"{percent(share)} {SPOKEN[name]}"
        for name in (*PARTS, LOST)
        if (share := measures.fraction(name)) >= _MIN_SPOKEN
    )


def headline_lines(analysis: RunResult) -> list[str]:
    """Return the headline: the verdict, then a line of what a step takes."""
    headline, verdict = analysis.headline, three_lines(analysis)
    lines = [*_silent_lines(analysis), *(() if verdict is None else verdict.lines)]
    if headline is None:
        return [*lines, *lost_lines(analysis.completeness)]
    if verdict is None:
        lines += lost_lines(analysis.completeness) or [_PARTLY_JUDGED]
    takes, result = what_it_takes(headline) + judged_share(headline, verdict), headline.breakdown
    if result.periods:
        takes += f" {about_periods(result.periods, result.unit.layers)}"
    return [*lines, takes]


def phase_lines(analysis: RunResult) -> Iterator[str]:
    """Say of each phase whose steps do not count what it takes, and how to analyse it alone."""
    if analysis.headline is None:
        return
    slowest, kind = analysis.headline.breakdown, judged_kind(analysis.breakdown)
    of_program = phases(slowest)
    for phase in of_program:
        if not phase.counts:
            alike = [
                one
                for result in analysis.breakdown
                for one in phases(result)
                if one.phase == phase.phase
            ]
            begin_us = min(one.start_ns for one in alike) // 1000
            end_us = -(-max(one.end_ns for one in alike) // 1000)
            yield (
                f"{phase_name(phase.phase).capitalize()}: {phase.num_steps}"
                f" {slowest.unit.unit.several} of {duration(phase.step_ns)},"
                f" {percent(phase.share)} of the {kind}"
                f" (--time-range {begin_us / 1e6:.6f}s:{end_us / 1e6:.6f}s)."
            )
    between = 1 - sum(phase.share for phase in of_program)
    if of_program and between >= _MIN_BETWEEN:
        yield f"Between phases: {percent(between)} of the {kind}."


_PARTLY_JUDGED = "No verdict on the run: only the findings that were asked for were judged."


def where_lines(analysis: RunResult) -> list[str]:
    """Return what the time is made of, and what it could take by a replay."""
    headline = analysis.headline
    if headline is None:
        return []
    kind, parts = judged_kind(analysis.breakdown), where_it_went(headline.breakdown.judged)
    lines = [f"The {kind} is {parts}."]
    replay = headline.savings.replay
    if replay is not None and not lost_lines(analysis.completeness):
        lines += filter(None, [_what_it_could_take(headline.savings, replay)])
    return lines


def _silent_lines(analysis: RunResult) -> list[str]:
    are_ranks = {(rank.report, rank.pid) for rank in analysis.run.ranks}
    silent = {
        pid: num
        for index, report in enumerate(analysis.run.reports)
        for pid, num in report.launches_in_vain.items()
        if (index, pid) not in are_ranks
    }
    num = sum(silent.values())
    num_all = num + sum(losses.num_launches for _, losses in analysis.completeness)
    if not is_doubtful(num, num_all):
        return []
    pids = ", ".join(map(str, silent))
    processes = f"process {pids}" if len(silent) == 1 else f"processes {pids}"
    have = "has no operation" if len(silent) == 1 else "have no operation"
    made = f"made {num} of {counted(num_all, 'launch')}"
    return [f"The recording is incomplete: {processes} {made} and {have} in it."]


def judged_share(headline: Headline, verdict: ThreeLines | None) -> str:
    """Say what share of the recorded GPU time is judged, after a space; nothing if nearly all.

    Nothing, too, if the verdict says it.
    """
    part = part_judged(headline)
    if not part or (verdict is not None and part in " ".join(verdict.lines)):
        return ""
    return f" The {headline.breakdown.judged_kind} holds {part}."


def what_it_takes(headline: Headline) -> str:
    """Say what a step takes on the rank where it takes longest."""
    result, lengths = headline.breakdown, headline.lengths
    where = f" on rank {result.rank}"
    if lengths is None:
        takes = "take" if str(result.judged_kind).endswith("s") else "takes"
        length = duration(headline.step_ns)
        return f"The {result.judged_kind} {takes} {length}{where}, without steps."
    steps = f"mean of {lengths.num_steps}" if lengths.num_steps > 1 else result.one_step
    if counted_phase := name_of_counted_phase(result):
        steps += f" in the {counted_phase}"
    if len(lengths.kinds) > 1:
        steps += ": " + ", ".join(
            f"{kind.num_steps} of {duration(kind.mean_ns)}" for kind in lengths.kinds
        )
    num_out = sum(part.num_steps for part in lengths.left_out if part.why != "phase")
    steps += f"; {num_out} left out" if num_out else ""
    if (change := step_trend(result)) is not None:
        longer = "longer" if change.share > 0 else "shorter"
        steps += f"; {percent(abs(change.share))} {longer} in the second half"
    one, served = result.unit.unit.one, result.unit.served
    took = f"{one[0].upper()}{one[1:]} takes {duration(headline.step_ns)}{where} ({steps})"
    if served is None or served.tokens_per_s is None:
        return f"{took}."
    rate = f"{served.tokens_per_s:,.0f}".replace(",", " ")
    return f"{took}: {counted(served.sequences or 0, 'sequence')}, {rate} tokens/s."


def _what_it_could_take(savings: Savings, replay: Replay) -> str:
    if savings.possible_step_ns is None:
        how = f"; {one_line(replay.how_to_collect)}" if replay.how_to_collect else ""
        return f"What it could take is unknown: {one_line(replay.refused or '')}{how}."
    whole = "all of it" if replay.num_steps == 1 else f"{replay.num_steps} steps"
    source = f"a replay of {whole}"
    if replay.misfit is not None:
        source += f", {percent(replay.misfit)} off"
    if not savings.gains:
        return f"A replay proves no gain of 1 % or more ({source})."
    gains = ", then ".join(
        f"{duration(gain.gain_ns)} less without {gain.finding}"
        for gain in savings.gains[:MAX_CAUSES]
    )
    if len(savings.gains) > MAX_CAUSES:
        gains += f", then {len(savings.gains) - MAX_CAUSES} more"
    possible = duration(savings.possible_step_ns)
    interval = between(savings.possible_low_ns or 0, savings.possible_high_ns or 0)
    span = "" if interval == possible else f" ({interval})"
    return f"It could take {possible}{span}: {gains} ({source})."


_MAX_LINES = 3  # each may take two on a terminal
_MAX_NUMBERS = 4
_Group = dict[int, list["SlowStep"]]  # by rank


def slow_steps_section(analysis: RunResult) -> Section | None:
    """Return the slow steps; None without any."""
    lines = slow_steps_lines(analysis)
    return section("Slow steps", *lines) if lines else None


def slow_steps_lines(analysis: RunResult) -> list[str]:
    """Return which steps are slow and why, in three lines at most, the costliest first."""
    groups: dict[tuple[str, str | None], _Group] = defaultdict(lambda: defaultdict(list))
    for rank, step in slow_for_themselves(analysis.measured.slow_steps, analysis.breakdown):
        groups[step.cause, step.label][rank].append(step)
    ordered = sorted(groups.items(), key=lambda item: -max(map(_extra_ns, item[1].values())))
    num = _MAX_LINES if len(ordered) <= _MAX_LINES else _MAX_LINES - 1
    unit = analysis.breakdown[0].unit.unit if analysis.breakdown else StepUnit.STEP
    lines = [_line(unit, *why, by_rank) for why, by_rank in ordered[:num]]
    if len(ordered) > num:
        rest = [
            step for _, by_rank in ordered[num:] for steps in by_rank.values() for step in steps
        ]
        lines.append(f"{len(rest)} more: --format json has them all")
    return lines


def _line(unit: StepUnit, cause: str, label: str | None, by_rank: _Group) -> str:
    rank, steps = max(by_rank.items(), key=lambda item: (_extra_ns(item[1]), -item[0]))
    what = cause_text(cause, label)
    where = ranks_text(sorted(by_rank))
    most = "" if len(by_rank) == 1 else f" (rank {rank})"
    extra = duration(_extra_ns(steps) // len(steps))
    usual = duration(steps[0].step_ns - steps[0].extra_ns)
    if len(steps) == 1:
        number = _numbers(steps)
        if steps[0].host_number not in {None, steps[0].number}:
            number += f" (while the GPU was at step {steps[0].number})"
        took = f"{unit.word} {number} of {where}: {extra} more than the median {usual}"
    else:
        took = (
            f"{unit.several} {_numbers(steps)} of {where}: {extra} more each than the median"
            f" {usual}, {duration(_extra_ns(steps))} in all"
        )
    num_out = sum(not step.counts for step in steps)
    out = "not in the mean" if num_out == len(steps) else f"{num_out} not in the mean"
    spent_ns = sum(step.cause_ns for step in steps)
    spent = duration(spent_ns)
    if spent_ns > _extra_ns(steps):  # it runs in other steps, too
        spent += f" of {duration(sum(step.step_ns for step in steps))}"
    took = f"{took[0].upper()}{took[1:]}{most}: {what}, {spent}"
    return f"{took}; {out}" if num_out else took


def _extra_ns(steps: Sequence[SlowStep]) -> int:
    return sum(step.extra_ns for step in steps)


def _numbers(steps: Sequence[SlowStep]) -> str:
    numbers = [step.number if step.host_number is None else step.host_number for step in steps]
    named = ", ".join(map(str, numbers[:_MAX_NUMBERS]))
    return named if len(numbers) <= _MAX_NUMBERS else f"{named}, … ({len(numbers)})"
