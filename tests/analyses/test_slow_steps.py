"""Slow steps: which they are, what ran in them and nowhere else, and what else grew."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.builders import ALL_REDUCE, TraceBuilder
from tests.support.claims import os_call
from tests.support.profiler_events import annotation, call, event, kernel, write
from tests.support.traces import closed_analysis
from traceprof.analyses.steps import SlowStep, SlowSteps, cause_text, slow_for_themselves
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


def found(trace: TraceBuilder, folder: Path) -> list[SlowStep]:
    analysis = closed_analysis(trace.write(folder / "trace.sqlite"))
    return [step for of_rank in analysis.measured.slow_steps for step in of_rank.steps]


def range_of(name: str) -> Callable[[TraceBuilder, int], object]:
    return lambda trace, time: trace.nvtx(name, time, time + EXTRA - 20 * US)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("evaluate", "evaluation"),
        ("save checkpoint", "checkpoint"),
        ("garbage collection", "collection"),
        ("torch.compile", "compile"),
        ("reset the environment", "range"),
        ("dataloader next", "data_loading"),
    ],
)
def test_what_ran_in_a_step_and_nowhere_else(name: str, cause: str, tmp_path: Path) -> None:
    """The GPU idles at the end of step 6 for what the host did at the beginning of step 7."""
    [step] = found(training(range_of(name)), tmp_path)
    assert (step.index, step.number, step.host_number) == (6, 6, SLOW)
    assert (step.cause, step.label) == (cause, name)
    assert step.extra_ns == pytest.approx(EXTRA, abs=20 * US)
    assert step.cause_ns == pytest.approx(EXTRA, abs=30 * US)


def test_files_that_are_written_only_then(tmp_path: Path) -> None:
    trace = training(lambda trace, time: os_call(trace, "write", time, time + EXTRA - 20 * US))
    [step] = found(trace, tmp_path)
    assert (step.cause, step.label) == ("file", "write")


def test_a_range_is_named_as_ranges_are() -> None:
    assert cause_text("range", "reset the environment") == "range reset the environment"
    assert cause_text("range") == "a range"
    assert cause_text("file", "write") == "access to files (write)"


def test_a_range_of_every_step_explains_no_slow_one(tmp_path: Path) -> None:
    """The loader is in each step, and once it takes long: what grew is the time in it."""
    trace = training(range_of("dataloader next"))
    for number in (2, 3, 4, 5, 8, 9):
        begin = MS + number * MS + (EXTRA if number > SLOW else 0)
        trace.nvtx("dataloader next", begin - 5 * US, begin + 1 * US)
    [step] = found(trace, tmp_path)
    assert (step.cause, step.label) == ("data_loading", "dataloader next")


def test_what_grew_if_nothing_ran_that_is_not_elsewhere(tmp_path: Path) -> None:
    [step] = found(training(lambda *_: None, gap_ns=0, scale=4), tmp_path)
    assert (step.number, step.host_number) == (SLOW, SLOW)
    assert (step.cause, step.label, step.counts) == ("compute", "gemm", True)
    assert step.cause_ns == pytest.approx(10 * 3 * 90 * US, abs=US)


@pytest.mark.parametrize(
    ("held_ns", "cause", "label"),
    [(EXTRA - 50 * US, "late_return", "cudaStreamSynchronize"), (2 * US, "unknown", None)],
)
def test_a_wait_that_ends_long_after_the_gpu_is_done(
    held_ns: int, cause: str, label: str | None, tmp_path: Path
) -> None:
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
    [step] = found(trace, tmp_path)
    assert (step.number, step.cause, step.label) == (SLOW, cause, label)
    # Without the wait it would have launched as much earlier as the kernel takes.
    expected = EXTRA if label else EXTRA - MS
    assert step.cause_ns == pytest.approx(expected, abs=60 * US)


def test_without_a_sign_the_cause_is_unknown(tmp_path: Path) -> None:
    [step] = found(training(lambda *_: None), tmp_path)
    assert (step.cause, step.label) == ("unknown", None)


def test_kernels_that_a_range_launched_count_for_it(tmp_path: Path) -> None:
    """An evaluation keeps the GPU busy: nothing idles, and still it is why the step took long."""

    def evaluate(trace: TraceBuilder, time: int) -> None:
        trace.nvtx("evaluate", time, time + EXTRA - 20 * US)
        for at in range(time + 10 * US, time + EXTRA - 100 * US, 100 * US):
            trace.kernel(at + 10 * US, at + 100 * US, launch=(at, at + 5 * US))

    [step] = found(training(evaluate), tmp_path)
    assert (step.cause, step.label, step.counts) == ("evaluation", "evaluate", False)
    assert step.cause_ns == pytest.approx(EXTRA, rel=0.15)


def test_copies_in_a_range_count_for_it(tmp_path: Path) -> None:
    """A checkpoint copies the state to the host, which leaves no time idle."""

    def save(trace: TraceBuilder, time: int) -> None:
        trace.nvtx("save checkpoint", time, time + EXTRA - 20 * US)
        trace.memcpy(time + 10 * US, time + EXTRA - 100 * US, "DtoH", launch=(time, time + 5 * US))

    [step] = found(training(save), tmp_path)
    assert (step.cause, step.label) == ("checkpoint", "save checkpoint")
    assert step.cause_ns == pytest.approx(EXTRA, rel=0.05)


def test_of_several_that_ran_only_then_the_longest_is_named(tmp_path: Path) -> None:
    """None of the three takes half of what the step takes more."""

    def three(trace: TraceBuilder, time: int) -> None:
        for name, at, share in (("evaluate", 0, 30), ("save checkpoint", 30, 45), ("log", 75, 25)):
            first, last = EXTRA * at // 100, EXTRA * (at + share) // 100
            trace.nvtx(name, time + first, time + last - 20 * US)

    [step] = found(training(three), tmp_path)
    assert (step.cause, step.label) == ("checkpoint", "save checkpoint")
    assert step.cause_ns == pytest.approx(0.45 * EXTRA, abs=30 * US)


def test_of_ranges_around_each_other_the_one_that_says_more_is_named(tmp_path: Path) -> None:
    def compiled(trace: TraceBuilder, time: int) -> None:
        range_of("Torch-Compiled Region: 0/0")(trace, time)
        trace.nvtx("torch.compile", time + 50 * US, time + EXTRA - 70 * US)

    [step] = found(training(compiled), tmp_path)
    assert (step.cause, step.label) == ("compile", "torch.compile")


def test_a_kernel_that_ran_only_then_is_named(tmp_path: Path) -> None:
    """Where no range says so, what an evaluation has for itself tells more than its gemm."""

    def evaluate(trace: TraceBuilder, time: int) -> None:
        for place, at in enumerate(range(time + 10 * US, time + EXTRA - 100 * US, 100 * US)):
            name = "gemm" if place % 5 else "argmax"
            trace.kernel(at + 10 * US, at + 100 * US, name, launch=(at, at + 5 * US))

    [step] = found(training(evaluate), tmp_path)
    assert (step.cause, step.label) == ("compute", "argmax")


def test_what_the_gpu_did_is_of_its_own_step(tmp_path: Path) -> None:
    """The host has launched all steps before the GPU is through the slow one."""
    trace, time = TraceBuilder(), MS
    for number in range(NUM):
        called = number * 20 * US
        trace.nvtx(f"step {number}", called, called + 15 * US)
        for name, length in (("gemm", MS), (ALL_REDUCE, 5 * MS if number == SLOW else 50 * US)):
            trace.kernel(time, time + length, name, launch=(called + US, called + 2 * US))
            time += length + 100 * US
    [step] = found(trace, tmp_path)
    assert (step.cause, step.number, step.host_number) == ("exposed_communication", SLOW, SLOW)


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


def test_the_text_says_it_in_a_line(tmp_path: Path) -> None:
    analysis = closed_analysis(training(range_of("evaluate")).write(tmp_path / "t.sqlite"))
    lines = render(analysis.result, is_verbose=True).splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith("Slow steps"))
    said = " ".join(lines[place + 1 : lines.index("", place)])
    assert said.startswith("Step 7 (while the GPU was at step 6) of rank 0: 6 ms more than")
    assert said.endswith("evaluation (evaluate), 5.98 ms; not in the mean")


def test_what_the_host_did_in_one_step_has_the_number_of_its_mark(tmp_path: Path) -> None:
    """The GPU was still at the step before, whose window lasts until the next operation."""
    analysis = closed_analysis(training(range_of("next_batch")).write(tmp_path / "t.sqlite"))
    (idle,) = (finding for finding in analysis.findings if finding.id == "gpu-idle")
    assert any(line.startswith(f"Look at step {SLOW}, the only one") for line in idle.advice)


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
    said = [*slow_for_themselves([SlowSteps(0, (waits,)), SlowSteps(1, (other,))])]
    assert ((0, waits) in said) == is_said
    assert (1, other) in said
    assert [*slow_for_themselves([SlowSteps(0, (other, waits))])] == [(0, other), (0, waits)]


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
