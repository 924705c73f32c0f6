"""The text report: where the time went, what it costs, what could not be judged."""

from __future__ import annotations

import io
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.measure import Measurement
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from traceprof.errors import one_line
from traceprof.findings import Severity, by_id, by_reason, worst_of
from traceprof.reports.communication_text import communication_tables
from traceprof.reports.ranks_text import ranks_on_one_clock, transfer_table
from traceprof.reports.tables import MAX_NAME, Escaped, new_table
from traceprof.units import duration, percent, ranks_text
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import ConsoleOptions, RenderableType

    from traceprof.analyses.breakdown import BreakdownResult, Measures
    from traceprof.analyses.run_result import RunResult
    from traceprof.findings import Evidence, Finding, NotApplicable
    from traceprof.run.summary import RankInfo

PLAIN_WIDTH = 110  # of output that goes to no terminal
_BAR = 20  # characters
_MIN_BAR = 6
_MAX_ADVICE = 2  # the most promising; explain and the JSON have the rest
_MAX_RANKS = 32  # more than that nobody reads; the JSON and the dashboard have them all
_PARTS = (
    # measure, heading, colour, and a character of its own for those who see no colour
    ("compute_ns", "compute", "green", "█", "#"),
    ("exposed_communication_ns", "exposed\ncomm", "red", "▒", "="),
    ("exposed_copy_ns", "exposed\ncopy", "yellow", "░", "-"),
    ("idle_ns", "idle", "bright_black", "·", "."),
)
_SEVERITY_STYLE = {
    Severity.HIGH: "bold white on red",
    Severity.MEDIUM: "bold black on yellow",
    Severity.LOW: "bold cyan",
    Severity.INFO: "bold bright_black",
}


def render(analysis: RunResult, console: Console | None = None) -> str:
    """Return the report as plain text; with a console, print it there instead.

    Args:
        analysis: what was found out.
        console: a terminal; plain text of 110 columns where not given.
    """
    if console is not None:
        console.print(report(analysis, ascii_only=console.options.ascii_only))
        return ""
    return plain(report(analysis))


