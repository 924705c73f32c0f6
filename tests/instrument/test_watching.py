"""The watch names who is slow, and nobody else; the training goes on as without it."""

import itertools
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import instrument
from instrument import step_timer, switch, torch_trace, watching
from instrument.core import calls, nvtx_ranges, steps
from instrument.core.wrapping import outermost
from instrument.recording import record_as_requested
from instrument.step_timer import StepTimer, Window, covered
from instrument.watching import Reporter, Times, Verdicts, excess_ns
from instrument.wraps import process_groups
from tests.support import recording
from tests.support.commands import in_process, output_of
from tests.support.programs import watched, watched_many, watched_recorded, watched_stuck
from tests.support.programs.watched import EVERY, NUM_STEPS, SLEEP_S, WAYS
from tests.support.selection import known, long_after, rows_long_after
from tests.support.workers import until

MS = 1_000_000


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run both ranks once; return what each saw."""
    return recording.run(watched.run, watched.SIZE, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize("way", [*WAYS, "alone"])
def test_the_training_is_the_same_bit_for_bit(seen: list[dict[str, Any]], way: str) -> None:
    for rank in seen:
        assert rank[way]["same"]
        assert rank[way]["restored"]
    assert seen[0][way]["wrapped"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_rank_0_compares_all_ranks_every_n_steps(seen: list[dict[str, Any]], way: str) -> None:
    tables = seen[0][way]["tables"]
    assert [table["step"] for table in tables] == list(range(EVERY, NUM_STEPS + 1, EVERY))
    for table in tables:
        assert [rank["rank"] for rank in table["ranks"]] == [0, 1]
        assert table["silent"] == []
        for rank in table["ranks"]:
            assert 0 < rank["own_ns"] < rank["step_ns"]
            assert rank["wait_ns"] > 0
            assert rank["loader_ns"] > 0
    assert seen[1][way]["tables"] == []


@pytest.mark.slow
def test_the_slow_rank_is_named(seen: list[dict[str, Any]]) -> None:
    second = seen[0]["slow"]["tables"][1]
    assert second["ranks"][1]["own_ns"] >= SLEEP_S * 1e9
    assert second["slow"] == {"1": 0}
    (line,) = second["said"]
    assert line.startswith("rank 1 computes ")
    assert seen[0]["slow"]["tables"][2]["said"] == []


@pytest.mark.slow
def test_a_loader_that_stutters_is_named(seen: list[dict[str, Any]]) -> None:
    first, second, third = seen[0]["stutter"]["tables"]
    for table in (second, third):  # in the first, a step is missing
        assert table["ranks"][1]["loader_ns"] >= 0.75 * SLEEP_S * 1e9
    is_beyond = [table["ranks"][1]["loader_excess_ns"] > 0 for table in (first, second)]
    if all(is_beyond):  # as on any machine that holds rank 0 up for less
        assert second["slow_loaders"] == {"1": 0}
        assert [line[:13] for line in second["said"] if "loader" in line] == ["rank 1 waits "]


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_said(seen: list[dict[str, Any]]) -> None:
    tables = seen[0]["alone"]["tables"]
    assert tables[0]["silent"] == [1]
    assert tables[0]["said"] == ["rank 1 did not answer since step 0"]
    assert [table["said"] for table in tables[1:]] == [[]] * (len(tables) - 1)


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_training_as_without_the_watch(
    seen: list[dict[str, Any]],
) -> None:
    assert seen[0]["dead"]


@pytest.mark.slow
def test_within_a_step_the_rank_is_named_that_was_stopped_or_is_behind(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    seen = recording.run(watched_stuck.run, watched_stuck.SIZE, tmp_path_factory)
    for rank in seen:
        assert rank["same"]
        assert rank["restored"]
    tables = [table for table in seen[0]["tables"] if not table["ranks"]]
    stopped, stuck = (next(table for table in tables if table[key]) for key in ("silent", "stuck"))
    assert stopped["silent"] == [1]
    assert stopped["step"] <= watched_stuck.STOPPED
    assert stopped["said"][0].startswith("rank 1 did not answer since step ")
    assert stuck["step"] == watched_stuck.STUCK
    (line,) = stuck["stuck"].values()
    assert line.startswith("watched_stuck.py:")
    assert line.endswith(" (until_exists)")
    assert stuck["said"] == [f"rank 1 gets no further than {line} after step {watched_stuck.STUCK}"]
    assert seen[1]["tables"] == []
    first = seen[1]["logged"][0]  # a busy machine may hold rank 0 up once more
    assert first.startswith("rank 0 did not answer since step ")
    lines = Path(seen[0]["path"]).read_text().splitlines()
    of_first = next(table for table in map(json.loads, lines) if table["silent"] == [0])
    assert of_first["said"] == [first]
    assert of_first["step"] <= watched_stuck.FIRST_STOPPED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "found"),
    rows_long_after(
        1,
        [
            (
                "collections",
                "its forward, backward or optimizer takes longer: garbage collection, ",
            ),
            ("loader", "it waited for its data loader"),
            ("operator", "its forward, backward or optimizer takes longer: aten::mm, "),
        ],
    ),
)
def test_a_slow_rank_and_one_peer_are_recorded(
    tmp_path_factory: pytest.TempPathFactory, cause: str, found: str
) -> None:
    program = watched_recorded.run if cause == "collections" else watched_recorded.run_others
    seen = recording.run(program, watched_recorded.SIZE, tmp_path_factory)
    folder = Path(seen[0]["folder"])
    for rank in seen:
        assert rank[cause]["same"]
        assert rank[cause]["restored"]
    (asked,) = [line for line in seen[0][cause]["said"] if "record" in line]
    first, second = (int(word) for word in asked.split()[1:4:2])
    assert first == watched_recorded.SLOW != second
    step = folder / cause / "watch.recorded" / f"step-{asked.split()[-2]}"
    traces = [*(folder / cause).glob("*/*/*")]
    assert {trace.parent for trace in traces} == {step}
    names = {trace.name.partition("-")[2] for trace in traces}
    assert names == {f"rank{rank}.pt.trace.json.gz" for rank in (first, second)}
    document = in_process("analyze", step, "--format", "json").document
    (straggler,) = [one for one in document["findings"] if one["id"] == "straggler"]
    assert straggler["rank"] == watched_recorded.SLOW
    assert found in straggler["title"]


def excerpt(folder: Path) -> steps.RecordedSteps:
    """Return a recording from the first step on."""
    instrument.enable()
    return torch_trace.Excerpt(folder, 1).steps


def profiled(**options: Any) -> torch.profiler.profile:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options)


def events_of(profiled: torch.profiler.profile) -> Any:
    return profiled.events()  # type: ignore[no-untyped-call]


def test_none_is_recorded_beside_a_profiler_of_the_script(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = excerpt(tmp_path)
    with profiled() as own:
        before = nvtx_ranges.push
        for number in range(30):
            ours.mark_ends()
            ours.mark_begins(number)
            torch.ones(3).add(1)
        assert nvtx_ranges.push is before
    assert [record.getMessage() for record in caplog.records] == [
        "steps 1:11 are not recorded: RuntimeError: another profiler records"
    ]
    assert sum(event.name == "aten::add" for event in events_of(own)) == 30
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_profiler_of_the_script_ends_a_recording(tmp_path: Path, is_warm: bool) -> None:
    before, ours = nvtx_ranges.push, excerpt(tmp_path)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    own = profiled(schedule=schedule if is_warm else None)
    if is_warm:  # prepared, but it does not record yet
        own.start()
    ours.mark_begins(1)
    assert nvtx_ranges.push is not before
    torch.ones(3).mul(2)
    (own.step if is_warm else own.start)()
    torch.ones(3).add(1)
    own.stop()
    assert nvtx_ranges.push is before
    ours.mark_begins(11)
    assert nvtx_ranges.push is before
    torch_trace._finish()
    (trace,) = (trace.name for trace in tmp_path.glob("step-1/*"))
    assert trace.endswith(".pt.trace.json.gz")
    names = {event.name for event in events_of(own)}
    assert "aten::add" in names
    assert "aten::mul" not in names


def test_a_full_folder_gets_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_trace, "MAX_EXCERPTS_BYTES", 99)
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "trace").write_bytes(bytes(100))
    excerpt(tmp_path).mark_begins(1)
    assert f"steps 1:11 are not recorded: RuntimeError: {tmp_path} has 100 bytes" in caplog.text
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-7"]


def test_recordings_are_asked_for_once_an_hour() -> None:
    tables: list[Any] = []
    reporter = Reporter(100, None, None, records=True)
    for number in range(1, 8):
        own_ms = [10.2, 10.1, 10.0, 20, 20 if number > 3 else 9.9]
        rows = [row(rank, own_ms[rank], step=100 * number) for rank in range(5)]
        tables.append(reporter.table(100 * number, rows, {}, {}))
    assert {rank for table in tables for rank in table["slow"]} == {"3", "4"}
    # Of its peers the usual one, after four seconds of steps of 30 ms.
    assert reporter._asked == (134, 3, 2)
    assert [line for table in tables for line in table["said"] if "record" in line] == [
        "ranks 3 and 2 record ten steps from step 134 on"
    ]
    reporter._next_excerpt = 0.0
    for number in range(8, 10):
        rows = [row(rank, 40.0 if rank == 2 else 10.0, step=100 * number) for rank in range(5)]
        tables.append(reporter.table(100 * number, rows, {}, {}))
    assert reporter._asked == (134, 2, 1)


def test_a_callback_that_blocks_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 sees signs of rank 0 in the callback, until the thread that gives them is held."""
    monkeypatch.setattr(watching, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(watching, "BEAT_S", 0.05)
    is_called, is_over, tables = threading.Event(), threading.Event(), list[Any]()

    def block(_: object) -> None:
        is_called.set()
        is_over.wait(120)

    first, second = Reporter(2, None, block), Reporter(2, None, None)
    second._prefix = first._prefix
    turn, num_turns = second._turn, itertools.count()
    monkeypatch.setattr(second, "say", tables.append)
    monkeypatch.setattr(second, "_turn", lambda *one, **more: (next(num_turns), turn(*one, **more)))
    store, steps = HashStore(), [(0, 10 * MS, (0, MS), 0)] * 2
    for rank, reporter in enumerate((first, second)):
        reporter.full(Window(2, steps, store, rank, 2))
    assert is_called.wait(120)
    until(lambda: next(num_turns) > 60)
    assert tables == []
    monkeypatch.setattr(first, "_turn", lambda *_, **__: is_over.wait(120))
    until(lambda: bool(tables))
    assert tables[0]["said"] == ["rank 0 did not answer since step 0"]
    is_over.set()
    first.stop()
    second.stop()


def test_a_rank_that_stays_silent_is_said_once() -> None:
    reporter = Reporter(100, None, None)
    silent = [reporter.table(step, [], {1: last}, {}) for step, last in ((100, 0), (120, 60))]
    silent.append(reporter.table(200, [], {1: 0, 2: 100}, {}))
    assert [table["said"] for table in silent] == [
        ["rank 1 did not answer since step 0"],
        [],
        ["rank 2 did not answer since step 100"],
    ]
    reporter.table(300, [], {}, {})
    again = reporter.table(400, [], {1: 300}, {})
    assert again["said"] == ["rank 1 did not answer since step 300"]


def test_who_is_behind_and_in_no_call_holds_up_those_that_wait() -> None:
    waits, behind = watching._Sign(1.0, 6, 3), watching._Sign(1.0, 5, 3, 0, "train.py:7 (load)")
    signs = {0: waits, 1: behind}
    assert watching._stuck(signs, signs) == {1: "train.py:7 (load)"}
    assert watching._stuck(signs, {0: waits, 1: behind._replace(activity=2)}) == {}
    assert watching._stuck({**signs, 1: behind._replace(line="")}, signs) == {}


def test_a_rank_without_times_is_waited_for_and_then_silent() -> None:
    reporter, now = Reporter(100, None, None), time.monotonic()
    signs = {0: watching._Sign(now, 100, times=[row(0, 10)]), 1: watching._Sign(now, 40)}
    reporter._due.append((100, now + 600))
    reporter._compare(signs)
    assert reporter._tables.empty()
    reporter._due[0] = (100, now)
    reporter._compare(signs)
    assert known(reporter._tables.get())["said"] == ["rank 1 did not answer since step 40"]
    assert not reporter._due


def test_a_line_begins_below_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for it" / "watch.jsonl"
    reporter = Reporter(100, path, None)
    reporter.append("first\n")
    path.write_text(path.read_text() + "cut")
    reporter.append("last\n")
    assert path.read_text() == "first\ncut\nlast\n"


def test_a_watch_without_a_process_group_ends_at_once() -> None:
    reporter = Reporter(2, None, None)
    reporter.full(Window(2, [(0, 10 * MS, (), 0)] * 2))
    until(lambda: bool(reporter._times))
    reporter.stop()
    assert [thread.is_alive() for thread in reporter._threads] == [False, False]


@pytest.mark.long
def test_eight_ranks_with_forks_and_groups_of_their_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    seen = recording.run(watched_many.run, watched_many.MANY, tmp_path_factory)
    assert [rank["same"] for rank in seen] == [True] * watched_many.MANY
    tables = seen[0]["tables"]
    assert [table["step"] for table in tables[:3]] == [EVERY, 2 * EVERY, 3 * EVERY]
    for table in tables[:3]:
        assert [rank["rank"] for rank in table["ranks"]] == [*range(watched_many.MANY)]
        slow = table["ranks"][watched_many.SLEEPER]
        # A thread that comes late finds times of a later window, when that rank slept no more.
        assert slow["own_ns"] >= SLEEP_S * 1e9 or slow["step"] > table["step"]


class FakeEvents:
    """A GPU whose clock advances by a millisecond with each event, and that is far behind."""

    def __init__(self) -> None:
        self.num = 0
        self.num_done = 0

    def new(self, **_: object) -> Any:
        events = self

        class Event:
            def record(self) -> None:
                events.num += 1
                self.at_ms = events.num

            def query(self) -> bool:
                return self.at_ms <= events.num_done

            def elapsed_time(self, other: Any) -> float:
                return float(other.at_ms - self.at_ms)

        return Event()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> FakeEvents:
    """Have events of a stand-in; whether the GPU's are right it cannot show."""
    events = FakeEvents()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(step_timer, "_time", lambda *_: None)
    monkeypatch.setattr(StepTimer, "_window", lambda timed, steps: (timed._num_steps, steps))
    monkeypatch.setattr(torch.cuda, "Event", events.new)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return events


def optimizer_step(timed: StepTimer) -> Any:
    """Return the step of an optimizer, which the timer hears of."""
    steps.listen(timed.listener)
    return outermost("optimizer step", bool, after=steps.optimizer_step_ends)


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterator[None]:
    yield
    steps.listen(steps.Listener())


def test_events_are_read_once_the_gpu_has_passed_them(events: FakeEvents) -> None:
    windows: list[Any] = []
    timed = StepTimer(2, windows.append)
    communicate = calls.timed(lambda: None, timed)

    def reduce() -> None:
        timed.listener.bucket_is_sent()
        communicate()

    optimize = optimizer_step(timed)
    backward = outermost("backward", reduce, after=steps.backward_ends)

    def step() -> None:
        backward()
        optimize()

    step()  # the first one chooses the clock
    events.num = 0
    step()
    assert windows == [(1, []), (2, [])]  # with the first, signs of life begin
    events.num_done = 100
    for _ in range(2):
        step()
    *_, (number, known) = windows
    assert number == 4
    assert len(known) == 3
    times = Times.of(Window(number), Window(number, known[1:]).parts(), None)
    # Begin, bucket, send's begin and end, backward's end, the next begin.
    assert times.step_ns == 5 * MS
    assert times.wait_ns == 3 * MS
    assert times.own_ns == 2 * MS


def test_steps_in_the_capture_of_a_graph_are_left_out(
    monkeypatch: pytest.MonkeyPatch, events: FakeEvents
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    windows: list[Any] = []
    timed = StepTimer(2, windows.append)
    optimize = optimizer_step(timed)
    for _ in range(4):
        calls.timed(lambda: None, timed)()
        optimize()
    parts = [(number, Window(number, steps).parts()) for number, steps in windows]
    assert parts == [(1, []), (2, []), (4, [])]


def test_a_failure_of_ours_ends_the_watch_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, events: FakeEvents
) -> None:
    def fail(**_: object) -> Any:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "Event", fail)
    windows: list[Any] = []
    optimize = optimizer_step(StepTimer(2, windows.append))
    with caplog.at_level(logging.WARNING, "traceprof.instrument"):
        for _ in range(3):
            optimize()
    assert windows == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("marks", "expected"),
    [((1, 3, 5, 9), 6), ((1, 9, 2, 3, 4, 5), 8), ((4, 8, 1, 5), 7), ((-3, 2), 2), ((), 0)],
)
def test_nested_and_overlapping_calls_count_once(marks: Sequence[int], expected: int) -> None:
    assert covered(marks) == expected


