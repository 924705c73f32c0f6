# mypy: disable-error-code="attr-defined"
"""Work shared with a copy of the process: the same results, whatever becomes of the copy."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dashboards.server.progress import AnalysisProgress
from traceprof.analysis import analyze
from traceprof.execution import child_process as processes
from traceprof.execution import handover, measuring
from traceprof.reports import json
from traceprof.simulate.large_ddp.ddp import simulate_ddp
from traceprof.trace.nsight import export as nsight
from traceprof.trace.nsight import host
from traceprof.trace.nsight import nvtx_events as events

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from traceprof.progress import Progress
    from traceprof.trace.sqlite.database import Database

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no copies elsewhere")


def nothing(_: Progress | None) -> None:
    """Do nothing in the copy."""


def test_every_other_item_is_made_elsewhere() -> None:
    made = processes.shared(lambda item: (item, os.getpid()), range(7), nothing)
    assert [item for item, _ in made] == list(range(7))
    assert {process for _, process in made[::2]} == {os.getpid()}
    assert len({process for _, process in made[1::2]} - {os.getpid()}) == 1


def test_a_copy_that_is_killed_costs_only_time() -> None:
    first = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != first:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * item

    assert processes.shared(work, range(5), nothing) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("where", ["in the copy", "in both"])
def test_errors_are_those_of_one_process(where: str) -> None:
    first = os.getpid()

    def work(item: int) -> int:
        if item == 3 and (where == "in both" or os.getpid() != first):
            raise ValueError(str(item))
        return item

    if where == "in both":
        with pytest.raises(ValueError, match="3"):
            processes.shared(work, range(5), nothing)
    else:
        assert processes.shared(work, range(5), nothing) == [0, 1, 2, 3, 4]


def test_what_cannot_be_sent_is_made_here() -> None:
    first = os.getpid()

    def work(item: int) -> tuple[int, object]:
        return item, None if os.getpid() == first else threading.Lock()

    assert processes.shared(work, range(4), nothing) == [(item, None) for item in range(4)]


def test_the_copy_ends_with_an_error_here() -> None:
    first, copies, others = os.getpid(), [], {*children()}

    def work(item: int) -> int:
        if os.getpid() == first:
            copies.extend(children())
            raise KeyboardInterrupt
        time.sleep(60)
        return item

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.shared(work, range(2), nothing)
    assert time.monotonic() - began < 30
    assert {*copies} - others
    assert not ({*copies} - others) & {*children()}


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()


def test_not_beside_other_threads() -> None:
    program = """
