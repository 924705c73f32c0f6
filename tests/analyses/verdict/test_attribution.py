"""Every considerable part of the time is attributed, on real exports, too."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.traces import analysis_of
from traceprof.analyses.breakdown import BreakdownResult, Measures
from traceprof.analyses.verdict.attribution import MIN_ATTRIBUTED, Attribution, attributions
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


GAP = NotApplicable("exposed-copy", "nothing tells", "record more", 0)
IDLE, BELOW = [spent(0, 0, 400)], "no finding was requested or made for it"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (attributions(IDLE, [made("gpu-idle"), made("exposed-copy")], []), ("idle", "gpu-idle")),
        (attributions(IDLE, [made("gpu-idle", rank=1)], []), ("idle", BELOW)),
        (attributions([spent(0, 50, 0)], [], [GAP]), ("exposed copies", "nothing tells")),
        (
            attributions([spent(0, 50, 0)], [], [replace(GAP, rank=None)]),
            ("exposed copies", "nothing tells"),
        ),
        (
            attributions(IDLE, [], [], without_gpu=[0]),
            ("idle", "findings about it need GPU operations, and none were recorded"),
        ),
    ],
    ids=["a finding", "of another rank", "a gap", "a gap of all ranks", "without a GPU"],
)
def test_a_part_is_attributed_to_a_finding_or_a_reason(
    found: list[Attribution], expected: tuple[str, str]
) -> None:
    (attribution,) = found
    assert attribution.part == expected[0]
    assert (attribution.finding or attribution.sentence or "").startswith(expected[1])
    assert (attribution.finding is None) == (attribution.sentence is not None)


def test_the_costliest_comes_first_and_little_is_not_attributed() -> None:
    found = [(one.part, one.part_ns) for one in attributions([spent(29, 100, 300)], [], [])]
    assert found == [("idle", 300), ("exposed copies", 100)]
