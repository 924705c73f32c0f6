"""A step takes as long in every output: text, JSON, what-if, comparison, store, frames, pages."""

import statistics
from pathlib import Path

import pytest

from dashboards.address import Address
from dashboards.pages import overview
from dashboards.pages import steps as steps_page
from dashboards.view import View
from tests.support.dashboard import named, text
from tests.support.selection import known
from tests.support.traces import SAMPLE_FOLDER, SAMPLES, analysis_of
from traceprof.analyses import breakdown
from traceprof.analyses.steps import step_lengths
from traceprof.comparison.ask import compare
from traceprof.documents.analysis.records import document
from traceprof.replay.whatif import whatif
from traceprof.reports.time_text import headline_lines
from traceprof.store import save, stored_runs
from traceprof.units import duration

_WITHIN = 0.001
_PARTS = {
    "exposed-communication": "exposed_communication_ns",
    "exposed-copy": "exposed_copy_ns",
    "gpu-idle": "idle_ns",
}
_QUICK = {"ddp", "gloo"}  # with ranks on GPUs, and without


def assert_all_say_the_same(report: Path, store: Path) -> None:
    """Hold every output to what a plain mean of the rows of steps gives."""
    with analysis_of(report) as analysis:
        result = analysis.result
        written = document(result)
        frame = analysis.to_pandas("steps")
    said = written.headline.step_ns
    if said is None:
        assert not written.step_totals
        return
    same = pytest.approx(said, rel=_WITHIN, abs=1)
    counted = frame[frame["left_out"].isna()]
    means = counted.groupby("rank")["window_ns"].mean()
    if len(means):
        assert means.max() == same
        rows = [
            [row.window_ns for row in written.steps if row.rank == rank and row.left_out is None]
            for rank in {row.rank for row in written.steps}
        ]
        slowest = max((row for row in rows if row), key=statistics.mean)
        assert written.headline.median_step_ns == pytest.approx(statistics.median(slowest), abs=1)
        kinds = written.headline.step_kinds
        assert sum(kind.num_steps for kind in kinds) == len(slowest)
        assert sum(kind.num_steps * kind.mean_ns for kind in kinds) / len(slowest) == same
    else:
        assert (written.headline.median_step_ns, written.headline.step_kinds) == (None, [])
    totals = written.step_totals
    assert max(one.window_ns / max(one.num_steps, 1) for one in totals) == same
    line = headline_lines(result)[-1]
    assert f" takes {duration(said)} " in line.replace(",", " ")
    save(store, result, "run")
    assert [run.step_ns for run in stored_runs(store)] == [same]
    compared = compare(report, report)
    of_compared = {finding.id: finding.before_ns for finding in compared.findings}
    for id_, part in _PARTS.items():
        found = [finding for finding in written.findings if finding.id == id_]
        in_step = [counted[counted["rank"] == finding.rank][part].mean() for finding in found]
        if len(means):
            costs = [int(finding.metrics["per_step_ns"] or 0) for finding in found]
            assert costs == pytest.approx(in_step, abs=1)
            # What lies in another phase of a program is compared over the steps of all.
            if all(finding.elsewhere is None for finding in found):
                assert of_compared.get(id_) == (max(costs) if costs else None)
    assert compared.step.before_ns == same
    assert compared.step.after_ns == same
    baseline = whatif(report, assume=["no-sync"]).whatif.baseline
    # Without steps the GPUs of one process begin together in a replay.
    if baseline is not None and (len(means) or len(written.ranks) == 1):
        assert baseline.step_ns == same


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(path, marks=[] if path.stem in _QUICK else [pytest.mark.long], id=path.stem)
        for path in SAMPLES
    ],
)
def test_in_samples(sample: Path, tmp_path: Path) -> None:
    assert_all_say_the_same(sample, tmp_path / "runs.db")


@pytest.mark.long
@pytest.mark.cpu_export
def test_in_real_traces(real_trace: Path, tmp_path: Path) -> None:
    assert_all_say_the_same(real_trace, tmp_path / "runs.db")


def test_pages_say_it() -> None:
    with analysis_of(SAMPLE_FOLDER / "training.sqlite") as analysis:
        headline = known(analysis.result.headline)
        page = steps_page.layout(View(analysis, Address()))
        (grid,) = named(page, "AgGrid")
        shown = {row["rank"]: row["window_ns"] for row in grid.rowData}
        for result in analysis.of(breakdown):
            lengths = known(step_lengths(result))
            assert shown[result.rank] == pytest.approx(lengths.mean_ns, abs=1)
        assert "cut by the recording's edge" in text(page)
        assert f"A step takes  {duration(headline.step_ns)}" in text(
            overview.layout(View(analysis, Address()))
        )
