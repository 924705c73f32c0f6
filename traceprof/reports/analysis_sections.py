"""What a report of an analysis says, in sections for all formats."""

from __future__ import annotations

from collections.abc import Iterator

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.errors import one_line
from traceprof.reports import ranks_text, time_text
from traceprof.reports.blocks import MAX_RANKS, Block, Paragraph, Section, others, section
from traceprof.reports.claims import finding_blocks, gaps, short_findings
from traceprof.structs import Record
from traceprof.units import counted
from traceprof.version import __version__

_MAX_NOTES = 1000
_MAX_NAMED = 3  # reports, each on a line of its own; findings that could not be analysed


class AnalysisSections(Record, frozen=True):
    """The parts of a report; without a rank only header, gaps and notes."""

    header: tuple[str, ...]  # the version, then what was read
    headline: tuple[str, ...] = ()  # what a step takes, what to act on first, what it could take
    times: Section | None = None
    steps: Section | None = None
    slow_steps: Section | None = None
    others: tuple[Section, ...] = ()  # ranks against each other, communication, compute, kernels
    findings: Section | None = None
    gaps: Section | None = None  # what could not be analysed
    notes: Section | None = None  # about the data

    @property
    def in_order(self) -> list[Section]:
        """All of it, in the order of the text report."""
        title, *lines = self.header
        return [
            section("", Paragraph(title, "title"), *lines),
            section("", *self.headline),
            *filter(None, (self.times, self.steps, self.slow_steps)),
            *self.others,
            *filter(None, (self.findings, self.gaps, self.notes)),
        ]


def analysis_sections(analysis: RunResult, *, shows_kernels: bool = False) -> AnalysisSections:
    """Return all that a report of an analysis says."""
    header, notes, explained = _header(analysis), _notes(analysis), gaps(analysis.not_applicable)
    missing = section("Could not be analysed", *explained) if explained else None
    headline = tuple(
        map(one_line, [*time_text.headline_lines(analysis), *time_text.phase_lines(analysis)])
    )
    if not analysis.breakdown:
        return AnalysisSections(header, headline=headline, gaps=missing, notes=notes)
    by_rank = sorted(analysis.breakdown, key=lambda result: result.rank)
    where: list[Block | str | None] = [
        *time_text.where_lines(analysis),
        time_text.parts_table(analysis),
        others(len(analysis.breakdown) - MAX_RANKS, "rank"),
        *time_text.outside_the_training(by_rank),
    ]
    compute = ranks_text.compute_lines(analysis)
    consists = [section("What compute consists of", *compute)] if compute else []
    kernels = kernel_sections(analysis) if shows_kernels else ()
    return AnalysisSections(
        header,
        headline=headline,
        times=section("Where the time went", *where),
        steps=time_text.steps_section(analysis),
        slow_steps=time_text.slow_steps_section(analysis),
        others=(*ranks_text.rank_sections(analysis), *consists, *kernels),
        findings=section("Findings", *finding_blocks(analysis)),
        gaps=missing,
        notes=notes,
    )


def short_sections(analysis: RunResult) -> list[Section]:
    """Return what the text shows without `--verbose`: what to do, and what that is based on."""
    if not analysis.breakdown:
        return analysis_sections(analysis).in_order
    title, *lines = _header(analysis)
    problem, *more = map(one_line, time_text.headline_lines(analysis))
    missing = sorted({gap.id for gap in analysis.not_applicable})
    names = ", ".join(missing[:_MAX_NAMED])
    more_missing = len(missing) - _MAX_NAMED
    unknown = f"Could not be analysed: {names}{f' and {more_missing} more' * (more_missing > 0)}."
    left_out = [f"left out: {report.error}" for report in analysis.failed]
    return [
        section("", Paragraph(title, "title"), *lines),
        section(
            "",
            Paragraph(problem, "title", is_apart=True),
            *more[:-1],
            *(Paragraph(line, is_apart=True) for line in more[-1:]),
            *time_text.phase_lines(analysis),
            *time_text.slow_steps_lines(analysis)[:1],
        ),
        section(
            "Where the time went",
            time_text.parts_table(analysis, _MAX_RANKS),
            others(len(analysis.breakdown) - _MAX_RANKS, "rank"),
            *ranks_text.compute_lines(analysis)[:1],
        ),
        section("Findings", *short_findings(analysis, _MAX_ROWS, _MAX_THEN)),
        section("", *([unknown] if missing else []), *left_out[:_MAX_NAMED]),
        section("", Paragraph("--verbose shows the rest.", is_apart=True)),
    ]


_MAX_ROWS = 6  # findings in the table of the short report
_MAX_THEN = 2  # pieces of advice after the first, which the verdict gives
_MAX_RANKS = 4


def _header(analysis: RunResult) -> tuple[str, ...]:
    reports, version = analysis.run.reports, f"traceprof {__version__}"
    if len(reports) <= _MAX_NAMED:
        lines = (f"{one_line(one.path)}  exported by {one_line(one.origin)}" for one in reports)
        return version, *lines
    folders = sorted({str(report.path.parent) for report in reports})
    where = folders[0] if len(folders) == 1 else f"{len(folders)} folders"
    names = f"{one_line(reports[0].path.name)} to {one_line(reports[-1].path.name)}"
    origins = " and ".join(sorted({one_line(report.origin) for report in reports}))
    count = f"{len(reports)} reports, {names}, in {one_line(where)}"
    return version, f"{count}  exported by {origins}"


def kernel_sections(analysis: RunResult) -> Iterator[Section]:
    """Yield the tables of kernels and of modules."""
    yield ranks_text.kernel_section(analysis)
    modules = ranks_text.module_section(analysis)
    if modules is not None:
        yield modules


def _notes(analysis: RunResult) -> Section | None:
    notes = []
    for report_index, note in analysis.notes:
        name = analysis.run.reports[report_index].path.name
        notes.append(f"{name}: {note}" if len(analysis.run.reports) > 1 else note)
    notes += [f"left out: {report.error}" for report in analysis.failed]
    more = len(notes) - _MAX_NOTES
    notes[_MAX_NOTES:] = [f"… and {counted(more, 'more note')}"] if more > 0 else []
    return section("About the data", *notes) if notes else None