def test_steps_end_where_they_are_marked_else_with_the_outermost_optimizer() -> None:
    timed = StepTimer(2, bool)
    inner = optimizer_step(timed)
    optimize = outermost("optimizer step", inner, after=steps.optimizer_step_ends)
    optimize()
    optimize()
    assert timed.progress()[0] == 2
    for _ in range(3):
        steps.mark_begins(0)
        optimize()
        steps.mark_ends()
    assert timed.progress()[0] == 5


@pytest.mark.parametrize("fails", [False, True])
def test_a_timed_call_passes_results_and_exceptions_on(fails: bool) -> None:
    def all_reduce(value: object, *, more: object) -> object:
        if fails:
            raise KeyError(value)
        return value, more

    timed = StepTimer(2, bool)
    timed.ident, timed.mark = threading.get_ident(), itertools.count().__next__
    wrapper, value = calls.timed(all_reduce, timed), object()
    assert wrapper.__name__ == "all_reduce"
    if fails:
        with pytest.raises(KeyError):
            wrapper(value, more=3)
    else:
        result: Any = wrapper(value, more=3)
        assert result[0] is value
        assert result[1] == 3
    assert [*timed.marks] == [0, 1]


def test_calls_of_other_threads_are_not_waited_for() -> None:
    windows: list[Any] = []
    timed = StepTimer(2, windows.append)
    sleep, optimize = calls.timed(time.sleep, timed), optimizer_step(timed)
    hooks: Any = {"before": steps.loading_begins, "after": steps.loading_ends}
    load = outermost("data loading", time.sleep, **hooks)
    for number in range(4):
        for call in (sleep, load):
            thread = threading.Thread(target=call, args=[0.01])
            thread.start()
            thread.join()
        if number % 2:
            sleep(0.001)
            load(0.001)
        optimize()
    rows = [row for window in windows for row in window.parts()]
    for column in (2, 3):
        assert [row[column] >= 1 * MS for row in rows] == [True, False, True]
    assert all(own_ns >= 20 * MS for _, own_ns, _, _ in rows)


