"""Waits that no call shows: of the host, of threads that bring batches, and between streams."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import traceprof
from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios.setup import Setup
from tests.reference.gpu_machine import MS, US
from tests.reference.gpu_programs import PROGRAMS
from tests.support.builders import TraceBuilder
from tests.support.changes import damaged, recorded
from traceprof.analysis import Options, analyze
from traceprof.replay.graph.process_graph import Process
from traceprof.replay.graph.process_part import ProcessFacts
from traceprof.replay.graph.run_graph import run_graph
from traceprof.replay.graph.weights import Variant, halves, held_out_latencies, held_out_tails
from traceprof.trace.nsight import schema


def program(num: int, between: Callable[[Host, np.random.Generator], None]) -> Setup:
    """Return steps of 10 to 30 kernels, with something that the host does after each."""
    rng = np.random.default_rng(0)
    host = Host(0, rng)
    for step in range(num):
        with host.step(step):
            host.launch(host.compute, *[kernels.QKV] * int(rng.integers(10, 30)))
            between(host, rng)
    return Setup((host,), lambda _: [])


def synchronize(host: Host, rng: np.random.Generator) -> None:
    host.synchronize(host.compute)
    host.busy(int(rng.integers(50_000, 200_000)))


def synchronize_with_an_event(host: Host, rng: np.random.Generator) -> None:
    event = host.record(host.compute)
    host.launch(host.compute, *[kernels.QKV] * 5)
    host.synchronize(event)
    host.busy(int(rng.integers(10_000, 20_000)))


def compute(host: Host, rng: np.random.Generator) -> None:
    host.busy(int(rng.integers(1_000_000, 4_000_000)))


def observed(path: Path) -> tuple[Process, ProcessFacts]:
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        graph = run_graph(analysis, [Variant()], keeps_processes=True)
        return graph.kept[0].process, graph.facts[0]


@pytest.mark.parametrize("between", [synchronize, synchronize_with_an_event])
def test_waits_by_calls_that_are_gone_are_seen(
    between: Callable[[Host, np.random.Generator], None], tmp_path: Path
) -> None:
    """What is seen is what those calls waited for: to the end of their operation."""
    path = recorded(program(12, between), tmp_path / "run.sqlite")
    intact, facts = observed(path)
    assert facts.hidden_host_ns == 0
    waits, calls = intact.host_waits, intact.calls
    waited = intact.work.end_ns[waits.operation] - calls.start_ns[waits.call]
    assert damaged(path, tmp_path / "damaged.sqlite", "synchronize calls") == 12
    process, facts = observed(tmp_path / "damaged.sqlite")
    # After the last one there is no call any more.
    assert len(process.hidden_waits) == 11
    assert process.hidden_waits.is_seen.all()
    assert facts.hidden_host_ns == pytest.approx(int(waited[:-1].sum()), rel=0.02)


@pytest.mark.parametrize(
    ("num", "between", "may_wait"), [(12, compute, False), (3, synchronize, True)]
)
def test_own_time_is_no_wait_and_a_few_silences_say_nothing(
    num: int, between: Callable[[Host, np.random.Generator], None], may_wait: bool, tmp_path: Path
) -> None:
    path = recorded(program(num, between), tmp_path / "run.sqlite")
    damaged(path, tmp_path / "damaged.sqlite", "synchronize calls")
    process, facts = observed(tmp_path / "damaged.sqlite")
    assert facts.hidden_host_ns == 0
    assert not process.hidden_waits.is_seen.any()
    assert (len(process.hidden_waits) > 0) == may_wait


def test_what_launches_slowly_waits_for_no_kernel(tmp_path: Path) -> None:
    """Each kernel is over before the next one is launched, since the thread's code takes longer."""
    host, rng = Host(0, np.random.default_rng(0)), np.random.default_rng(1)
    for step in range(12):
        with host.step(step):
            for code_us, kernel in ((24, kernels.ADD), (24, kernels.STATE_FILL)) * 20:
                host.launch(host.compute, kernel)
                host.busy(max(1_000, int(rng.normal(1_000 * code_us, 4_000))))
    _, facts = observed(recorded(Setup((host,), lambda _: []), tmp_path / "run.sqlite"))
    assert facts.hidden_host_ns == 0


