"""What the replay says of real runs, and of simulated ones whose change was run as well."""

import dataclasses
import json
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import astuple, replace

import traceprof
from sample_traces.simulator import SCENARIOS, kernels
from sample_traces.simulator.event_model.actions import Stream
from sample_traces.simulator.event_model.program_writer import COMPUTE, Host
from sample_traces.simulator.machine import MPI_POINT_TO_POINT
from sample_traces.simulator.scenarios.runs import simulate_run
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.builders import TraceBuilder
from tests.support.changed_programs import PAIRS
from tests.support.changes import recorded, step_ns, without_launching
from tests.support.databases import change, query
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import known, long_after, rows_long_after
from tests.support.traces import SAMPLE
from traceprof.analyses.steps import phases
from traceprof.analysis import Options, analyze
from traceprof.errors import UsageError
from traceprof.host.host_waits import OWN_WAIT_NS
from traceprof.replay.assumptions.assumption import parse
from traceprof.replay.graph.run_graph import measured_steps, replayed_steps, run_graph
from traceprof.replay.graph.weights import Reading, Variant
from traceprof.replay.results import Answer
from traceprof.replay.whatif import answers_to, whatif

_MS = 1_000_000


# -- real runs ------------------------------------------------------------------------------------


@pytest.mark.one_export
def test_what_was_measured_is_replayed_to_the_nanosecond(real_trace: Path) -> None:
    """With every delay kept, nothing else than what was measured can come out."""
    with closing(analyze(real_trace, options=Options(savings=False))) as analysis:
        asked = answers_to(analysis)
        if asked.baseline is None:
            assert asked.refused
            return
        graph = run_graph(analysis, [Variant(), Variant(None, Reading(keeps_unexplained=False))])
        steps, *_ = replayed_steps(graph)
        assert np.array_equal(steps[:, 0], measured_steps(graph))
        misfit = known(asked.baseline.replayed_ns) / asked.baseline.step_ns - 1
        assert len(asked.answers) >= 10
        if asked.refused is None:
            has_events = all(facts.has_event_records for facts in graph.facts)
            assert abs(misfit) <= (0.01 if has_events else 0.035)
            if not next(one for one in asked.baseline.gates if one.name == "host-floor").holds:
                assert all(one.is_bound or one.refused for one in asked.answers)
                return
            for one in asked.answers:
                if one.refused is not None:
                    assert "overlaps kernels that ran one after the other" in one.refused
                    continue
                assert known(one.low_ns) <= (one.step_ns or 0) <= (one.high_ns or 0)
            path_ns = sum(sum(astuple(part)[1:]) for part in asked.critical_path)
            # It ends with the rank that ends last, and begins where that one's steps do.
            last = max(graph.steps, key=lambda one: int(one.limits_ns[-1]))
            begin_ns, end_ns = int(last.limits_ns[0]), int(last.limits_ns[-1])
            of_program = phases(analysis.result.breakdown[0])
            for phase, following in zip(of_program, (*of_program[1:], None), strict=False):
                if phase.counts:  # its steps are answered; the last one ends where others begin
                    begin_ns = phase.start_ns
                    end_ns = end_ns if following is None else following.start_ns
            assert path_ns == pytest.approx(end_ns - begin_ns, rel=0.02)


@pytest.mark.parametrize(
    ("name", "change_ms", "tolerance"),
    rows_long_after(
        1,
        [
            # What the pairs' authors' change, waits taken out one rank by itself, brought.
            ("h100x2_torchrun_nccl_on_compute_stream", {0: 21.2, 1: 27.3}, 0.1),
            ("pairs/h100x2_per_layer_sync", {0: 52.1, 1: 39.4}, 0.1),
        ],
    ),
)
def test_waits_taken_out_of_each_rank_by_itself(
    traces: Path, name: str, change_ms: dict[int, float], tolerance: float
) -> None:
    with closing(analyze(traces / f"{name}.sqlite", options=Options(period=False))) as opened:
        ranks = replace(opened.ranks, waits=())
        measured = replace(opened.result.measured, ranks=ranks)
        result = replace(opened.result, measured=measured)
        analysis = dataclasses.replace(opened, result=result)
        for rank, expected in change_ms.items():
            of_rank = [one for one in analysis.run.ranks if one.device == rank]
            run = replace(analysis.run, ranks=tuple(of_rank))
            graph = run_graph(
                dataclasses.replace(analysis, run=run),
                [Variant(), Variant(parse("no-sync").change)],
            )
            steps, *_ = replayed_steps(graph)
            change = float(steps[:, 0].sum() - steps[:, 1].sum()) / _MS
            assert change == pytest.approx(expected, abs=max(tolerance, 0.005 * expected))


