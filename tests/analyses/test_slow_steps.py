"""Slow steps: which they are, what ran in them and nowhere else, and what else grew."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.builders import ALL_REDUCE, TraceBuilder
from tests.support.claims import os_call
from tests.support.kept_claims import Kept
from tests.support.profiler_events import annotation, call, event, kernel, write
from tests.support.traces import closed_analysis
from traceprof.analyses.steps import SlowStep, SlowSteps, slow_for_themselves
from traceprof.documents.analysis.records import document
from traceprof.reports.text import render
from traceprof.run.steady_steps import StepUse, step_uses

US, MS = 1_000, 1_000_000
NUM, SLOW, EXTRA = 14, 7, 6 * MS


def training(
    add: Callable[[TraceBuilder, int], object], *, gap_ns: int = EXTRA, scale: int = 1
) -> TraceBuilder:
    """Build 14 steps of 1 ms: ten kernels each. In step 7 the host launches nothing for `gap_ns`.

    `add` adds what the host does in that time, from its start. `scale`: how much longer the kernels
    of step 7 take.
    """
    trace, time = TraceBuilder(), MS
    for number in range(NUM):
        begin = time
        if number == SLOW and gap_ns:
            add(trace, time + 10 * US)
            time += gap_ns
        for _ in range(10):
            length = 90 * US * (scale if number == SLOW else 1)
            trace.kernel(time + 10 * US, time + 10 * US + length, launch=(time, time + 5 * US))
            time += 10 * US + length
        trace.nvtx(f"step {number}", begin, time - length)
    return trace


def range_of(name: str, length_ns: int = EXTRA - 20 * US) -> Callable[[TraceBuilder, int], object]:
    return lambda trace, time: trace.nvtx(name, time, time + length_ns)


def of_every_step(name: str) -> Callable[[TraceBuilder, int], object]:
    """A range is in each step, and once it takes long: it explains no slow one."""

    def add(trace: TraceBuilder, time: int) -> None:
        for number in (2, 3, 4, 5, 8, 9):
            begin = MS + number * MS + (EXTRA if number > SLOW else 0)
            trace.nvtx(name, begin - 5 * US, begin + 1 * US)
        range_of(name)(trace, time)

    return add


def busy_evaluation(trace: TraceBuilder, time: int) -> None:
    """An evaluation keeps the GPU busy: nothing idles, and still it is why the step took long."""
    trace.nvtx("evaluate", time, time + EXTRA - 20 * US)
    for at in range(time + 10 * US, time + EXTRA - 100 * US, 100 * US):
        trace.kernel(at + 10 * US, at + 100 * US, launch=(at, at + 5 * US))


def unnamed_evaluation(trace: TraceBuilder, time: int) -> None:
    """What an evaluation has for itself says more than its gemm."""
    for place, at in enumerate(range(time + 10 * US, time + EXTRA - 100 * US, 100 * US)):
        name = "gemm" if place % 5 else "argmax"
        trace.kernel(at + 10 * US, at + 100 * US, name, launch=(at, at + 5 * US))


def copies(trace: TraceBuilder, time: int) -> None:
    """A checkpoint copies the state to the host, which leaves no time idle."""
    trace.nvtx("save checkpoint", time, time + EXTRA - 20 * US)
    trace.memcpy(time + 10 * US, time + EXTRA - 100 * US, "DtoH", launch=(time, time + 5 * US))


def three(trace: TraceBuilder, time: int) -> None:
    """None of the three takes half of what the step takes more: the longest is named."""
    for name, at, share in (("evaluate", 0, 30), ("save checkpoint", 30, 45), ("log", 75, 25)):
        first, last = EXTRA * at // 100, EXTRA * (at + share) // 100
        trace.nvtx(name, time + first, time + last - 20 * US)


def compiled(trace: TraceBuilder, time: int) -> None:
    """Of ranges around each other the one that says more is named."""
    range_of("Torch-Compiled Region: 0/0")(trace, time)
    trace.nvtx("torch.compile", time + 50 * US, time + EXTRA - 70 * US)


def held_up(held_ns: int) -> TraceBuilder:
    """Each step waits for the GPU; in step 7 the host is late, in that call or after it."""
    trace, time = TraceBuilder(), MS
    for number in range(NUM):
        end = time + MS
        trace.kernel(time + 10 * US, end, launch=(time, time + 5 * US))
        late = number == SLOW
        trace.api(
            "cudaStreamSynchronize_v3020", time + 10 * US, end + (held_ns if late else 2 * US)
        )
        time = end + (EXTRA if late else 20 * US)
        trace.nvtx(f"step {number}", end - MS, time - US)
    return trace


def far_ahead() -> TraceBuilder:
    """The host has launched all steps before the GPU is through the slow one."""
    trace, time = TraceBuilder(), MS
    for number in range(NUM):
        called = number * 20 * US
        trace.nvtx(f"step {number}", called, called + 15 * US)
        for name, length in (("gemm", MS), (ALL_REDUCE, 5 * MS if number == SLOW else 50 * US)):
            trace.kernel(time, time + length, name, launch=(called + US, called + 2 * US))
            time += length + 100 * US
    return trace


RANGES = (
    *("evaluate", "save checkpoint", "garbage collection", "torch.compile"),
    *("reset the environment", "dataloader next"),
)
PROGRAMS: dict[str, Callable[[], TraceBuilder]] = {
    **{f"range {name}": partial(training, range_of(name)) for name in RANGES},
    "a range of half": lambda: training(range_of("evaluate", EXTRA // 2)),
    "a range of less than half": lambda: training(range_of("evaluate", EXTRA // 2 - 50 * US)),
    "a file": lambda: training(
        lambda trace, time: os_call(trace, "write", time, time + EXTRA - 20 * US)
    ),
    "a loader of every step": lambda: training(of_every_step("dataloader next")),
    "a range of every step": lambda: training(of_every_step("reset")),
    "longer kernels": lambda: training(lambda *_: None, gap_ns=0, scale=4),
    "a late return": lambda: held_up(EXTRA - 50 * US),
    "no late return": lambda: held_up(2 * US),
    "no sign": lambda: training(lambda *_: None),
    "a busy evaluation": lambda: training(busy_evaluation),
    "an evaluation without a range": lambda: training(unnamed_evaluation),
    "copies in a range": lambda: training(copies),
    "three ranges": lambda: training(three),
    "ranges around each other": lambda: training(compiled),
    "a host that is far ahead": far_ahead,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    """The GPU idles at the end of step 6 for what the host did at the beginning of step 7."""
    analysis = closed_analysis(PROGRAMS[name]().write(tmp_path / "trace.sqlite"))
    lines = render(analysis.result, is_verbose=True).splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("Slow steps"))
    kept(lines[place + 1 : lines.index("", place)])


def test_an_operator_of_one_step(tmp_path: Path) -> None:
    events = []
    for number in range(10):
        begin = 1000 + 1000 * number + (5000 if number > 5 else 0)
        events.append(annotation(f"ProfilerStep#{number}", begin, begin + 990))
        if number == 5:
            events.append(event("cpu_op", "aten::linalg_svd", begin + 20, 5000, (4242, 1)))
            events[-2]["dur"] = 5990
            begin += 5050
        for at in range(3):
            time, correlation = begin + 100 + 300 * at, 10 * number + at + 1
            events += [
                call(time, time + 5, number=correlation),
                kernel(time + 10, time + 290, number=correlation),
            ]
    analysis = closed_analysis(write(tmp_path / "trace.json", events))
    [step] = analysis.measured.slow_steps[0].steps
    assert (step.cause, step.label, step.host_number) == ("operator", "aten::linalg_svd", 5)


def test_a_long_first_step_with_few_kernels_is_no_cut_one() -> None:
    """It compiles: the recording's edge makes no step longer."""
    uses = step_uses(
        lengths_ns=[5_000, 100, 100, 100, 100],  # type: ignore[arg-type]
        num_kernels=[10, 50, 50, 50, 50],  # type: ignore[arg-type]
        ends_early=False,
    )
    assert uses.tolist() == [StepUse.OPENING, 0, 0, 0, 0]


