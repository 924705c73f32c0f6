"""Threads without calls that may set the pace, in programs of the second simulator."""

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.reference.gpu_machine import Machine
from tests.reference.gpu_programs import PROGRAMS, Program, worker
from tests.support.builders import global_tid
from tests.support.databases import query
from tests.support.selection import known, long_after
from traceprof.analysis import Options, analyze
from traceprof.replay.graph.run_graph import run_graph
from traceprof.replay.graph.weights import Variant
from traceprof.run.opening import open_run
from traceprof.trace.nsight import schema
from traceprof.trace.open import open_trace


def share(machine: Machine, folder: Path) -> float:
    """Return how much of the steps threads slept until one without calls may have woken them."""
    path = machine.write(folder / "run.sqlite")
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        (facts,) = run_graph(analysis, [Variant()]).facts
        return facts.unseen_pace_ns / facts.span_ns


def may_load(machine: Machine, path: Path) -> float:
    """Return for which share of the steps a thread without calls may load data, at most."""
    with closing(analyze(machine.write(path), options=Options(savings=False))) as analysis:
        (facts,) = run_graph(analysis, [Variant()]).facts
        return facts.may_load


def without_switches(machine: Machine) -> None:
    del machine.rows[schema.SWITCHES]


def as_system_calls(name: str) -> Callable[[Machine], None]:
    """Return what turns the sleeps of a training thread into a system call."""

    def change(machine: Machine) -> None:
        switches = machine.rows.pop(schema.SWITCHES)
        thread = machine.rows[schema.API_CALL.name][0]["globalTid"]
        own = [row for row in switches if row["globalTid"] == thread]
        for off, on in pairwise(own):
            if not off["isSchedIn"]:
                row = {"start": off["start"], "end": on["start"], "globalTid": thread}
                machine.rows[schema.OS_CALLS].append({**row, "nameId": name})

    return change


@pytest.mark.parametrize(
    "name", long_after(2, ["loader-steady", "loader-stages-slow", "two-threads-slow"])
)
def test_threads_that_nobody_without_calls_wakes_set_their_own_pace(
    name: str, tmp_path: Path
) -> None:
    assert share(PROGRAMS[name].run(0), tmp_path) == 0


@pytest.mark.parametrize(
    ("change", "is_unseen"),
    [
        (without_switches, True),
        (as_system_calls("pthread_cond_wait"), True),
        (as_system_calls("clock_nanosleep"), False),
    ],
)
def test_without_thread_switches_what_is_recorded_decides(
    change: Callable[[Machine], None], is_unseen: bool, tmp_path: Path
) -> None:
    machine = PROGRAMS["worker-slow"].run(0)
    change(machine)
    assert (share(machine, tmp_path) > 0.2) == is_unseen


def test_others_run_from_a_switch_to_the_next_and_shortly_after(tmp_path: Path) -> None:
    machine = PROGRAMS["worker-slow"].run(0)
    training, worker = (row["globalTid"] for row in machine.rows[schema.SWITCHES][:2])
    machine.rows[schema.SWITCHES] = [
        {"cpu": 0, "globalTid": training, "start": 0, "isSchedIn": 1},
        {"cpu": 1, "globalTid": worker, "start": 3_000_000, "isSchedIn": 0},
        {"cpu": 1, "globalTid": worker, "start": 1_000_000, "isSchedIn": 1},
        {"cpu": 1, "globalTid": worker, "start": 9_000_000, "isSchedIn": 1},
    ]
    times_ns = 1000 * np.array([900, 1_000, 1_001, 3_000, 3_050, 3_051, 8_000, 9_001])
    with closing(open_trace(machine.write(tmp_path / "run.sqlite"))) as trace:
        ran = trace.others_ran(times_ns, np.array([training], np.int64))
        alone = trace.others_ran(times_ns, np.array([training, worker], np.int64))
    assert known(ran).tolist() == [False, False, True, True, True, False, False, True]
    assert not known(alone).any()


def test_others_that_ran_agree_with_a_plain_loop_over_real_switches(traces: Path) -> None:
    path = traces / "pairs" / "a100_loader_1_8workers.sqlite"
    rows = query(
        path, "SELECT start, isSchedIn, globalTid FROM SCHED_EVENTS ORDER BY start, isSchedIn"
    )
    threads = sorted({thread for _, _, thread in rows})
    times_ns = [time for time, *_ in rows[::40]] + [time + 20_000 for time, *_ in rows[::40]]
    with closing(open_trace(path)) as trace:
        ran = trace.others_ran(np.array(times_ns), np.array(threads[::2]))
    expected = []
    for wanted in times_ns:
        last = {thread: (time, is_on) for time, is_on, thread in rows if time < wanted}
        others = [last[thread] for thread in threads[1::2] if thread in last]
        expected.append(any(is_on or wanted - time <= 50_000 for time, is_on in others))
    assert known(ran).tolist() == expected
    assert 0 < sum(expected) < len(expected)


