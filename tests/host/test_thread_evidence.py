"""What threads did while a GPU idled: MPI, set-up, allocation, sleep, data loading, by hand.

The reference says the same of each.
"""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_tid
from tests.support.claims import END, MS, US, begun, found, late, os_call, switched

# -- MPI, set-up, allocation ----------------------------------------------------------------------


def test_mpi_before_setup_before_allocation(tmp_path: Path) -> None:
    trace = begun().raw(
        "MPI_COLLECTIVES_EVENTS", start=END, end=END + MS, globalTid=global_tid(), textId=None
    )
    trace.nvtx("ncclCommInitRank", END, END + 2 * MS).api("cudaMalloc", END, END + 3 * MS)
    trace.nvtx("dataloader next", END, END + 4 * MS).api("cudaEventRecord", END, END + 5 * MS)
    trace = switched(trace, (END - MS, 0), (END + 6 * MS, 1))
    expected = {
        "mpi": 1000, "setup": 1000, "allocation": 1000, "data_loading": 1000, "launch_bound": 1010,
        "waiting": 1000, "host_code": 1000,
    }  # fmt: skip
    assert found(late(trace, 7 * MS + 10 * US), tmp_path) == expected


@pytest.mark.parametrize(
    "name",
    [
        "cuModuleLoadDataEx", "cuLibraryLoadData", "cudaHostRegister_v4000", "cuCtxCreate_v2",
        "cudaStreamCreateWithPriority_v5050", "cudaEventCreateWithFlags_v3020",
        "cudaGraphInstantiate_v12000",
    ],
)  # fmt: skip
def test_setup_calls(name: str, tmp_path: Path) -> None:
    trace = late(begun().api(name, END, END + MS), 1100 * US, call=100 * US)
    assert found(trace, tmp_path) == {"setup": 1000, "launch_bound": 100}


@pytest.mark.parametrize(
    ("name", "call", "expected"),
    [
        ("conv", MS + 1, {"setup": 1000.001}),
        ("conv", MS, {"launch_bound": 1000}),  # not over 1 ms
        ("gemm", 2 * MS, {"launch_bound": 2000}),  # not its first launch
    ],
)
def test_first_launches(name: str, call: int, expected: dict[str, float], tmp_path: Path) -> None:
    trace = begun().kernel(END + call, END + 5 * MS, name, launch=(END, END + call))
    assert found(trace, tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "is_setup"),
    [
        ("Warm-up Step 1", True), ("ncclCommInitRankConfig", True), ("compilation", True),
        ("Torch-Compiled Region: 0/0", False), ("decompiled", False),
    ],
)  # fmt: skip
def test_setup_ranges(name: str, is_setup: bool, tmp_path: Path) -> None:
    trace = late(begun().nvtx(name, END - MS, END + 5 * MS), MS, call=MS)
    assert found(trace, tmp_path) == {"setup" if is_setup else "launch_bound": 1000}


# -- sleep, host code, data loading ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sem_timedwait", {"waiting": 2000, "host_code": 2000, "launch_bound": 10}),
        ("ioctl", {"host_code": 4000, "launch_bound": 10}),
    ],
)
def test_calls_of_the_operating_system(
    name: str, expected: dict[str, float], tmp_path: Path
) -> None:
    trace = os_call(begun(), name, END + MS, END + 3 * MS)
    assert found(late(trace, 4 * MS + 10 * US), tmp_path) == expected


def asleep_before_a_copy(**how: object) -> TraceBuilder:
    trace = switched(begun(), (END, 0), (END + MS, 1), tid=how.get("tid"))  # type: ignore[arg-type]
    start = END + MS + 10 * US
    return trace.memcpy(start, start + MS, launch=(END + MS, start), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "is_batch"),
    [
        ((END, 30 * MS), True),  # the step begins before the copy
        ((END + 2 * MS, 30 * MS), True),  # after it
        ((8 * MS, END), True),  # one ends before it
        ((8 * MS, 30 * MS), False),  # in the middle of a step
    ],
)
def test_asleep_at_a_step_boundary(step: tuple[int, int], is_batch: bool, tmp_path: Path) -> None:
    trace = asleep_before_a_copy().nvtx("step 3", *step)
    trace.kernel(END + 6 * MS, END + 7 * MS, launch=(END + 3 * MS, END + 4 * MS))
    result = found(trace, tmp_path)
    assert ("data_loading" in result, "waiting" in result) == (is_batch, not is_batch)


def test_asleep_before_a_copy_of_a_thread_that_only_copies(tmp_path: Path) -> None:
    trace = asleep_before_a_copy(tid=1001, stream=9)
    assert found(trace, tmp_path) == {"data_loading": 1000, "launch_bound": 10}


def test_a_device_to_host_copy_is_no_batch(tmp_path: Path) -> None:
    start = END + MS + 10 * US
    trace = switched(begun(), (END, 0), (END + MS, 1)).nvtx("step 1", END, 30 * MS)
    trace.memcpy(start, start + MS, "DtoH", launch=(END + MS, start))
    assert found(trace, tmp_path) == {"waiting": 1000, "launch_bound": 10}
