"""Calls of MPI of different ranks: matched, and their waits split from what MPI itself takes."""

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator import simulate_scenario
from tests.reference import mpi as reference
from tests.support.builders import TraceBuilder, arrivals, global_tid
from tests.support.selection import long_after
from traceprof.analysis import Options, RunResult, analyze_reports
from traceprof.ranks.matching import match
from traceprof.trace.model.communication_calls import BARRIER, MpiCalls
from traceprof.trace.open import open_trace

US, MS = 1_000, 1_000_000
TEXTS = {
    name: 90_000 + number
    for number, name in enumerate(
        ("MPI_Irecv", "MPI_Isend", "MPI_Waitall", "MPI_Allreduce", "MPI_Recv", "MPI_Send",
         "MPI_Bcast", "MPI_Init")
    )
}  # fmt: skip
WAIT, TRANSFER, REDUCE = 2 * US, 20 * US, 30 * US


class Planted:
    """A ring of ranks: each sends to the next, and all reduce; what each waits is known."""

    def __init__(self, num_ranks: int, seed: int, *, late: int = 2, num: int = 40) -> None:
        """Make the events of some iterations, in which one rank comes late."""
        rng = random.Random(seed)
        self.builder = TraceBuilder()
        self.matrix: dict[tuple[int, int], int] = {}
        for name, number in TEXTS.items():
            self.builder.raw("StringIds", id=number, value=name)
        for rank in range(num_ranks):
            row = {"rank": rank, "commHandle": 4_000 + rank, "size": num_ranks, "localRank": rank}
            self.builder.raw("MPI_COMMUNICATORS", **row, timestamp=1, parentHandle=0)
            self.builder.raw("MPI_RANKS", globalTid=global_tid(1000 + rank), rank=rank)
        begin = 0
        for step in range(num):
            work = [rng.randint(50, 200) * US for _ in range(num_ranks)]
            work[late] += 400 * US
            begin = self._step(begin, work, tag=7 + step % 2)

    def _step(self, begin: int, work: list[int], tag: int) -> int:
        """Add one iteration, and return when all ranks have left its reduction."""
        num = len(work)
        sent = [begin + 10 * US + one for one in work]
        blocked = [time + WAIT for time in sent]
        left = [max(blocked[rank], sent[rank - 1]) + TRANSFER for rank in range(num)]
        came = [time + US for time in left]
        last = max(range(num), key=lambda rank: came[rank])
        end = came[last] + REDUCE
        for rank in range(num):
            pid, other = 1000 + rank, (rank - 1) % num
            launch = (begin + US, begin + 2 * US)
            self.builder.kernel(begin + 3 * US, begin + 8 * US, "jacobi", pid=pid, device=rank,
                                launch=launch)  # fmt: skip
            world = {"globalTid": global_tid(pid), "commHandle": 4_000 + rank}
            for name, time, peer, handle in (
                ("MPI_Irecv", begin + 8 * US, other, 11),
                ("MPI_Isend", sent[rank], (rank + 1) % num, 12),
            ):
                self.builder.raw(
                    "MPI_P2P_EVENTS", start=time, end=time + US, textId=TEXTS[name], tag=tag,
                    remoteRank=peer, size=4096, requestHandle=handle, **world,
                )  # fmt: skip
                self.builder.raw(
                    "MPI_START_WAIT_EVENTS", start=blocked[rank], end=left[rank],
                    globalTid=global_tid(pid), textId=TEXTS["MPI_Waitall"], requestHandle=handle,
                )  # fmt: skip
            self.builder.raw(
                "MPI_COLLECTIVES_EVENTS", start=came[rank], end=end, size=8,
                textId=TEXTS["MPI_Allreduce"], **world,
            )  # fmt: skip
            self._waits(rank, other, blocked[rank], sent[other])
            self._waits(rank, last, came[rank], came[last])
        return end

    def _waits(self, rank: int, other: int, start: int, end: int) -> None:
        if end - start > 0:
            self.matrix[rank, other] = self.matrix.get((rank, other), 0) + end - start


def analyzed(*paths: Path) -> RunResult:
    return analyze_reports(paths, Options(savings=False), jobs=1)


