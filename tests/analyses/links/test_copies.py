"""What copies say of links, in small exports."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.claims import A100, MIB, assert_copies_agree, judged
from tests.support.commands import alter
from tests.support.traces import ranks_of
from traceprof.analyses.links import link_usage
from traceprof.findings import NotApplicable, Severity
from traceprof.run.opening import Window
from traceprof.trace.nsight import schema


def copying(size: int, nanoseconds: int, **how: Any) -> TraceBuilder:
    """Return a kernel, then a copy that nothing hides, then a kernel."""
    return (
        TraceBuilder()
        .gpu(A100)
        .kernel(0, 10_000)
        .memcpy(10_000, 10_000 + nanoseconds, bytes=size, **how)
        .kernel(10_000 + nanoseconds, 20_000 + nanoseconds)
    )


def test_a_link_at_its_limit(tmp_path: Path) -> None:
    path = copying(30_000_000, 1_000_000).write(tmp_path)
    (finding,) = judged(path)
    assert (finding.id, finding.severity) == ("link-saturated", Severity.HIGH)
    assert finding.impact_ns == 1_000_000
    assert finding.metrics["gb_per_s"] == 30.0
    assert "assumed peak of 31.5 GB/s" in finding.title
    assert any("nvidia-smi -q -d PCIE" in line for line in finding.advice)
    # whoever knows the slot says so, and nothing is assumed
    (finding,) = judged(path, pcie=32.0)
    assert "assumed" not in finding.title
    assert not any("name of the board" in line for line in finding.advice)
    assert judged(path, pcie=63.0) == []


@pytest.mark.parametrize("size", [4 * MIB, 8_000_000])
def test_a_link_far_below_its_peak(size: int, tmp_path: Path) -> None:
    (finding,) = judged(copying(size, 1_000_000).write(tmp_path))
    assert (finding.id, finding.metrics["direction"]) == ("link-underused", "h2d")
    assert finding.metrics["coverage"] == 1.0


@pytest.mark.parametrize(
    ("size", "how"),
    [
        (4 * MIB - 1, {}),  # small: latency
        (8_000_000, {"pageable": True}),  # another finding's
        (8_000_000, {"kind": "DtoD"}),  # no link
        (20_000_000, {}),  # half of the peak: healthy enough
    ],
)
def test_what_is_no_underused_link(tmp_path: Path, size: int, how: dict[str, Any]) -> None:
    assert judged(copying(size, 1_000_000, **how).write(tmp_path)) == []


def test_memory_of_unknown_kind_is_not_pinned(tmp_path: Path) -> None:
    path = copying(8_000_000, 1_000_000).write(tmp_path)
    assert judged(alter(path, f"UPDATE {schema.MEMCPY.name} SET srcKind = NULL")) == []


def test_hidden_copies_cost_nothing(tmp_path: Path) -> None:
    builder = copying(8_000_000, 1_000_000).kernel(10_000, 1_010_000, stream=9)
    assert judged(builder.write(tmp_path)) == []


def test_without_the_gpus_name_nothing_is_claimed(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).memcpy(10, 1000, bytes=8 << 20).write(tmp_path)
    found = judged(path)
    assert [claim.id for claim in found] == ["link-saturated", "link-underused"]
    assert all(isinstance(claim, NotApplicable) for claim in found)
    assert judged(path, pcie=63.0)[0].id == "link-saturated"


def test_the_host_of_a_grace_hopper_is_not_behind_pcie(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu("NVIDIA GH200 480GB").memcpy(0, 1_000_000, bytes=8_000_000)
    assert judged(builder.write(tmp_path)) == []


def test_no_window_no_claim(tmp_path: Path) -> None:
    path = TraceBuilder().gpu(A100).memcpy(5, 5).write(tmp_path)
    assert judged(path) == []
    with ranks_of(path) as (rank,):
        (use,) = link_usage.run(rank, rank.window).uses
        assert (use.busy_ns, use.gb_per_s, use.utilization) == (0, None, None)
        assert link_usage.run(rank, Window(6, 9)).uses == ()


def test_random_copies(tmp_path: Path) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        builder = TraceBuilder().gpu(A100)
        for _ in range(rng.randrange(1, 60)):
            start = rng.randrange(1000)
            end = start + rng.choice([0, 1, rng.randrange(200)])
            where: Any = {"stream": rng.randrange(7, 10), "device": rng.randrange(2)}
            if rng.random() < 0.3:
                builder.kernel(start, end, rng.choice(["gemm", NCCL]), **where)
                continue
            kind = rng.choice(["HtoD", "DtoH", "DtoD", "PtoP"])
            ends = rng.choice([(None, None), (0, 1), (1, 0), (1, 1)])
            builder.memcpy(
                start, end, kind, bytes=rng.choice([0, 100, 8 * MIB]), source=ends[0],
                destination=ends[1], pageable=rng.random() < 0.4, **where,
            )  # fmt: skip
        assert_copies_agree(builder.shuffled(seed).write(tmp_path / f"{seed}.sqlite"))
