"""What recordings lack: GPU records taken out of complete ones, at random and in other ways."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import astuple

import traceprof
from tests.reference import completeness as reference
from tests.support.builders import TraceBuilder
from tests.support.databases import change
from tests.support.traces import SAMPLE_FOLDER, SAMPLES, ranks_of
from traceprof import intervals
from traceprof.reports import comparison_sections
from traceprof.reports.time_text import headline_lines
from traceprof.run.rank import Rank

KERNEL, COPY, SET = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
Row = tuple[str, int, int, int, int, int]
"""A table, and of a row in it the rowid, start, process, stream and name."""


def _rows(database: sqlite3.Connection) -> list[Row]:
    """Return the GPU records of an export in order of start."""
    rows = []
    for table in (KERNEL, COPY, SET):
        name = "demangledName" if table == KERNEL else "0"
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone():
            rows += [
                (table, *row)
                for row in database.execute(
                    f"SELECT rowid, start, globalPid, streamId, {name} FROM {table}"
                )
            ]
    return sorted(rows, key=lambda row: row[2])


def without(
    program: str, folder: Path, choose: Callable[[list[Row]], list[Row]]
) -> tuple[Path, int]:
    """Return a copy of a sample without some of its GPU records, and how many these are."""
    path = folder / f"{program}.sqlite"
    shutil.copy(SAMPLE_FOLDER / path.name, path)
    with closing(sqlite3.connect(path)) as database, database:
        chosen = choose(_rows(database))
        for table, row, *_ in chosen:
            database.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])
    return path, len(chosen)


def at_random(share: float) -> Callable[[list[Row]], list[Row]]:
    def choose(rows: list[Row]) -> list[Row]:
        chance = random.Random(7)
        return [row for row in rows if chance.random() < share]

    return choose


def third(place: int) -> Callable[[list[Row]], list[Row]]:
    """Return a function that takes the first, middle or last third of each process's records."""

    def choose(rows: list[Row]) -> list[Row]:
        chosen = []
        for process in {row[3] for row in rows}:
            own = [row for row in rows if row[3] == process]
            chosen += own[place * len(own) // 3 : (place + 1) * len(own) // 3]
        return chosen

    return choose


def rarest_stream(rows: list[Row]) -> list[Row]:
    """Return the records of the stream of each process that has fewest."""
    chosen = []
    for process in {row[3] for row in rows}:
        own = [row for row in rows if row[3] == process]
        streams = [row[4] for row in own]
        rarest = min(set(streams), key=streams.count)
        chosen += [row for row in own if row[4] == rarest] if len(set(streams)) > 1 else []
    return chosen


def _idle_ns(rank: Rank, inside: tuple[int, int]) -> int:
    start, end = max(inside[0], rank.window.start_ns), min(inside[1], rank.window.end_ns)
    return intervals.complement(rank.not_idle, start, end).measure_ns


CHOICES: dict[str, Callable[[list[Row]], list[Row]]] = {
    **{f"{share:.0%}": at_random(share) for share in (0.01, 0.05, 0.3, 0.9)},
    **{f"{name} third": third(place) for place, name in enumerate(("first", "middle", "last"))},
    "one stream": rarest_stream,
    "copies": lambda rows: [row for row in rows if row[0] == COPY],
    "sets": lambda rows: [row for row in rows if row[0] == SET],
}
PROGRAMS = ("training", "ddp", "host-sync", "exposed-copy", "data-loading")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_complete_recording_loses_nothing(path: Path) -> None:
    with ranks_of(path) as ranks:
        for rank in ranks:
            assert rank.completeness.losses.num_lost == 0
            assert len(rank.lost) == 0
            assert rank.not_idle.measure_ns == rank.busy.measure_ns


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_lost_time_is_no_idle_time(program: str, choice: str, tmp_path: Path) -> None:
    path, num_taken = without(program, tmp_path, CHOICES[choice])
    with ranks_of(SAMPLE_FOLDER / f"{program}.sqlite") as whole, ranks_of(path) as ranks:
        for before, after in zip(whole, ranks, strict=True):
            window = before.window
            span = window.start_ns, window.end_ns
            if choice not in {"copies", "sets"}:
                assert _idle_ns(after, span) <= _idle_ns(before, span) + window.length_ns // 100
            lost = after.completeness.losses
            assert sum(part.num_lost for part in lost.stretches) == lost.num_lost
            if choice != "90%":  # the reference does not know that no copy may be left
                expected = reference.losses(path, after.pid)
                assert (lost.num_launches, lost.num_lost, lost.num_cut) == expected[:3]
                assert after.lost.measure_ns == expected.lost_ns
        found = [rank.completeness.losses for rank in ranks]
        num_whole = sum(rank.completeness.losses.num_launches for rank in whole)
    # Where a process has no copies or sets left, they may not have been recorded at all.
    num_gone = num_whole - sum(lost.num_launches for lost in found)
    assert sum(lost.num_lost + lost.num_cut for lost in found) == num_taken - num_gone


def test_a_damaged_recording_is_compared_with_nothing(tmp_path: Path) -> None:
    path, _ = without("training", tmp_path, at_random(0.05))
    whole = SAMPLE_FOLDER / "training.sqlite"
    compared = traceprof.compare(whole, path, gates=["step:+500%", "idle:+500%"])
    assert not compared.step.verdict.startswith(("faster", "slower"))
    whole_ns, *parts = astuple(compared.parts)
    assert sum(parts) == whole_ns
    assert compared.parts.lost_ns > 0
    for part in compared.part_changes:
        assert part.change_ns is part.low_ns is part.high_ns is None
        assert "the recording after is incomplete" in (part.unknown or "")
    assert not compared.idle
    assert [gate.outcome for gate in compared.gates] == ["inconclusive"] * 2
    assert "incomplete" in comparison_sections.render_comparison(compared)


@pytest.mark.parametrize(("share", "is_unusable"), [(0.05, False), (0.3, True)])
def test_what_is_said_of_a_damaged_recording(
    share: float, is_unusable: bool, tmp_path: Path
) -> None:
    path, _ = without("training", tmp_path, at_random(share))
    analysis = traceprof.analyze(path)
    first = headline_lines(analysis.result)[0]
    assert first.startswith("The recording is incomplete: ")
    assert " have no operation in the recording" in first
    for result in analysis.result.breakdown:
        whole = result.whole
        parts = whole.compute_ns, whole.exposed_communication_ns, whole.exposed_copy_ns
        assert sum(parts) + whole.idle_ns + whole.lost_ns == whole.window_ns
        assert whole.lost_ns > 0
        assert bool(result.steps) is not is_unusable
    assert "gpu-idle" not in {finding.id for finding in analysis.findings}
    assert not (is_unusable and analysis.findings)
    assert "gpu-idle" in {gap.id for gap in analysis.not_applicable}


@pytest.mark.slow
def test_real_exports_lack_what_the_reference_says(real_trace: Path) -> None:
    with ranks_of(real_trace) as ranks:
        found = Counter[int]()
        for rank in ranks:
            found[rank.pid] += rank.completeness.losses.num_launches
        for rank in ranks:
            if rank.calls is None or rank.device is None:
                assert rank.completeness.losses.num_launches == 0
                continue
            expected = reference.losses(real_trace, rank.pid)
            losses = rank.completeness.losses
            assert found[rank.pid] == expected.num_launches
            assert (losses.num_lost, losses.num_cut) == expected[1:3]
            assert rank.lost.measure_ns == expected.lost_ns


def _program() -> TraceBuilder:
    """Return a program of 50 kernels, 10 us long, launched 5 us before each."""
    builder = TraceBuilder()
    for number in range(50):
        start = 20_000 * number
        builder.kernel(start, start + 10_000, launch=(start - 5_000, start - 2_000))
    return builder


@pytest.mark.parametrize(
    "name", ["cuLaunchKernel", "cudaLaunchHostFunc", "cudaMemsetAsync", "cudaMemcpyAsync"]
)
def test_calls_that_launch_nothing_lose_nothing(name: str, tmp_path: Path) -> None:
    """The driver's launches lie inside those of the runtime."""
    is_driver = name.startswith("cuL")
    builder = _program().memset(995_000, 996_000).memcpy(997_000, 998_000)
    for number in range(50 if is_driver else 20):
        start = 20_000 * number - (4_500 if is_driver else -12_000)
        builder.api(name, start, start + 1_000)
    with ranks_of(builder.write(tmp_path / "nothing.sqlite")) as (rank,):
        assert rank.completeness.losses.num_lost == 0
        assert not is_driver or rank.completeness.losses.num_launches == 52


@pytest.mark.parametrize("early_ns", [500, 0])
def test_calls_that_are_recorded_twice_launch_once(early_ns: int, tmp_path: Path) -> None:
    """With --cudabacktrace, another row of a call lies around CUPTI's own, with the same id."""
    builder = _program()
    for number in range(50):
        start = 20_000 * number - 5_000 - early_ns
        builder.api("cudaLaunchKernel", start, start + 4_000, correlation=number + 1)
    with ranks_of(builder.write(tmp_path / "twice.sqlite")) as (rank,):
        losses = rank.completeness.losses
    assert (losses.num_launches, losses.num_lost) == (50, 0)


def test_kernels_of_which_none_was_recorded_are_lost(tmp_path: Path) -> None:
    """What lies between copies is no idle time; without launches of kernels it is."""
    builder = TraceBuilder()
    for number in range(20):
        start = 20_000 * number
        builder.memcpy(start, start + 10_000, "HtoD", launch=(start - 5_000, start - 2_000))
        builder.api(
            "cudaLaunchKernel_v7000", start - 1_500, start - 1_000, correlation=900 + number
        )
    path = builder.write(tmp_path)
    with ranks_of(path) as (rank,):
        losses = rank.completeness.losses
        assert (losses.num_launches, losses.num_lost, losses.num_cut) == (40, 19, 1)
        assert losses.is_unusable
        assert rank.lost.measure_ns > 0.4 * rank.window.length_ns
    change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId >= 900")
    with ranks_of(path) as (rank,):
        assert rank.completeness.losses.num_lost == 0
        assert len(rank.lost) == 0


def test_captured_launches_lose_nothing(tmp_path: Path) -> None:
    builder = _program()
    builder.api("cudaStreamBeginCapture", 210_000, 210_100)
    for number in range(10):
        builder.api("cudaLaunchKernel", 210_200 + 100 * number, 210_250 + 100 * number)
    builder.api("cudaStreamEndCapture", 212_000, 212_100)
    with ranks_of(builder.write(tmp_path / "captured.sqlite")) as (rank,):
        assert rank.completeness.losses.num_lost == 0
        assert rank.completeness.losses.num_launches == 50


def _replays(kernels: Iterable[Iterable[int]]) -> TraceBuilder:
    """Return launches of a CUDA graph, every 20 us, each of these kernels of 1 us."""
    builder = TraceBuilder()
    for replay, numbers in enumerate(kernels):
        start, id_ = 20_000 * replay, 1000 + replay
        for number in numbers:
            begin = start + 5_000 + 1_000 * number
            builder.kernel(begin, begin + 1_000, f"kernel_{number}", launch=False, correlation=id_)
        builder.api("cudaGraphLaunch", start, start + 1_000, correlation=id_)
    return builder


def _short_replays(is_short: Callable[[int], bool]) -> TraceBuilder:
    """Return 100 launches of ten kernels; short ones lack five, the last but one among them."""
    return _replays([0, 1, 2, 3, 9] if is_short(replay) else range(10) for replay in range(100))


@pytest.mark.parametrize("short", [21, 12])
def test_the_graph_of_a_last_layer_is_another(short: int, tmp_path: Path) -> None:
    """Three passes: a graph of one kernel, then 22 of 10 kernels, once only 7.

    That of the last layer is another graph, one in the middle lost kernels.
    """
    layers = [range(7 if layer == short else 10) for layer in range(22)]
    with ranks_of(_replays([range(20, 21), *layers] * 3).write(tmp_path)) as (rank,):
        assert bool(rank.completeness.losses.num_lost) == (short == 12)


def test_a_last_launch_with_fewer_kernels_may_be_of_a_last_layer(tmp_path: Path) -> None:
    """One pass: 24 launches of a graph of 10 kernels, the last of seven; a kernel follows."""
    builder = _replays([*[range(10)] * 23, range(7)]).kernel(500_000, 501_000)
    with ranks_of(builder.write(tmp_path / "t.sqlite")) as (rank,):
        assert rank.completeness.losses.reasons == ()


def test_replays_with_fewer_kernels_than_their_like_lost_some(tmp_path: Path) -> None:
    path = _short_replays({20, 40, 41, 60}.__contains__).write(tmp_path)
    with ranks_of(path) as (rank,):
        losses = rank.completeness.losses
        assert (losses.num_launches, losses.num_lost, losses.num_lost_graphs) == (100, 2, 2)
        assert sum(part.num_lost for part in losses.stretches) == 2
        (reason,) = losses.reasons
        assert reason.startswith("4 launches of CUDA graphs have fewer kernels than others")
        assert "20 of 40 kernels are missing; counted as 2 lost launches" in reason
        assert "2 of 100 graph launches have no kernels in the recording or lack some" in (
            losses.sentence
        )
        # 5 us in each, and from its call, or the operation before it, to the next one.
        assert rank.lost.measure_ns >= 4 * 5_000
        assert rank.lost.measure_ns <= 4 * 20_000


@pytest.mark.parametrize("every", [100, 10], ids=["a last one that is cut", "another graph"])
def test_whole_replays_lost_nothing(every: int, tmp_path: Path) -> None:
    path = _short_replays(lambda replay: replay % every == every - 1).write(tmp_path)
    with ranks_of(path) as (rank,):
        assert rank.completeness.losses.num_lost == 0
        assert not rank.completeness.losses.reasons
        assert len(rank.lost) == 0


def _overrun(*, stream: int = 7) -> TraceBuilder:
    """Return a program of 50 kernels, and one before them that lasts 2 s by its record."""
    builder = _program()
    return builder.kernel(-20_000, 2_000_000_000, "wrong", stream=stream)


def test_a_kernel_cannot_run_while_others_of_its_stream_do(tmp_path: Path) -> None:
    path = _overrun().write(tmp_path / "overrun.sqlite")
    with ranks_of(path) as (rank,):
        assert rank.window.end_ns == 20_000 * 49 + 10_000
        assert rank.busy.measure_ns == 51 * 10_000 + 10_000
        (reason,) = rank.losses.reasons
    assert reason.startswith("wrong at -0.000020 s is recorded with 2.00 s, while 50 kernels of")
    assert reason.endswith("until the next of them began, for 20 µs")
    result = traceprof.analyze(path).result
    assert f"rank 0: {reason}" in [note for _, note in result.notes]


def overlapping() -> TraceBuilder:
    builder = _overrun()
    for number in range(50):
        builder.kernel(20_000 * number + 5_000, 20_000 * number + 15_000)
    return builder


@pytest.mark.parametrize(
    "builder", [_overrun(stream=8), overlapping()], ids=["of another stream", "overlapping"]
)
def test_where_kernels_run_beside_each_other_they_keep_their_durations(
    builder: TraceBuilder, tmp_path: Path
) -> None:
    with ranks_of(builder.write(tmp_path / "beside.sqlite")) as (rank,):
        assert rank.window.end_ns == 2_000_000_000
        assert not rank.losses.reasons


@pytest.mark.parametrize("num", [1, 40])
def test_a_process_with_launches_and_no_operation(num: int, tmp_path: Path) -> None:
    builder = _program()
    for _ in range(2):
        for number in range(100):
            builder.kernel(2_000_000 + 5_000 * number, 2_000_000 + 5_000 * number + 4_000)
    for number in range(num):
        builder.api("cudaLaunchKernel", 20_000 * number, 20_000 * number + 2_000, pid=77)
        builder.api("cudaMalloc", 20_000 * number + 3_000, 20_000 * number + 4_000, pid=78)
    result = traceprof.analyze(builder.write(tmp_path / "silent.sqlite")).result
    text = f"process 77: {num} launch"
    assert sum(note.startswith(text) for _, note in result.notes) == 1
    assert not any("process 78" in note for _, note in result.notes)
    first = headline_lines(result)[0]
    said = "The recording is incomplete: process 77 made 40 of 290 launches and has no operation"
    assert first.startswith(said) is (num == 40)


def test_a_rank_with_launches_and_no_operation(tmp_path: Path) -> None:
    builder = _program()
    for number in range(10):
        start = 100_000 * number
        builder.nvtx(f"step {number}", start, start + 90_000, pid=77)
        builder.label("forward", start, start + 40_000, pid=77)
        builder.label("backward", start + 40_000, start + 80_000, pid=77)
        builder.label("optimizer step", start + 80_000, start + 90_000, pid=77)
        builder.api("cudaLaunchKernel", start + 1_000, start + 2_000, pid=77)
    result = traceprof.analyze(builder.write(tmp_path / "silent.sqlite")).result
    rows = {rank: (lost.num_launches, lost.num_lost) for rank, lost in result.completeness}
    of_pid = {rank.pid: rank.rank for rank in result.run.ranks}
    assert rows == {of_pid[1000]: (50, 0), of_pid[77]: (10, 10)}


@pytest.mark.parametrize("program", ["ddp", "training"])
def test_all_of_one_process(program: str, tmp_path: Path) -> None:
    """The process is gone from the ranks; it is named, and its launches are counted."""
    gone: set[int] = set()

    def of_last(rows: list[Row]) -> list[Row]:
        gone.add(max(row[3] for row in rows))
        return [row for row in rows if row[3] in gone]

    path, num_taken = without(program, tmp_path, of_last)
    result = traceprof.analyze(path).result
    (pid,) = (process >> 24 & 0xFFFFFF for process in gone)
    assert num_taken > 0
    silent = result.run.reports[0].launches_in_vain
    assert list(silent) == [pid]
    assert headline_lines(result)[0].startswith("The recording is incomplete: ")


def test_nine_in_ten_graph_replays(tmp_path: Path) -> None:
    path = _short_replays(lambda _: False).write(tmp_path)
    with ranks_of(path) as (rank,):
        span = rank.window.start_ns, rank.window.end_ns
        before = _idle_ns(rank, span)
    change(path, f"DELETE FROM {KERNEL} WHERE correlationId % 10 != 5")
    with ranks_of(path) as (rank,):
        losses = rank.completeness.losses
        assert losses.num_lost_graphs + losses.num_cut == 90
        assert losses.num_cut == 4
        assert _idle_ns(rank, span) <= before + (span[1] - span[0]) // 100
        assert losses.is_unusable
