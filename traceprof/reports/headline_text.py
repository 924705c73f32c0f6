"""The text report's first lines: what a step takes, what it is made of, what to act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses.breakdown import judged_kind
from traceprof.analyses.verdict.headline import MAX_CAUSES
from traceprof.analyses.verdict.order import limits
from traceprof.errors import one_line
from traceprof.reports.time_text import CAUSE_WORDS, where_it_went
from traceprof.run.steps.period_steps import about_periods
from traceprof.units import between, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.verdict.headline import Headline
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.analyses.verdict.savings import Gain, Replay, Savings
    from traceprof.findings import Finding

_FAR_MORE = 2
_NEARLY_ALL = 0.95  # of the recorded GPU time


def headline_lines(analysis: RunResult) -> list[str]:
    """Return the headline: one line of what a step takes, one of what to act on first."""
    headline = analysis.headline
    if headline is None:
        return []
    kind, parts = judged_kind(analysis.breakdown), where_it_went(headline.breakdown.judged)
    # Steps that are left out may be made of something else.
    made_of = f": {parts}" if headline.lengths is None else f"; the {kind} is {parts}"
    lines = [f"{_what_it_takes(headline)}{made_of}."]
    lines[0] += judged_share(headline)
    if headline.breakdown.periods:
        lines[0] += f" {about_periods(headline.breakdown.periods)}"
    if headline.causes:
        named = headline.causes
        causes = "; ".join(
            _cause(finding, headline.breakdown.rank) + same_time(finding, named[:place])
            for place, finding in enumerate(named)
        )
        lines.append(f"What to act on first, with its share of the {kind}: {causes}.")
    if headline.savings.replay is not None:
        if_none = limits_text(analysis.findings, headline.step_ns)
        could_take = _what_it_could_take(headline.savings, headline.savings.replay, if_none)
        beyond = beyond_gains(analysis.findings, headline.step_ns, headline.savings.gains)
        lines.append(could_take + beyond)
    return lines


def judged_share(headline: Headline) -> str:
    """Say what share of the recorded GPU time is judged, after a space; nothing if nearly all."""
    share = headline.judged_fraction
    if share is None or share >= _NEARLY_ALL:
        return ""
    return f" The {headline.breakdown.judged_kind} holds {percent(share)} of the recorded GPU time."


def _what_it_takes(headline: Headline) -> str:
    result, lengths = headline.breakdown, headline.lengths
    where = f" on rank {result.rank}"
    if lengths is None:
        return f"The {result.judged_kind} takes {duration(headline.step_ns)}{where}, without steps"
    steps = f"mean of {lengths.num_steps}" if lengths.num_steps > 1 else result.one_step
    if len(lengths.kinds) > 1:
        steps += ": " + ", ".join(
            f"{kind.num_steps} of {duration(kind.mean_ns)}" for kind in lengths.kinds
        )
    if lengths.left_out:
        steps += f"; {sum(kind.num_steps for kind in lengths.left_out)} left out"
    return f"A step takes {duration(headline.step_ns)}{where} ({steps})"


def _what_it_could_take(savings: Savings, replay: Replay, if_none: str) -> str:
    if savings.possible_step_ns is None:
        how = f"; {one_line(replay.how_to_collect)}" if replay.how_to_collect else ""
        return f"What it could take is unknown: {one_line(replay.refused or '')}{how}."
    whole = "all of it" if replay.num_steps == 1 else f"{replay.num_steps} steps"
    source = f"a replay of {whole}"
    if replay.misfit is not None:
        source += f", {percent(replay.misfit)} off"
    if not savings.gains:
        return f"{if_none} ({source})."
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


def same_time(finding: Finding, named: Sequence[Finding]) -> str:
    """Say that a finding is about time that one named before it is about, too.

    Args:
        finding: the finding.
        named: those before it.
    """
    shared = [item.id for item in named if finding.part_of == item.id or item.part_of == finding.id]
    return f" (in {shared[0]}, too)" if shared else ""


def limits_text(findings: Sequence[Finding], step_ns: int) -> str:
    """Say what a step could take where no finding has a gain that a replay could estimate.

    Args:
        findings: of the run, in the order in which to act.
        step_ns: what a step takes.
    """
    by_limit = limits(findings, step_ns)
    by_replay = next((pair for pair in by_limit if pair[1].assume is not None), None)
    if by_replay is None:
        return "A replay shows no finding whose removal surely makes it 1 % shorter"
    (first, largest), (limit, saving) = by_limit[0], by_replay
    most_ns, removed_ns = largest.high_ns or 0, saving.high_ns or 0
    what = limit.id if saving.share is None else f"{percent(saving.share)} of {limit.id}"
    # Others may cost more: what no replay can remove, and what a wait that sets the pace hides.
    removed = (
        f"of what a replay can remove, {what} comes first:"
        f" at most {duration(removed_ns)} less by {saving.assume}"
    )
    if most_ns <= removed_ns:
        return removed[0].upper() + removed[1:]
    at_most = f"At most {duration(most_ns)} less without {first.id}"
    return f"{at_most}, which no replay can remove here; {removed}"


def beyond_gains(findings: Sequence[Finding], step_ns: int, gains: Sequence[Gain]) -> str:
    """Name the first limit, where it is far more than all gains that a replay estimates.

    Args:
        findings: of the run, in the order in which to act.
        step_ns: what a step takes.
        gains: the estimates.

    Returns:
        A sentence after a space, or nothing: no gain is estimated, or no limit is larger.
    """
    by_limit = limits(findings, step_ns)
    gained_ns = sum(gain.gain_ns for gain in gains)
    if not gains or not by_limit or (by_limit[0][1].high_ns or 0) <= _FAR_MORE * gained_ns:
        return ""
    finding, saving = by_limit[0]
    return f" Far beyond that: at most {duration(saving.high_ns or 0)} less without {finding.id}."


def _cause(finding: Finding, rank: int) -> str:
    # Shares of different ranks do not add up, nor are they of the step in the headline.
    where = "" if finding.rank in (rank, None) else f" on rank {finding.rank}"
    share = f"{percent(finding.impact_fraction)}{where}"
    parts = {
        name: value
        for name in CAUSE_WORDS
        if isinstance(value := finding.metrics.get(name), int) and value > 0
    }
    if finding.id != "gpu-idle" or not parts:
        return f"{finding.id} {share}"
    largest = max(parts, key=lambda name: parts[name])
    return f"{finding.id} {share}, most of it {CAUSE_WORDS[largest]}"
