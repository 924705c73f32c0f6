"""Child processes: what they make arrives, whatever becomes of them, and none is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.selection import known, long_after
from tests.support.workers import MAX_WAIT_S, RowCount, is_running, until
from traceprof.execution import children
from traceprof.execution.children import Child, ChildError, ProgressOfAll, run_in_children, send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no children elsewhere")


@pytest.fixture(autouse=True)
def _can_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have children made although other tests leave threads behind."""
    monkeypatch.setattr(children, "can_fork", lambda: True)


def nothing() -> None:
    """Prepare nothing in a child."""


def child_pids() -> list[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in listed.split()]


@pytest.mark.parametrize("num_processes", long_after(3, [1, 2, 3, 9]))
@pytest.mark.parametrize("num_items", [0, 1, 5, 7])
def test_items_are_shared_by_so_many_processes(num_items: int, num_processes: int) -> None:
    before = child_pids()
    made = run_in_children(
        lambda item: (item, os.getpid()), range(num_items), nothing, num_processes=num_processes
    )
    assert [item for item, _ in made] == [*range(num_items)]
    assert len({pid for _, pid in made}) == min(num_items, num_processes)
    assert {pid for _, pid in made[::num_processes]} <= {os.getpid()}
    assert child_pids() == before


def test_a_child_prepares_itself() -> None:
    prepared: list[int] = []
    made = run_in_children(
        lambda _: [*prepared], range(2), lambda: prepared.append(1), num_processes=2
    )
    assert made == [[], [1]]