def calls_of(timed: StepTimer, call: Any) -> int:
    """Return how many calls the timer takes, none within another."""
    timed.ident = threading.get_ident()
    timed.marks.clear()
    before, timed.mark = timed.mark, itertools.count().__next__
    call()
    timed.mark = before
    return covered([*timed.marks])


def watching_timer() -> StepTimer:
    timed = steps.listener.step_ends.__self__  # type: ignore[attr-defined]
    assert isinstance(timed, StepTimer)
    return timed


def test_waits_on_the_host_are_timed(alone: dist.ProcessGroup) -> None:
    tensor, before = (
        torch.ones(4),
        (dist.all_reduce, vars(dist.Work)["wait"], functional.wait_tensor),
    )
    instrument.watch()
    assert dist.all_reduce is before[0]
    timed = watching_timer()
    assert calls_of(timed, lambda: dist.all_reduce(tensor)) == 1
    assert calls_of(timed, lambda: alone.allreduce([tensor]).wait()) == 1
    works: list[Any] = []
    assert calls_of(timed, lambda: works.append(dist.all_reduce(tensor, async_op=True))) == 0
    assert calls_of(timed, works[0].wait) == 1
    both: Any = functional
    result = both.all_reduce(tensor, "sum", alone)
    assert calls_of(timed, lambda: both.wait_tensor(result)) >= 1
    broadcast: Any = dist._broadcast_coalesced  # type: ignore[attr-defined]
    assert calls_of(timed, lambda: broadcast(alone, [tensor], 100, 0)) == 1
    assert timed.transfers == set()
    instrument.disable()
    assert before == (dist.all_reduce, vars(dist.Work)["wait"], functional.wait_tensor)


