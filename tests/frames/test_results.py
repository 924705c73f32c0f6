"""Frames of results are the lists of the JSON document."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.support.traces import CPU_SAMPLE, SAMPLE, SAMPLE_FOLDER, analysis_of
from traceprof.documents.analysis.records import TABLES
from traceprof.errors import UsageError
from traceprof.reports.json import render

PATHS = [SAMPLE, CPU_SAMPLE, SAMPLE_FOLDER / "link-counters.sqlite"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_frames_are_the_lists_of_the_document(path: Path) -> None:
    with analysis_of(path) as analysis:
        document = json.loads(render(analysis.result))
        assert {name for name, rows in document.items() if isinstance(rows, list)} == {*TABLES}
        num_rows = 0
        for name in TABLES:
            frame = analysis.to_pandas(name)
            rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
            if name == "findings":  # of a program with phases
                assert {row.pop("in_phase") for row in rows} <= {None}
            assert rows == document[name]
            num_rows += len(rows)
    assert num_rows > 50


def test_columns_and_their_types_do_not_depend_on_the_rows() -> None:
    frames = {}
    for path in PATHS:
        with analysis_of(path) as analysis:
            frames[path] = {name: analysis.to_pandas(name) for name in TABLES}
    is_empty_somewhere = set()
    for name in TABLES:
        kinds = [
            [(column, str(dtype)) for column, dtype in frames[path][name].dtypes.items()]
            for path in PATHS
        ]
        assert kinds[0] == kinds[1] == kinds[2], name
        if any(len(frames[path][name]) == 0 for path in PATHS):
            is_empty_somewhere.add(name)
    assert {"kernels", "buckets"} <= is_empty_somewhere


def test_severities_are_in_order_and_names_are_categories() -> None:
    with analysis_of(SAMPLE) as analysis:
        findings, kernels = analysis.to_pandas("findings"), analysis.to_pandas("kernels")
        owners = analysis.to_pandas("owners")
    assert isinstance(owners["part"].dtype, pd.CategoricalDtype)
    costly = findings[findings["severity"] >= "low"]
    assert 0 < len(costly) < len(findings)
    assert set(costly["severity"]) == {"low"}
    for column in ("name", "category", "precision"):
        assert isinstance(kernels[column].dtype, pd.CategoricalDtype)
    assert findings["metrics"][0]["coverage"] == 1
    assert isinstance(findings["evidence"][0][0]["start_ns"], int)


def test_a_table_that_is_not_there_is_refused() -> None:
    with analysis_of(SAMPLE) as analysis:
        with pytest.raises(UsageError, match="did you mean kernels"):
            analysis.to_pandas("kernel")
        with pytest.raises(UsageError, match="choose one of"):
            analysis.to_pandas("xyzzy")
