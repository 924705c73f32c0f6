"""Every part of the time that is worth a word has an owner; on real exports it is told who."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.opened import analysis_of
from traceprof.analyses.breakdown import BreakdownResult, Measures
from traceprof.analyses.verdict.attribution import MIN_BY_FINDING, MIN_OWNED, owners
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.rank import WindowKind

if TYPE_CHECKING:
    from pathlib import Path


def spent(exposed: int, copy: int, idle: int) -> BreakdownResult:
    """Where the time of a rank went, of 1000 ns."""
    compute = 1000 - exposed - copy - idle
    measures = Measures(0, 1000, compute, exposed, 0, exposed, copy, copy, idle, 1, 1, 1)
    return BreakdownResult(0, measures, (), measures, WindowKind.TRAINING, None)


def made(id_: str, rank: int = 0) -> Finding:
    return Finding(id_, Severity.INFO, rank, "it is so", 1, 0.1, {})


def test_each_real_export_is_owned(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        result = analysis.result
    owned = {(owner.rank, str(owner.part)): owner for owner in result.owners}
    for rank in result.breakdown:
        judged = rank.judged
        for part, part_ns in (
            ("exposed communication", judged.exposed_communication_ns),
            ("exposed copies", judged.exposed_copy_ns),
            ("idle", judged.idle_ns),
        ):
            fraction = part_ns / judged.window_ns if judged.window_ns else 0.0
            owner = owned.pop((rank.rank, part), None)
            assert (owner is not None) == (fraction >= MIN_OWNED)
            if owner is None:
                continue
            assert owner.part_ns == part_ns
            whose = owner.finding or f"nobody: {owner.sentence}"
            print(f"rank {rank.rank}: {100 * fraction:5.1f} % {part}: {whose}")  # noqa: T201
            assert owner.sentence if owner.finding is None else owner.sentence is None
            ids = {finding.id for finding in result.findings if finding.rank == rank.rank}
            assert owner.finding is None or owner.finding in ids
            assert owner.finding is not None or fraction < MIN_BY_FINDING
    assert owned == {}


def test_a_finding_of_the_rank_owns_a_part() -> None:
    (owner,) = owners([spent(0, 0, 400)], [made("gpu-idle"), made("exposed-copy")], [])
    assert (owner.part, owner.part_ns, owner.finding) == ("idle", 400, "gpu-idle")
    assert owner.sentence is None


def test_a_finding_of_another_rank_does_not() -> None:
    (owner,) = owners([spent(0, 0, 400)], [made("gpu-idle", rank=1)], [])
    assert owner.finding is None
    assert owner.sentence


@pytest.mark.parametrize("rank", [0, None])
def test_what_could_not_be_judged_says_why(rank: int | None) -> None:
    gap = NotApplicable("exposed-copy", "nothing tells", "record more", rank)
    (owner,) = owners([spent(0, 50, 0)], [], [gap])
    assert (owner.finding, owner.sentence) == (None, "nothing tells")


def test_the_costliest_comes_first_and_little_has_no_owner() -> None:
    parts = [owner.part for owner in owners([spent(29, 100, 300)], [], [])]
    assert parts == ["idle", "exposed copies"]