def test_a_version_whose_calls_cannot_be_timed_is_not_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = vars(dist.Work)["wait"]
    monkeypatch.setattr(process_groups, "WAITS", ("wait", "wait_otherwise"))
    instrument.watch()
    assert caplog.messages[0].startswith("nothing is watched: ")
    assert caplog.messages[0].endswith("no attribute 'wait_otherwise'")
    assert vars(dist.Work)["wait"] is before
    assert not instrument.is_enabled()


@pytest.mark.usefixtures("beside_another")
def test_launches_are_timed_once_the_first_step_shows_that_ranks_use_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, tensor = FakeEvents(), torch.ones(4)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "Event", fake.new)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    before = vars(dist.ProcessGroup)["allreduce"], functional.all_reduce
    instrument.watch()
    timed = watching_timer()
    group = dist.group.WORLD
    assert group is not None

    def num_marks(call: Any) -> int:
        num = fake.num
        call()
        return fake.num - num

    assert num_marks(lambda: group.allreduce([tensor])) == 0
    timed._step_ends()
    assert num_marks(lambda: group.allreduce([tensor])) == 2
    assert num_marks(lambda: dist.all_reduce(tensor)) == 2
    reduced: list[Any] = []
    assert num_marks(lambda: reduced.append(functional.all_reduce(tensor, "sum", group))) == 2
    reduced[0].wait()
    assert num_marks(lambda: dist.isend(tensor, 1)) == 4
    assert timed.transfers == {group.group_name}
    assert len(timed.marks) >= 10
    instrument.disable()
    assert before == (vars(dist.ProcessGroup)["allreduce"], functional.all_reduce)


