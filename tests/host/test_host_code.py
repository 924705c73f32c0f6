"""What threads do as evidence: operators, functions of Python, and allocations beside launches."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.builders import TraceBuilder
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.traces import closed_analysis, ranks_of
from traceprof.analyses.gpu_idle.advice import HostFacts, advice
from traceprof.host.host_code import nested
from traceprof.host.idle_causes import IdleCause, details, idle_causes
from traceprof.host.thread_evidence import CallCounts, call_counts
from traceprof.run.program import Program
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import OnlyStep
from traceprof.trace.model.parts import HowToCollect, Part

MAIN = PID, 1


def plain_nesting(spans: list[tuple[int, int]]) -> tuple[list[int], list[int], Counter[int]]:
    """Parents and self time of spans by a stack, and the time of each as the innermost one."""
    parents, stack = list[int](), list[int]()
    for start, _ in spans:
        while stack and spans[stack[-1]][1] <= start:
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        stack.append(len(parents) - 1)
    innermost: Counter[int] = Counter()
    for time in range(max(end for _, end in spans)):
        around = [row for row, (start, end) in enumerate(spans) if start <= time < end]
        innermost.update(around[-1:])
    own = [end - start for start, end in spans]
    for row, parent in enumerate(parents):
        if parent >= 0:
            own[parent] -= spans[row][1] - spans[row][0]
    return parents, own, innermost


def random_spans(chooser: random.Random, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    spans = list[tuple[int, int]]()
    while high - low > 1 and chooser.random() < 0.8:
        start = chooser.randint(low, high - 1)
        end = chooser.randint(start + 1, high)
        spans.append((start, end))
        if depth:
            spans += random_spans(chooser, start, end, depth - 1)
        low = end
    return spans


@pytest.mark.parametrize("seed", range(40))
def test_nesting_agrees_with_a_stack(seed: int) -> None:
    spans = sorted(random_spans(random.Random(seed), 0, 60, 4) or [(0, 1)])
    spans.sort(key=lambda span: (span[0], -span[1]))
    start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    columns = nested(start, np.where(end == start + 1, start, end))  # no span has no length
    parents, own, innermost = plain_nesting(spans)
    assert columns.parent.tolist() == parents
    assert columns.self_ns.tolist() == own
    begin, stop, row = columns.innermost()
    read: Counter[int] = Counter()
    for low, high, number in zip(begin.tolist(), stop.tolist(), row.tolist(), strict=True):
        read[number] += high - low
    assert read == innermost
    outermost = columns.inherited(np.where(columns.parent < 0, np.arange(len(spans)), -1))
    assert (start[outermost] <= start).all()
    assert (columns.parent[outermost] == -1).all()


def rank_with(tmp_path: Path, *events: dict[str, object]) -> Rank:
    """Return a rank whose second kernel comes 4 ms late: the host is in `events` from 0.1 ms on.

    GPU    k[0..100]                          k[4100..4200]
    host   L[-20]        events 100 to 4000   L[4090..4095]
    """
    around = [
        kernel(100, 200), kernel(4200, 4300, number=2),
        call(80, 85), call(4190, 4195, number=2),
    ]  # fmt: skip
    with ranks_of(write(tmp_path / "trace.json", [*around, *events])) as (rank,):
        return rank


def causes_of(rank: Rank) -> dict[str, int]:
    within = idle_causes(rank).within(rank.window)
    return {cause.value: ns // 1000 for cause, ns in within.items() if ns}


SHORTENED = {
    "/data/me/parser.py(70): __next__": "me/parser.py(70): __next__",
    "<built-in method acquire of _thread.lock object at 0x7f>": (
        "<built-in method acquire of _thread.lock object>"
    ),
    "/x/torch/distributed/distributed_c10d.py(9): init_process_group": (
        "distributed/distributed_c10d.py(9): init_process_group"
    ),
    "torch/_inductor/compile_fx.py(2100): compile_fx": "_inductor/compile_fx.py(2100): compile_fx",
    "triton/compiler/compiler.py(226): compile": "compiler/compiler.py(226): compile",
}


@pytest.mark.parametrize(
    ("category", "name", "cause"),
    [
        ("cpu_op", "aten::item", "host_code"),
        ("cpu_op", "Python GC", "host_code"),
        ("python_function", "train.py(12): log", "host_code"),
        ("python_function", "torch/serialization.py(850): save", "host_code"),
        ("python_function", "my/loader.py(70): __next__", "data_loading"),
        ("python_function", "/data/me/parser.py(70): __next__", "host_code"),
        ("python_function", "<built-in method acquire of _thread.lock object at 0x7f>", "waiting"),
        (
            "python_function",
            "/x/torch/distributed/distributed_c10d.py(9): init_process_group",
            "setup",
        ),
        ("python_function", "torch/_inductor/compile_fx.py(2100): compile_fx", "setup"),
        ("python_function", "triton/compiler/compiler.py(226): compile", "setup"),
        ("python_function", "my/distributed.py(9): init_process_group", "host_code"),
        ("user_annotation", "save_checkpoint", "host_code"),
        ("user_annotation", "Trainer._save_checkpoint", "host_code"),
        ("user_annotation", "garbage collection", "host_code"),
        ("user_annotation", "anything", "host_code"),
        ("user_annotation", "evaluate", "host_code"),
        ("user_annotation", "cublasGemmEx", "unknown"),
    ],
)
def test_causes_by_what_the_host_ran(category: str, name: str, cause: str, tmp_path: Path) -> None:
    halves = event(category, name, 200, 1000, MAIN), event(category, name, 1300, 2000, MAIN)
    rank = rank_with(tmp_path, *halves)
    expected = Counter({"launch_bound": 10, "unknown": 990}) + Counter({cause: 3000})
    assert causes_of(rank) == expected
    found = [(row.name, row.ns) for row in details(rank, rank.window, IdleCause(cause))]
    assert found == ([] if cause == "unknown" else [(SHORTENED.get(name, name), 3_000_000)])


def test_code_is_named_by_operator_and_line(tmp_path: Path) -> None:
    """aten::to calls aten::copy_, and is called by a line of the program, through PyTorch."""
    rank = rank_with(
        tmp_path,
        event("python_function", "a/b/train.py(7): step", 200, 3000, MAIN),
        event("python_function", "torch/nn/modules/module.py(1): forward", 300, 2000, MAIN),
        event("cpu_op", "aten::to", 1000, 900, MAIN),
        event("cpu_op", "aten::copy_", 1100, 700, MAIN),
        event("cpu_op", "aten::to", 1000, 900, (PID, 2)),
    )
    rows = details(rank, rank.window, IdleCause.HOST_CODE)
    assert [(row.name, row.ns // 1000) for row in rows] == [
        ("b/train.py(7): step", 2100), ("aten::to in b/train.py(7): step", 900),
    ]  # fmt: skip


def test_another_thread_proves_nothing(tmp_path: Path) -> None:
    rank = rank_with(tmp_path, event("cpu_op", "aten::to", 200, 3000, (PID, 2)))
    assert causes_of(rank) == {"launch_bound": 10, "unknown": 3990}


US = 1_000


@pytest.mark.parametrize(
    ("num", "is_uncached"),
    [((0, 100), False), ((19, 20), False), ((20, 80), True), ((20, 81), False), ((500, 100), True)],
)
def test_what_is_no_cache(num: tuple[int, int], is_uncached: bool) -> None:
    assert CallCounts(*num, 0, is_hip=False).is_uncached == is_uncached


def test_calls_that_count(tmp_path: Path) -> None:
    """Calls that begin in the window, which begins with the first kernel and ends with the last."""
    trace = TraceBuilder()
    names = "cudaMalloc_v3020", "cudaMallocAsync_v11020", "cudaFree_v3020", "cudaMallocHost_v3020"
    for number in range(10):
        now = number * 100 * US
        trace.kernel(now + 10 * US, now + 20 * US, launch=(now, now + 5 * US))
        for place, name in enumerate(names):
            trace.api(name, now + (30 + place) * US, now + (31 + place) * US)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert call_counts(rank, rank.window) == CallCounts(9, 9, 0, is_hip=False)
        assert call_counts(rank, Window(30 * US, 130 * US)) == CallCounts(1, 1, 0, is_hip=False)


@pytest.mark.parametrize(
    ("num_late", "kernel_us", "blocks"),
    [(0, 60, True), (2, 60, True), (3, 60, False), (0, 40, False)],
)
def test_launches_that_wait_for_their_kernels(
    num_late: int, kernel_us: int, blocks: bool, tmp_path: Path
) -> None:
    """20 kernels: some end after their call, and short ones may end before it returns."""
    trace = TraceBuilder()
    for number in range(20):
        now = number * 100 * US
        start, end = now + 5 * US, now + (5 + kernel_us) * US
        call_end = end + (-2 if number < num_late else 2) * US
        trace.kernel(start, end, "gemm(float*)", launch=(now, call_end))
    path = trace.write(tmp_path)
    with ranks_of(path) as (rank,):
        assert call_counts(rank, rank.window).launches_block == blocks
    (idle,) = (one for one in closed_analysis(path).findings if one.id == "gpu-idle")
    assert idle.advice[0].startswith("Unset CUDA_LAUNCH_BLOCKING") == blocks


@pytest.mark.parametrize(
    ("calls", "how", "said", "not_said"),
    [
        (CallCounts(90, 100, 0, is_hip=False), {}, "NO_CUDA_MEMORY_CACHING", "expandable"),
        (CallCounts(90, 100, 0, is_hip=True), {}, "NO_HIP_MEMORY_CACHING", "CUDA"),
        (CallCounts(3, 100, 0, is_hip=False), {}, "PYTORCH_CUDA_ALLOC_CONF", "NO_CUDA"),
        (CallCounts(3, 100, 0, is_hip=True), {}, "PYTORCH_HIP_ALLOC_CONF", "CUDA"),
        (CallCounts(3, 100, 0, is_hip=False), {"recurs": False}, "In the first steps", "ALLOC"),
        (CallCounts(0, 100, 0, is_hip=False), {}, "In the first steps this is", "ALLOC_CONF"),
        (
            CallCounts(90, 100, 0, is_hip=False),
            {"is_pytorch": False},
            "Allocate before the loop",
            "PYTORCH",
        ),
    ],
)
def test_advice(calls: CallCounts, how: Any, said: str, not_said: str) -> None:
    text = "\n".join(advised(IdleCause.ALLOCATION, calls, **how))
    assert said in text
    assert not_said not in text


@pytest.mark.parametrize(
    ("cause", "name", "recurs", "said"),
    [
        (IdleCause.ALLOCATION, "cudaFreeHost_v3020", True, "Pin memory once"),
        (IdleCause.ALLOCATION, "cudaFreeHost_v3020", False, "In the first steps this is normal"),
        (IdleCause.ALLOCATION, "cudaFree_v3020", True, "In the first steps this is normal"),
        (IdleCause.HOST_CODE, "my own range", True, "The host works on something else"),
        (
            IdleCause.HOST_CODE,
            "torch/_dynamo/convert_frame.py(500): _compile",
            True,
            "Find out why it compiles anew",
        ),
        (IdleCause.HOST_CODE, "torch.compile", False, "The host works on something else"),
    ],
)
def test_advice_by_what_the_host_was_in(
    cause: IdleCause, name: str, recurs: bool, said: str
) -> None:
    none = CallCounts(0, 100, 0, is_hip=False)
    assert advised(cause, none, recurs=recurs, name=name)[0].startswith(said)


@pytest.mark.parametrize(
    ("name", "said"),
    [("_compile", "Look at step 3"), ("save_checkpoint", "Save in the background")],
)
def test_advice_on_what_happened_in_one_step(name: str, said: str) -> None:
    """What compiles once does not compile anew; a checkpoint is rare, but recurs."""
    none, once = CallCounts(0, 100, 0, is_hip=False), {IdleCause.HOST_CODE: OnlyStep(3, 12)}
    assert advised(IdleCause.HOST_CODE, none, name=name, only_steps=once)[0].startswith(said)


@pytest.mark.parametrize("is_of_profiler", [True, False])
def test_a_profilers_own_time_is_named(is_of_profiler: bool) -> None:
    none = CallCounts(0, 0, 0, is_hip=False)
    first, *_ = advised(IdleCause.LAUNCH_BOUND, none, is_of_profiler=is_of_profiler)
    assert first.startswith("torch.profiler itself") == is_of_profiler


def advised(
    cause: IdleCause,
    calls: CallCounts,
    *,
    is_pytorch: bool = True,
    is_of_profiler: bool = False,
    recurs: bool = True,
    name: str = "",
    only_steps: Mapping[IdleCause, OnlyStep] = {},
) -> list[str]:
    facts = HostFacts(
        program=Program(is_pytorch, uses_mpi=False),
        is_of_profiler=is_of_profiler,
        has_pageable=False,
        held=frozenset(),
        how_to_collect=HowToCollect("", dict.fromkeys(Part, "")),
        calls=calls,
        reads_pages=False,
        num_steps=2 if recurs else 1,
        launches_graphs=False,
        only_steps=only_steps,
    )
    return advice([cause], facts, {cause: name}, {})
