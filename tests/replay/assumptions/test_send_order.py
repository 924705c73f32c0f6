"""Other orders of sends: where there is none, and waits for a side that is not known.

That ready-first takes what the program takes in that order is held by `test_truths`.
"""

from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator.scenarios.pipelines import COPIES, SENDS, copying, sending
from tests.support.builders import TraceBuilder
from tests.support.changes import recorded
from tests.support.traces import SAMPLE_FOLDER
from traceprof.replay.whatif import whatif


def test_without_event_records_no_order_is_told(tmp_path: Path) -> None:
    """Another order would bring 1.3 to 5.3 ms, by when sends were ready; 4.8 are true."""
    setup = sending(np.random.default_rng(0), SENDS)
    path = recorded(setup, tmp_path / "run.sqlite", has_events=False)
    (order,) = (one for one in whatif(path).whatif.answers if "send-order" in one.assume)
    assert order.step_ns is None
    assert order.how_to_collect == "--cuda-event-trace=true"
    assert "when sends were ready" in (order.refused or "")


def test_two_values_at_once_are_told() -> None:
    order = "send-order=ready-first"
    asked = whatif(
        SAMPLE_FOLDER / "pipeline-sends.sqlite",
        assume=["bucket-cap-mb=25+bucket-cap-mb=100", f"{order}+{order}"],
    ).whatif
    refused = [one.refused for one in asked.answers[:2]]
    assert refused == ["bucket-cap-mb cannot have two values", None]


@pytest.mark.long
def test_copies_have_no_order(tmp_path: Path) -> None:
    path = recorded(copying(np.random.default_rng(0), COPIES), tmp_path / "run.sqlite")
    asked = whatif(path, assume=["send-order=ready-first"]).whatif
    (only,) = asked.answers
    assert "no two sends" in (only.refused or "")
    assert all("send-order" not in one.assume for one in whatif(path).whatif.answers)


SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(("ranks", "share"), [((0, 1), ""), ((1,), "37.2 %"), ((0,), "1.9 %")])
def test_waits_for_a_side_that_is_not_known_are_no_transfers(
    tmp_path: Path, ranks: tuple[int, ...], share: str
) -> None:
    # In each step rank 0 computes and sends; rank 1, which has been waiting for that, computes.
    builder = TraceBuilder()
    for step in range(5):
        for rank in ranks:
            at, pid, where = step * 300_000, 1000 + rank, {"pid": 1000 + rank, "device": rank}
            sending = at + (0 if rank else 100_000), at + 105_000
            builder.kernel(*sending, SEND_RECV, stream=20, **where)  # type: ignore[arg-type]
            computing = at + 110_000 * rank
            builder.kernel(computing, computing + 100_000, **where)  # type: ignore[arg-type]
            builder.nvtx(f"step {step}", at - 200, at + 290_000, pid=pid)
    asked = whatif(builder.write(tmp_path), assume=["kernel:gemm=0.5x", "communication=0"]).whatif
    faster, without = (answer.refused for answer in asked.answers[:2])
    unknown = f"the other side of sends, receives and all-to-alls that take {share} of the time"
    assert (faster or "").startswith(unknown) == bool(share)
    assert without is None