def row(rank: int, own_ms: float, spread_ms: float = 0.05, step: int = 100) -> Times:
    return Times(rank, step, 30 * MS, int(own_ms * MS), 2 * MS, 0, int(spread_ms * MS))


def test_times_of_a_window() -> None:
    random = np.random.default_rng(1)
    own, wait, loader = random.integers(MS, 9 * MS, (3, 100))
    rows = np.column_stack([own + wait + loader, own, wait, loader]).tolist()
    window = Window(200, rank=3, peers=[2, 3])
    times = Times.of(window, rows, None)
    assert (times.rank, times.step, times.peers) == (3, 200, [2, 3])
    medians = [times.step_ns, times.own_ns, times.wait_ns]
    assert medians == [int(np.median(part)) for part in (own + wait + loader, own, wait)]
    assert times.spread_ns == int(np.subtract(*np.quantile(own, [0.75, 0.25])) / 2)
    mean, error = loader.mean(), loader.std(ddof=1) / 10
    assert (times.loader_ns, times.loader_error_ns) == (int(mean), int(error))
    before = times._replace(own_ns=times.own_ns - 9 * MS)
    assert Times.of(window, rows, before) == times._replace(spread_ns=9 * MS)


@pytest.mark.parametrize(
    ("own_ms", "spread_ms", "is_slow"),
    [(10.0, 0.05, False), (10.25, 0.05, False), (10.35, 0.05, True), (10.35, 0.2, False)],
)
def test_the_noise_rule(own_ms: float, spread_ms: float, is_slow: bool) -> None:
    rows = [row(0, 10, spread_ms), row(1, own_ms, spread_ms), row(2, 10, spread_ms)]
    assert bool(excess_ns(rows[1], rows)) is is_slow
    assert [excess_ns(times, rows) for times in (rows[0], rows[2])] == [0, 0]