@pytest.mark.parametrize("others_call", [True, False])
def test_a_silence_in_most_of_which_another_thread_makes_calls_is_no_wait(
    *, others_call: bool, tmp_path: Path
) -> None:
    builder, rng, at = TraceBuilder(), np.random.default_rng(0), MS
    builder.kernel(100 * US, 200 * US, "other", stream=9, launch=(0, US), tid=2)
    for took in rng.integers(990 * US, 1_010 * US, 30).tolist():
        begin, end = at + 10 * US, at + 10 * US + took
        builder.kernel(begin, end, launch=(at, at + 5 * US), tid=1)
        if others_call:  # it returns at any time, long before the next call of the first thread
            returned = begin + int(took * rng.uniform(0.6, 0.9))
            builder.api("cudaMemGetInfo", begin, returned, tid=2)
        at = end + 5 * US
    _, facts = observed(builder.write(tmp_path))
    assert (facts.hidden_host_ns == 0) == others_call


def test_halves_follow_thue_and_morse() -> None:
    limits = np.arange(9) * 10
    is_steady = np.ones(8, np.bool_)
    assert halves(limits[:-1] + 5, limits, is_steady).tolist() == [0, 1, 1, 0, 1, 0, 0, 1]
    times = np.array([-5, 0, 9, 10, 79, 80])
    assert halves(times, limits, is_steady).tolist() == [-1, 0, 0, 1, 1, -1]
    is_steady[0] = False
    assert halves(times, limits, is_steady).tolist() == [-1, -1, -1, 1, 1, -1]


def test_what_is_no_delay_belongs_to_its_step(tmp_path: Path) -> None:
    """Warm-up, calls that work on, and operations that begin within their call."""
    process, _ = observed(recorded(program(12, synchronize), tmp_path / "run.sqlite"))
    waits, latencies = process.host_waits, process.latencies
    limits = process.limits_ns + 0
    limits[0] = process.work.end_ns[0]  # the first operation is before all steps
    tail, launch = waits.tail_ns + 0, latencies.after_launch_ns + 0
    unexplained = latencies.unexplained_ns + 0
    tail[3], launch[40], unexplained[0] = 10_000_000, -10_000_000, 10_000_000
    process = replace(
        process,
        limits_ns=limits,
        host_waits=replace(waits, tail_ns=tail),
        latencies=replace(latencies, after_launch_ns=launch, unexplained_ns=unexplained),
    )
    others = np.delete(waits.tail_ns, 3)
    assert held_out_tails(process)[3] == 10_000_000
    assert np.delete(held_out_tails(process), 3).max() <= others.max()
    held = held_out_latencies(process)
    assert held.after_launch_ns[40] == -10_000_000
    assert (
        np.delete(held.after_launch_ns, 40).min() >= np.delete(latencies.after_launch_ns, 40).min()
    )
    assert held.unexplained_ns[0] == 10_000_000
    assert held.unexplained_ns[1:].max() <= latencies.unexplained_ns[1:].max()


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_no_step_takes_less_than_a_loader_works_on_the_cpu(kept: float, tmp_path: Path) -> None:
    """The ranges of its first stage say how long that is; but it may be four batches ahead."""
    machine = PROGRAMS["loader-stages-slow"].run(1, num_steps=30)
    lengths = []
    for row in machine.rows[schema.NVTX.name]:
        if "RunCPU" in str(row["text"]):
            row["end"] = int(row["start"]) + round(kept * (int(row["end"]) - int(row["start"])))
            lengths.append(int(row["end"]) - int(row["start"]))
    run = machine.write(tmp_path / "run.sqlite")
    asked = traceprof.whatif(run, assume=["kernel:.*=0.01x"]).whatif
    (no_kernels,) = asked.answers
    assert asked.baseline is not None
    share = 1 - 4 / asked.baseline.num_steps
    assert no_kernels.step_ns == pytest.approx(share * np.mean(lengths), rel=0.05)
