"""Advice names the calls that a program makes: of collectives, of sends and receives, or both."""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import only_finding
from tests.support.traces import ranks_of
from traceprof.analyses import exposed_communication
from traceprof.communication.messages import asynchronous_calls
from traceprof.run.rank import Window

COLLECTIVES, EXCHANGES = "collectives with async_op=True", "sends and receives with isend and irecv"


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        (["AllReduce", "AlltoAll", "Barrier"], COLLECTIVES),
        (["Send", "Recv", "SendRecv", "Barrier"], EXCHANGES),
        (["AllReduce", "Recv"], f"{COLLECTIVES}, {EXCHANGES}"),
        (["Unknown"], f"{COLLECTIVES}, {EXCHANGES}"),
        (["Barrier"], f"{COLLECTIVES}, {EXCHANGES}"),
        ([], f"{COLLECTIVES}, {EXCHANGES}"),
    ],
)
def test_calls_by_what_ran(operations: list[str], said: str) -> None:
    assert asynchronous_calls(operations) == said


def test_ranks_without_a_gpu_that_only_send_and_receive(tmp_path: Path) -> None:
    """The all-reduce begins before the second window."""
    builder = TraceBuilder().label("all_reduce bytes=8 group=0 rank=0 size=2 seq=0", 0, 50)
    builder.label("step 0", 100, 900).label("forward", 100, 200)
    builder.label("send dst=1 bytes=8 group=0 rank=0 size=2 seq=0", 200, 800)
    builder.label("barrier group=0 rank=0 size=2 seq=1", 800, 810)
    advice = []
    with ranks_of(builder.write(tmp_path)) as (rank,):
        for window in (rank.window, Window(100, 900)):
            finding = only_finding(
                exposed_communication.findings(exposed_communication.run(rank, window))
            )
            advice.append(" ".join(finding.advice))
    assert ["async_op" in text for text in advice] == [True, False]
    assert ["bucket_cap_mb" in text for text in advice] == [True, False]
    assert all("isend and irecv" in text for text in advice)