def test_stages_of_a_pipeline_are_no_peers() -> None:
    stages = [row(rank, 10 if rank < 2 else 20) for rank in range(4)]
    assert [rank for rank in range(4) if excess_ns(stages[rank], stages)] == [2, 3]
    stages = [times._replace(peers=[0, 1] if times.rank < 2 else [2, 3]) for times in stages]
    assert not any(excess_ns(times, stages) for times in stages)
    stages[3] = stages[3]._replace(own_ns=22 * MS)
    assert [excess_ns(times, stages) for times in stages] == [0, 0, 0, 2 * MS]


class FakeGroup:
    """A group whose operations are counted, unless its backend does not count."""

    def __init__(self, name: str, number: int | None) -> None:
        self.group_name = name
        self.number = number

    def _get_sequence_number_for_group(self) -> int:
        if self.number is None:
            raise RuntimeError("does not yet support sequence numbers")
        return self.number


def test_peers_are_the_ranks_of_smaller_groups_with_a_collective_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = {
        FakeGroup("all", 5): range(8),
        FakeGroup("stage", 7): [2, 3],
        FakeGroup("pipeline", 9): [3, 7],
        FakeGroup("rare", 1): [3, 5],
        FakeGroup("uncounted", None): [3, 6],
    }
    world = SimpleNamespace(pg_group_ranks=members)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_world", world)
    timed = StepTimer(10, bool)

    def peers_after(stage: int) -> Sequence[int]:
        for group, num in zip(members, (100, stage, 20, 1), strict=False):
            assert group.number is not None
            group.number += num
        return timed._peers(3, 8)

    assert peers_after(stage=50) == ()  # with the first step, counts begin
    assert peers_after(stage=9) == [2, 3, 7]  # the first window's
    timed.transfers.add("pipeline")
    assert peers_after(stage=10) == [2, 3]
    assert peers_after(stage=8) == [3]
    assert peers_after(stage=0) == [3]  # a stage of one rank: it has no peers


