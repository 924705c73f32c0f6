"""The text report: where the time went, what it costs, what could not be judged."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.communication_text import communication_tables
from traceprof.reports.detail import WHOLE, Detail, fitting
from traceprof.reports.findings_text import findings_section, gaps
from traceprof.reports.headline_text import headline_lines
from traceprof.reports.kernels_text import compute_lines, kernel_tables, module_table
from traceprof.reports.plain_text import PLAIN_WIDTH, plain
from traceprof.reports.ranks_text import (
    arrived_heading,
    has_several_ranks,
    ranks_on_one_clock,
    transfer_table,
)
from traceprof.reports.tables import Escaped, OneLine
from traceprof.reports.time_text import breakdown_table, steps_table
from traceprof.units import counted
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from rich.console import Console, RenderableType

    from traceprof.analyses.verdict.run_result import RunResult

    _Section: TypeAlias = Callable[[RunResult, Detail], Iterable[RenderableType]]

_MAX_NAMED = 3  # reports, each on a line of its own


def render(
    analysis: RunResult,
    console: Console | None = None,
    *,
    shows_kernels: bool = False,
    is_verbose: bool = False,
) -> str:
    """Return the report as plain text; with a console, print it there instead.

    Args:
        analysis: what was found out.
        console: a terminal; plain text of 110 columns where not given.
        shows_kernels: whether there is a table of kernels in it.
        is_verbose: whether all of it is shown; else as much as fits into `MAX_LINES`, without the
            table of kernels.
    """
    width = PLAIN_WIDTH if console is None else console.width

    @cache  # with another detail most sections are the same
    def drawn(section: _Section, of_section: Detail) -> str:
        return plain(Escaped(Group(*section(analysis, of_section))), width)

    def text(detail: Detail, left_out: str) -> str:
        sections = "".join(drawn(*section) for section in _sections(analysis, detail))
        return sections + plain(Group(*_what_verbose_adds(left_out)), width)

    detail, left_out = WHOLE, ""
    if not is_verbose:
        detail, left_out = fitting(
            analysis, lambda level, missing: text(level, missing or "more").count("\n")
        )
    detail = replace(detail, shows_kernels=shows_kernels)
    if console is None:
        return text(detail, left_out)
    console.print(report(analysis, detail, left_out))
    return ""


def report(analysis: RunResult, detail: Detail = WHOLE, left_out: str = "") -> RenderableType:
    """Return the report for a rich console.

    Args:
        analysis: what was found out.
        detail: how much of it is shown.
        left_out: in words what is not.
    """
    sections = [section(analysis, shown) for section, shown in _sections(analysis, detail)]
    return Escaped(Group(*chain(*sections, _what_verbose_adds(left_out))))


def _sections(analysis: RunResult, detail: Detail) -> Iterator[tuple[_Section, Detail]]:
    """Yield the sections of the report, each with what of the detail it depends on."""
    for section, names in SECTIONS.items():
        if analysis.breakdown or section in {_header, _not_applicable, _notes}:
            yield section, Detail(**{name: getattr(detail, name) for name in names})


def _header(analysis: RunResult, _: Detail) -> list[RenderableType]:
    title, *lines = header_lines(analysis)
    return [Text(title, "bold"), *map(Text, lines)]


def _headline(analysis: RunResult, _: Detail) -> list[RenderableType]:
    return [*map(Text, headline_lines(analysis))]


def _times(analysis: RunResult, detail: Detail) -> list[RenderableType]:
    return [_heading("Where the time went"), breakdown_table(analysis, detail.max_ranks)]


def _steps(analysis: RunResult, detail: Detail) -> list[RenderableType]:
    steps = steps_table(analysis, detail) if detail.has_steps else None
    return [] if steps is None else [_heading("Per training step"), steps]


def _communication(analysis: RunResult, detail: Detail) -> list[RenderableType]:
    sections = communication_sections(analysis, detail, shows_kernels=detail.shows_kernels)
    return [part for heading, content in sections for part in (_heading(heading), *content)]


def _findings(analysis: RunResult, detail: Detail) -> list[RenderableType]:
    return [_heading("Findings"), *findings_section(analysis, detail)]


def _not_applicable(analysis: RunResult, detail: Detail) -> list[RenderableType]:
    """Return what could not be analysed: with reasons, or those that matter and a list."""
    explained, others = gaps(analysis.not_applicable, detail)
    heading = "Could not be analysed"
    parts = [_heading(heading), *explained] if explained else []
    if others:
        also = "Nor could" if explained else "Could not be analysed:"
        parts += [] if explained else [Text("")]
        parts.append(Text(f"{also} {', '.join(others)}{' be analysed' if explained else ''}."))
    return parts


def _notes(analysis: RunResult, detail: Detail) -> list[RenderableType]:
    notes = note_lines(analysis)
    more = len(notes) - detail.max_notes
    notes[detail.max_notes :] = [f"… and {counted(more, 'more note')}"] if more > 0 else []
    return [_heading("About the data"), *map(Text, notes)] if notes else []


SECTIONS: dict[_Section, tuple[str, ...]] = {
    _header: (),
    _headline: (),
    _times: ("max_ranks",),
    _steps: ("max_ranks", "has_all_steps", "has_steps"),
    _communication: (
        *("max_ranks", "has_transfers", "has_groups", "has_compute", "has_kernels"),
        "shows_kernels",
    ),
    _findings: ("is_whole", "num_evidence", "num_advice", "num_first", "later"),
    _not_applicable: ("is_whole", "has_reasons"),
    _notes: ("max_notes",),
}
"""The sections of the report in their order, and the fields of `Detail` that each depends on."""


def _what_verbose_adds(left_out: str) -> list[RenderableType]:
    line = Text(f"--verbose adds: {left_out}", "bright_black")
    return [Text(""), OneLine(line)] if left_out else []


def communication_sections(
    analysis: RunResult, detail: Detail = WHOLE, *, shows_kernels: bool
) -> Iterator[tuple[str, list[RenderableType]]]:
    """Yield headings and their content: matched operations, communication, compute, kernels.

    Args:
        analysis: what was found out.
        detail: how much of it is shown.
        shows_kernels: whether there is a table of kernels.
    """
    if has_several_ranks(analysis):
        is_one_report = len(analysis.run.reports) == 1
        heading = "Who waited for whom" if is_one_report else "Ranks on one clock"
        yield heading, [*ranks_on_one_clock(analysis, detail.max_ranks)]
        # Of one report the JSON has it: who waited says more in less room.
        shows_transfers = not is_one_report and detail.has_transfers
        transferred = transfer_table(analysis) if shows_transfers else None
        if transferred is not None:
            yield arrived_heading(analysis), [transferred]
    if detail.has_groups:
        for heading, communicated in communication_tables(analysis):
            yield heading, [communicated]
    compute = compute_lines(analysis, detail) if detail.has_compute else []
    if compute:
        yield "What compute consists of", [*map(Text, compute)]
    if shows_kernels:
        yield "Kernels, by name", [*kernel_tables(analysis)]
        modules = [*module_table(analysis)]
        if modules:
            yield "Kernels, by module", modules


def _heading(text: str) -> RenderableType:
    return Padding(Rule(Text(text, "bold"), align="left", style="bright_black"), (1, 0, 0, 0))


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
