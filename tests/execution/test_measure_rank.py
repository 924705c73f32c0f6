"""What a trace lacks is said by every analysis that needs it."""

from contextlib import closing
from pathlib import Path

from tests.support.builders import TraceBuilder
from traceprof import analyze
from traceprof.analyses.registry import ANALYSES
from traceprof.trace.model.parts import Part


def test_what_needs_api_calls_says_that_there_are_none(tmp_path: Path) -> None:
    ids = {
        id_
        for analysis in ANALYSES
        if Part.API_CALLS in analysis.requires
        for id_ in analysis.findings
    }
    assert {"host-sync", "launch-queue-stall"} <= ids
    with closing(analyze(TraceBuilder().kernel(0, 9, launch=False).write(tmp_path))) as analysis:
        missing = {gap.id: gap for gap in analysis.not_applicable if gap.id in ids}
        assert not ids & {finding.id for finding in analysis.findings}
    assert {*missing} == ids
    for gap in missing.values():
        assert gap.reason == "the report has no CUDA API calls: what the host did is not known"
        assert "--trace=cuda" in gap.how_to_collect


def test_with_api_calls_nothing_is_missing_for_want_of_them(tmp_path: Path) -> None:
    with closing(analyze(TraceBuilder().kernel(10, 19, launch=(0, 5)).write(tmp_path))) as analysis:
        assert not [gap for gap in analysis.not_applicable if "no CUDA API calls" in gap.reason]
