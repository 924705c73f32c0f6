"""What a step would gain at most by what findings cost in steady steps, and 1 % more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_tid
from tests.support.selection import known, rows_long_after
from tests.support.traces import SAMPLE_FOLDER, closed_analysis
from traceprof.run.steady_steps import StepUse


@pytest.mark.parametrize(
    ("sample", "id_", "num_steps"),
    rows_long_after(
        4,
        [
            ("turnaround", "unfused-kernels", 6),  # the host's time for launches goes, too
            ("late-allreduce", "late-allreduce", 5),  # judged in steady steps only
            ("uneven-clock", "straggler", 8),  # of the run
            ("pageable-copy", "pageable-copy", 8),
            ("full-precision-matmul", "full-precision-matmul", 6),
            ("pipeline-sends", "nccl-serialization", 3),
            ("link-counters", "link-saturated", 5),
            ("link-counters", "link-underused", 5),
            ("p2p-slower-than-copy", "nccl-p2p-slower-than-copy", 6),
            ("overlap-slowdown", "overlap-slowdown", 6),
        ],
    ),
)
def test_a_step_that_is_cut_adds_nothing_to_what_others_cost(
    sample: str, id_: str, num_steps: int
) -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / f"{sample}.sqlite", savings=False)
    findings = [finding for finding in analysis.findings if finding.id == id_]
    assert findings
    impact_ns = max(finding.impact_ns for finding in findings)
    for finding in findings:
        steps = [step for one in analysis.result.breakdown for step in one.steps]
        assert any(step.use for step in steps)  # one is cut, and alike otherwise
        of_host = 0.1 if id_ == "unfused-kernels" else 0.0  # its time for launches goes, too
        most = 1.01 * (1 + of_host) * impact_ns / num_steps
        assert known(finding.saving).high_ns == pytest.approx(most, rel=0.01 + of_host)


def test_who_waits_for_other_stages_gains_no_more_than_the_wait() -> None:
    analysis = closed_analysis(SAMPLE_FOLDER / "pipeline-sends.sqlite", savings=False)
    bubbles = {one.rank: one for one in analysis.findings if one.id == "pipeline-bubble"}
    assert len(bubbles) == 4
    for result in analysis.result.breakdown:
        steady = [step.measures for step in result.steps if step.use is StepUse.STEADY]
        waited = sum(step.window_ns - step.compute_ns for step in steady) / len(steady)
        saving = bubbles[result.rank].saving
        assert known(saving).high_ns == pytest.approx(waited, abs=1)


US, MS = 1_000, 1_000_000
STEP, PER_STEP, NCCL = 20 * MS, 12, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def with_a_long_call(trace: TraceBuilder, start: int) -> None:
    """One launch of a step takes 8 ms, and the GPU idles for it."""
    trace.kernel(start + 8 * MS, start + 8 * MS + 100 * US, launch=(start, start + 8 * MS))


def with_a_full_queue(trace: TraceBuilder, start: int) -> None:
    """A launch blocks for 6 ms, so that another one is late; a record shows it."""
    blocked, late = (start, start + 6 * MS), start + 6 * MS + 10 * US
    trace.kernel(start - 90 * US, start - 80 * US, NCCL, stream=20)
    trace.kernel(start - 60 * US, start + 6 * MS - 5 * US)
    trace.kernel(start + 6 * MS + 2 * US, start + 7 * MS, launch=blocked, correlation=900)
    trace.kernel(late, late + 100 * US, NCCL, stream=20, launch=(late - 8 * US, late - 3 * US))
    trace.raw(
        "CUPTI_ACTIVITY_KIND_OVERHEAD", globalTid=global_tid(), correlationId=900, nameId=1,
        start=blocked[0], end=blocked[1], overheadType=8, eventClass=103,
    )  # fmt: skip


@pytest.mark.parametrize(("step", "share"), [(1, 1 / 4), (4, 0)])
@pytest.mark.parametrize(
    ("id_", "add"), [("host-stall", with_a_long_call), ("launch-queue-stall", with_a_full_queue)]
)
def test_what_happened_in_a_step_that_is_cut_costs_others_nothing(
    id_: str, add: Callable[[TraceBuilder, int], None], step: int, share: float, tmp_path: Path
) -> None:
    """Of five steps the last is cut; one of them holds all of the cost.

    |  0  |  1 stalls  |  2  |  3  |  4 or this |
    """
    trace = TraceBuilder()
    for number in range(5):
        begin = number * STEP
        trace.nvtx(f"step {number}", begin, begin + STEP - MS)
        for place in range(PER_STEP if number < 4 else PER_STEP // 2):
            start = begin + place * 700 * US
            trace.kernel(start + 30 * US, start + 90 * US, launch=(start, start + 20 * US))
    add(trace, step * STEP + 9 * MS)
    analysis = closed_analysis(trace.write(tmp_path))
    (finding,) = (one for one in analysis.findings if one.id == id_)
    assert finding.impact_ns > 5 * MS
    assert known(finding.saving).high_ns == pytest.approx(1.01 * share * finding.impact_ns, abs=1)