def test_texts_of_several_items_arrive_as_one() -> None:
    def items() -> Iterator[list[str]]:
        for number in (3, 3):
            yield ["a long text", "ä" * number]

    with Child(items, shares_texts=True) as child:
        first, second = child.items()
    assert first == second == ["a long text", "äää"]
    assert all(one is other for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("num_killed", [1, 3])
def test_a_child_that_is_killed_costs_only_time(num_killed: int) -> None:
    here = os.getpid()

    def work(item: int) -> tuple[int, bool]:
        if os.getpid() != here and item >= 2 * num_killed - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid() == here

    made = run_in_children(work, range(8), nothing, num_processes=2)
    assert [item for item, _ in made] == [*range(8)]
    # What the child had made before is kept.
    assert [item for item, is_here in made if not is_here] == [1, 3, 5][: num_killed - 1]


@pytest.mark.parametrize("where", ["in the child", "in both"])
def test_errors_are_those_of_one_process(where: str) -> None:
    here = os.getpid()

    def work(item: int) -> int:
        if item == 3 and (where == "in both" or os.getpid() != here):
            raise ValueError(str(item))
        return item

    if where == "in both":
        with pytest.raises(ValueError, match="3"):
            run_in_children(work, range(5), nothing, num_processes=2)
    else:
        assert run_in_children(work, range(5), nothing, num_processes=2) == [0, 1, 2, 3, 4]


def test_an_array_goes_away_without_the_others() -> None:
    def arrays() -> Iterator[dict[str, npt.NDArray[np.int64]]]:
        yield {name: np.arange(1 << 18) + number for number, name in enumerate("abc")}

    def num_mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:traceprof")

    with Child(arrays) as child:
        (made,) = child.items()
    assert [int(array[-1]) - (1 << 18) for array in made.values()] == [-1, 0, 1]
    made["a"] += 1
    assert [int(array[0]) for array in made.values()] == [1, 1, 2]
    before = num_mapped()
    del made["b"]
    assert num_mapped() == before - 1


def test_small_arrays_are_no_views_of_memory_that_others_share() -> None:
    sizes = 0, 1, 1000, 100_000

    def arrays() -> Iterator[list[npt.NDArray[np.int64]]]:
        yield [np.arange(size) for size in sizes]

    with Child(arrays) as child:
        (made,) = child.items()
    assert [array.tolist() for array in made] == [[*range(size)] for size in sizes]
    own = [array.base is None or isinstance(array.base, bytes) for array in made]
    assert own == [True, True, True, False]
    for array in made:
        array[:] = 0


def test_what_cannot_be_sent_is_made_here() -> None:
    here = os.getpid()

    def work(item: int) -> tuple[int, object]:
        return item, None if os.getpid() == here else threading.Lock()

    assert run_in_children(work, range(4), nothing, num_processes=2) == [
        (item, None) for item in range(4)
    ]


def test_children_end_with_an_error_here() -> None:
    here, before, seen = os.getpid(), {*child_pids()}, set()

    def work(item: int) -> int:
        if os.getpid() == here:
            seen.update({*child_pids()} - before)
            raise KeyboardInterrupt
        time.sleep(3 * MAX_WAIT_S)
        return item

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_in_children(work, range(3), nothing, num_processes=3)
    assert time.monotonic() - began < MAX_WAIT_S
    assert len(seen) == 2
    assert not seen & {*child_pids()}


def test_it_is_known_whether_a_child_was_killed() -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise ValueError

    def be_killed() -> Iterator[int]:
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    for make, was_killed in ((fail, False), (be_killed, True)):
        with Child(make) as child:
            items = child.items()
            assert next(items) == 1
            with pytest.raises(ChildError) as error:
                next(items)
            assert error.value.was_killed == was_killed
            assert child.has_ended


def test_a_child_is_killed_with_its_block_and_ignores_ctrl_c() -> None:
    def make() -> Iterator[int]:
        yield os.getpid()
        time.sleep(60)

    with Child(make) as child:
        pid = next(child.items())
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert is_running(pid)
    assert not is_running(pid)


def test_a_child_of_a_child_sends_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def grandchild() -> Iterator[tuple[str, int]]:
        progress.expect(5)
        progress.advance(3)
        yield "grandchild", os.getpid()
        progress.advance(2)

    def make() -> Iterator[tuple[str, int]]:
        send(("sent", os.getpid()))
        with Child(grandchild, progress, forwards=True) as inner:
            seen = [*inner.items()]
        assert [name for name, _ in seen] == ["grandchild"]
        yield "child", os.getpid()

    count = RowCount()
    progress = ProgressOfAll(count)
    with Child(make, progress) as child:
        items = [*child.items()]
    assert [name for name, _ in items] == ["sent", "grandchild", "child"]
    assert items[0][1] == items[2][1] != items[1][1]
    assert (count.expected, count.read) == (5, 5)
    send("nobody")  # this process is no child


def test_progress_of_a_child_is_told_while_this_process_reads() -> None:
    def make() -> Iterator[None]:
        progress.expect(10)
        progress.advance(4)
        yield None
        time.sleep(60)

    count = RowCount()
    progress = ProgressOfAll(count)
    with Child(make, progress) as child:
        next(child.items())
        progress.expect(2)
        progress.advance(1)
        assert (count.expected, count.read) == (12, 5)


@pytest.mark.parametrize("is_killed", [True, False])
def test_rows_of_what_did_not_come_are_counted_once(*, is_killed: bool) -> None:
    def make() -> Iterator[int]:
        progress.expect(10)
        progress.advance(4)
        yield 1
        progress.expect(100)
        progress.advance(50)
        if is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError

    count = RowCount()
    progress = ProgressOfAll(count)
    with Child(make, progress) as child, pytest.raises(ChildError):
        list(child.items())
    assert (count.expected, count.read) == (10, 4)


def test_not_beside_other_threads() -> None:
    program = """
import threading
from traceprof.execution.children import can_fork
assert can_fork()
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
assert not can_fork()
done.set()
thread.join()
assert can_fork()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_when_the_first_process_is_killed(number: signal.Signals) -> None:
    program = """
import os, time
from traceprof.execution.children import Child
def endless():
    os.write(1, b"%d\\n" % os.getpid())
    while True:
        time.sleep(1)
def with_a_child():
    with Child(endless) as child:
        os.write(1, b"%d\\n" % os.getpid())
        yield from child.items()
with Child(with_a_child) as child, Child(endless):
    list(child.items())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as first:
        pids = [int(known(first.stdout).readline()) for _ in range(3)]
        assert all(map(is_running, pids))
        first.send_signal(number)
    assert first.returncode == -number
    until(lambda: not any(map(is_running, pids)))


def test_ctrl_c_on_a_terminal_leaves_nobody_behind(tmp_path: Path) -> None:
    program = """
import os, signal, time
from traceprof.execution.children import Child
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
def endless():
    os.write(1, b"%d\\n" % os.getpid())
    while True:
        time.sleep(1)
with Child(endless) as child:
    list(child.items())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as first:
        pid = int(known(first.stdout).readline())
        os.killpg(first.pid, signal.SIGINT)
        said = known(first.stderr).read()
    assert first.returncode != 0
    assert said.count("KeyboardInterrupt") == 1
    until(lambda: not is_running(pid))


def test_a_child_leaves_the_garbage_of_its_parent_alone() -> None:
    here = os.getpid()

    class Deadly:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)

    gc.disable()
    try:
        Deadly()
        with Child(lambda: [gc.collect() >= 0]) as child:
            assert [*child.items()] == [True]
    finally:
        gc.enable()


def test_what_it_writes_is_written_once(capfd: pytest.CaptureFixture[str]) -> None:
    make: Callable[[], list[int]] = lambda: [1]  # noqa: E731
    sys.stdout.write("before ")  # in the buffer that the child has, too
    with Child(make) as child:
        assert [*child.items()] == [1]
    sys.stdout.write("after")
    sys.stdout.flush()
    assert capfd.readouterr().out == "before after"