def matrix_of(result: RunResult) -> dict[tuple[int, int], int]:
    ranks, matrix = result.ranks.ranks, result.ranks.matrix_ns
    return {
        (ranks[row], ranks[column]): int(matrix[row, column])
        for row, column in zip(*matrix.nonzero(), strict=True)
    }


def assert_near(
    found: Mapping[tuple[int, int], int], expected: Mapping[tuple[int, int], int]
) -> None:
    """Compare waits; those so short that clocks leave them open may be left out of `found`."""
    for key in {*found, *expected}:
        short = 40 * 2 * 10 * US
        assert found.get(key, 0) <= expected.get(key, 0)
        assert found.get(key, 0) >= expected.get(key, 0) - short


@pytest.mark.parametrize("seed", long_after(1, [0, 1]))
@pytest.mark.parametrize("num_ranks", long_after(1, [3, 4]))
def test_planted_waits_are_found(num_ranks: int, seed: int, tmp_path: Path) -> None:
    planted = Planted(num_ranks, seed)
    path = planted.builder.write(tmp_path / "ring.sqlite")
    result = analyzed(path)
    assert_near(matrix_of(result), planted.matrix)
    expected = reference.expected(reference.read(path))
    assert matrix_of(result) == {key: wait for key, wait in expected.items() if wait}
    (claim,) = [one for one in result.findings if one.id == "straggler" and one.rank == 2]
    assert claim.metrics["share_last"] == 1.0


def test_rows_in_any_order_and_one_report_for_each_rank(tmp_path: Path) -> None:
    planted = Planted(4, 3)
    random.Random(1).shuffle(planted.builder._raw)
    path = planted.builder.write(tmp_path / "ring.sqlite")
    assert_near(matrix_of(analyzed(path)), planted.matrix)


def test_the_simulated_solver_waits_for_its_slower_rank(tmp_path: Path) -> None:
    path = tmp_path / "solver.sqlite"
    simulate_scenario("mpi-wait", path, seed=0)
    result = analyzed(path)
    expected = reference.expected(reference.read(path))
    assert matrix_of(result) == {key: wait for key, wait in expected.items() if wait}
    assert matrix_of(result)[0, 1] > 10 * matrix_of(result).get((1, 0), 0)


# -- what cannot be known -------------------------------------------------------------------------


def calls_of(builder: TraceBuilder, path: Path, pid: int = 1000) -> MpiCalls:
    for name, number in TEXTS.items():
        builder.raw("StringIds", id=number, value=name)
    builder.kernel(0, 100, pid=pid).raw("MPI_RANKS", globalTid=global_tid(pid), rank=0)
    trace = open_trace(builder.write(path))
    calls = trace.mpi_calls(next(iter(trace.mpi_processes)))
    trace.close()
    return calls


def p2p(builder: TraceBuilder, name: str, start: int, **columns: object) -> TraceBuilder:
    row = {"start": start, "end": start + 5, "globalTid": global_tid(), "textId": TEXTS[name]}
    return builder.raw("MPI_P2P_EVENTS", **{**row, **columns})


def test_sends_to_nobody_are_left_out_and_receives_from_there(tmp_path: Path) -> None:
    builder = TraceBuilder().raw(
        "MPI_COMMUNICATORS", rank=0, commHandle=5, size=4, parentHandle=0, timestamp=0
    )
    for start, name, peer in ((1, "MPI_Send", -2), (9, "MPI_Recv", -2), (20, "MPI_Recv", -1),
                              (40, "MPI_Recv", 3)):  # fmt: skip
        p2p(builder, name, start, commHandle=5, remoteRank=peer, tag=1)
    calls = calls_of(builder, tmp_path / "x.sqlite")
    assert calls.start_ns.tolist() == [20, 40]
    assert calls.peer.tolist() == [-1, 3]
    assert calls.world_size.tolist() == [4, 4]