def test_a_loader_that_is_waited_for(traces: Path) -> None:
    """The middle step of the same program with eight workers, which hardly waits, is 176.7 ms."""
    asked = whatif(
        traces / "pairs/a100_loader_0_baseline.sqlite", assume=["no-data-loading"]
    ).whatif
    (only,) = asked.answers
    assert only.is_bound
    assert 0.85 * 176.7 * _MS < (only.step_ns or 0) < 176.7 * _MS


def test_a_gpu_that_is_late_by_a_constant_is_replayed(traces: Path) -> None:
    """By 823 ms; off by 0.2 % once its times are moved."""
    asked = whatif(traces / "a100x4_ddp_bucketcap100mb_2021.sqlite", assume=["no-sync"]).whatif
    assert asked.refused is None
    assert known(asked.answers[0].change_ns) < 0


@pytest.mark.long
def test_communication_beside_copies_is_no_loss(traces: Path) -> None:
    """What no compute hides runs beside copies here: all that goes is that it slows kernels down.

    A thread copies batches, and may wait for room in its queue: so all answers are limits.
    """
    asked = whatif(
        traces / "a100x4_ddp_baseline_rank0.sqlite",
        assume=["perfect-overlap", "no-overlap-slowdown", "communication=0", "copies-hidden"],
    ).whatif
    assert all(one.is_bound for one in asked.answers)
    hidden, slowed, nothing, copies = (-(one.change_ns or 0) / _MS for one in asked.answers[:4])
    assert 0 < hidden < slowed
    assert nothing == pytest.approx(slowed, rel=0.01)
    assert copies == pytest.approx(2.71, rel=0.02)  # docs/testing.md


@pytest.mark.long
def test_what_mpi_sends_is_waited_for(traces: Path) -> None:
    """Each exchange follows a copy to the host: run ahead of it, 931 ms in MPI would be hidden."""
    reports = sorted((traces / "jacobi_mpi").glob("*.sqlite"))
    asked = whatif(*reports, assume=["no-sync", "no-kernel-sync"]).whatif
    without_waits, without_kernel_waits, _ = (-(one.change_ns or 0) / _MS for one in asked.answers)
    # All waits of the host cost 109 ms, by its finding.
    assert 0 <= without_kernel_waits <= without_waits <= 109


