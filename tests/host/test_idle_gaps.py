"""Why a GPU idles: launches, gaps after queued launches, accesses to unified memory, by hand.

The reference says the same of each.
"""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder, global_tid
from tests.support.claims import END, MS, US, begun, found, late, switched

# -- launch-bound ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (499_999, {"launch_bound": 599.999}),
        (500_000, {"launch_bound": 100, "unknown": 500}),  # not less than 0.5 ms apart
    ],
)
def test_calls_far_from_each_other(
    between: int, expected: dict[str, float], tmp_path: Path
) -> None:
    trace = begun().api("cudaEventRecord", END, END + 90 * US)
    assert found(late(trace, between + 100 * US), tmp_path) == expected


def test_ends_of_ranges_count_as_calls(tmp_path: Path) -> None:
    trace = begun().nvtx("aten::add", END - MS, END + 400 * US).nvtx("open", END, None)
    # 0.4 ms from the range's end to the launch; none from the call before to it
    expected = {"launch_bound": 410, "unknown": 400}
    assert found(late(trace, 810 * US), tmp_path) == expected


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaDeviceSynchronize", "cudaEventRecord"])
def test_what_the_host_does_after_the_launch_holds_nothing_up(call: str, tmp_path: Path) -> None:
    """The operation is in the queue, behind a wait for something that the report does not show."""
    trace = begun().kernel(END + 5 * MS, END + 6 * MS, launch=(END, END + 30 * US))
    trace.api(call, END + 60 * US, END + 5 * MS)
    assert found(trace, tmp_path) == {"launch_bound": 50, "queued": 4950}


def test_what_the_driver_does_after_the_launch_holds_it_up(tmp_path: Path) -> None:
    trace = begun().kernel(END + 5 * MS, END + 6 * MS, launch=(END, END + 30 * US))
    trace.api("cudaMalloc", END + 40 * US, END + 4 * MS)
    assert found(trace, tmp_path) == {"launch_bound": 40, "allocation": 3960, "queued": 1000}


# -- launch latency, and causes that are not known ------------------------------------------------


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (5, {"turnaround": 5}),
        (20, {"turnaround": 20}),
        (21, {"turnaround": 20, "queued": 1}),
        (5000, {"turnaround": 20, "queued": 4980}),
    ],
)
def test_launched_before_the_gap(gap: int, expected: dict[str, float], tmp_path: Path) -> None:
    start = END + gap * US
    trace = begun().kernel(start, start + MS, launch=(END - 2 * US, END))
    assert found(trace, tmp_path) == expected


def usual(num: int = 10, kind: str = "kernel") -> TraceBuilder:
    """Build gaps before operations launched 5 us before them, and others 1 us after the one before.

    10 us and 1 us long; the last operation is a kernel that ends at END.
    """
    trace = TraceBuilder()
    add = getattr(trace, kind)
    for place in range(num):
        start = MS + 100 * US * place
        trace.kernel(start - 10 * US - US, start - 10 * US, launch=(0, US))
        add(start, start + US, launch=(start - 8 * US, start - 5 * US))
        trace.kernel(start + 2 * US, start + 3 * US, launch=(0, US))
        add(start + 4 * US, start + 5 * US, launch=(0, US))
    return trace.kernel(END - US, END, launch=(0, US))


@pytest.mark.parametrize(
    ("ahead", "gap", "turnaround", "launching"),
    [
        (0, 5, 1, 4),
        (2, 3, 1, 2),
        (4, 1, 1, 0),  # the GPU could not have begun earlier
        (2, 1.5, 1, 0.5),  # quicker than others
        (2, 9, 7, 2),  # something else held it then
        (5, 9, 9, 0),
        (2, 30, 18, 2),  # and 10 us it was queued
    ],
)
def test_launched_before_the_gap_but_too_late(
    ahead: int, gap: float, turnaround: int, launching: float, tmp_path: Path
) -> None:
    start, returned = END + round(gap * US), END - ahead * US
    late, window = (returned - 3 * US, returned), (END, start)
    trace = usual().kernel(start, start + MS, launch=late)
    expected = {"launch_bound": launching, "turnaround": turnaround, "queued": max(gap - 20, 0)}
    assert found(trace, tmp_path, window) == {name: us for name, us in expected.items() if us}


@pytest.mark.parametrize(
    "trace", [usual(9), usual(kind="memset")], ids=["too few gaps", "another kind of operation"]
)
def test_without_usual_latencies_it_is_turnaround(trace: TraceBuilder, tmp_path: Path) -> None:
    trace.kernel(END + 3 * US, END + MS, launch=(END - 5 * US, END - 2 * US))
    assert found(trace, tmp_path, (END, END + 3 * US)) == {"turnaround": 3}


def test_a_wait_may_have_made_such_a_launch_late(tmp_path: Path) -> None:
    trace = usual().api("cudaDeviceSynchronize", END - MS, END - 10 * US)
    trace.kernel(END + 3 * US, END + MS, launch=(END - 5 * US, END - 2 * US))
    assert found(trace, tmp_path, (END, END + 3 * US)) == {"turnaround": 1, "sync": 2}


