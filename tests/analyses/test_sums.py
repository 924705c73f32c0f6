"""Rates and sums of copies by link, direction and peer."""

from pathlib import Path

from tests.support.builders import TraceBuilder
from tests.support.traces import closed_analysis


def test_rates_and_peers(tmp_path: Path) -> None:
    # two overlapping copies to device 1, one from device 2, one within the device, one to it
    builder = TraceBuilder().memcpy(0, 100, "PtoP", bytes=1000, source=0, destination=1)
    builder.memcpy(50, 150, "PtoP", bytes=500, source=0, destination=1, stream=8)
    builder.memcpy(200, 300, "PtoP", bytes=100, source=2, destination=0)
    builder.memcpy(300, 400, "DtoD", bytes=10).memcpy(400, 500, "HtoD", bytes=2000)
    (result,) = closed_analysis(builder.write(tmp_path)).result.links
    uses = [
        (use.link, use.direction, use.peer, use.bytes, use.busy_ns, use.gb_per_s)
        for use in result.uses
    ]
    assert uses == [
        ("pcie", "h2d", None, 2000, 100, 20.0),
        (None, "d2d", None, 10, 100, 0.1),
        (None, "p2p", 1, 1500, 150, 10.0),
        (None, "p2p", 2, 100, 100, 1.0),
    ]


def test_only_copies_that_start_in_the_window_count(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 100, bytes=1).memcpy(90, 200, bytes=2)
    path = builder.memcpy(200, 300, bytes=4).write(tmp_path)
    analysis = closed_analysis(path, time_range=(90, 200))
    assert [use.bytes for use in analysis.result.links[0].uses] == [2]
