"""Every considerable part of the time is attributed, on real exports, too."""

from pathlib import Path

import pytest

from tests.support.traces import analysis_of
from traceprof.analyses.breakdown import BreakdownResult, Measures
from traceprof.analyses.verdict.attribution import MIN_ATTRIBUTED, attributions
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.rank import WindowKind


def spent(exposed: int, copy: int, idle: int) -> BreakdownResult:
    """Where the time of a rank went, of 1000 ns."""
    compute = 1000 - exposed - copy - idle
    measures = Measures(0, 1000, compute, exposed, 0, exposed, copy, copy, idle, 1, 1, 1)
    return BreakdownResult(0, measures, (), measures, WindowKind.TRAINING, None)


def made(id_: str, rank: int = 0) -> Finding:
    return Finding(id_, Severity.INFO, rank, "it is so", 1, 0.1, {})


@pytest.mark.cpu_export
def test_time_of_real_exports_is_attributed(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        result = analysis.result
    attributed = {(one.rank, str(one.part)): one for one in result.verdict.attributions}
    for rank in result.breakdown:
        judged = rank.judged
        for part, part_ns in (
            ("exposed communication", judged.exposed_communication_ns),
            ("exposed copies", judged.exposed_copy_ns),
            ("idle", judged.idle_ns),
        ):
            fraction = part_ns / judged.window_ns if judged.window_ns else 0.0
            attribution = attributed.pop((rank.rank, part), None)
            assert (attribution is not None) == (fraction >= MIN_ATTRIBUTED)
            if attribution is None:
                continue
            assert attribution.part_ns == part_ns
            account = attribution.finding or f"nobody: {attribution.sentence}"
            print(f"rank {rank.rank}: {100 * fraction:5.1f} % {part}: {account}")  # noqa: T201
            assert (attribution.sentence is None) == (attribution.finding is not None)
            ids = {finding.id for finding in result.findings if finding.rank == rank.rank}
            assert attribution.finding is None or attribution.finding in ids
            assert attribution.finding is not None or fraction < 0.1
    assert attributed == {}


def test_a_part_is_attributed_to_a_finding_of_the_rank() -> None:
    (attribution,) = attributions([spent(0, 0, 400)], [made("gpu-idle"), made("exposed-copy")], [])
    assert (attribution.part, attribution.part_ns, attribution.finding) == ("idle", 400, "gpu-idle")
    assert attribution.sentence is None


def test_a_finding_of_another_rank_does_not() -> None:
    (attribution,) = attributions([spent(0, 0, 400)], [made("gpu-idle", rank=1)], [])
    assert attribution.finding is None
    assert attribution.sentence


@pytest.mark.parametrize("rank", [0, None])
def test_what_could_not_be_judged_says_why(rank: int | None) -> None:
    gap = NotApplicable("exposed-copy", "nothing tells", "record more", rank)
    (attribution,) = attributions([spent(0, 50, 0)], [], [gap])
    assert (attribution.finding, attribution.sentence) == (None, "nothing tells")


def test_the_time_of_a_rank_without_a_gpu_is_not_below_a_threshold() -> None:
    (attribution,) = attributions([spent(0, 0, 859)], [], [], without_gpu=[0])
    assert attribution.sentence == (
        "findings about it need GPU operations, and none were recorded of this rank"
    )


def test_the_costliest_comes_first_and_little_is_not_attributed() -> None:
    parts = [attribution.part for attribution in attributions([spent(29, 100, 300)], [], [])]
    assert parts == ["idle", "exposed copies"]
