"""The report as Markdown, as issues and chats show it: all text of a report is text there, too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceprof.analyses.breakdown import judged_kind
from traceprof.findings import by_id, worst_of
from traceprof.reports.blocks import Table, blocks, table
from traceprof.reports.findings_text import (
    MAX_EVIDENCE,
    claim_lines,
    evidence_text,
    gap_lines,
    lines_below,
    max_advice,
    no_finding,
)
from traceprof.reports.headline_text import headline_lines
from traceprof.reports.text import communication_sections, header_lines, note_lines
from traceprof.reports.time_text import Bar, below_the_table, parts_table, steps_table
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.findings import Finding
    from traceprof.run.rank import WindowKind

# What Markdown gives a meaning anywhere in a line; others have one only where a line begins.
_SPECIAL = re.compile(
    r"[\\`*{}\[\]<>|~$#]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word it means nothing
    r"|&(?=#?\w+;)|(?<=www)\.|:(?=//)"
)
_AT_START = re.compile(r"^(\s*\d*)([-+=.)])(?=[-=\s]|$)")
_MAX_LINES = 20  # about the data: more than that nobody reads in a comment


def render(analysis: RunResult, *, shows_kernels: bool = False) -> str:
    """Return the report as Markdown: what matters first, the rest folded in.

    Args:
        analysis: what was found out.
        shows_kernels: whether there is a table of kernels in it.
    """
    title, *reports = header_lines(analysis)
    headline = headline_lines(analysis)
    lines = [f"### {escaped(headline[0] if headline else title)}", ""]
    lines += [f"{escaped(line)}\n" for line in headline[1:]]
    if analysis.breakdown:
        kind = judged_kind(analysis.breakdown)
        lines += [*table_lines(table(parts_table(analysis))), ""]
        lines += [f"{escaped(line)}\n" for line in below_the_table(analysis)]
        lines += ["#### Findings", "", *_findings(analysis, kind), ""]
        steps = steps_table(analysis)
        if steps is not None:
            lines += _folded("Per training step", [steps])
        for heading, content in communication_sections(analysis, shows_kernels=shows_kernels):
            lines += _folded(heading, content)
    missing = [
        f"* **{escaped(findings)}**{escaped(reason)}  \n  → {escaped(remedy)}"
        for findings, reason, remedy in gap_lines(analysis.not_applicable)
    ]
    about = [f"* {escaped(note)}" for note in note_lines(analysis)]
    for heading, items in (("Could not be analysed", missing), ("About the data", about)):
        if items:
            lines += details(heading, items[:_MAX_LINES])
    lines += [f"<sub>{escaped(' · '.join([title, *reports]))}</sub>"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text as Markdown that shows it: it makes no mark, no link, no mention, no HTML."""
    shown = _SPECIAL.sub(lambda match: f"\\{match[0]}", text)
    shown = _AT_START.sub(r"\1\\\2", shown)
    return shown.replace("@", "@\N{ZERO WIDTH SPACE}")


def _findings(analysis: RunResult, kind: WindowKind) -> Iterator[str]:
    if not analysis.findings:
        yield escaped(no_finding(kind))
    for place, group in enumerate(by_id(analysis.findings)):
        yield from _finding(analysis, group, max_advice(place, worst_of(group)))
    for line in lines_below(analysis, kind):
        yield f"* {escaped(line)}"


def _finding(analysis: RunResult, group: list[Finding], num_advice: int) -> Iterator[str]:
    worst = worst_of(group)
    claim, *more = claim_lines(analysis, group)
    ranks = ranks_text([finding.rank for finding in group])
    yield f"* **{worst.severity}** **{escaped(worst.id)}** ({ranks}): {escaped(claim)}"
    for line in more:
        yield f"  * {escaped(line)}"
    for item in worst.evidence[: MAX_EVIDENCE[worst.severity]]:
        yield f"  * {escaped(evidence_text(item))}"
    for advice in worst.advice[:num_advice]:
        yield f"  * → {escaped(advice)}"


def _folded(heading: str, content: Iterable[RenderableType]) -> list[str]:
    lines: list[str] = []
    for block in blocks(content):
        if isinstance(block, Table):
            lines += [
                *table_lines(block),
                "",
                *([escaped(block.caption), ""] if block.caption else []),
            ]
        else:
            lines += [escaped(block.text), ""]
    return details(heading, lines)


def details(heading: str, lines: Iterable[str]) -> list[str]:
    """Return lines of Markdown folded in below a heading of ours."""
    return [f"<details><summary>{heading}</summary>", "", *lines, "", "</details>", ""]


def table_lines(content: Table) -> Iterator[str]:
    """Yield a table without its bars."""
    shown = [
        column
        for column in range(len(content.headings))
        if not any(isinstance(row[column], Bar) for row in content.rows)
    ]
    yield _row(content.headings[column] for column in shown)
    yield _row(":--" if content.is_left[column] else "--:" for column in shown)
    for row in content.rows:
        yield _row(escaped(str(row[column])) for column in shown)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
