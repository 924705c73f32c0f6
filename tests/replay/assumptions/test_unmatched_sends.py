"""Nothing is said of pipelines whose sends and receives cannot be matched."""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from traceprof.replay.whatif import whatif

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(("ranks", "is_refused"), [((0, 1), False), ((1,), True), ((0,), True)])
def test_waits_for_a_side_that_is_not_known_are_no_transfers(
    tmp_path: Path, ranks: tuple[int, ...], *, is_refused: bool
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
    reasons = [answer.refused or "" for answer in asked.answers[:2]]
    assert [
        "the other side of sends, receives and all-to-alls" in reason for reason in reasons
    ] == [is_refused, False]