def test_two_windows_begin_and_end_a_finding() -> None:
    verdicts = Verdicts(100)
    said = []
    for number, own_ms in enumerate([10, 15, 10, 15, 15, 15, 10, 15, 10, 10, 10], 1):
        rows = [row(rank, 10, step=number * 100) for rank in (0, 1, 2)]
        said.append(verdicts.lines([*rows, row(3, own_ms, step=number * 100)]))
    lines = {number: lines for number, lines in enumerate(said, 1) if lines}
    assert lines == {
        5: [
            "rank 3 computes 1.50 x its peers since step 300; the others wait 2.0 ms a step for it"
        ],
        10: [
            "rank 3 computes as long as its peers again since step 800; it was slow since step 300"
        ],
    }


@pytest.mark.parametrize("size", long_after(1, [2, 8]))
@pytest.mark.parametrize(
    ("slow", "share", "line"),
    rows_long_after(
        2,
        [
            (1.05, 0.0, r"rank 1 computes 1\.05 x its peers since step 180000;"),
            (1.0, 0.3, r"rank 1 waits 1\S* ms a step for its loader since step 180000, its peers "),
            (1.02, 0.02, None),
            (1.0, 0.02, None),
        ],
    ),
)
def test_an_hour_of_steps(size: int, slow: float, share: float, line: str | None) -> None:
    """Own time of 10 ms varies by 2 %, in one step of fifty by a half; all wait 50 ms in 2 %.

    After half an hour one rank's own time is longer, or it waits in a larger share of its steps.
    """
    random, verdicts, before = np.random.default_rng(size), Verdicts(100), None
    said: list[tuple[int, str]] = []
    shares = np.full((size, 1), min(share, 0.02))
    for window in range(1, 3601):
        own = random.lognormal(np.log(10 * MS), 0.02, (size, 100))
        own *= 1 + 0.5 * (random.random((size, 100)) < 0.02)
        if window > 1800:
            own[1] *= slow
            shares[1] = share
        loader = random.normal(MS, MS / 9, (size, 100))
        loader += 50 * MS * (random.random((size, 100)) < shares)
        medians = np.median(own, axis=1)
        spreads = np.subtract(*np.quantile(own, [0.75, 0.25], axis=1)) / 2
        if before is not None:
            spreads = np.maximum(spreads, np.abs(medians - before))
        before, errors = medians, loader.std(axis=1, ddof=1) / 10
        columns = np.column_stack([medians, 0 * medians, loader.mean(axis=1), spreads, errors])
        rows = [
            Times._make((rank, 100 * window, 11 * MS, *map(int, row), ()))
            for rank, row in enumerate(columns)
        ]
        said += [(window, found) for found in verdicts.lines(rows)]
    if line is None:
        assert said == []
    else:
        ((window, found),) = said
        assert window == 1802
        assert re.match(line, found)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"every": 1}, "every 2 steps or more, not 1"),
        ({"on_straggler": "stop"}, "on_straggler is 'record' or None, not 'stop'"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        instrument.watch(**options)


@pytest.mark.parametrize("missing", ["torch", "torch.distributed"])
def test_without_torch_distributed_nothing_is_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    monkeypatch.delitem(sys.modules, "instrument.step_timer")
    monkeypatch.delattr(torch, "distributed")
    monkeypatch.setitem(sys.modules, missing, None)  # as if not installed
    instrument.watch()
    (record,) = caplog.records
    assert record.getMessage().startswith("nothing is watched: ")
    assert missing in record.getMessage()
    assert not instrument.is_enabled()


@pytest.mark.parametrize("value", ["often", "1", "-5", "2.5"])
def test_a_value_that_is_no_number_of_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv("TRACEPROF_WATCH", value)
    monkeypatch.setattr("instrument.recording._Process.has_started", False)
    record_as_requested()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"nothing is watched, TRACEPROF_WATCH={value}: ")
    assert instrument.is_enabled()  # a torch.profiler of the script gets ranges, as without it
    assert not nvtx_ranges.is_recording()
    instrument.disable()