def plain(renderable: RenderableType, width: int = PLAIN_WIDTH) -> str:
    """Return what rich draws as text without colours and without spaces at the ends of lines."""
    buffer = io.StringIO()
    Console(file=buffer, width=width, color_system=None).print(renderable, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def report(analysis: RunResult, *, ascii_only: bool = False) -> RenderableType:
    """Return the whole report for a rich console."""
    parts: list[RenderableType] = [_header(analysis)]
    if analysis.breakdown:
        parts += [_heading("Where the time went"), _breakdown(analysis, ascii_only=ascii_only)]
        steps = _steps(analysis.breakdown)
        if steps is not None:
            parts += [_heading("Per training step (medians)"), steps]
        if len(analysis.run.reports) > 1 and len(analysis.ranks.ranks) > 1:
            parts += [_heading("Ranks on one clock"), *ranks_on_one_clock(analysis)]
            transferred = transfer_table(analysis)
            if transferred is not None:
                parts += [_heading("Communication, after all ranks have arrived"), transferred]
        for heading, communicated in communication_tables(analysis):
            parts += [_heading(heading), communicated]
        parts += [_heading("Findings"), *_findings(analysis)]
    if analysis.not_applicable:
        parts += [_heading("Could not be analysed"), *_not_applicable(analysis.not_applicable)]
    if analysis.notes or analysis.failed:
        parts += [_heading("About the data"), *_notes(analysis)]
    return Escaped(Group(*parts))


def _heading(text: str) -> RenderableType:
    return Padding(Rule(Text(text, "bold"), align="left", style="bright_black"), (1, 0, 0, 0))


def _header(analysis: RunResult) -> RenderableType:
    lines = [Text(f"traceprof {__version__}", "bold")]
    lines += [
        Text(f"{one_line(report.path)}  exported by {one_line(report.origin)}")
        for report in analysis.run.reports
    ]
    return Group(*lines)


def _breakdown(analysis: RunResult, *, ascii_only: bool) -> RenderableType:
    headings = [part[1] for part in _PARTS]
    table = new_table("rank", "GPU", "window", "", *headings, "comm\nhidden", left=("GPU", ""))
    ranks = {rank.rank: rank for rank in analysis.run.ranks}
    by_rank = sorted(analysis.breakdown, key=lambda result: result.rank)
    for result in by_rank[:_MAX_RANKS]:
        whole, rank = result.whole, ranks[result.rank]
        table.add_row(
            str(result.rank),
            Text(_device(rank), no_wrap=True, overflow="ellipsis"),
            duration(whole.window_ns),
            _Bar(whole),
            *(_share_of_window(whole, part[0]) for part in _PARTS),
            _hidden(whole),
        )
    legend = Text("  ").join(
        Text.assemble((plain if ascii_only else mark, colour), f" {heading}".replace("\n", " "))
        for _, heading, colour, mark, plain in _PARTS
    )
    parts: list[RenderableType] = [table, legend]
    left_out = len(analysis.breakdown) - _MAX_RANKS
    if left_out > 0:
        parts.append(Text(f"… and {left_out} ranks more: --format json has them all"))
    return Group(*parts)


def _device(rank: RankInfo) -> str:
    if rank.device is None:
        return "CPU"
    return f"{rank.device} {one_line(rank.gpu or '', MAX_NAME)}".strip()


def _share_of_window(measures: Measures, measure: str) -> str:
    value = int(getattr(measures, measure))
    return percent(value / measures.window_ns) if measures.window_ns else "-"


def _hidden(measures: Measures) -> str:
    if not measures.communication_ns:
        return "-"
    return percent(measures.overlapped_communication_ns / measures.communication_ns)


class _Bar:
    """The identity as a bar: the parts of the window, each as wide as its share."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        del console
        return Measurement(min(_MIN_BAR, options.max_width), min(_BAR, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        del console
        width, window = min(_BAR, options.max_width), self._measures.window_ns
        bar = Text(no_wrap=True)
        drawn, seen = 0, 0
        for measure, _, colour, mark, plain_mark in _PARTS:
            seen += int(getattr(self._measures, measure))
            until = round(width * seen / window) if window else 0
            bar.append((plain_mark if options.ascii_only else mark) * (until - drawn), colour)
            drawn = until
        yield bar


def _steps(results: Sequence[BreakdownResult]) -> RenderableType | None:
    if not any(result.steps for result in results):
        return None
    table = new_table("rank", "steps", "step", *(part[1] for part in _PARTS), "slowest\nstep")
    for result in results[:_MAX_RANKS]:
        measures = [step.measures for step in result.steps]
        if not measures:
            table.add_row(str(result.rank), "0")
            continue
        slowest = max(result.steps, key=lambda step: step.measures.window_ns)
        table.add_row(
            str(result.rank),
            str(len(measures)),
            *(
                duration(int(median(getattr(step, measure) for step in measures)))
                for measure in ("window_ns", *(part[0] for part in _PARTS))
            ),
            f"{slowest.number} ({duration(slowest.measures.window_ns)})",
        )
    return table


def _findings(analysis: RunResult) -> Iterable[RenderableType]:
    if not analysis.findings:
        yield Text("No finding reaches 1 % of the window.")
    for group in by_id(analysis.findings):
        yield _finding_group(group)


def _finding_group(group: list[Finding]) -> RenderableType:
    """Show the same finding on several ranks once, by its costliest rank."""
    worst = worst_of(group)
    head = Text.assemble(
        (f" {worst.severity} ", _SEVERITY_STYLE[worst.severity]),
        (f" {worst.id} ", "bold"),
        f"  {ranks_text([finding.rank for finding in group])}",
    )
    lines: list[RenderableType] = [
        Text(f"rank {worst.rank}: {one_line(worst.title)} ({_cost(worst)})")
    ]
    per_step = worst.metrics.get("per_step_ns")
    if isinstance(per_step, int):
        lines.append(Text(f"{duration(per_step)} in the median step"))
    least = min(group, key=lambda finding: finding.impact_fraction)
    if _cost(least) != _cost(worst):
        lines.append(Text(f"lowest: rank {least.rank} with {percent(least.impact_fraction)}"))
    if worst.severity > Severity.INFO:
        lines += [_evidence(evidence) for evidence in worst.evidence[:3]]
        lines += [Text(f"→ {one_line(advice)}", "italic") for advice in worst.advice[:_MAX_ADVICE]]
        more = len(worst.advice) - _MAX_ADVICE
        if more > 0:
            lines.append(Text(f"… {more} more: traceprof explain {worst.id}", "bright_black"))
    return Group(head, Padding(Group(*lines), (0, 0, 1, 3)))


def _cost(finding: Finding) -> str:
    if not finding.impact_ns:
        return "costs nothing"
    return f"{percent(finding.impact_fraction)} of the window"


def _evidence(evidence: Evidence) -> Text:
    length = duration(evidence.end_ns - evidence.start_ns)
    return Text(
        f"at {evidence.start_ns / 1e9:.6f} s for {length}: {one_line(evidence.label)}",
        "bright_black",
        overflow="ellipsis",
        no_wrap=True,
    )


def _not_applicable(missing: Sequence[NotApplicable]) -> Iterable[RenderableType]:
    """Say once what is missing in the same way for several findings or ranks."""
    for group in by_reason(missing):
        known = {gap.rank for gap in group if gap.rank is not None}
        where = f" on {ranks_text(known)}" if known else ""
        findings = ", ".join(dict.fromkeys(gap.id for gap in group))
        yield Text.assemble((findings, "bold"), f"{where}: {one_line(group[0].reason)}")
        yield Padding(Text(f"→ {one_line(group[0].how_to_collect)}", "italic"), (0, 0, 0, 3))


def _notes(analysis: RunResult) -> Iterable[RenderableType]:
    several = len(analysis.run.reports) > 1
    for report_index, note in analysis.notes:
        name = f"{one_line(analysis.run.reports[report_index].path.name)}: " if several else ""
        yield Text(f"{name}{one_line(note)}")
    for report in analysis.failed:
        yield Text(f"left out: {report.error}")
