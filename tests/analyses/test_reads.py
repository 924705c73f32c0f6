"""What findings need: with `only`, that alone is measured, and its numbers are those of all."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.support.selection import long_after
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analyses import breakdown
from traceprof.analyses.measurements import MEASUREMENTS
from traceprof.analyses.registry import ANALYSES, FINDING_IDS, READ_BY_REPLAY, wanted
from traceprof.analysis import RunResult, analyze
from traceprof.execution.options import Options

SAMPLES = [
    SAMPLE_FOLDER / f"{name}.sqlite"
    for name in ("uneven-clock", "pipeline-copies", "nccl-serialization", "ddp")
]


def _result(path: Path, options: Options) -> RunResult:
    with closing(analyze(path, options=options, jobs=1)) as analysis:
        return analysis.result


def _about(result: RunResult, id_: str) -> bytes:
    findings = [finding for finding in result.findings if finding.id == id_]
    gaps = [gap for gap in result.not_applicable if gap.id == id_]
    return msgspec.json.encode([findings, gaps])


@pytest.mark.slow
@pytest.mark.parametrize("sample", long_after(2, SAMPLES), ids=lambda path: path.stem)
def test_a_finding_is_the_same_alone(sample: Path) -> None:
    for savings in (False, None):
        whole = _result(sample, Options(savings=savings))
        assert whole.findings
        assert whole.headline is not None
        for id_ in FINDING_IDS if savings is False else {one.id for one in whole.findings}:
            alone = _result(sample, Options(only=[id_], savings=savings))
            assert _about(alone, id_) == _about(whole, id_), id_
            assert {finding.id for finding in alone.findings} <= {id_}
            assert alone.of(breakdown) == whole.of(breakdown)
            assert alone.headline is not None
            assert alone.headline.step_ns == whole.headline.step_ns


def test_what_nobody_reads_is_not_measured() -> None:
    measured = _result(SAMPLE_FOLDER / "ddp.sqlite", Options(only=["few-blocks"])).measured
    names = [analysis.name for analysis in ANALYSES if measured.results.named(analysis.name)]
    assert [name.rpartition(".")[2] for name in names] == ["breakdown", "few_blocks"]
    assert not any(getattr(measured, name) for name in MEASUREMENTS)
    assert not measured.ranks.ranks


def test_everything_can_be_measured_nevertheless() -> None:
    options = Options(only=["few-blocks"], measures_all=True)
    result = _result(SAMPLE_FOLDER / "ddp.sqlite", options)
    assert result.measured.kernels
    assert result.measured.step_totals


def test_analyses_read_what_there_is() -> None:
    for analysis in ANALYSES:
        assert {*analysis.reads} <= {*MEASUREMENTS, *FINDING_IDS}, analysis.name
    assert {*READ_BY_REPLAY} <= {*MEASUREMENTS, *FINDING_IDS}


def test_what_is_read_reads_too() -> None:
    needed = wanted(["pipeline-bubble"], is_replayed=False, has_several_reports=False)
    assert needed.measurements == {"arrivals", "passes"}
    assert {name.rpartition(".")[2] for name in needed.read} == {
        "breakdown",
        "exposed_communication",
        "gpu_idle",
        "overlap_slowdown",
        "pipeline_bubble",
    }
    # Clocks are of several reports.
    alone, several = (
        wanted(["few-blocks"], is_replayed=False, has_several_reports=has_several)
        for has_several in (False, True)
    )
    assert not alone.measurements
    assert several.measurements == {"arrivals"}
