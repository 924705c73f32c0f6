"""What copies say of links, in small exports, scenarios and real exports."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.reference.links import reference_series
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.claims import A100, MIB, assert_copies_agree, assert_counters_agree, judged
from tests.support.kept_claims import Kept
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER, ranks_of
from traceprof.analyses import links
from traceprof.analyses.links import link_counters, link_usage
from traceprof.findings import Severity
from traceprof.run.opening import Window


def copying(size: int, nanoseconds: int, **how: Any) -> TraceBuilder:
    """Return a kernel, then a copy that nothing hides, then a kernel."""
    return (
        TraceBuilder()
        .gpu(A100)
        .kernel(0, 10_000)
        .memcpy(10_000, 10_000 + nanoseconds, bytes=size, **how)
        .kernel(10_000 + nanoseconds, 20_000 + nanoseconds)
    )


UNNAMED = TraceBuilder().kernel(0, 10).memcpy(10, 1000, bytes=8 << 20)


PROGRAMS: dict[str, tuple[TraceBuilder, dict[str, float]]] = {
    "at its limit": (copying(30_000_000, 1_000_000), {}),
    "at a known limit": (copying(30_000_000, 1_000_000), {"pcie": 32.0}),
    "at half of a known limit": (copying(30_000_000, 1_000_000), {"pcie": 63.0}),
    "far below the peak": (copying(8_000_000, 1_000_000), {}),
    "far below the peak, 4 MiB": (copying(4 * MIB, 1_000_000), {}),
    "less is latency": (copying(4 * MIB - 1, 1_000_000), {}),
    "pageable": (copying(8_000_000, 1_000_000, pageable=True), {}),  # another finding's
    "within the GPU": (copying(8_000_000, 1_000_000, kind="DtoD"), {}),
    "half of the peak": (copying(20_000_000, 1_000_000), {}),  # healthy enough
    "unknown memory": (
        copying(8_000_000, 1_000_000).without("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind"),
        {},
    ),
    "hidden": (copying(8_000_000, 1_000_000).kernel(10_000, 1_010_000, stream=9), {}),
    "a GPU without a name": (UNNAMED, {}),
    "a GPU without a name, at a known limit": (UNNAMED, {"pcie": 63.0}),
    "a Grace Hopper is not behind PCIe": (
        TraceBuilder().gpu("NVIDIA GH200 480GB").memcpy(0, 1_000_000, bytes=8_000_000),
        {},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    program, peaks = PROGRAMS[name]
    kept(judged(program.write(tmp_path), **peaks))


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


def test_copies_of_real_exports(real_trace: Path) -> None:
    assert_copies_agree(real_trace)


def test_counters_of_real_exports(real_trace: Path) -> None:
    assert_counters_agree(real_trace)


def test_real_counters(traces: Path) -> None:
    """109 620 rows of one RTX 3090, 18 metrics; one sample before the session, one overflow."""
    path = traces / "rtx3090_gpu_metrics.sqlite"
    series = reference_series(path)
    with ranks_of(path) as (rank,):
        by_gpu = rank.trace.counters.by_gpu[0]
        assert [(use.link, use.direction) for use in by_gpu] == [("pcie", "tx"), ("pcie", "rx")]
        for use in by_gpu:
            rows = zip(use.start_ns.tolist(), use.end_ns.tolist(), use.value.tolist(), strict=True)
            assert list(rows) == series[0, use.link, use.direction]
            assert len(use.value) == 6089
        assert judged(path, link_counters) == []  # nothing communicates


def test_pinned_copies_of_two_mpi_ranks_are_slow(traces: Path) -> None:
    (finding,) = judged(traces / "jacobi_mpi" / "rank_0.sqlite")
    assert finding.id == "link-underused"
    assert finding.severity == Severity.LOW
    assert finding.metrics["utilization"] == pytest.approx(0.385, abs=1e-3)
    assert finding.metrics["is_peak_assumed"]
    # the same copies of one process alone reach 12.1 GB/s
    assert judged(traces / "v100_single_process_jacobi_peer_copies.sqlite") == []


@pytest.mark.parametrize("scenario", [path.stem for path in GPU_SAMPLES])
def test_scenarios(scenario: str) -> None:
    path = SAMPLE_FOLDER / f"{scenario}.sqlite"
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    assert_copies_agree(path)
    assert_counters_agree(path)
    with ranks_of(path) as ranks:
        found = []
        for rank in ranks:
            for use in link_usage.run(rank, rank.window).uses:
                if use.direction != "d2d":
                    row = (rank.rank, use.link, use.direction, use.peer, use.bytes, use.busy_ns)
                    found.append(row)
    names = ("rank", "link", "direction", "peer", "bytes", "busy_ns")
    rows = [tuple(row[name] for name in names) for row in truth.get("links", [])
            if row["source"] == "copies"]  # fmt: skip
    if rows:
        assert sorted(found, key=str) == sorted(rows, key=str)


def test_counters_hold_what_the_links_carried() -> None:
    path = SAMPLE_FOLDER / "link-counters.sqlite"
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    with ranks_of(path) as ranks:
        uses = {
            (rank.rank, use.link, use.direction): use
            for rank in ranks
            for use in link_counters.run(rank, rank.window).uses
        }
    for row in truth["links"]:
        if row["source"] != "copies":
            use = uses[row["rank"], row["link"], row["direction"]]
            # whole percentages of NVLink, and samples that reach over the edges of a transfer
            assert use.bytes == pytest.approx(row["bytes"], rel=0.02)
            assert use.source == row["source"]
    assert uses[0, "network", "tx"].bytes == 41_943_040
    assert (1, "network", "tx") not in uses  # the machine's NIC stands beside its first rank


def test_what_copies_and_counters_both_say_is_said_once() -> None:
    path = SAMPLE_FOLDER / "link-counters.sqlite"
    assert [claim.metrics["source"] for claim in judged(path)] == ["copies"] * 2
    assert judged(path, links) == judged(path, link_counters)


def test_the_nics_own_rate_can_be_given() -> None:
    with ranks_of(SAMPLE_FOLDER / "link-counters.sqlite") as (rank, _):
        informed = replace(rank, peak_overrides={"network": 25.0})
        uses = link_counters.run(informed, rank.window).uses
    (sent,) = [use for use in uses if (use.link, use.direction) == ("network", "tx")]
    assert (sent.peak_gb_per_s, sent.name, sent.is_peak_assumed) == (25.0, "mlx5_0", False)
