"""The watch names who is slow, and nobody else; the training goes on as without it."""

import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import instrument
from instrument import switch, torch_trace
from instrument.core import calls, nvtx_ranges, operations
from instrument.recording import record_as_requested
from instrument.step_timer import EventClock, HostClock, StepTimer, covered
from instrument.watching import Reporter, Times, Verdicts, excess_ns
from instrument.wraps import process_groups
from tests.support import recording
from tests.support.commands import in_process, output_of
from tests.support.programs import watched, watched_many, watched_recorded, watched_stuck
from tests.support.programs.watched import EVERY, NUM_STEPS, SLEEP_S, WAYS

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
        assert table["ranks"][1]["loader_mean_ns"] >= 0.75 * SLEEP_S * 1e9
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


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Run three ranks once; return the folder of the recordings and what each rank saw."""
    seen = recording.run(watched_recorded.run, watched_recorded.SIZE, tmp_path_factory)
    return Path(seen[0]["folder"]), seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "found"),
    [
        ("loader", "it waited for its data loader"),
        ("operator", "its forward, backward or optimizer takes longer: aten::mm, "),
        ("collections", "its forward, backward or optimizer takes longer: garbage collection, "),
    ],
)
def test_a_slow_rank_and_one_peer_are_recorded(
    recorded: tuple[Path, list[dict[str, Any]]], cause: str, found: str
) -> None:
    folder, seen = recorded
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


def excerpt(folder: Path) -> torch_trace.Excerpt:
    """Return a recording from the first step on, of a watch that takes no ranges."""
    nothing = nvtx_ranges.Functions(bool, lambda: None, bool, bool, lambda text, _: text)
    return torch_trace.Excerpt(folder, 1, nothing)


def profiled(**options: Any) -> torch.profiler.profile:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options)


def events_of(profiled: torch.profiler.profile) -> Any:
    return profiled.events()  # type: ignore[no-untyped-call]


def test_none_is_recorded_beside_a_profiler_of_the_script(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, ours = nvtx_ranges.push, excerpt(tmp_path)
    with profiled() as own:
        for number in range(30):
            ours.step_ends(number)
            torch.ones(3).add(1)
    assert [record.getMessage() for record in caplog.records] == [
        "the slow rank is not recorded: another profiler records"
    ]
    assert sum(event.name == "aten::add" for event in events_of(own)) == 30
    assert nvtx_ranges.push is before
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_profiler_of_the_script_ends_a_recording(tmp_path: Path, is_warm: bool) -> None:
    before, ours = nvtx_ranges.push, excerpt(tmp_path)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    own = profiled(schedule=schedule if is_warm else None)
    if is_warm:  # prepared, but it does not record yet
        own.start()
    ours.step_ends(1)
    assert nvtx_ranges.push is not before
    torch.ones(3).mul(2)
    (own.step if is_warm else own.start)()
    assert nvtx_ranges.push is before
    torch.ones(3).add(1)
    own.stop()
    ours.step_ends(11)
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
    excerpt(tmp_path).step_ends(1)
    assert f"the slow rank is not recorded: {tmp_path} has 100 bytes" in caplog.text
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-7"]


def test_recordings_are_asked_for_once_an_hour() -> None:
    tables: list[Any] = []
    reporter = Reporter(100, None, tables.append)
    reporter.new_excerpt = lambda *_: None  # type: ignore[assignment]
    asked: list[tuple[str, str]] = []
    reporter._store = SimpleNamespace(set=lambda *pair: asked.append(pair))
    for number in range(1, 8):
        own_ms = [10.2, 10.1, 10.0, 20, 20 if number > 3 else 9.9]
        rows = [row(rank, own_ms[rank], step=100 * number) for rank in range(5)]
        reporter._tell(rows, {}, 100 * number, {})
    assert {rank for table in tables for rank in table["slow"]} == {"3", "4"}
    ((_, request),) = asked
    ranks, first = json.loads(request)
    assert ranks == [3, 2]  # of its peers the usual one
    assert first == 134  # after four seconds of steps of 30 ms
    assert [line for table in tables for line in table["said"] if "record" in line] == [
        "ranks 3 and 2 record ten steps from step 134 on"
    ]
    reporter._next_excerpt = 0.0
    for number in range(8, 10):
        rows = [row(rank, 40.0 if rank == 2 else 10.0, step=100 * number) for rank in range(5)]
        reporter._tell(rows, {}, 100 * number, {})
    assert len(asked) == 2


def test_what_to_do_on_a_straggler() -> None:
    with pytest.raises(ValueError, match="on_straggler is 'record' or None, not 'stop'"):
        instrument.watch(on_straggler="stop")


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


def timer(clock: Any, full: Any, every: int = 2) -> StepTimer:
    return StepTimer(every, full, lambda _: clock)


class FakeEvents:
    """A GPU whose clock advances by a millisecond with each event, and that is far behind."""

    def __init__(self) -> None:
        self.num = 0
        self.num_done = 0

    def new(self) -> Any:
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


def test_events_are_read_once_the_gpu_has_passed_them() -> None:
    events = FakeEvents()
    windows: list[Any] = []
    timed = timer(EventClock(events.new, lambda: False), lambda *window: windows.append(window))
    communicate = calls.timed(lambda: None, timed)

    def step() -> None:
        timed.push("backward")
        timed.start("bucket index=0 bytes=4 dtype=float32 last=1")
        communicate()
        timed.pop()
        timed.push("optimizer step")
        timed.pop()

    step()  # the first one chooses the clock
    events.num = 0
    step()
    assert windows == [(1, []), (2, [])]  # with the first, signs of life begin
    events.num_done = 100
    for _ in range(2):
        step()
    *_, (number, steps) = windows
    assert number == 4
    assert len(steps) == 3
    times = Times.of(0, number, timed.parts(steps[1:]))
    # Begin, bucket, send's begin and end, backward's end, the next begin.
    assert times.step_ns == 5 * MS
    assert times.wait_ns == 2 * MS
    assert times.own_ns == 3 * MS


def test_steps_in_the_capture_of_a_graph_are_left_out() -> None:
    windows: list[Any] = []
    timed = timer(
        EventClock(FakeEvents().new, lambda: True), lambda *window: windows.append(window)
    )
    for _ in range(4):
        calls.timed(lambda: None, timed)()
        timed.push("optimizer step")
        timed.pop()
    assert windows == [(1, []), (2, []), (4, [])]


def test_a_failure_of_ours_ends_the_watch_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise RuntimeError("CUDA error")

    timed = timer(EventClock(fail, lambda: False), None)
    with caplog.at_level(logging.WARNING, "traceprof.instrument"):
        for _ in range(3):
            timed.push("optimizer step")
            timed.pop()
    assert not timed.is_on
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0), ([(1, 3), (5, 6)], 3), ([(2, 4), (1, 9), (8, 11)], 10), ([(-5, 2), (1, 1)], 2)],
)
def test_a_call_within_another_counts_once(spans: list[tuple[int, int]], expected: int) -> None:
    assert covered(spans) == expected


@pytest.mark.parametrize("text", ["optimizer step", "step 7", "step by step"])
def test_ranges_that_end_a_step(text: str) -> None:
    timed = timer(HostClock(), lambda *_: None)
    for name in (text, "forward", "backward", "data loading", "all_reduce group=0"):
        timed.push(name)
        timed.pop()
    timed.pop()
    assert timed.progress()[0] == 1


def test_marked_steps_end_where_they_are_marked() -> None:
    timed = timer(HostClock(), lambda *_: None)
    for _ in range(3):
        timed.push("step 0")
        timed.push("optimizer step")
        timed.pop()
        timed.pop()
    assert timed.progress()[0] == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_timed_call_passes_results_and_exceptions_on(fails: bool) -> None:
    def all_reduce(value: object, *, more: object) -> object:
        if fails:
            raise KeyError(value)
        return value, more

    timed = timer(HostClock(), lambda *_: None)
    wrapper, value = calls.timed(all_reduce, timed), object()
    assert wrapper.__name__ == "all_reduce"
    if fails:
        with pytest.raises(KeyError):
            wrapper(value, more=3)
    else:
        result: Any = wrapper(value, more=3)
        assert result[0] is value
        assert result[1] == 3
    ((begin, end, thread),) = timed.calls
    assert begin <= end
    assert thread == threading.get_ident()


def test_calls_of_other_threads_are_not_waited_for() -> None:
    windows: list[Any] = []
    timed = timer(HostClock(), lambda *window: windows.append(window))
    sleep = calls.timed(time.sleep, timed)
    for number in range(4):
        thread = threading.Thread(target=sleep, args=[0.01])
        thread.start()
        thread.join()
        if number % 2:
            sleep(0.001)
        timed.push("optimizer step")
        timed.pop()
    steps = [step for _, window in windows for step in window]
    parts = timed.parts(steps)
    assert [wait_ns >= 1 * MS for _, _, wait_ns, _ in parts] == [True, False, True]
    assert all(own_ns >= 10 * MS for _, own_ns, _, _ in parts)


def calls_of(timed: StepTimer, call: Any) -> int:
    timed.calls.clear()
    call()
    return len(timed.calls)


def watching_timer() -> StepTimer:
    assert nvtx_ranges._functions is not None
    timed = nvtx_ranges._functions.push.__self__  # type: ignore[attr-defined]
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
    assert caplog.messages[0].startswith("nothing is watched: AttributeError: ")
    assert vars(dist.Work)["wait"] is before
    assert not instrument.is_enabled()


@pytest.mark.usefixtures("beside_another")
def test_launches_are_timed_once_the_first_step_shows_that_ranks_use_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The events are of a stand-in; whether the GPU's are right it cannot show."""
    events, tensor = FakeEvents(), torch.ones(4)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: events.new())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    before = vars(dist.ProcessGroup)["allreduce"], functional.all_reduce
    instrument.watch()
    timed = watching_timer()
    group = dist.group.WORLD
    assert group is not None
    assert calls_of(timed, lambda: group.allreduce([tensor])) == 0
    timed.push("optimizer step")
    timed.pop()
    assert calls_of(timed, lambda: group.allreduce([tensor])) == 1
    assert calls_of(timed, lambda: dist.all_reduce(tensor)) == 1
    reduced: list[Any] = []
    assert calls_of(timed, lambda: reduced.append(functional.all_reduce(tensor, "sum", group))) == 1
    reduced[0].wait()
    assert calls_of(timed, lambda: dist.isend(tensor, 1)) == 2
    assert timed.transfers == {group.group_name}
    assert events.num > 8
    instrument.disable()
    assert before == (vars(dist.ProcessGroup)["allreduce"], functional.all_reduce)


