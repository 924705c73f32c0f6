"""Worker processes: what they make arrives, whatever becomes of them, and none is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.support.selection import known, long_after
from tests.support.workers import child_pids, is_running, until
from traceprof.execution import workers as w

pytestmark = pytest.mark.usefixtures("can_fork")

HERE = os.getpid()
CAN_FORK = w.can_fork


def mapped(
    work: Callable[[int], w.Result],
    items: Sequence[int],
    num_processes: int = 2,
    prepare: Callable[[], None] = lambda: None,
) -> list[w.Result]:
    many = num_processes * w.MIN_OPERATIONS_OF_A_PROCESS
    return w.map_items(work, items, prepare, many, num_processes=num_processes)


@pytest.mark.parametrize("num_processes", long_after(3, [1, 2, 3, 9]))
@pytest.mark.parametrize("num_items", [0, 1, 5, 7])
def test_items_are_shared_by_at_most_so_many_workers(num_items: int, num_processes: int) -> None:
    before = child_pids()
    made = mapped(lambda item: (item, os.getpid()), range(num_items), num_processes)
    assert [item for item, _ in made] == [*range(num_items)]
    pids = {pid for _, pid in made}
    assert len(pids) <= min(num_items, num_processes)
    assert (os.getpid() in pids) == (min(num_items, num_processes) == 1)
    assert child_pids() == before


def test_few_operations_are_not_worth_a_worker() -> None:
    few = 2 * w.MIN_OPERATIONS_OF_A_PROCESS - 1
    made = w.map_items(lambda _: os.getpid(), range(3), lambda: None, few, num_processes=2)
    assert {*made} == {HERE}


def test_each_worker_prepares_itself_once() -> None:
    prepared: list[int] = []
    made = mapped(lambda _: [*prepared], range(6), prepare=lambda: prepared.append(1))
    assert made == [[1]] * 6
    assert not prepared


def killed(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def failing(item: int) -> int:
    if item == 3:
        raise ValueError(str(item))
    return item


def unsendable(item: int) -> object:
    return threading.Lock() if item == 3 else item


def killed_while_it_sends(item: int) -> int:
    def send_half(connection: Connection, message: bytes) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    if item == 3:
        pytest.MonkeyPatch().setattr(Connection, "_send", send_half)
    return item


@pytest.mark.parametrize("in_worker", [killed, failing, unsendable, killed_while_it_sends])
def test_what_a_worker_cannot_make_is_made_here(in_worker: Callable[[int], object]) -> None:
    def work(item: int) -> object:
        return item if os.getpid() == HERE else in_worker(item)

    assert mapped(work, range(8)) == [*range(8)]


def test_errors_are_those_of_one_process() -> None:
    with pytest.raises(ValueError, match="3"):
        mapped(failing, range(5))


def test_workers_ignore_ctrl_c_and_end_with_an_error_here(tmp_path: Path) -> None:
    def work(item: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        (tmp_path / f"{os.getpid()}").touch()
        time.sleep(600)

    def fail() -> None:
        if len([*tmp_path.iterdir()]) == 2:
            raise KeyboardInterrupt

    before = child_pids()
    with pytest.raises(KeyboardInterrupt), w.workers(2, work) as pool:
        list(pool.as_completed([pool.work_on(0), pool.work_on(1)], fail))
    assert child_pids() == before


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_workers_go_on_without_a_terminal_if_this_process_does(handler: Any) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with w.workers(1, signal.getsignal) as pool:
            found = pool.work_on(signal.SIGHUP).result()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found == (signal.SIG_IGN if handler == signal.SIG_IGN else signal.SIG_DFL)


@pytest.mark.parametrize(
    ("num_threads", "has_locks", "can"), [(1, True, True), (2, True, False), (1, False, False)]
)
def test_not_beside_other_threads_nor_without_locks(
    num_threads: int, has_locks: bool, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: num_threads)
    monkeypatch.setattr(os, "access", lambda path, _: has_locks or path != "/dev/shm")  # noqa: S108
    assert CAN_FORK() is can


ENDLESS = """
import os, signal, time
from traceprof.execution.workers import workers
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
def endless(item):
    os.write(1, b"%d\\n" % os.getpid())
    if item:
        with workers(1, endless) as pool:
            list(pool.as_completed([pool.work_on(item - 1)]))
    while True:
        time.sleep(1)
with workers(2, endless) as pool:
    list(pool.as_completed([pool.work_on(0), pool.work_on(1)]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_when_the_first_process_ends(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as first:
        pids = [int(known(first.stdout).readline()) for _ in range(3)]
        assert all(map(is_running, pids))
        if number == signal.SIGINT:
            os.killpg(first.pid, number)  # as a terminal does
        else:
            first.send_signal(number)
        said = known(first.stderr).read()
    assert first.returncode == -number
    assert said.count("KeyboardInterrupt") == said.count("Traceback") == (number == signal.SIGINT)
    until(lambda: not any(map(is_running, pids)))


def test_a_worker_leaves_the_garbage_of_its_parent_alone() -> None:
    class Deadly:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if os.getpid() != HERE:
                os.kill(os.getpid(), signal.SIGKILL)

    gc.disable()
    try:
        Deadly()
        with w.workers(1, gc.collect) as pool:
            assert pool.work_on(0).result() >= 0
    finally:
        gc.enable()


def test_what_it_writes_is_written_once(capfd: pytest.CaptureFixture[str]) -> None:
    sys.stdout.write("before ")  # in the buffer that a worker would have, too
    with w.workers(1, str) as pool:
        assert pool.work_on(1).result() == "1"
    sys.stdout.write("after")
    sys.stdout.flush()
    assert capfd.readouterr().out == "before after"