def waits(trace: TraceBuilder, time: int) -> None:
    trace.api("cudaStreamSynchronize_v3020", time, time + EXTRA - 20 * US)


@pytest.mark.parametrize(
    ("id_", "add"), [("gpu-idle", range_of("next_batch")), ("host-sync", waits)]
)
def test_what_the_host_did_in_one_step_has_the_number_of_its_mark(
    id_: str, add: Callable[[TraceBuilder, int], object], tmp_path: Path
) -> None:
    """The GPU was still at the step before, whose window lasts until the next operation."""
    analysis = closed_analysis(training(add).write(tmp_path / "t.sqlite"))
    (found,) = (finding for finding in analysis.findings if finding.id == id_)
    assert any(line.startswith(f"Look at step {SLOW}, the only one") for line in found.advice)


@pytest.mark.parametrize(
    ("number", "cause", "cause_ms", "is_said"),
    [
        (4, "data_loading", 6, False),
        (3, "data_loading", 6, False),
        (4, "data_loading", 2, True),  # too little to make the other wait so long
        (5, "data_loading", 6, True),
        (4, "exposed_communication", 6, True),
    ],
)
def test_a_step_in_which_a_rank_waits_for_a_slow_one_is_not_said(
    number: int, cause: str, cause_ms: int, is_said: bool
) -> None:
    usual: dict[str, Any] = {"index": 4, "host_number": None, "counts": True, "label": None}
    usual |= {"step_ns": 9 * MS, "extra_ns": EXTRA}
    waits = SlowStep(number=4, cause="exposed_communication", cause_ns=EXTRA, **usual)
    other = SlowStep(number=number, cause=cause, cause_ns=cause_ms * MS, **usual)
    said = [*slow_for_themselves([SlowSteps(0, (waits,)), SlowSteps(1, (other,))], [])]
    assert ((0, waits) in said) == is_said
    assert (1, other) in said
    assert [*slow_for_themselves([SlowSteps(0, (other, waits))], [])] == [(0, other), (0, waits)]


def test_agreement_on_real_traces(real_trace: Path) -> None:
    """Which steps are slow and by how much, from the document's steps alone."""
    written = document(closed_analysis(real_trace).result)
    expected, steady = [], (None, "phase")
    for rank in {step.rank for step in written.steps}:
        steps = [step for step in written.steps if step.rank == rank]
        judged = [step for step in steps if step.left_out != "not judged"]
        for phase in {step.phase for step in judged}:
            lengths = [s.window_ns for s in judged if s.phase == phase and s.left_out in steady]
            usual = median(lengths) if lengths else float("inf")
            expected += [
                (rank, place, int(step.window_ns - usual), step.left_out is None)
                for place, step in enumerate(steps)
                if step in judged and step.phase == phase and step.window_ns > 1.5 * usual
            ]
    told = [(one.rank, one.index, one.extra_ns, one.counts) for one in written.slow_steps]
    assert told == sorted(expected)
    assert all(one.cause_ns <= one.step_ns for one in written.slow_steps)