# -- how assumptions are written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no-snyc", "did you mean 'no-sync'"),
        ("link", "it needs a value"),
        ("link=fast", "the value is no factor"),
        ("link=0x", "the value is no factor"),
        ("no-sync=2", "it takes no value"),
        ("launch=1", "only launch=0"),
        ("send-order=worst", "only send-order=ready-first"),
        ("kernel:=0.5x", "regular expression and a factor"),
        ("kernel:(=0.5x", "not a regular expression"),
        ("kernel:gemm=half", "the value is no factor"),
    ],
)
def test_mistakes_are_told(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        parse(text)


@pytest.mark.parametrize("step", long_after(1, [2**80, -1, 99]))
def test_a_path_of_no_step_names_those_that_there_are(step: int) -> None:
    with pytest.raises(UsageError, match=r"choose one of its \d+ from \d+ to \d+"):
        whatif(SAMPLE, assume=["no-sync"], paths_of=[step])


def test_records_of_events_without_their_calls(tmp_path: Path) -> None:
    setup = SCENARIOS["host-sync"].build(np.random.default_rng(0))
    path = recorded(setup, tmp_path / "run.sqlite")
    change(
        path,
        "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN"
        " (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT)",
    )
    change(path, "UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET eventId = 1")
    assert whatif(path, assume=["no-sync"]).whatif.baseline is not None


def test_what_may_depend_on_what_it_waits_for_may_gain_nothing(tmp_path: Path) -> None:
    (pair,) = (pair for pair in PAIRS if pair.program == "one-aside")
    setup = pair.setup(0)
    path = recorded(setup, tmp_path / "t.sqlite")
    (precise,) = whatif(path, assume=["no-serialization"]).whatif.answers
    with closing(sqlite3.connect(path)) as connection, connection:  # only steps keep their names
        connection.execute(
            "DELETE FROM NVTX_EVENTS WHERE textId IN"
            " (SELECT id FROM StringIds WHERE value NOT GLOB 'step *')"
        )
    asked = whatif(path, assume=["no-serialization"]).whatif
    assert asked.baseline is not None
    (unknown,) = asked.answers
    assert known(precise.high_ns) < asked.baseline.step_ns
    assert known(unknown.low_ns) < known(precise.step_ns)
    assert (precise.is_bound, unknown.is_bound) == (False, True)
    assert "nothing is gained" in unknown.note


@pytest.mark.long
def test_what_a_real_change_left_is_waited_for(traces: Path) -> None:
    """Halos go over the host in every step, and 350 ms go into a file: kernels cannot hide that.

    The change took out the waits after each kernel, and left these: nothing more can go.
    """
    before, after = (
        whatif(
            traces / f"pairs/v100_mpas_{name}.sqlite",
            assume=["no-sync", "no-kernel-sync"],
            options=Options(period=False),
        ).whatif
        for name in ("0_noasync", "1_async")
    )
    most, of_kernels, _ = before.answers
    assert most.is_bound
    gained_most = (of_kernels.low_ns or 0) - known(before.baseline).step_ns
    # A limit counts the calls that go, too, as far as kernels do not hide them: 5.7 ms of 9716.
    assert -100 * _MS < (most.change_ns or 0) <= gained_most
    assert -100 < (of_kernels.change_ns or 0) / _MS < -80
    assert after.answers[0].change_ns == pytest.approx(0, abs=_MS)


@pytest.mark.long
def test_what_data_loading_costs_is_not_said_where_idle_time_has_no_known_cause(
    tmp_path: Path,
) -> None:
    """Without thread switches a sleep is not seen: no gain would be as wrong as any other."""
    setup = SCENARIOS["sleeping-loader"].build(np.random.default_rng(0))
    path = recorded(setup, tmp_path / "run.sqlite", has_events=False)
    (only,) = whatif(path, assume=["no-data-loading"]).whatif.answers
    assert only.step_ns is None
    assert "may be data loading" in (only.refused or "")
    assert "--cpuctxsw=process-tree" in (only.how_to_collect or "")
    assert [one for one in whatif(path).whatif.answers if one.assume == only.assume] == [only]


def test_launching_at_once_leaves_mpi_and_what_is_loaded_once(tmp_path: Path) -> None:
    """A CUDA graph brings no halo sooner, and needs its kernels loaded as well."""
    host = Host(0, np.random.default_rng(0))
    for step in range(5):
        with host.step(step):
            host.launch(host.compute, kernels.JACOBI, *[kernels.GELU] * 10)
            host.synchronize(host.compute)
            with host.range("MPI_Sendrecv", MPI_POINT_TO_POINT):
                host.sleep(300_000, "poll")
            host.busy(100_000)
            of_step = dataclasses.replace(kernels.GELU, name=f"gelu_{step}")
            host.launch(host.compute, of_step, cost_ns=2 * _MS)
    setup = Setup((host,), lambda _: [], mpi_program="jacobi")
    result = setup.run()
    path = recorded(setup, tmp_path / "run.sqlite", result)
    (only,) = whatif(path, assume=["launch=0"]).whatif.answers
    true_ns = step_ns(without_launching(setup), result) - step_ns(result)
    assert only.change_ns == pytest.approx(true_ns, rel=0.05)


def test_a_thread_that_makes_its_first_call_late_waited_for_another(tmp_path: Path) -> None:
    """Autograd's thread begins when the forward pass is launched, also in a single step."""
    builder = TraceBuilder()
    for number in range(20):  # ten calls of each thread, 0.2 ms apart
        at = 200_000 * number
        tid = 1000 if number < 10 else 1001
        builder.kernel(at + 15_000, at + 25_000, launch=(at, at + 10_000), tid=tid)
    path, one_step = builder.write(tmp_path / "run.sqlite"), Options(period=False)
    (only,) = whatif(path, assume=["launch=0"], options=one_step).whatif.answers
    # 0.19 ms for the hand-over, and then ten kernels of 10 us.
    assert only.step_ns == pytest.approx(290_000, abs=30_000)


@pytest.mark.parametrize("is_known", [True, False])
def test_operators_between_launches_go_and_silence_is_not_known(
    tmp_path: Path, is_known: bool
) -> None:
    """Ten kernels of 10 us, launched every 2 ms, with an operator between two launches or none."""
    events = []
    for number in range(10):
        at = 2000 * number
        events += [call(at, at + 10, number=number + 1)]
        events += [kernel(at + 15, at + 25, number=number + 1)]
        if is_known and number < 9:
            events += [event("cpu_op", "aten::to", at + 12, 1986, (PID, 1))]
    (only,) = whatif(
        write(tmp_path / "t.json", events), assume=["launch=0"], options=Options(period=False)
    ).whatif.answers
    if is_known:
        assert only.step_ns == pytest.approx(10 * 10_000, abs=50_000)
    else:  # 9 times 1.975 of 18.01 ms from launch to launch
        assert only.step_ns is None
        assert "idle for 98.7 %" in (only.refused or "")


def test_a_gpu_that_is_reached_sooner_makes_no_run_longer(tmp_path: Path) -> None:
    """One host, two GPUs in turns, no steps: the second one's work begins beside the first's."""
    host = Host(0, np.random.default_rng(0))
    streams = [Stream(0, device, COMPUTE) for device in (0, 1)]
    for stream in streams:
        host.launch(stream, *[kernels.QKV] * 20)
        host.synchronize(stream)
        host.launch(stream, *[kernels.QKV] * 5)
    setup = Setup((host,), lambda _: [], devices=((0, 1),))
    path = recorded(setup, tmp_path / "a")
    true_ns = ended_ns(recorded(setup, tmp_path / "b", setup.without_waits())) - ended_ns(path)
    without_steps = Options(period=False)
    (only,) = whatif(path, assume=["no-sync"], options=without_steps).whatif.answers
    assert true_ns < 0
    # A limit outside PyTorch: the first GPU's call may go, too, and the truth keeps it.
    assert only.change_ns == pytest.approx(true_ns - OWN_WAIT_NS, rel=0.01)


def test_a_copy_that_begins_the_only_step_goes_with_its_call(tmp_path: Path) -> None:
    """The last part of a copy from pageable memory runs on after its call returned."""
    us = 1_000
    builder = TraceBuilder().nvtx("step 0", 0, 20_000 * us)
    builder.memcpy(1_020 * us, 4_210 * us, pageable=True, launch=(1_000 * us, 4_200 * us))
    for number in range(60):
        called, begin = 4_300 * us + 10 * us * number, 4_310 * us + 200 * us * number
        builder.kernel(begin, begin + 200 * us, launch=(called, called + 5 * us))
    (only,) = whatif(builder.write(tmp_path / "a.sqlite"), assume=["copies-hidden"]).whatif.answers
    assert only.is_bound
    # The kernels are launched 3.2 ms sooner, and no copy is before them.
    assert only.change_ns == pytest.approx(-3_200 * us, rel=0.02)


def ended_ns(path: Path) -> float:
    """Return how long after the first operation of all GPUs each is through, the mean."""
    with closing(analyze(path)) as analysis:
        windows = [rank.window for rank in analysis.run.ranks]
    ends = [window.end_ns for window in windows]
    return float(np.mean(ends)) - min(window.start_ns for window in windows)


TABLES = [
    "NVTX_EVENTS",
    *(f"CUPTI_ACTIVITY_KIND_{of}" for of in ("RUNTIME", "KERNEL", "MEMCPY", "SYNCHRONIZATION")),
]
STEP = "SELECT start FROM NVTX_EVENTS JOIN StringIds ON textId = id WHERE value = 'step 24'"


def answered(folder: Path, ended: Collection[int], late: int) -> Answer:
    """Return what a run gains without its late rank, some of its reports ended two steps early."""
    truth = simulate_run("straggler-slow-kernels", folder, seed=1, per_rank=True)
    assert json.loads(truth.read_text())["straggler"]["rank"] == late
    for rank in ended:
        report = folder / f"rank_{rank}.sqlite"
        ((begin,),) = query(report, STEP)
        for table in TABLES:
            change(report, f"DELETE FROM {table} WHERE start >= {begin}")
    (answer,) = traceprof.whatif(folder, assume=["no-straggler"]).whatif.answers
    return answer


@pytest.mark.long
def test_steps_that_only_the_late_rank_has(tmp_path: Path) -> None:
    late, ranks = 3, range(8)
    both = answered(tmp_path / "both", ranks, late)
    others = answered(tmp_path / "others", {*ranks} - {late}, late)
    assert others.change_ns == pytest.approx(both.change_ns, rel=0.02)
