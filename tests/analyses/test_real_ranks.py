"""Real runs of several machines, against a reference in plain Python."""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.reference.ranks import expected
from tests.support.traces import closed_analysis
from traceprof.analysis import Analysis


@cache
def analyzed(folder: Path) -> Analysis:
    return closed_analysis(*sorted(folder.glob("*.sqlite")))


@pytest.mark.long  # planted clocks of several machines are found always
@pytest.mark.parametrize(
    ("folder", "numbers"),
    [
        ("rtx3090x6_2nodes_ring", [0, 1, 2, 5, 3, 4]),
        ("rtx3090x9_3nodes_tree", [2, 0, 1, 4, 5, 3, 6, 8, 7]),
    ],
)
def test_machines_are_brought_together(traces: Path, folder: str, numbers: list[int]) -> None:
    paths = sorted((traces / folder).glob("*.sqlite"))
    analysis = analyzed(traces / folder)
    truth = expected(paths)
    met = analysis.ranks
    # Ranks stand by SLURM_PROCID, the reference's by the order of the files.
    assert met.ranks == tuple(sorted(numbers))
    file_of = np.argsort(numbers)
    assert analysis.run.rank_source == "environment"
    assert set(analysis.run.run_numbers) == {0}
    for clock in met.clocks.hosts:
        assert clock.offset_ns == pytest.approx(truth.offsets[clock.host], abs=1)
    (waits,) = met.waits
    assert waits.group.source == "order"
    assert waits.group.members == tuple(range(len(paths)))
    assert file_of[waits.last].tolist() == truth.last
    assert waits.transfer_ns.tolist() == pytest.approx(truth.transfers, abs=2)
    for wait_ns, expected_ns in zip(waits.wait_ns.tolist(), truth.waits, strict=True):
        assert wait_ns == pytest.approx([expected_ns[file] for file in file_of], abs=2)
    assert not met.unmatched


@pytest.mark.long
def test_the_ends_of_a_ring_agree_to_some_milliseconds_only(traces: Path) -> None:
    analysis = analyzed(traces / "rtx3090x6_2nodes_ring")
    (other,) = [host for host in analysis.ranks.clocks.hosts if host.source == "operations"]
    # One operation, whose members on one machine leave it up to 7.4 ms apart.
    assert other.num_operations == 1
    assert other.uncertainty_ns == pytest.approx(7_441_982, abs=1)
    (waits,) = analysis.ranks.waits
    assert waits.is_resolved.all()  # rank 1 came 21 ms later than the median of the others


@pytest.mark.long
def test_a_run_without_kernels_that_communicate_shares_its_machines_clock(traces: Path) -> None:
    analysis = analyzed(traces / "jacobi_mpi")
    assert analysis.run.rank_source == "mpi"
    assert analysis.ranks.ranks == (2, 3)
    (clock,) = analysis.ranks.clocks.hosts
    assert (clock.host, clock.source) == ("prm-dgx-05", "reference")
    (waits,) = analysis.ranks.waits  # of MPI's collectives
    assert waits.group.is_mpi
    # The sessions began 3.67 ms apart, by the machine's own clock.
    seeds = analysis.ranks.clocks.seeds_ns
    assert seeds[0] - seeds[1] == 3_670_478


@pytest.mark.long
def test_reports_of_two_runs_on_the_same_machines_are_told_apart(traces: Path) -> None:
    tree = sorted((traces / "rtx3090x9_3nodes_tree").glob("*.sqlite"))
    ring = sorted((traces / "rtx3090x6_2nodes_ring").glob("*.sqlite"))
    analysis = closed_analysis(*tree, *ring)
    assert analysis.run.run_numbers == (0,) * 9 + (1,) * 6
    assert [len(wait.group.members) for wait in analysis.ranks.waits] == [9, 6]
    assert sum("not of the same run" in note for _, note in analysis.notes) == 6


def test_sends_and_receives_of_two_gpus(traces: Path) -> None:
    path = traces / "h100x2_torchrun_nccl_on_compute_stream.sqlite"
    analysis = closed_analysis(path)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        first, second = (
            database.execute(
                "SELECT k.start, k.end FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s"
                " ON s.id = k.shortName WHERE s.value = 'ncclDevKernel_SendRecv'"
                " AND k.globalPid = ? ORDER BY k.start",
                row,
            ).fetchall()
            for row in database.execute(
                "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY globalPid"
            ).fetchall()
        )
    waited = [max(b - a, 0) for (a, _), (b, _) in zip(first, second, strict=True)]
    uses = {collective.rank: collective.uses for collective in analysis.result.collectives}
    found = {rank: next(use for use in uses[rank] if use.operation == "SendRecv") for rank in uses}
    assert found[0].wait_ns == sum(waited)
    assert found[0].wait_ns == pytest.approx(0.635 * found[0].total_ns, rel=0.01)
    assert found[0].num_matched == len(first) == 33
