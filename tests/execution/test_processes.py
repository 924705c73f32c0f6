"""A report analysed by several processes: the same result, whatever becomes of the others."""

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sample_traces.simulator.ddp import simulate_ddp
from tests.support.selection import long_after
from tests.support.workers import RowCount, is_running, until
from traceprof.analysis import Analysis, analyze, analyze_in_worker
from traceprof.errors import TraceFormatError, UsageError
from traceprof.execution import measuring, workers
from traceprof.progress import Progress
from traceprof.reports import json

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("can_fork")]


@pytest.fixture(autouse=True)
def _always_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MIN_OPERATIONS_OF_A_PROCESS", 1)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "ddp.sqlite"
    simulate_ddp(path, gpus=3, steps=3, kernels_per_step=100, seed=1)
    return path


@pytest.fixture(scope="module")
def expected(export: Path) -> str:
    """Return the result of one process."""
    return analysed(export, 1)


def analysed(export: Path, jobs: int) -> str:
    listener = RowCount()
    with closing(analyze(export, jobs=jobs, listener=listener)) as analysis:
        assert listener.expected == listener.read > 1800  # kernels and what launched them
        return json.render(analysis.result)


def analysed_in_worker(export: Path) -> str:
    listener = RowCount()
    with analyze_in_worker(export, listener=listener, answer=answer_of) as future:
        assert listener.expected == listener.read > 1800
        analysis = future.result()
    with closing(analysis):
        (trace,) = analysis.run.traces
        for rank in analysis.run.ranks:
            assert rank.trace is trace
            assert rank.operations is trace.operations[rank.key]
            assert len(rank.operations) > 0
        return json.render(analysis.result)


@pytest.mark.parametrize("jobs", long_after(1, [2, 3, 4, 9]))
def test_the_number_of_processes_changes_nothing(jobs: int, export: Path, expected: str) -> None:
    assert analysed(export, jobs) == expected


@pytest.mark.parametrize("is_in_worker", long_after(1, [True, False]))
@pytest.mark.parametrize("is_afterwards", long_after(1, [True, False]))
def test_killed_processes_cost_only_time(
    is_afterwards: bool,
    is_in_worker: bool,
    export: Path,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure = measuring.measure_rank

    def be_killed_elsewhere(*arguments: Any) -> object:
        if os.getpid() != HERE and not is_afterwards:
            os.kill(os.getpid(), signal.SIGKILL)
        result = measure(*arguments)
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    monkeypatch.setattr(measuring, "measure_rank", be_killed_elsewhere)
    found = analysed_in_worker(export) if is_in_worker else analysed(export, 3)
    assert found == expected


def test_only_the_worker_measures(
    export: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = measuring.measure_rank

    def measure_elsewhere(*arguments: Any) -> object:
        assert os.getpid() != HERE
        return measure(*arguments)

    monkeypatch.setattr(measuring, "measure_rank", measure_elsewhere)
    assert analysed_in_worker(export) == expected


def test_errors_in_a_worker_are_those_of_one_process(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"SQLite format 3\0 and no more")
    with pytest.raises(TraceFormatError), analyze_in_worker(path, answer=answer_of):
        pass


def answer_of(analysis: Analysis, question: object, progress: Progress) -> tuple[int, object, int]:
    """Answer a question: by whom it was, and with what."""
    progress.expect(2)
    progress.advance(1)
    if question == "bad":
        raise UsageError("cannot answer", "it is bad", "ask another")
    if question == "die" and os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid(), question, sum(len(rank.operations) for rank in analysis.run.ranks)


HERE = os.getpid()


def test_the_process_that_analysed_answers_questions(export: Path) -> None:
    with analyze_in_worker(export, answer=answer_of) as future:
        analysis = future.result()
        num = sum(len(rank.operations) for rank in analysis.run.ranks)
        first, question, count = future.ask("one")
        assert first != os.getpid()
        assert (question, count) == ("one", num)
        with pytest.raises(UsageError, match="it is bad"):
            future.ask("bad")
        counted = RowCount()
        assert future.ask(["two", 2], counted) == (first, ["two", 2], num)
        assert (counted.expected, counted.read) == (2, 1)
        # Where it is killed, this process answers, now and from then on.
        assert future.ask("die") == (os.getpid(), "die", num)
        assert future.ask("three", counted) == (os.getpid(), "three", num)
        assert (counted.expected, counted.read) == (4, 2)
    until(lambda: not is_running(first))
    analysis.close()