def test_while_a_profiler_of_the_script_records_no_watch_begins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(switch, "follows_profiler", lambda: True)
    instrument.watch()
    assert "nothing is watched" in caplog.text
    assert not instrument.is_enabled()


def test_the_watch_takes_no_ranges_from_a_recorder(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    push, leaf = nvtx_ranges.push, torch.ones(2, requires_grad=True)
    instrument.watch()
    optimizer = torch.optim.SGD([leaf])
    for is_recorded in (False, True, True):
        monkeypatch.setattr(nvtx_ranges, "push", push if is_recorded else bool)
        leaf.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert recording.pushed(recorded) == ["backward", "optimizer step"] * 2
    assert watching_timer().progress()[0] == 3


def test_a_profiler_of_the_script_has_ranges_and_leaves_the_watch(alone: object) -> None:
    del alone
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    instrument.watch()
    step()
    with profiled() as own:
        step()
    timed = watching_timer()
    timed.mark, before = itertools.count().__next__, timed.progress()[0]
    sent: list[int] = []
    steps.listen(steps.listener._replace(bucket_is_sent=lambda: sent.append(1)))
    step()
    assert timed.progress()[0] == before + 1
    assert sent == [1]
    names = [event.name for event in events_of(own)]
    for name in ("backward", "optimizer step"):
        assert names.count(name) == 1
    assert any(name.startswith("bucket ") for name in names)


@pytest.mark.parametrize("is_first", [True, False])
def test_lines_that_cannot_be_written_are_said_at_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_first: bool,
) -> None:
    monkeypatch.setenv("RANK", "0" if is_first else "1")
    (tmp_path / "file").touch()
    instrument.watch(path=tmp_path / "file" / "watch.jsonl")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * is_first
    assert not is_first or f"no lines of the watch in {tmp_path}/file" in caplog.text
    instrument.disable()


def test_a_recording_ends_the_watch() -> None:
    before = vars(dist.Work)["wait"]
    instrument.watch()
    assert vars(dist.Work)["wait"] is not before
    switch.end_watch()
    assert vars(dist.Work)["wait"] is before
    assert steps.listener == steps.Listener()
    assert not instrument.is_enabled()


@pytest.mark.slow
def test_the_environment_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom instrument.core.steps import Listener, listener\n"
        "print(listener != Listener())\n"
    )
    monkeypatch.setenv("TRACEPROF_WATCH", "50")
    assert output_of(sys.executable, "-m", "instrument", script).split() == ["True"]