def test_a_request_lasts_until_its_last_wait_before_the_next_use(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start in (0, 100, 200):
        p2p(builder, "MPI_Irecv", start, requestHandle=9, remoteRank=1, tag=0)
    for start in (50, 60, 150):
        builder.raw(
            "MPI_START_WAIT_EVENTS", start=start, end=start + 7, globalTid=global_tid(),
            textId=TEXTS["MPI_Waitall"], requestHandle=9,
        )  # fmt: skip
    calls = calls_of(builder, tmp_path / "x.sqlite")
    assert calls.blocked_ns.tolist() == [60, 150, 200]
    assert calls.end_ns.tolist() == [67, 157, 205]


def test_communicators_of_which_nothing_is_known_have_no_name(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start, handle in ((0, 5), (10, 6)):
        p2p(builder, "MPI_Send", start, commHandle=handle, remoteRank=1, tag=0)
    calls = calls_of(builder, tmp_path / "x.sqlite")
    assert calls.communicator.tolist() == [-1, -1]
    assert calls.communicators == ()


def test_null_texts_ends_and_threads_are_survived(tmp_path: Path) -> None:
    builder = TraceBuilder()
    p2p(builder, "MPI_Send", 0, remoteRank=1, tag=None, size=None)
    p2p(builder, "MPI_Send", 10, end=None)
    p2p(builder, "MPI_Send", 20, textId=None)
    p2p(builder, "MPI_Send", 30, globalTid=None)
    p2p(builder, "MPI_Init", 40)
    calls = calls_of(builder, tmp_path / "x.sqlite")
    assert calls.start_ns.tolist() == [0]
    assert (calls.tag.tolist(), calls.bytes.tolist()) == ([-1], [-1])


def mpi(rank: int, starts: list[int], **columns: object) -> object:
    ends = [start + 50 for start in starts]
    return arrivals(rank, starts, ends, num_kernels=0, communicator="MPI", **columns)  # type: ignore[arg-type]


def test_receives_of_any_source_match_nothing() -> None:
    sends = mpi(0, [0, 100], operation="SendRecv", direction=1, peer=1, stream=[0, 0])
    for peer, tag, num in ((0, 0, 1), ([0, -1], 0, 0), (0, [0, -1], 0)):
        receives = mpi(1, [5, 105], operation="SendRecv", direction=2, peer=peer,
                       stream=np.broadcast_to(tag, (2,)))  # fmt: skip
        groups, _ = match([sends, receives], [0, 0], [0, 0], [0, 0])  # type: ignore[list-item]
        assert len(groups) == num


def test_messages_whose_numbers_differ_are_not_matched() -> None:
    sends = mpi(0, [0, 100], operation="SendRecv", direction=1, peer=1, stream=[0, 0])
    receives = mpi(1, [5], operation="SendRecv", direction=2, peer=0, stream=[0])
    groups, unmatched = match([sends, receives], [0, 0], [0, 0], [0, 0])  # type: ignore[list-item]
    assert not groups
    assert "differ" in unmatched[0].reason


def test_exchanges_of_which_no_peer_is_known_are_matched_between_two_only() -> None:
    for size, num in ((2, 1), (4, 0), (-1, 0)):
        ranks = [
            mpi(rank, [0, 100], operation="SendRecv", direction=3, world_size=size)
            for rank in (0, 1)
        ]
        groups, _ = match(ranks, [0, 0], [0, 0], [0, 0])  # type: ignore[arg-type]
        assert len(groups) == num


def test_ranks_number_from_0_so_that_some_are_known_to_be_missing() -> None:
    ranks = [mpi(rank, [0, 100]) for rank in (2, 3)]
    (group,), _ = match(ranks, [0, 0], [0, 0], [0, 0])  # type: ignore[arg-type]
    assert group.num_ranks == 4


# -- real -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_real_reductions_of_several_reports(traces: Path) -> None:
    folder = traces / "jacobi_mpi"
    paths = [folder / "rank_0.sqlite", folder / "rank_1.sqlite"]
    result = analyzed(*paths)
    seeds = result.ranks.clocks.seeds_ns
    calls: dict[int, list[reference.Call]] = {}
    for path, seed in zip(paths, seeds, strict=True):
        calls |= reference.read(path, seed)
    expected = reference.expected(calls)
    assert matrix_of(result) == {key: wait for key, wait in expected.items() if wait}
    assert matrix_of(result)[2, 3] > 200 * MS


def test_real_barriers(traces: Path) -> None:
    path = traces / "v100x4_mpi_peer_copies.sqlite"
    result = analyzed(path)
    expected = reference.expected(reference.read(path))
    assert matrix_of(result) == {key: wait for key, wait in expected.items() if wait}
    assert BARRIER in result.ranks.waits[0].group.operations
