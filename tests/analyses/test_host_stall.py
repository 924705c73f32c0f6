"""Stalls of the host: planted in simulated runs, made by hand, and none in healthy runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import asdict

from sample_traces.simulator.event_model.actions import Busy, Pop, Push
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.kineto_writer import write_traces
from sample_traces.simulator.machine import DEFAULT_DOMAIN
from sample_traces.simulator.scenarios import idle as planted
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.builders import TraceBuilder
from tests.support.changes import recorded
from tests.support.claims import os_call, switched
from tests.support.kept_claims import Kept
from tests.support.planted import PROGRAMS, healthy
from tests.support.selection import few_and_many, known, long_after
from tests.support.traces import closed_analysis
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.findings import Finding, Severity
from traceprof.run.machines import Cores

US, MS = 1_000, 1_000_000
ID = "host-stall"


def judged(*paths: Path) -> list[Finding]:
    return [finding for finding in closed_analysis(*paths).findings if finding.id == ID]


@pytest.mark.slow
@pytest.mark.parametrize("name", long_after(1, PROGRAMS))
def test_planted_stalls(name: str, tmp_path: Path) -> None:
    setup = PROGRAMS[name](np.random.default_rng(3))
    result = setup.run()
    rows = [row for row in setup.findings(Ranks(result)) if row["id"] == ID]
    truth = {row["rank"]: row["metrics"] for row in rows}
    costs = {
        rank: max(metrics["idle_ns"], metrics["others_wait_ns"] or 0)
        for rank, metrics in truth.items()
    }
    loud = {rank for rank in costs if costs[rank] >= 0.1 * max(costs.values())}
    export = recorded(setup, tmp_path / "run.sqlite", result)
    for paths in ([export], write_traces(export, tmp_path, "run")):
        found = {finding.rank: finding for finding in judged(*paths)}
        assert found.keys() == loud
        for rank, finding in found.items():
            metrics = truth[rank] | {"num_ranks": len(found)}
            assert near(finding.metrics, metrics) == metrics


def near(found: Any, truth: dict[str, Any]) -> dict[str, Any]:
    """Return what was found, with the truth in the place of what is near it."""
    return {
        name: value if found[name] == _approx(value) else found[name]
        for name, value in truth.items()
    }


def _approx(value: object) -> object:
    return pytest.approx(value, rel=0.01, abs=60 * US) if isinstance(value, int) else value


@pytest.mark.slow
def test_garbage_collection_between_operators(tmp_path: Path) -> None:
    """Only operators show silences; that with a collection in it takes far longer."""
    hosts = planted.host_bound(np.random.default_rng(0), 1, num_steps=20)
    (host,) = hosts
    launches = [
        place
        for place, action in enumerate(host.actions)
        if isinstance(action, Push) and action.name == "aten::linear"
    ]
    for place in reversed(launches[105:800:137]):
        host.actions[place:place] = (Push("gc.collect", DEFAULT_DOMAIN), Busy(9 * MS), Pop())
    export = recorded(Setup(hosts, lambda _: []), tmp_path / "run.sqlite")
    paths = write_traces(export, tmp_path, "run")
    (finding,) = judged(*paths)
    assert finding.metrics["held_up_by"] == "garbage collection"
    assert (
        "goes to garbage collection" in known(three_lines(closed_analysis(*paths).result)).problem
    )
    assert finding.metrics["num_calls"] == 6
    assert finding.metrics["stalled_ns"] == pytest.approx(54 * MS, rel=0.01)
    assert "gc.freeze()" in finding.advice[0]
    labels = {evidence.label for evidence in finding.evidence}
    assert labels == {"between aten::linear and aten::linear: 1 µs as a rule"}


def false_alarms(num_runs: int, folder: Path) -> list[Finding]:
    """Return the findings above `info` of healthy runs, in both formats in turn."""
    found = []
    for seed in range(num_runs):
        place = folder / str(seed)
        place.mkdir()
        setup = healthy(np.random.default_rng(seed))
        export = recorded(setup, place / "run.sqlite")
        found += judged(*(write_traces(export, place, "run") if seed % 2 else [export]))
        shutil.rmtree(place)
    return [finding for finding in found if finding.severity > Severity.INFO]


@pytest.mark.slow
@few_and_many(1, 500)
def test_healthy_runs_have_no_stalls(num_examples: int, tmp_path: Path) -> None:
    assert false_alarms(num_examples, tmp_path) == []


def launched(trace: TraceBuilder, *, num: int = 40, stalled: int = 20, tid: int = 1000) -> None:
    """Launch a kernel each millisecond, one of them in a call of 8 ms.

    call    |20 us|      |20 us| … |   8 ms   | |20 us|
    kernel        |100 us|     |100 us| …      |100 us|
    """
    now = 0
    for number in range(num):
        length = 8 * MS if number == stalled else 20 * US
        trace.kernel(
            now + length, now + length + 100 * US, launch=(now, now + length), tid=tid,
            stream=tid,
        )  # fmt: skip
        now += length + MS


START, STOP = 20 * (20 * US + MS), 20 * (20 * US + MS) + 8 * MS  # the long call
HALF = START + 4 * MS


def queried(trace: TraceBuilder, num: int) -> None:
    """Call CUDA on another thread, within the long call."""
    for number in range(num):
        trace.api("cudaEventQuery", START + number * MS + US, START + number * MS + 2 * US, tid=7)


HELD_UP: dict[str, Callable[[TraceBuilder], object]] = {
    "nothing else": lambda _: None,
    "off its core": lambda t: switched(t, (0, 1), (START + MS, 0), (STOP - MS, 1)),
    "off its core for over half": lambda t: switched(t, (0, 1), (START, 0), (HALF + 1, 1)),
    "off its core for half": lambda t: switched(t, (0, 1), (START, 0), (HALF, 1)),
    "in a lock": lambda t: os_call(t, "pthread_mutex_lock", START + MS, STOP - MS),
    "in another call": lambda t: os_call(t, "ioctl", START + MS, STOP - MS),
    "in a lock for over half": lambda t: os_call(t, "pthread_mutex_lock", START, HALF + 1),
    "in a lock for half": lambda t: os_call(t, "pthread_mutex_lock", START, HALF),
    "beside a collection": lambda t: t.nvtx("gc.collect", START + MS, STOP, tid=1001),
    "beside gc for over half": lambda t: t.nvtx("gc", START, HALF + 1, tid=1001),
    "beside gc for half": lambda t: t.nvtx("gc", START, HALF, tid=1001),
    "beside five calls": lambda t: queried(t, 5),
    "beside four calls": lambda t: queried(t, 4),
    "with another thread": lambda t: launched(t, tid=1001),
}


@pytest.mark.parametrize("name", HELD_UP)
def test_what_held_a_thread_up(name: str, tmp_path: Path, kept: Kept) -> None:
    """What would show more is advised where nothing else shows what it was."""
    trace = TraceBuilder()
    launched(trace)
    HELD_UP[name](trace)
    kept(judged(trace.write(tmp_path)))


def test_a_stall_in_one_step_has_the_number_of_its_mark(tmp_path: Path) -> None:
    """The GPU was still at the step before."""
    trace = TraceBuilder()
    launched(trace)
    for number in range(40):
        begin = number * (20 * US + MS) + (STOP - START - 20 * US) * (number > 20)
        trace.nvtx(f"step {number}", begin, begin + MS + (STOP - START) * (number == 20))
    (finding,) = judged(trace.write(tmp_path))
    assert finding.advice[0].startswith("Look at step 20, the only one of 40")


@pytest.mark.parametrize(
    "cores",
    [
        Cores(8, "0", 1),
        Cores(8, "0", 1, omp_num_threads=4),
        Cores(8, "0-7", 8, 2.0, 90, 30, 5 * MS),
    ],
    ids=["one core", "one core for four threads", "a quota"],
)
def test_what_doctor_left_beside_a_report(cores: Cores, tmp_path: Path, kept: Kept) -> None:
    trace = TraceBuilder()
    launched(trace)
    path = trace.write(tmp_path)
    document = {"host": "node7", "cores": asdict(cores)}
    (tmp_path / "doctor-node7.json").write_text(json.dumps(document))
    kept(judged(path))


def test_ranks_with_few_cores_are_the_verdict(tmp_path: Path) -> None:
    """All eight stall: none of them is slow, the cores are."""
    path = recorded(PROGRAMS["few cores"](np.random.default_rng(0)), tmp_path / "run.sqlite")
    host = closed_analysis(path).run.reports[0].session.host
    document = {"host": host, "cores": asdict(Cores(8, "0-1", 2))}
    (tmp_path / f"doctor-{host}.json").write_text(json.dumps(document))
    analysis = closed_analysis(path)
    assert sorted(one.rank for one in analysis.findings if one.id == ID) == [*range(8)]
    verdict = known(three_lines(analysis.result))
    assert verdict.problem.startswith("Too few cores for the hosts of 8 ranks: ")
    assert "more cores" in known(verdict.action)


def test_a_thread_that_launches_nothing_of_a_rank_does_not_count(tmp_path: Path) -> None:
    trace = TraceBuilder()
    launched(trace, stalled=40)
    for number in range(20):
        start = number * MS
        trace.api("cudaEventQuery", start, start + (9 * MS if number == 19 else US), tid=1001)
    assert judged(trace.write(tmp_path)) == []


def test_without_calls_it_is_not_known(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, MS, launch=False).kernel(2 * MS, 3 * MS, launch=False)
    analysis = closed_analysis(trace.write(tmp_path))
    (gap,) = (gap for gap in analysis.not_applicable if gap.id == ID)
    assert "CUDA API calls" in gap.reason