def row(rank: int, own_ms: float, spread_ms: float = 0.05, step: int = 100) -> Times:
    return Times(rank, step, 30 * MS, int(own_ms * MS), 2 * MS, 0, int(spread_ms * MS))


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
    reporter = Reporter(10, None, None)
    counts: dict[str, int] = {}

    def peers_after(stage: int) -> Sequence[int]:
        for group, num in zip(members, (100, stage, 20, 1), strict=False):
            assert group.number is not None
            group.number += num
        return reporter._peers(operations.count_in_groups(counts), 3, 8)

    assert peers_after(stage=50) == ()  # with the first step, counts begin
    assert peers_after(stage=9) == [2, 3, 7]  # the first window's
    reporter.timer.transfers.add("pipeline")
    assert peers_after(stage=10) == [2, 3]
    assert peers_after(stage=8) == [3]
    assert peers_after(stage=0) == [3]  # a stage of one rank: it has no peers


def test_two_windows_begin_and_end_a_finding() -> None:
    verdicts = Verdicts(100)
    said = []
    for number, own_ms in enumerate([10, 15, 10, 15, 15, 15, 10, 15, 10, 10, 10], 1):
        rows = [row(rank, 10, step=number * 100) for rank in (0, 1, 2)]
        rows.append(row(3, own_ms, step=number * 100))
        said.append(verdicts.lines(verdicts.steadied(rows)))
    lines = {number: lines for number, lines in enumerate(said, 1) if lines}
    assert lines == {
        5: [
            "rank 3 computes 1.50 x its peers since step 300; the others wait 2.0 ms a step for it"
        ],
        10: [
            "rank 3 computes as long as its peers again since step 800; it was slow since step 300"
        ],
    }


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize(("share", "is_named"), [(0.02, False), (0.3, True)])
def test_an_hour_of_loaders_that_stutter(size: int, share: float, is_named: bool) -> None:
    """All wait 50 ms in 2 % of the steps of 10 ms; after half an hour one in a larger share."""
    random = np.random.default_rng(size)
    verdicts = Verdicts(100)
    said = []
    for window in range(1, 3601):
        shares = np.full((size, 1), 0.02)
        if window > 1800:
            shares[1] = share
        loader = 50 * MS * (random.random((size, 100)) < shares) + random.normal(MS, MS / 9)
        means, errors = loader.mean(axis=1), loader.std(axis=1, ddof=1) / 10
        rows = [
            Times(rank, window * 100, 11 * MS, 10 * MS, 0, MS, 0, (), int(mean), int(error))
            for rank, (mean, error) in enumerate(zip(means, errors, strict=True))
        ]
        lines = verdicts.lines(verdicts.steadied(rows))
        said += [(window, line) for line in lines]
    if not is_named:
        assert said == []
    else:
        ((window, line),) = said
        assert window == 1802
        assert line.startswith("rank 1 waits 1")
        assert " ms a step for its loader since step 180000, its peers " in line


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("slow", [1.0, 1.02, 1.05])
def test_an_hour_of_noisy_steps(size: int, slow: float) -> None:
    """Steps of 10 ms that vary by 2 %, and one in fifty by a half."""
    random = np.random.default_rng(size)
    verdicts = Verdicts(100)
    said = []
    for window in range(1, 3601):
        own = random.lognormal(np.log(10 * MS), 0.02, (size, 100))
        own *= 1 + 0.5 * (random.random((size, 100)) < 0.02)
        if window > 1800:
            own[1] *= slow
        medians = np.median(own, axis=1)
        spreads = np.subtract(*np.quantile(own, [0.75, 0.25], axis=1)) / 2
        rows = [
            Times(rank, window * 100, 10 * MS, int(medians[rank]), 0, 0, int(spreads[rank]))
            for rank in range(size)
        ]
        lines = verdicts.lines(verdicts.steadied(rows))
        said += [(window, line) for line in lines]
    if slow < 1.03:  # within the least noise
        assert said == []
    else:
        ((window, line),) = said
        assert window == 1802
        assert line.startswith(f"rank 1 computes {slow:.2f} x its peers since step 180000;")


