"""The text report: where the time went, what it costs, what could not be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.communication_text import communication_tables
from traceprof.reports.compute_text import compute_lines
from traceprof.reports.findings_text import findings_section, not_applicable_section
from traceprof.reports.headline_text import headline_lines
from traceprof.reports.kernels_text import kernel_tables
from traceprof.reports.plain_text import plain
from traceprof.reports.ranks_text import (
    arrived_heading,
    has_several_ranks,
    ranks_on_one_clock,
    transfer_table,
)
from traceprof.reports.tables import Escaped
from traceprof.reports.time_text import breakdown_table, steps_table
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

    from traceprof.analyses.verdict.run_result import RunResult

_MAX_NAMED = 3  # reports, each on a line of its own


def render(
    analysis: RunResult, console: Console | None = None, *, shows_kernels: bool = False
) -> str:
    """Return the report as plain text; with a console, print it there instead.

    Args:
        analysis: what was found out.
        console: a terminal; plain text of 110 columns where not given.
        shows_kernels: whether there is a table of kernels in it.
    """
    if console is not None:
        ascii_only = console.options.ascii_only
        console.print(report(analysis, ascii_only=ascii_only, shows_kernels=shows_kernels))
        return ""
    return plain(report(analysis, shows_kernels=shows_kernels))


def report(
    analysis: RunResult, *, ascii_only: bool = False, shows_kernels: bool = False
) -> RenderableType:
    """Return the whole report for a rich console."""
    parts: list[RenderableType] = [_header(analysis)]
    if analysis.breakdown:
        parts += [Text(line) for line in headline_lines(analysis)]
        table = breakdown_table(analysis, ascii_only=ascii_only)
        parts += [_heading("Where the time went"), table]
        steps = steps_table(analysis.breakdown)
        if steps is not None:
            parts += [_heading("Per training step"), steps]
        for heading, content in communication_sections(analysis, shows_kernels=shows_kernels):
            parts += [_heading(heading), *content]
        parts += [_heading("Findings"), *findings_section(analysis)]
    if analysis.not_applicable:
        parts += [
            _heading("Could not be analysed"),
            *not_applicable_section(analysis.not_applicable),
        ]
    if analysis.notes or analysis.failed:
        parts += [_heading("About the data"), *map(Text, note_lines(analysis))]
    return Escaped(Group(*parts))


def communication_sections(
    analysis: RunResult, *, shows_kernels: bool
) -> Iterator[tuple[str, list[RenderableType]]]:
    """Yield headings and their content: matched operations, communication, compute, kernels.

    Args:
        analysis: what was found out.
        shows_kernels: whether there is a table of kernels.
    """
    if has_several_ranks(analysis):
        is_one_report = len(analysis.run.reports) == 1
        heading = "Who waited for whom" if is_one_report else "Ranks on one clock"
        yield heading, [*ranks_on_one_clock(analysis)]
        # Of one report the JSON has it: who waited says more in less room.
        transferred = None if is_one_report else transfer_table(analysis)
        if transferred is not None:
            yield arrived_heading(analysis), [transferred]
    for heading, communicated in communication_tables(analysis):
        yield heading, [communicated]
    compute = compute_lines(analysis)
    if compute:
        yield "What compute consists of", [*map(Text, compute)]
    if shows_kernels:
        yield "Kernels, by name", [*kernel_tables(analysis)]


def _heading(text: str) -> RenderableType:
    return Padding(Rule(Text(text, "bold"), align="left", style="bright_black"), (1, 0, 0, 0))


def _header(analysis: RunResult) -> RenderableType:
    title, *lines = header_lines(analysis)
    return Group(Text(title, "bold"), *map(Text, lines))


def header_lines(analysis: RunResult) -> list[str]:
    """Say what made the report, and what was read: a line for each report, or one for many."""
    reports = analysis.run.reports
    lines = [f"traceprof {__version__}"]
    if len(reports) <= _MAX_NAMED:
        return lines + [
            f"{one_line(report.path)}  exported by {one_line(report.origin)}" for report in reports
        ]
    folders = sorted({str(report.path.parent) for report in reports})
    where = folders[0] if len(folders) == 1 else f"{len(folders)} folders"
    names = f"{one_line(reports[0].path.name)} to {one_line(reports[-1].path.name)}"
    origins = " and ".join(sorted({one_line(report.origin) for report in reports}))
    count = f"{len(reports)} reports, {names}, in {one_line(where)}"
    return [*lines, f"{count}  exported by {origins}"]


def note_lines(analysis: RunResult) -> list[str]:
    """Say what to know about the reports' data, and which reports were left out."""
    several = len(analysis.run.reports) > 1
    lines = []
    for report_index, note in analysis.notes:
        name = f"{one_line(analysis.run.reports[report_index].path.name)}: " if several else ""
        lines.append(f"{name}{one_line(note)}")
    return [*lines, *(f"left out: {report.error}" for report in analysis.failed)]
