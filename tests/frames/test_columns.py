"""Texts of columns: of every table, its columns in order, with the kinds of their values."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from tests.support.traces import SAMPLE, analysis_of
from traceprof.frames.columns import columns, subject
from traceprof.reports.table_files import tables, whole_table

KINDS: dict[str, Callable[[Any], bool]] = {
    "true or false": pd.api.types.is_bool_dtype,
    "integer": pd.api.types.is_integer_dtype,
    "number": pd.api.types.is_float_dtype,
}


@pytest.mark.parametrize("file_name", tables())
def test_columns_are_those_of_the_frame(file_name: str) -> None:
    name, of_events = tables()[file_name]
    with analysis_of(SAMPLE) as analysis:
        frame = whole_table(analysis, file_name)
    described = columns(name, of_events=of_events)
    assert [column.name for column in described] == [*frame.columns]
    kinds = {
        column: next((kind for kind, holds in KINDS.items() if holds(frame[column].dtype)), "text")
        for column in frame.columns
    }
    assert {one.name: one.kind.replace("JSON", "text") for one in described} == kinds
    assert all(one.unit == "ns" for one in described if one.name.endswith("_ns"))
    assert subject(name, of_events=of_events)


def test_meanings_are_those_of_the_declarations() -> None:
    (operation,) = (one for one in columns("kernels", of_events=True) if one.name == "operation")
    assert operation.meaning == "what a communication kernel does"
    (nests,) = (one for one in columns("ranges", of_events=True) if one.name == "nests")
    assert nests.meaning == "whether it was pushed and popped"
    (metrics,) = (one for one in columns("findings", of_events=False) if one.name == "metrics")
    assert (metrics.kind, metrics.meaning[:15]) == ("JSON", "Numbers by name")
