"""Frames and comparisons of traces of torch.profiler are those of exports.

The same simulated run is in both formats.
"""

from contextlib import closing
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal

import traceprof
from dashboards.address import Address
from dashboards.pages import nccl
from dashboards.view import View
from sample_traces.simulator import simulate_scenario
from sample_traces.simulator.kineto_writer import write_traces
from tests.support import profiler_events
from tests.support.dashboard import named


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """Return the reports of one run, as an export and as traces."""
    folder = tmp_path_factory.mktemp("both")
    export = folder / "run.sqlite"
    simulate_scenario("training", export)
    return [export], write_traces(export, folder, "run", ".json.gz")


def test_frames_are_equal(both: tuple[list[Path], list[Path]]) -> None:
    steps, kernels, calls = [], [], []
    for reports in both:
        with closing(traceprof.analyze(*reports)) as analysis:
            steps.append(analysis.to_pandas("steps"))
        with traceprof.open_run(*reports) as run:
            frame = run.kernels(rank=0)
            kernels.append(frame[["start_ns", "end_ns", "name", "stream"]].astype({"name": str}))
            frame = run.api_calls(rank=1)
            calls.append(frame[["start_ns", "end_ns", "name"]].astype({"name": str}))
    for first, second in (steps, kernels, calls):
        assert len(first) > 5
        assert_frame_equal(first, second)


def test_a_comparison_of_both_says_so(both: tuple[list[Path], list[Path]]) -> None:
    document = traceprof.compare(*both)
    assert any("kineto-json" in str(difference) for difference in document.comparable.differences)
    assert document.step.change == 0


def test_groups_have_the_description_that_the_user_gave_them(tmp_path: Path) -> None:
    calls, name = {"tensor parallel": 4, "default_pg": 0, "undefined": 2}, "ncclDevKernel_AllReduce"
    events = []
    for number, (description, group) in enumerate(calls.items(), 1):
        start = 100 * number
        told = {
            "Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Group size": 2,
            "Process Group Name": str(group), "Process Group Description": description,
        }  # fmt: skip
        place = profiler_events.PID, 1
        events += [
            profiler_events.event("cpu_op", "record_param_comms", start, 50, place, **told),
            profiler_events.call(start + 5, start + 10, number=number),
            profiler_events.kernel(start + 20, start + 40, name=name, number=number),
        ]
    with closing(traceprof.analyze(profiler_events.write(tmp_path / "t.json", events))) as analysis:
        uses = {use.communicator: use for use in analysis.result.collectives[0].uses}
        described = {group: use.description for group, use in uses.items()}
        assert described == {"group 4": "tensor_parallel", "group 0": None, "group 2": None}
        assert all(use.bytes == 32 for use in uses.values())
        (grid, *_) = named(nccl.layout(View(analysis, Address())), "AgGrid")
    shown = {row["communicator"] for row in grid.rowData}
    assert shown == {"group 4 (tensor_parallel)", "group 0", "group 2"}
