"""Rows of the program: places of a GPU's work, functions of Python, and sampled functions."""

from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dashboards.timeline.events import PLACE, PYTHON, STACK
from dashboards.timeline.store import Timelines
from tests.support.dashboard import asking, drawn
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.traces import SAMPLE, analysis_of
from traceprof.frames.open_run import open_run


def places_by_kernel(path: Path, rank: int) -> list[tuple[int, int, str]]:
    """Return the places of the stream with most compute, from the table of kernels."""
    with open_run(path) as run:
        kernels: Any = run.kernels(rank)
    kernels = kernels[kernels["category"] != "communication"]
    stream = kernels.groupby("stream")["duration_ns"].sum().idxmax()
    kernels = kernels[kernels["stream"] == stream].sort_values("start_ns")
    columns: Any = kernels[["start_ns", "end_ns", "place"]].to_numpy(object)
    rows = [(start, end, None if pd.isna(place) else place) for start, end, place in columns]
    spans: list[tuple[int, int, str]] = []
    for place, of_place in groupby(rows, key=lambda row: row[2]):
        alike = list(of_place)
        if place is not None:
            spans.append((alike[0][0], alike[-1][1], place))
    return spans


@pytest.mark.parametrize("stem", ["ddp", "training", "busy-python"])
def test_places_are_those_of_the_kernels(stem: str) -> None:
    path = SAMPLE.with_stem(stem)
    with analysis_of(path) as analysis:
        store = Timelines.of(analysis)
        for number in store.numbers:
            (row,) = (row for row in drawn(store.whole(number)) if row[2] == PLACE)
            assert row[1] == "place in the program"
            assert row[3] == places_by_kernel(path, number)
            assert len({name for *_, name in row[3]}) > 1


def test_a_span_covers_the_samples_of_its_function() -> None:
    with analysis_of(SAMPLE.with_stem("busy-python")) as analysis:
        store = Timelines.of(analysis)
        rank = analysis.run.ranks[0]
        samples = rank.trace.samples(rank.process)
        rows = [row for row in drawn(store.whole(0)) if row[2] == STACK]
    spans = [span for row in rows for span in row[3]]
    assert len(samples.time_ns) > len(spans) > 5
    for time, function in zip(samples.time_ns.tolist(), samples.function.tolist(), strict=True):
        around = [name for start, end, name in spans if start <= time < end]
        assert around == [samples.names[function]]
    starts = set(samples.time_ns.tolist())
    assert all(start in starts for start, *_ in spans)


def test_functions_of_python_have_rows_of_their_own_and_are_found(tmp_path: Path) -> None:
    place = PID, 1
    events = [
        event("python_function", "train.py(3): loop", 1, 39, place),
        event("python_function", "train.py(9): load", 2, 5, place),
        event("python_function", "train.py(11): step", 8, 20, place),
        call(10, 15), kernel(20, 30),
    ]  # fmt: skip
    with analysis_of(write(tmp_path / "t.json", events)) as analysis:
        ask = asking(analysis)
        rows = [row for row in ask("rank", rank=0)["rows"] if row["source"] == PYTHON]
        assert [(row["label"], row["events"], row["folded"]) for row in rows] == [
            ("Python", 1, True),
            ("Python · level 2", 2, True),
        ]
        assert rows[0]["group"].endswith("· Python")
        keys = ",".join(row["row"] for row in rows)
        listed = ask("events", rows=keys, start=-50_000, end=50_000)["events"]
        assert [(one["label"], int(one["duration"])) for one in listed] == [
            ("train.py(3): loop", 39_000),
            ("train.py(9): load", 5_000),
            ("train.py(11): step", 20_000),
        ]
        found = ask("matches", text="kind:python load", order="start", most=9)["events"]
        assert [(one["name"], one["start"]) for one in found] == [
            ("train.py(9): load", listed[1]["start"])
        ]
        assert ask("event", id=found[0]["id"])["facts"] == [["thread", "1"]]
