"""Each finding has its page; what stands on it is what the code does."""

import re
from importlib import resources

import pytest

from traceprof.analyses.explanations import explanation
from traceprof.analyses.gradient_buckets import _IN_TEN
from traceprof.analyses.launch_queue import _MIN_SHARE
from traceprof.analyses.registry import ANALYSES, FINDING_IDS, FINDINGS
from traceprof.findings import severity_of_cost
from traceprof.host import launch_stalls
from traceprof.ranks import lateness

PAGES = resources.files("traceprof.analyses").joinpath("explanations")


def test_every_finding_has_a_page_and_every_page_a_finding() -> None:
    assert {page.name for page in PAGES.iterdir() if page.name.endswith(".md")} == {
        f"{id_}.md" for id_ in FINDING_IDS
    }


@pytest.mark.parametrize("finding", FINDING_IDS)
def test_a_page_names_the_finding_its_metrics_and_its_limits(finding: str) -> None:
    page = explanation(finding)
    assert page.startswith(f"# {finding}\n")
    assert "$" not in page
    for name in FINDINGS[finding].metrics.declared():
        assert f"* `{name}`: " in page
    assert "info from 1 %, low from 3 %, medium from 10 %, high from 25 %" in page
    assert "What to do" in page


def test_every_value_of_an_analysis_stands_on_one_of_its_pages() -> None:
    for analysis in ANALYSES:
        names = set()
        for finding in analysis.findings:
            names |= set(re.findall(r"\$(\w+)", PAGES.joinpath(f"{finding}.md").read_text()))
        assert set(analysis.page) == names - {"metrics", "severities"}


def test_all_metrics_have_coverage() -> None:
    assert all("coverage" in kind.metrics.declared() for kind in FINDINGS.values())


def test_numbers_that_pages_spell_out_are_those_of_the_code() -> None:
    stall = explanation("launch-queue-stall")
    assert launch_stalls._TIMES_USUAL == 10
    assert "than 10 times the usual launch" in stall
    assert launch_stalls._MIN_AT_CAP == 3
    assert "if at least 3 and most of the long launches" in stall
    assert launch_stalls._AT_CAP_PERCENT == 99
    assert "within\n  1 % of it" in stall
    assert launch_stalls._RETURNS_WITHIN_NS == 100_000
    assert "returned within 100 µs" in stall
    assert launch_stalls._PROMPT_NS == 50_000
    assert "started within 50 µs of its launch" in stall
    assert _MIN_SHARE == 0.01
    assert "stalls of 1 % of the training or more" in stall
    assert _IN_TEN == 10
    assert "*late* if it starts when\n90 % of the compute has run" in explanation("late-allreduce")
    assert lateness.MIN_SHARE == 0.5
    assert "last in at\nleast half of the operations" in explanation("straggler")
    assert severity_of_cost(0.0099) is None
    assert severity_of_cost(0.01) is not None
    for link in ("link-saturated", "link-underused"):
        assert "less than 1 % of the training" in explanation(link)