# -- threads that may load ------------------------------------------------------------------------


def test_a_loader_ahead_needs_its_own_time_but_for_waits_for_room(tmp_path: Path) -> None:
    """Of steps of 4.26 ms its batches take 1.5 ms each; a slower one has no time left.

    Of 40 steps one more is filled by its first batches, and two standard errors are added.
    """
    quick, slow = (
        Program(worker(ns, spread), "").run(0, num_steps=40)
        for ns, spread in ((1.5e6, 0.1), (4.2e6, 0.05))
    )
    assert 1.5 / 4.26 < may_load(quick, tmp_path / "quick.sqlite") < 0.45
    assert may_load(slow, tmp_path / "slow.sqlite") > 0.95


def test_threads_that_nobody_waited_for_load_nothing(tmp_path: Path) -> None:
    """Neither without switches, nor where a thread calls CUDA, or is the profiler's or driver's."""
    machine = Program(worker(1.5e6, 0.1), "").run(0)
    training, loading = (row["globalTid"] for row in machine.rows[schema.SWITCHES][:2])
    for number, name in enumerate(("[NSys]", "CUPTI worker thread", "cuda-EvtHandlr")):
        machine.rows[schema.THREAD_NAMES] = [
            {"nameId": "python", "globalTid": training}, {"nameId": name, "globalTid": loading}
        ]  # fmt: skip
        assert may_load(machine, tmp_path / f"{number}.sqlite") == 0
    assert may_load(PROGRAMS["two-threads-slow"].run(0), tmp_path / "threads.sqlite") == 0
    assert may_load(PROGRAMS["loader-steady"].run(0), tmp_path / "alone.sqlite") == 0
    without_switches(machine)
    assert may_load(machine, tmp_path / "without.sqlite") == 0


# -- workers --------------------------------------------------------------------------------------


def test_workers_are_processes_of_the_same_name_without_a_gpu(tmp_path: Path) -> None:
    """Time counts from a switch to a CPU to the one away from it, of the busiest thread.

    worker |on  3..|      |on 5..9|     |on (its end is lost)
    """
    machine = PROGRAMS["worker-slow"].run(0)
    training = machine.rows[schema.SWITCHES][0]["globalTid"]
    worker, feeder, shell, loader = (
        global_tid(pid, pid + thread) for pid, thread in ((7, 0), (7, 1), (8, 0), (9, 0))
    )
    machine.rows[schema.THREAD_NAMES] = [
        {"nameId": name, "globalTid": thread}
        for name, thread in (
            ("python", training), ("python", worker), ("python", feeder), ("bash", shell),
            ("pt_data_worker", loader),
        )
    ]  # fmt: skip
    switched_ms = {
        training: (0,), worker: (-1, 3, 5, 9, 20), feeder: (4, 6), shell: (0, 30),
        loader: (6, 7, 40, 50),
    }  # fmt: skip
    machine.rows[schema.SWITCHES] = [
        {"cpu": 1, "globalTid": thread, "start": ms * 1_000_000, "isSchedIn": int(place % 2 == 0)}
        for thread, times in switched_ms.items()
        for place, ms in enumerate(times)
    ]
    with closing(open_trace(machine.write(tmp_path / "run.sqlite"))) as trace:
        (process,) = {key.process for key in trace.operations}
        ran_ns = trace.workers_ran(process, 0, 8_000_000)
        assert sorted(ran_ns.tolist()) == [1_000_000, 6_000_000]
        assert trace.workers_ran(process, 10_000_000, 30_000_000).tolist() == [0, 0]
        # From 23 to 106 ms, the training, only the loader ran.
        assert [dict(report.num_workers) for report in open_run([trace]).reports] == [{process: 1}]
    del machine.rows[schema.THREAD_NAMES]
    with closing(open_trace(machine.write(tmp_path / "nameless.sqlite"))) as trace:
        assert len(trace.workers_ran(process, 0, 8_000_000)) == 0
    del machine.rows[schema.SWITCHES]
    with closing(open_trace(machine.write(tmp_path / "unseen.sqlite"))) as trace:
        assert [dict(report.num_workers) for report in open_run([trace]).reports] == [{}]