def test_without_correlation_ids(tmp_path: Path) -> None:
    trace = begun().raw(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=END + MS, end=END + 2 * MS, deviceId=0, streamId=7,
        correlationId=None, globalPid=global_tid(tid=0), shortName=1, demangledName=1,
    )  # fmt: skip
    assert found(trace, tmp_path) == {"unknown": 1000}


# -- accesses to unified memory -------------------------------------------------------------------


def page(
    trace: TraceBuilder, gap: int, kind: str = "unified DtoH", length: int = MS
) -> TraceBuilder:
    """End the gap with a page that the driver moves."""
    return trace.memcpy(END + gap, END + gap + length, kind, launch=False)


def test_the_host_worked_or_slept_until_it_accesses_a_page(tmp_path: Path) -> None:
    trace = switched(begun(), (END - MS, 1), (END + 2 * MS, 0), (END + 3 * MS, 1))
    trace.api("cudaMalloc", END, END + 500 * US)
    trace.api("cudaFree", END + 500 * US, END + 600 * US).api("cudaEventRecord", END + MS, END + MS)
    page(trace, 5 * MS)
    expected = {"allocation": 600, "host_code": 3400, "waiting": 1000}
    assert found(trace, tmp_path) == expected


def test_nothing_is_known_of_the_host_before_an_access(tmp_path: Path) -> None:
    """Not even its launches, close to each other, explain the gap; no debt of a wait takes it."""
    trace = begun().api("cudaDeviceSynchronize", END - MS, END + 100 * US)
    trace.api("cudaEventQuery", END + 200 * US, END + 210 * US)
    page(trace, 300 * US)
    assert found(trace, tmp_path) == {"unknown": 300}


def test_the_thread_of_the_last_call_is_taken_for_the_accessing_one(tmp_path: Path) -> None:
    trace = switched(begun(), (END - MS, 0))
    switched(trace, (END - MS, 1), (END + 7 * MS, 0), tid=5)
    trace.api("cudaEventQuery", END - 10 * US, END - 5 * US, tid=5)
    page(trace, 2 * MS)
    assert found(trace, tmp_path) == {"host_code": 2000}


def test_a_thread_that_sleeps_accesses_no_page(tmp_path: Path) -> None:
    """One that only looks at events now and then made the last call."""
    trace = switched(begun(), (END - MS, 1))
    switched(trace, (END - MS, 1), (END + MS, 0), (END + 7 * MS, 1), tid=5)
    trace.api("cudaEventQuery", END, END + 5 * US, tid=5)
    page(trace, 2 * MS)
    assert found(trace, tmp_path) == {"unknown": 2000}


@pytest.mark.parametrize(
    ("call", "kind", "length"),
    [
        ("cudaMemPrefetchAsync", "unified DtoH", MS),
        ("cudaEventQuery", "unified HtoD", MS),
        ("cudaEventQuery", "unified DtoH", 0),
    ],
)
def test_a_page_that_the_host_need_not_have_accessed(
    call: str, kind: str, length: int, tmp_path: Path
) -> None:
    """A prefetched one, one on its way to the GPU, one that takes no time before a kernel."""
    trace = switched(begun(), (END - MS, 1)).api(call, END, END)
    page(trace, 2 * MS, kind, length)
    if not length:
        trace.kernel(END + 2 * MS, END + 3 * MS, launch=False)
    assert found(trace, tmp_path) == {"unknown": 2000}


def test_a_launched_operation_that_starts_with_a_page_ends_the_gap(tmp_path: Path) -> None:
    trace = switched(begun(), (END - MS, 1))
    page(late(trace, 2 * MS), 2 * MS)
    assert found(trace, tmp_path) == {"launch_bound": 10, "host_code": 1990}


# -- the stand-in ---------------------------------------------------------------------------------


def handed_over(trace: TraceBuilder) -> TraceBuilder:
    """The main thread's last call was at 10 ms; another thread launches 2 ms later."""
    start = END + 2 * MS + 10 * US
    return trace.kernel(start, start + MS, tid=1001, launch=(start - 10 * US, start))


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ([(END - MS, 1)], {"host_code": 2000, "launch_bound": 10}),
        ([(END, 0)], {"waiting": 2000, "launch_bound": 10}),
        ([(END + MS, 0)], {"host_code": 1000, "waiting": 1000, "launch_bound": 10}),
    ],
)
def test_asleep_means_both(
    main: list[tuple[int, int]], expected: dict[str, float], tmp_path: Path
) -> None:
    trace = switched(handed_over(begun()), *main)
    trace = switched(trace, (END - MS, 0), (END + 2 * MS, 1), tid=1001)
    assert found(trace, tmp_path) == expected


def test_calls_of_both_are_close(tmp_path: Path) -> None:
    trace = handed_over(begun())
    for time in range(100, 2000, 400):
        trace.api("cudaEventRecord", END + time * US, END + (time + 10) * US)
    trace.api("cudaEventRecord", END, END + US)
    assert found(trace, tmp_path) == {"launch_bound": 2010}
