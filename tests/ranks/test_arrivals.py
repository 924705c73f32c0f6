"""What a rank spent until each operation, packed and unpacked, and why it was late."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import TraceBuilder, arrivals, session
from tests.support.selection import known
from tests.support.traces import ranks_of
from traceprof.analyses.results import numbered
from traceprof.ranks.arrivals import TIME_CATEGORIES, Arrivals, run
from traceprof.ranks.lateness import MORE_WORK, SLOWER, UNEXPLAINED, Cause, Causes
from traceprof.ranks.matching import match
from traceprof.ranks.waits import GroupWaits, waits_of
from traceprof.run.session_clocks import seeded
from traceprof.trace.columns import Packed

US, MS = 1_000, 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_numbers_of_the_run_are_those_of_what_is_unpacked() -> None:
    packed = Packed.of(arrivals(3, [5, 20], [10, 30], spent={"compute": [2, 7]}, bytes=[8, -1]))
    after = numbered(packed, 7, 4).unpacked
    expected = replace(packed.unpacked, rank=7, report=4)
    for name in Arrivals.__struct_fields__:
        np.testing.assert_array_equal(getattr(after, name), getattr(expected, name), err_msg=name)


def test_what_was_spent_until_each_operation(tmp_path: Path) -> None:
    """Gaps with different causes, whose last 10 us are launching; all of the last one is a wait."""
    trace = TraceBuilder()

    def kernel(start: int, end: int, name: str = "gemm", **how: Any) -> None:
        call = start * MS - 10 * US
        trace.kernel(start * MS, end * MS, name, launch=(call, start * MS), **how)

    kernel(0, 10)
    trace.kernel(10 * MS, 14 * MS, NCCL, stream=20, launch=(9 * MS, 9 * MS + US))
    trace.kernel(12 * MS, 14 * MS, launch=(9 * MS + US, 9 * MS + 2 * US))
    trace.memcpy(14 * MS, 15 * MS, "DtoD", launch=(9 * MS + 2 * US, 9 * MS + 3 * US))
    trace.nvtx("data loading", 15 * MS, 19 * MS - 10 * US)
    kernel(19, 20)
    kernel(23, 24)  # what the host did before is not known
    trace.api("cudaMalloc", 24 * MS, 28 * MS - 10 * US)
    kernel(28, 29)
    trace.nvtx("save_checkpoint", 29 * MS, 33 * MS - 10 * US)
    kernel(33, 34)
    trace.api("cudaDeviceSynchronize", 33 * MS, 34 * MS + 15 * US)
    kernel(35, 36)
    kernel(36, 38, NCCL, stream=20)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = run(rank, rank.window)
    before = {"compute": 10 * MS}
    after = {
        "compute": 17 * MS, "communication": 2 * MS, "copy": 1 * MS, "launch": 3 * MS + 30 * US,
        "sync": 1 * MS, "data loading": 4 * MS - 10 * US, "host code": 4 * MS - 10 * US,
        "set-up": 4 * MS - 10 * US,
    }  # fmt: skip
    at_start, inside = (
        [{name: ns for name, ns in zip(TIME_CATEGORIES, row, strict=True) if ns} for row in rows]
        for rows in (found.cumulative_ns_at_start.tolist(), found.spent_inside_ns.tolist())
    )
    assert at_start == [before, after]
    assert inside == [{"compute": 2 * MS, "communication": 2 * MS}, {"communication": 2 * MS}]
    assert (found.kernels_at_start.tolist(), found.kernels_at_end.tolist()) == ([1, 7], [2, 7])


# Two operations: the ranks leave the first at 1 ms, and all but the late one are at the second at
# 11 ms; it comes 6 ms later.
ON_TIME: dict[str, Any] = {"start": [0, 11 * MS], "end": [MS, 18 * MS]}
LATE: dict[str, Any] = {"start": [0, 17 * MS], "end": [MS, 18 * MS]}


def causes(*ranks: Arrivals) -> tuple[Causes, list[GroupWaits]]:
    groups, _ = match(list(ranks), [0] * len(ranks), [0] * len(ranks), [0] * len(ranks))
    clocks = seeded([session("a")])
    waits = [
        each for group in groups if isinstance(each := waits_of(group, ranks, clocks), GroupWaits)
    ]
    return Causes(waits, ranks), waits


def found(late: dict[str, Any], usual: dict[str, Any]) -> Cause | None:
    """Return the cause of the third of three ranks."""
    common: dict[str, Any] = {"group": "0", "sequence": [0, 1], "report": 0}
    ranks = [arrivals(rank, **ON_TIME, **common, **usual) for rank in range(2)]
    looked, (waits,) = causes(*ranks, arrivals(2, **LATE, **common, **late))
    assert waits.last[1] == 2
    return looked.of(0, 1, 2)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("launch", "launch"), ("sync", "sync"), ("blocking copy", "blocking copy"),
        ("copy", "blocking copy"), ("data loading", "data loading"), ("other", "other"),
    ],
)  # fmt: skip
def test_what_takes_the_time_is_the_cause(part: str, told: str) -> None:
    usual = {"spent": {"compute": [0, 10 * MS]}}
    cause = found({"spent": {"compute": [0, 10 * MS], part: [0, 6 * MS]}}, usual)
    assert cause == Cause(2, told, 6 * MS, MS, 17 * MS, ())


@pytest.mark.parametrize(("kernels", "told"), [(100, SLOWER), (101, SLOWER), (160, MORE_WORK)])
def test_as_many_kernels_are_the_same_ones(kernels: int, told: str) -> None:
    usual = {"spent": {"compute": [0, 10 * MS]}, "kernels": [0, 100]}
    cause = known(found({"spent": {"compute": [0, 16 * MS]}, "kernels": [0, kernels]}, usual))
    assert cause.what == told


def test_several_small_parts_are_no_cause() -> None:
    parts = {"launch": [0, 2 * MS], "sync": [0, 2 * MS], "other": [0, 2 * MS]}
    cause = known(
        found({"spent": {"compute": [0, 10 * MS], **parts}}, {"spent": {"compute": [0, 10 * MS]}})
    )
    assert cause.what == UNEXPLAINED


def test_what_all_ranks_do_is_no_cause() -> None:
    loading = {"compute": [0, 4 * MS], "data loading": [0, 6 * MS]}
    cause = known(found({"spent": {**loading, "launch": [0, 6 * MS]}}, {"spent": loading}))
    assert cause.what == "launch"


def test_the_first_operation_of_a_capture_has_no_cause() -> None:
    common: dict[str, Any] = {"group": "0", "sequence": [0, 1], "report": 0}
    ranks = [arrivals(rank, **starts, **common) for rank, starts in enumerate((ON_TIME, LATE))]
    looked, _ = causes(*ranks)
    assert looked.of(0, 0, 1) is None


def test_an_operation_that_follows_at_once_is_late_because_of_what_was_before() -> None:
    """The second and third operation were queued together; both go back to the end of the first."""
    start, end = [0, 11 * MS, 18 * MS + 1_000], [MS, 18 * MS, 21 * MS]
    common: dict[str, Any] = {"group": "0", "sequence": [0, 1, 2], "report": 0}
    usual: dict[str, Any] = {"spent": {"compute": [0, 10 * MS, 13 * MS]}}
    loading = {"compute": [0, 10 * MS, 13 * MS], "data loading": [0, 6 * MS, 6 * MS]}
    ranks = [arrivals(rank, start, end, **common, **usual) for rank in range(2)]
    late = arrivals(2, [0, 17 * MS, 20 * MS], end, **common, spent=loading)
    looked, _ = causes(*ranks, late)
    cause = known(looked.of(0, 2, 2))
    assert (cause.what, cause.start_ns) == ("data loading", MS)


def test_a_rank_that_waited_for_another_is_not_the_root() -> None:
    """Rank 2 meets rank 3, which comes 6 ms late to that, before it meets all.

    Rank 3 is late because of its data; of the operation of all, rank 2 is the last.
    """
    loading = {"compute": [0, 4 * MS, 10 * MS], "data loading": [0, 6 * MS, 6 * MS]}
    waiting = {"compute": [0, 4 * MS, 10 * MS], "communication": [0, 0, 6 * MS]}
    names = ("0", "pair")

    def in_both(rank: int, start: list[int], end: list[int], spent: dict[str, Any]) -> Arrivals:
        found = arrivals(
            rank, start, end, report=0, group="0", sequence=[0, 1, 1], spent=spent
        )  # the pair's is the second, of a group of its own
        found.group[:] = [0, 1, 0]
        found.sequence[:] = [0, 5, 1]
        return replace(found, groups=names)

    usual = [
        arrivals(rank, **ON_TIME, group="0", sequence=[0, 1], report=0,
                 spent={"compute": [0, 10 * MS]})
        for rank in range(2)
    ]  # fmt: skip
    end = [MS, 11 * MS + MS // 2, 18 * MS]
    second = in_both(2, [0, 5 * MS, 17 * MS + 500_000], end, waiting)
    third = in_both(3, [0, 11 * MS, 17 * MS], end, loading)
    looked, waits = causes(*usual, second, third)
    of_all = next(index for index, wait in enumerate(waits) if len(wait.group.members) == 4)
    cause = known(looked.of(of_all, 1, 2))
    # There is one operation of the pair only: where the two stood together before is not known.
    assert (cause.root, cause.via, cause.what) == (3, (2,), UNEXPLAINED)
    assert cause.late_ns == 6 * MS
