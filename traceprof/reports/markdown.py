"""Reports as Markdown, as issues and chats show it: text of a report is never a mark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.documents.comparison import Comparison
from traceprof.reports.analysis_sections import analysis_sections
from traceprof.reports.blocks import (
    Bar,
    Block,
    Claim,
    Gap,
    Paragraph,
    Section,
    TableBlock,
    paragraph,
)
from traceprof.reports.comparison_sections import comparison_sections
from traceprof.version import __version__

# What Markdown gives a meaning anywhere in a line; others have one only where a line begins.
_SPECIAL = re.compile(
    r"[\\`*{}\[\]<>|~$#]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word it means nothing
    r"|&(?=#?\w+;)|(?<=www)\.|:(?=//)"
)
_AT_START = re.compile(r"^(\s*\d*)([-+=.)])(?=[-=\s]|$)")
_MAX_LINES = 20  # about the data: more than that nobody reads in a comment
_OPEN = ("Gates", "Where it comes from", "Findings, per step")  # of a comparison; others are folded


def render(analysis: RunResult, *, shows_kernels: bool = False) -> str:
    """Return the report as Markdown: what matters first, the rest folded in."""
    report = analysis_sections(analysis, shows_kernels=shows_kernels)
    title, *more = report.headline or report.header[:1]
    lines = [f"### {escaped(title)}", "", *(f"{escaped(line)}\n" for line in more)]
    if report.times is not None:
        lines += _blocks(report.times.blocks)
    if report.findings is not None:
        lines += ["#### Findings", "", *_items(report.findings.blocks), ""]
    for section in filter(None, (report.steps, report.slow_steps, *report.others)):
        lines += _folded(section.title, _blocks(section.blocks))
    for section in filter(None, (report.gaps, report.notes)):
        lines += _folded(section.title, _items(section.blocks[:_MAX_LINES]))
    lines.append(f"<sub>{escaped(' · '.join(report.header))}</sub>")
    return "\n".join(lines) + "\n"


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as Markdown: what matters first, the rest folded in."""
    head, *sections = comparison_sections(comparison)
    others = [block for block in head.blocks if block != paragraph(comparison.headline)]
    lines = [f"### {escaped(comparison.headline)}", "", *_items(others), ""]
    for section in sections:
        content = _with_items(section)
        if section.title in _OPEN:
            lines += [f"#### {section.title}", "", *content]
        elif section.blocks:
            lines += _folded(section.title, content)
    lines.append(f"<sub>traceprof {__version__}</sub>")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text as Markdown that shows it: it makes no mark, no link, no mention, no HTML."""
    shown = _SPECIAL.sub(lambda match: f"\\{match[0]}", text)
    shown = _AT_START.sub(r"\1\\\2", shown)
    return shown.replace("@", "@\N{ZERO WIDTH SPACE}")


def _with_items(section: Section) -> Iterator[str]:
    blocks = section.blocks
    first = next(
        (at for at, block in enumerate(blocks) if isinstance(block, TableBlock)), len(blocks)
    )
    if first:
        yield from _items(blocks[:first])
        yield ""
    yield from _blocks(blocks[first:])


def _items(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Claim):
            yield from _claim(block)
        elif isinstance(block, Gap):
            what = f"**{escaped(block.findings)}**{escaped(block.reason)}"
            yield f"* {what}  \n  → {escaped(block.remedy)}"
        elif isinstance(block, Paragraph):
            yield f"* {escaped(block.text)}"


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, TableBlock):
            yield from _table(block)
        elif isinstance(block, Paragraph):
            yield escaped(block.text)
        yield ""


def _claim(claim: Claim) -> Iterator[str]:
    title, *more = claim.sentences
    yield f"* **{claim.severity}** **{escaped(claim.id)}** ({claim.ranks}): {escaped(title)}"
    for line in (*more, *(item.text for item in claim.evidence if item.is_shown)):
        yield f"  * {escaped(line)}"
    for advice in claim.advice[: claim.num_advice]:
        yield f"  * → {escaped(advice)}"


def _folded(heading: str, lines: Iterable[str]) -> list[str]:
    return [f"<details><summary>{heading}</summary>", "", *lines, "", "</details>", ""]


def _table(table: TableBlock) -> Iterator[str]:
    shown = [
        (place, column)
        for place, column in enumerate(table.columns)
        if not any(isinstance(row[place], Bar) for row in table.rows)
    ]
    yield _row(column.heading.replace("\n", " ") for _, column in shown)
    yield _row(":--" if column.is_text else "--:" for _, column in shown)
    for row in table.rows:
        yield _row(escaped(str(row[place])) for place, _ in shown)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
