"""What copies and counters say of links, in scenarios and real exports."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.reference.links import reference_series
from tests.support.claims import assert_copies_agree, assert_counters_agree, judged
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER, ranks_of
from traceprof.analyses.links import link_counters, link_findings, link_usage
from traceprof.findings import Severity


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
    both = judged(path) + judged(path, link_counters)
    assert [claim.metrics["source"] for claim in both].count("copies") == 2
    assert link_findings.distinct(both) == judged(path, link_counters)
    assert link_findings.distinct(judged(path)) == judged(path)


def test_the_nics_own_rate_can_be_given() -> None:
    with ranks_of(SAMPLE_FOLDER / "link-counters.sqlite") as (rank, _):
        informed = replace(rank, peak_overrides={"network": 25.0})
        uses = link_counters.run(informed, rank.window).uses
    (sent,) = [use for use in uses if (use.link, use.direction) == ("network", "tx")]
    assert (sent.peak_gb_per_s, sent.name, sent.is_peak_assumed) == (25.0, "mlx5_0", False)
