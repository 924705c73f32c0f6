"""A comparison in all formats: readable by their readers, and nothing in it is a mark."""

import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import msgspec
import pytest
from markdown_it import MarkdownIt

from tests.support.claims import DDP, LATE, document_of
from tests.support.kept_claims import KeptText
from tests.support.traces import SAMPLE_FOLDER
from traceprof.comparison.ask import compare
from traceprof.documents.comparison import Comparison
from traceprof.reports import html, json, junit, markdown
from traceprof.reports.blocks import TableBlock
from traceprof.reports.comparison_sections import comparison_sections, render_comparison

HOSTILE = "<script>alert(1)</script> [x](y) **b** | `c` @all &amp; ::error::\x1b[31m\x00\n::x"
GATES = ["step:-32.2%", "finding:late-allreduce", "step:-50%"]


def made(gates: list[str]) -> Comparison:
    return compare(document_of(LATE), document_of(DDP), gates=gates)


def parsed(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314  (our own)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return made(GATES)


@pytest.fixture(scope="module")
def hostile(comparison: Comparison) -> Comparison:
    """Return a comparison in which every text of a report is hostile."""
    changed = msgspec.convert(msgspec.to_builtins(comparison), Comparison)
    for side in (changed.before, changed.after):
        side.name, side.reports, side.gpus = HOSTILE, [HOSTILE], [HOSTILE]
        side.left_out_reports = [HOSTILE]
    changed.comparable.reasons = [HOSTILE]
    for difference in changed.comparable.differences:
        difference.before = difference.after = HOSTILE
    for kernel in changed.kernels:
        kernel.before = HOSTILE
        kernel.is_significant = True
    for row in changed.communication:
        row.before = HOSTILE
    for gate in changed.gates:
        gate.reason = HOSTILE
    return changed


@pytest.mark.parametrize(
    "render", [render_comparison, markdown.render_comparison, html.render_comparison]
)
def test_all_that_is_said_is_in_each_format(
    comparison: Comparison, render: Callable[[Comparison], str]
) -> None:
    written = re.sub(r"\s+", " ", re.sub(r"\\(.)", r"\1", render(comparison)))
    assert written.count(comparison.headline) == 1
    num_cells = 0
    for section in comparison_sections(comparison):
        assert section.title in written
        for block in section.blocks:
            for row in block.rows if isinstance(block, TableBlock) else ():
                assert all(str(cell) in written for cell in row)
                num_cells += len(row)
    assert num_cells > 50


def test_junit_has_a_case_for_each_gate(comparison: Comparison) -> None:
    suite = parsed(junit.render_comparison(comparison)).find("testsuite")
    assert suite is not None
    cases = {case.get("name"): case.find("failure") for case in suite.findall("testcase")}
    assert list(cases) == GATES
    failed = {name for name, failure in cases.items() if failure is not None}
    assert failed == {gate.gate for gate in comparison.gates if gate.outcome != "met"}
    assert suite.get("tests") == "3"
    assert suite.get("failures") == str(len(failed))
    assert 0 < len(failed) < 3


def test_annotations_are_errors_or_a_notice(comparison: Comparison) -> None:
    lines = junit.github_annotations(comparison).splitlines()
    failed = [gate for gate in comparison.gates if gate.outcome != "met"]
    assert len(lines) == len(failed)
    assert all(re.fullmatch(r"::error title=[^:,]+::.+", line) for line in lines)
    assert re.fullmatch(
        r"::notice title=traceprof::A step takes .+\n", junit.github_annotations(made([]))
    )


def test_no_text_of_a_report_is_a_mark(hostile: Comparison) -> None:
    page = html.render_comparison(hostile)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<title>") == 1
    assert "<svg" in page
    assert not re.search(r"""(?:src|href|url)\s*[=(]""", page)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown.render_comparison(hostile))
    ours = {"details", "summary", "sub"}
    for token in tokens:
        tags = re.findall(r"</?(\w+)", token.content) if token.type == "html_block" else []
        assert set(tags) <= ours, token
        for child in token.children or ():
            assert child.type not in {"strong_open", "em_open", "code_inline", "link_open"}, child
            if child.type == "html_inline":
                assert re.fullmatch(r"</?(?:sub|summary|details)>", child.content)
    parsed(junit.render_comparison(hostile))
    for line in junit.github_annotations(hostile).splitlines():
        assert re.match(r"::(?:error|warning) title=", line)
    shown = render_comparison(hostile)
    assert "\x1b" not in shown
    assert "\x00" not in shown


def test_paths_that_are_no_utf8_are_written() -> None:
    odd = document_of(DDP)
    odd.reports[0].path = "a\udcff.sqlite"
    comparison = compare(odd, odd, gates=["step:+2%"])
    for render in (
        render_comparison,
        markdown.render_comparison,
        html.render_comparison,
        junit.render_comparison,
        junit.github_annotations,
    ):
        render(comparison).encode()
    assert "\\udcff" in json.render_comparison(comparison)


def test_the_second_line_says_which_part_changed_most(kept_text: KeptText) -> None:
    """The sample's loader sleeps; a rerun of the same program without it idles less."""
    compared = compare(SAMPLE_FOLDER / "data-loading.sqlite", SAMPLE_FOLDER / "healthy.sqlite")
    shown = render_comparison(compared)
    kept_text(shown[shown.index("Most of the change") :].partition("\n")[0])