import threading
from traceprof.execution import child_process as processes
assert processes.can_fork()
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
assert not processes.can_fork()
done.set()
thread.join()
assert processes.can_fork()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_beside_threads_that_hold_nothing() -> None:
    program = """
import os, threading, time
from traceprof.execution import child_process as processes
begun, done = threading.Event(), threading.Event()
def work():
    done.wait()
    with processes.uncopied():
        begun.set()
        time.sleep(0.3)
        times.append(time.monotonic())
    done.clear()
    done.wait()
times = []
thread = threading.Thread(target=work)
thread.start()
with processes.guarded_threads():
    assert processes.can_fork()
    done.set()
    begun.wait()
    assert not processes.can_fork()  # it holds something
    made = processes.shared(lambda item: (os.getpid(), time.monotonic()), range(2), lambda _: None)
    assert {process for process, _ in made} - {os.getpid()}
    assert made[1][1] > times[0]  # the copy was made afterwards
    assert processes.can_fork()
assert not processes.can_fork()
done.set()
thread.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_others_give_way_to_what_is_needed_first() -> None:
    makes = [lambda: [os.nice(0)]] * 3
    with processes.ahead(makes, nothing) as found:
        first, *others = [copy.made() for copy in found]
    assert first == [os.nice(0)]
    assert all(other > first for other in others)


def test_while_something_is_still_being_made_no_more_copies_are() -> None:
    def slowly() -> list[float]:
        time.sleep(0.3)
        return [time.monotonic()]

    before = [*processes._others.copies]
    with processes.ahead([slowly], nothing) as (earlier,):
        with processes.ahead([lambda: [time.monotonic()]], nothing) as (later,):
            assert later.made() > earlier.made()
        # What ended is waited for no more.
        assert processes._others.copies == [*before, earlier]
    assert processes._others.copies == before


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "ddp.sqlite"
    simulate_ddp(path, gpus=3, steps=3, kernels_per_step=100, seed=1)
    return path


def analysed(path: Path) -> str:
    result = analyze(path)
    result.close()
    return json.render(result.result)


def test_an_analysis_is_the_same(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = analysed(export)
    shared = []

    def noted(*arguments: object) -> object:
        shared.append(arguments)
        return sharing(*arguments)  # type: ignore[arg-type]

    sharing = processes.shared
    monkeypatch.setattr(processes, "shared", noted)
    monkeypatch.setattr(processes, "can_fork", lambda: True)  # other tests leave threads behind
    assert analysed(export) == expected
    assert not shared  # it is too small
    monkeypatch.setattr(measuring, "_WORTH_SHARING", 0)
    assert analysed(export) == expected
    assert len(shared) == 1


def test_what_a_copy_reads_is_the_same_and_is_read_once(
    export: Path, shared_files: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = analysed(export)
    read = []

    def noted(module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        def note_and_read(database: Database) -> object:
            read.append(name)
            return original(database)

        monkeypatch.setattr(module, name, note_and_read)

    noted(events, "_read")
    noted(host, "read_api_calls")
    monkeypatch.setattr(processes, "can_fork", lambda: True)  # other tests leave threads behind
    assert analysed(export) == expected
    assert sorted(read) == ["_read", "read_api_calls"]  # it is too small
    read.clear()
    monkeypatch.setattr(nsight, "_WORTH_SHARING", 0)
    assert analysed(export) == expected
    assert read == []  # what a copy does is not seen here
    monkeypatch.setattr(processes, "has_company", lambda: True)  # then all is read elsewhere
    waiting = AnalysisProgress()
    monkeypatch.setattr(handover, "_MIN_SHARED", 1)
    monkeypatch.setattr(nsight.NsightTrace, "_read_operations", only_elsewhere())
    gc.collect()  # what errors of other tests hold
    with_copies = analyze(export, progress=waiting)
    assert len(shared_files()) <= 4  # of how many processes ever: dashboards keep many reports
    with_copies.close()
    assert json.render(with_copies.result) == expected
    done, told = waiting.so_far()
    assert done == told > 1800  # kernels and what launched them


def test_rows_that_a_lost_copy_read_are_not_told_of_twice(
    export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "can_fork", lambda: True)  # other tests leave threads behind
    monkeypatch.setattr(processes, "has_company", lambda: True)
    monkeypatch.setattr(nsight, "_WORTH_SHARING", 0)
    whole, waiting = AnalysisProgress(), AnalysisProgress()
    analyze(export, progress=whole).close()
    here, read = os.getpid(), nsight.NsightTrace._read_operations

    def read_and_get_lost(trace: nsight.NsightTrace) -> object:
        made = read(trace)
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    monkeypatch.setattr(nsight.NsightTrace, "_read_operations", read_and_get_lost)
    analyze(export, progress=waiting).close()
    assert waiting.so_far() == whole.so_far()


def only_elsewhere() -> Callable[[nsight.NsightTrace], object]:
    """Return what reads operations in a copy of this process, and fails in this one."""
    here, read = os.getpid(), nsight.NsightTrace._read_operations

    def read_there(trace: nsight.NsightTrace) -> object:
        assert os.getpid() != here
        return read(trace)

    return read_there


def test_ctrl_c_leaves_nobody_behind(export: Path) -> None:
    program = f"""
import os, signal, time
from traceprof import analyze
from traceprof.execution import measuring
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
measuring._WORTH_SHARING = 0
first = os.getpid()
def slowly(chosen):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
measuring._measure_rank = slowly
analyze({str(export)!r})
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    numbers = [int(process.stdout.readline()) for _ in range(2)]
    os.killpg(process.pid, signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(30) != 0
    assert said.count("KeyboardInterrupt") == 1
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
    process.stdout.close()
    process.stderr.close()
