"""The Markdown report: it shows the text of reports, and nothing of it is a mark."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.support.commands import printed
from tests.support.selection import long_after
from tests.support.traces import analysis_of
from traceprof.reports.markdown import escaped, render

SAMPLES = Path(__file__).parents[2] / "sample_traces"
_READER = MarkdownIt("gfm-like", {"linkify": False})
_PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)


def _shown(markdown: str) -> str:
    """Return the text that a reader sees, which has to be nothing but text."""
    shown = ""
    for token in _READER.parse(markdown):
        assert token.type in {"paragraph_open", "inline", "paragraph_close"}, token
        for child in token.children or ():
            assert child.type in {"text", "text_special"}, child
            shown += child.content
    return shown


@given(_PRINTABLE)
@example("1. a")
@example("- a")
@example("___")
@example("a_b_ *c* `d` <e> [f](g) ![h](i) ~~j~~ &amp; # k")
@example("# heading")
@example("=")
@example("http://x.y www.x.y")
def test_text_is_shown_as_it_is(text: str) -> None:
    text = text.strip()
    if text:
        assert _shown(escaped(text)).replace("\u200b", "") == text


def test_nobody_is_mentioned_and_nothing_linked() -> None:
    assert "@x" not in escaped("@x")
    assert "http://" not in escaped("see http://x")


@pytest.mark.parametrize("name", long_after(2, ["training", "gloo", "healthy"]))
def test_it_has_what_the_text_report_has(name: str) -> None:
    path = SAMPLES / f"{name}.sqlite"
    markdown = printed("analyze", "--format", "markdown", "--kernels", path)
    with analysis_of(path) as analysis:
        assert markdown == render(analysis.result, shows_kernels=True)
        for finding in analysis.result.findings:
            assert f"**{finding.id}**" in markdown
    for table in re.findall(r"(?:^\|.*\|\n)+", markdown, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1
    assert markdown.count("<details>") == markdown.count("</details>")
    assert len(markdown) < 60_000  # GitHub takes 65,536 characters
