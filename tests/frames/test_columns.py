"""Texts of columns: of every table, its columns in order, with the kinds of their values."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from tests.support.traces import SAMPLE, analysis_of
from traceprof.documents.analysis.records import TABLES
from traceprof.frames.events import EVENTS
from traceprof.frames.open_run import RunFrames
from traceprof.frames.results import columns, subject
from traceprof.reports.table_files import tables, whole_table

KINDS: dict[str, Callable[[Any], bool]] = {
    "true or false": pd.api.types.is_bool_dtype,
    "integer": pd.api.types.is_integer_dtype,
    "number": pd.api.types.is_float_dtype,
}


@pytest.mark.parametrize("file_name", tables())
def test_columns_are_those_of_the_frame(file_name: str) -> None:
    record = tables()[file_name]
    with analysis_of(SAMPLE) as analysis:
        frame = whole_table(analysis, file_name)
    described = columns(record)
    assert [column.name for column in described] == [*frame.columns]
    kinds = {
        column: next((kind for kind, holds in KINDS.items() if holds(frame[column].dtype)), "text")
        for column in frame.columns
    }
    assert {one.name: one.kind.replace("JSON", "text") for one in described} == kinds
    assert all(one.unit == "ns" for one in described if one.name.endswith("_ns"))
    assert subject(record)


def test_meanings_are_those_of_the_declarations() -> None:
    (nests,) = (one for one in columns(EVENTS["ranges"]) if one.name == "nests")
    assert nests.meaning == "whether it was pushed and popped"
    (metrics,) = (one for one in columns(TABLES["findings"].record) if one.name == "metrics")
    assert (metrics.kind, metrics.meaning[:15]) == ("JSON", "Numbers by name")


@pytest.mark.parametrize("name", EVENTS)
def test_methods_say_the_columns_of_their_events(name: str) -> None:
    described = " ".join((getattr(RunFrames, name).__doc__ or "").split())
    assert described.startswith(f"Return {subject(EVENTS[name])[:1].lower()}")
    said = described.partition("Returns: ")[2].partition(". ")[0]
    place = 0
    for column in columns(EVENTS[name]):
        place = said.index(column.name, place)
        assert column.meaning in said
