"""What the page tells the timeline: its ranks, their names, and what times are counted from."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from dashboards.address import Address
from dashboards.pages import timeline
from tests.support.builders import TraceBuilder
from tests.support.dashboard import attributes_of, text
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analysis import analyze
from traceprof.errors import UsageError

UTC = 1_726_722_437_796_624_059


def test_all_ranks_are_offered_and_the_first_is_open() -> None:
    with analysis_of(SAMPLE) as analysis:
        page = attributes_of(analysis, Address(timeline.PATH))
        assert json.loads(page["ranks"]) == [0, 1]
        assert json.loads(page["opened"]) == [0]
        assert json.loads(page["labels"])["1"].startswith("rank 1 · GPU 1")
        assert page["base"] == "0"


def test_ranks_asked_for_are_open() -> None:
    with analysis_of(SAMPLE) as analysis:
        page = attributes_of(analysis, Address(timeline.PATH, rank=(1,)))
        assert json.loads(page["ranks"]) == json.loads(page["opened"]) == [1]
        with pytest.raises(UsageError, match="rank 7"):
            attributes_of(analysis, Address(timeline.PATH, rank=(7,)))


def test_another_address_makes_another_element() -> None:
    with analysis_of(SAMPLE) as analysis:
        addresses = [Address(timeline.PATH), Address(timeline.PATH, select="0.op.1")]
        keys = {attributes_of(analysis, address)["key"] for address in addresses}
        assert len(keys) == 2


def test_times_of_the_clock_are_counted_from_the_run(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(UTC + 5, UTC + 9).api("early", UTC, UTC + 1)
    with analysis_of(trace.write(tmp_path)) as analysis:
        page = attributes_of(analysis, Address(timeline.PATH))
        assert page["base"] == str(UTC + 5)
        assert page["time"] == "time since the first GPU operation"


def test_the_axis_says_whose_time_it_is(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        trace = TraceBuilder().kernel(0, 100 + rank).nvtx(f"MPI Rank {rank}", 0, 5)
        paths.append(trace.write(tmp_path / f"{rank}.sqlite"))
    for reports, said in ((paths[:1], "time in the report"), (paths, "time in 0.sqlite")):
        with closing(analyze(*reports)) as analysis:
            assert said in attributes_of(analysis, Address(timeline.PATH))["time"]


def test_without_gpu_work(tmp_path: Path) -> None:
    with analysis_of(TraceBuilder().nvtx("step 0", 0, 9).write(tmp_path)) as analysis:
        assert "there is no rank to show" in text(timeline.layout(analysis, Address()))
