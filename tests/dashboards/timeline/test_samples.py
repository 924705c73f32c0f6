"""Rows of sampled counters: the mean in each column is what the samples integrate to."""

import numpy as np
import pytest

from dashboards.timeline.rows import Samples
from tests.support.dashboard import asking
from tests.support.traces import SAMPLE, analysis_of
from traceprof.trace.model.operations import BYTES_PER_MS, PERCENT, LinkSamples

#  time   0    10   20        40   50 (µs)
#  value  | 20 | 60 |  (gap)  | 100|
START, END, VALUE = [0, 10, 40], [10, 20, 50], [20, 60, 100]


def samples(unit: str = PERCENT) -> Samples:
    start, end = 1000 * np.array(START, np.int64), 1000 * np.array(END, np.int64)
    link = LinkSamples("nvlink", "tx", None, unit, start, end, np.array(VALUE, np.int64))
    return Samples.sampled(link)


@pytest.mark.parametrize(
    ("start", "end", "columns", "expected"),
    [
        (0, 50, 5, {0: 200, 1: 600, 4: 1000}),
        (0, 20, 1, {0: 400}),
        (5, 15, 1, {0: 400}),  # half of each
        (12, 42, 1, {0: 680}),  # 8 of 60 and 2 of 100: the gap was not sampled
        (20, 40, 2, {}),
        (-20, 10, 3, {2: 200}),
    ],
)
def test_a_column_has_the_mean_of_what_was_sampled_in_it(
    start: int, end: int, columns: int, expected: dict[int, int]
) -> None:
    view = samples().view(1000 * start, 1000 * end, columns)
    assert dict(zip(view.column.tolist(), view.share.tolist(), strict=True)) == expected


def test_what_was_sampled_is_said_with_its_unit() -> None:
    said = samples().summary(0, 50_000)["said"]
    assert said == ["60 % in the mean", "3 samples of 20 % to 100 %"]
    assert samples().summary(22_000, 30_000)["said"] == ["nothing was sampled here"]
    rates = samples(BYTES_PER_MS)
    assert rates.label == "NVLink, sent · to 0.0001 GB/s"
    assert rates.top == 100


def test_counters_are_rows_of_the_timeline_and_no_events() -> None:
    with analysis_of(SAMPLE.with_stem("link-counters")) as analysis:
        ask = asking(analysis)
        rank = ask("rank", rank=0)
        rows = [row for row in rank["rows"] if row["kind"] == "counter"]
        assert rows
        key = rows[0]["row"]
        view = {"start": rank["start"], "end": rank["end"]}
        tile = ask("tiles", rows=key, columns=500, **view)["rows"][key]
        assert max(tile["share"]) >= 100
        assert tile["event"] == []
        assert "in the mean" in ask("block", row=key, **view)["said"][0]
        assert ask("area", rows=key, **view)["count"] == 0