def test_too_few_steps() -> None:
    with pytest.raises(ValueError, match="every 2 steps or more, not 1"):
        instrument.watch(1)


@pytest.mark.parametrize("missing", ["torch", "torch.distributed", ""])
def test_without_torch_distributed_nothing_is_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    if missing:  # as if not installed, and as in a build without it
        monkeypatch.delattr(torch, "distributed")
        monkeypatch.setitem(sys.modules, missing, None)
    instrument.watch()
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is watched: there is no torch.distributed"
    ]
    assert not instrument.is_enabled()


def test_the_watch_is_imported_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import instrument; instrument.watch()"
    assert output_of(sys.executable, "-c", code) == ""


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


def test_a_watch_beside_a_recorder_sees_what_the_recorder_leaves_out() -> None:
    seen: dict[str, list[object]] = {"recorder": [], "watch": []}

    def functions(name: str) -> nvtx_ranges.Functions:
        take: Any = seen[name].append
        return nvtx_ranges.Functions(
            take, lambda: take("pop"), take, bool, lambda text, number: (text, number)
        )

    restored = nvtx_ranges.push
    with_recorder = nvtx_ranges.use(functions("recorder"))
    nvtx_ranges.pause()
    end_watch = nvtx_ranges.observe(functions("watch"))
    nvtx_ranges.push(nvtx_ranges.prepare("forward"))
    nvtx_ranges.start_into([], nvtx_ranges.message("bucket"))
    assert seen == {"recorder": [], "watch": ["forward", "bucket"]}
    nvtx_ranges.resume()
    nvtx_ranges.push(nvtx_ranges.message("all_reduce seq=", 7))
    nvtx_ranges.pop()
    assert seen["recorder"] == ["all_reduce seq=7", "pop"]
    assert seen["watch"] == ["forward", "bucket", "all_reduce seq=7", "pop"]
    end_watch()
    nvtx_ranges.push("backward")
    nvtx_ranges.pause()
    nvtx_ranges.push("backward")
    assert seen["recorder"][2:] == ["backward"]
    assert len(seen["watch"]) == 4
    with_recorder()
    assert nvtx_ranges.push is restored


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


def test_a_recorder_takes_the_ranges() -> None:
    assert not nvtx_ranges.is_recording()
    instrument.watch()
    assert nvtx_ranges.is_recording()
    switch.end_watch()
    assert not nvtx_ranges.is_recording()
    assert not instrument.is_enabled()


@pytest.mark.slow
def test_the_environment_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom instrument.core import nvtx_ranges\nprint(nvtx_ranges.is_recording())\n"
    )
    monkeypatch.setenv("TRACEPROF_WATCH", "50")
    assert output_of(sys.executable, "-m", "instrument", script).split() == ["True"]
