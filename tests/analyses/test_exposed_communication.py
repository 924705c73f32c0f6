"""Why communication is exposed: by hand, against the reference, on real runs."""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference import exposed_communication as plain
from tests.reference.gpu_programs import Program, reducing
from tests.reference.streams import read
from tests.support.builders import ALL_GATHER, ALL_REDUCE, SEND_RECV, TraceBuilder, record, wait
from tests.support.changes import on_one_clock
from tests.support.kept_claims import Kept
from tests.support.selection import known, long_after
from tests.support.traces import GPU_SAMPLES, analysis_of, closed_analysis, ranks_of
from traceprof.analyses import exposed_communication
from traceprof.analyses.exposed_communication import ExposedCommunicationResult
from traceprof.analyses.exposed_communication.reasons import CLOCKS, UNMATCHED, link_rate
from traceprof.analysis import Analysis, Options, analyze
from traceprof.communication.exposure import Reason
from traceprof.findings import Finding
from traceprof.ranks.waits import RankWaits, Transfer
from traceprof.run.opening import Window

MS = 1_000_000
TORCH = "void at::native::vectorized_elementwise_kernel<4>(int)"


def of_whole_windows(analysis: Analysis) -> dict[int, ExposedCommunicationResult]:
    """Return what is found over each rank's whole window, set-up and all, by rank."""
    return {
        rank.rank: exposed_communication.refined(
            exposed_communication.run(rank, rank.window), analysis.ranks
        )
        for rank in analysis.run.ranks
        if rank.device is not None
    }


def finding(*paths: Path, rank: int = 0) -> Finding:
    analysis = analyze(*paths, options=Options(savings=False), jobs=1)
    (found,) = exposed_communication.findings(of_whole_windows(analysis)[rank])
    analysis.close()
    assert isinstance(found, Finding)
    return found


def assumed(path: Path) -> tuple[str, ...]:
    with analysis_of(path) as analysis:
        results = [of_whole_windows(analysis)[0]]
    return exposed_communication.FINDINGS[exposed_communication.ID].assumed([], results)


def late_input(
    kernel: str = TORCH, name: str = ALL_REDUCE, peer: int | None = None
) -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 60 * MS, kernel, launch=(0, 1))
    if peer is not None:
        builder.label(f"isend dst={peer} bytes=64 group=0 rank=0 size=2 seq=0", 2, 9)
    builder.kernel(60 * MS, 80 * MS, name, launch=(3, 4), stream=20)
    return builder.kernel(80 * MS, 100 * MS, launch=(10, 11))


def launched_late() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 10 * MS, "producer", launch=(0, 1))
    builder.kernel(10 * MS, 60 * MS, "other", launch=(2, 3), tid=1001)
    builder.kernel(60 * MS, 75 * MS, ALL_REDUCE, launch=(40 * MS, 59 * MS), stream=20)
    return builder.kernel(75 * MS, 100 * MS, "next", launch=(60 * MS, 61 * MS))


def queued(kernel: str) -> TraceBuilder:
    """Buckets of DDP share the links of their ranks: side by side they are not faster."""
    builder = TraceBuilder().kernel(0, 50 * MS, kernel, launch=(0, 1), tid=1001)
    builder.kernel(10 * MS, 50 * MS, ALL_REDUCE, launch=(2, 3), stream=20)
    builder.kernel(50 * MS, 80 * MS, ALL_REDUCE, launch=(4, 5), stream=20)
    return builder.kernel(80 * MS, 100 * MS, kernel, launch=(6, 7), tid=1001)


def on_the_stream_of_compute(name: str) -> TraceBuilder:
    """Two kernels follow at once: the one on its own stream counts."""
    builder = TraceBuilder().kernel(0, 50 * MS, TORCH, launch=(0, 1))
    builder.kernel(50 * MS, 80 * MS, name, launch=(2, 3))
    builder.kernel(80 * MS, 90 * MS, "elsewhere", launch=(4, 5), stream=8)
    return builder.kernel(80 * MS, 100 * MS, "here", launch=(6, 7))


def longer_than_compute() -> TraceBuilder:
    """Three reductions in line, ready at 50, 51 and 52 ms, after 20 ms of compute beside nothing.

    Of 75 ms beside nothing but 10 ms of compute: those 10 hide the first one, and count as queued
    behind it for both others; 20 ms could have hidden more, had the input been there at 30 ms.

    ```
    stream  7   [0 first 30] [30 second 50] [50 next 60]                      [125 step 130]
    stream 20   [9 AllReduce 30]            [50 AllReduce 75][ 75..100 ][ 100..125 ]
    ```
    """
    builder = TraceBuilder().kernel(0, 30 * MS, TORCH, launch=(0, 1))
    builder.kernel(9 * MS, 30 * MS, ALL_REDUCE, launch=(2, 3), stream=20)
    builder.kernel(30 * MS, 50 * MS, TORCH, launch=(4, 5))
    for number in range(3):
        at, host = (50 + 25 * number) * MS, 6 + 2 * number
        builder.kernel(at, at + 25 * MS, ALL_REDUCE, launch=(host, host + 1), stream=20)
    builder.kernel(50 * MS, 60 * MS, TORCH, launch=(12, 13))
    return builder.kernel(125 * MS, 130 * MS, TORCH, launch=(14, 15))


def disagreeing_clocks(*, is_read_early: bool) -> TraceBuilder:
    """Operations begin before their launch, or are read before they end."""
    builder = TraceBuilder()
    for index in range(4):
        at = 100 * MS * (index + 1)
        launched = 4 * MS * index if is_read_early else at
        builder.kernel(at, at + 60 * MS, launch=(launched + 1, launched + 2))
        launch = launched, launched + 1
        builder.kernel(at + 60 * MS, at + 99 * MS, ALL_REDUCE, stream=20, launch=launch)
        if is_read_early:
            launch = launched + 4, launched + 2 * MS
            end = at + 99 * MS + 1
            builder.memcpy(end - 1, end, "DtoH", bytes=4, pageable=True, launch=launch)
    return builder


@pytest.mark.parametrize("reduction_ms", [0.9, 2.2, 5.0])
def test_late_input_is_what_perfect_overlap_can_gain(tmp_path: Path, reduction_ms: float) -> None:
    """Four reductions a step in one line: on the second simulator.

    A step cannot take less than its reductions; all that is exposed beyond is too late.
    """
    machine = Program(reducing(reduction_ms * MS, 1), "").run(1, num_steps=14)
    path = machine.write(tmp_path)
    found = finding(path)
    gain_ns = 14 * (machine.step_ns(2, 11) - 4 * reduction_ms * MS)
    late_ns, queued_ns = found.metrics["late_input_ns"], found.metrics["queued_ns"]
    assert isinstance(late_ns, int)
    assert isinstance(queued_ns, int)
    if reduction_ms < 1:  # and compute takes longer than all of them
        assert found.metrics["transfer_ns"] == 0
        assert late_ns + queued_ns == pytest.approx(found.metrics["exposed_ns"], rel=0.01)
    else:
        assert late_ns == pytest.approx(gain_ns, rel=0.03)
    assert found.metrics["busbw_gb_per_s"] == pytest.approx(20, rel=0.02)
    assert assumed(path) == ("communication=0",)  # fewer bytes slow less compute down, too


def needed(*, before: str = "", other: bool = False, compute: bool = False) -> TraceBuilder:
    """Let the compute stream wait for an all-gather, with or without something else to do.

    One `before` it runs when it is launched, and is `awaited` by then or `outstanding`.
    """
    builder = TraceBuilder().kernel(0, 50 * MS, TORCH, launch=(0, 1))
    wait(record(builder, 1, 7, 2), 1, 20, 3)
    if before:
        builder.kernel(10 * MS, 45 * MS, ALL_GATHER, launch=(2, 3), stream=20)
        record(builder, 3, 20, 3)
    if before == "awaited":
        wait(builder, 3, 7, 3)
    builder.kernel(50 * MS, 80 * MS, ALL_GATHER, launch=(4, 5), stream=20)
    record(builder, 2, 20, 6)
    if other:
        builder.kernel(81 * MS, 82 * MS, ALL_GATHER, launch=(7, 8), stream=20)
    if compute:
        builder.kernel(90 * MS, 91 * MS, "meanwhile", launch=(9, 10))
    return wait(builder, 2, 7, 11).kernel(83 * MS, 100 * MS, "needs", launch=(12, 13))


def two_ranks(builder: TraceBuilder, pid: int, start: int) -> TraceBuilder:
    for index in range(3):
        at = index * 100 * MS
        builder.kernel(at, at + 10 * MS, launch=(at, at + 1), pid=pid)
        builder.kernel(
            at + start, at + 60 * MS, ALL_REDUCE, launch=(at + 2, at + 3), stream=20, pid=pid
        )
        builder.kernel(at + 60 * MS, at + 90 * MS, launch=(at + 4, at + 5), pid=pid)
    return builder


def a_late_rank() -> TraceBuilder:
    """Before the first one only 10 ms of compute could have hidden its 20 ms."""
    return two_ranks(two_ranks(TraceBuilder(), 100, 10 * MS), 200, 40 * MS)


def a_missing_rank() -> TraceBuilder:
    """50 ms are exposed each, after 10, 40 and 40 ms of compute."""
    builder = a_late_rank()
    for rank, pid in enumerate((100, 200)):
        for index in range(3):
            text = f"all_reduce bytes=64 group=0 rank={rank} size=3 seq={index}"
            builder.label(text, index * 100 * MS + 2, index * 100 * MS + 3, pid=pid)
    return builder


def late_steps(
    num_ranks: int, num_steps: int, late: Callable[[int], dict[int, int]], *, by_launch: bool
) -> TraceBuilder:
    """Ranks that begin steps of 10 ms late, by step and rank, ns: launches are late, or kernels."""
    builder = TraceBuilder()
    for rank, pid in enumerate((100, 200, 300)[:num_ranks]):
        at = 10 * MS
        for step in range(num_steps):
            first, end = at + late(step).get(rank, 0), at + 10 * MS + sum(late(step).values())
            call = (first if by_launch else at) - MS
            builder.nvtx(f"step {step}", call, call + 9, pid=pid)
            builder.kernel(first, first + 8 * MS, launch=(call + 1, call + 2), pid=pid)
            how: dict[str, Any] = {"launch": (call + 3, call + 4), "stream": 20, "pid": pid}
            builder.kernel(first + 8 * MS, end, ALL_REDUCE, **how)
            at = end
    return builder


def late_in_two_steps() -> TraceBuilder:
    """Rank 2 begins two of thirty steps 60 ms late, rank 1 all others 3 ms."""
    return late_steps(
        3, 30, lambda step: {2: 60 * MS} if step < 2 else {1: 3 * MS}, by_launch=False
    )


def late_since_another_is() -> TraceBuilder:
    """Rank 2 computes for 60 ms, rank 1 waits for it, and rank 0 for rank 1."""
    builder = TraceBuilder()
    begins = {(0, "a"): 10, (1, "a"): 63, (1, "b"): 10, (2, "b"): 60}
    for rank, pid in enumerate((100, 200, 300)):
        for index in range(4):
            at = index * 100 * MS
            builder.kernel(at, at + (60 if rank == 2 else 10) * MS, launch=(at, at + 1), pid=pid)
            for place, (group, end) in enumerate((("b", 62), ("a", 65))):
                if (rank, group) not in begins:
                    continue
                call, start = at + 10 * place + 2, at + begins[rank, group] * MS
                text = f"all_reduce bytes=64 group={group} rank={rank} size=2 seq={index}"
                builder.label(text, call, call + 4, pid=pid)
                how: dict[str, Any] = {"launch": (call + 1, call + 2), "stream": 20, "pid": pid}
                builder.kernel(start, at + end * MS, ALL_REDUCE, **how)
            builder.kernel(at + 65 * MS, at + 90 * MS, launch=(at + 40, at + 41), pid=pid)
    return builder


def late_by_turns(num_ranks: int) -> TraceBuilder:
    builder = TraceBuilder()
    for rank, pid in enumerate((100, 200, 300)[:num_ranks]):
        for index in range(6):
            at, start = index * 100 * MS, (40 if index % num_ranks == rank else 10) * MS
            builder.kernel(at, at + 10 * MS, launch=(at, at + 1), pid=pid)
            how: dict[str, Any] = {"launch": (at + 2, at + 3), "stream": 20, "pid": pid}
            builder.kernel(at + start, at + 60 * MS, ALL_REDUCE, **how)
            builder.kernel(at + 60 * MS, at + 90 * MS, launch=(at + 4, at + 5), pid=pid)
    return builder


def over_nvlink(first: int) -> TraceBuilder:
    """Each reduction moves 1 MiB in 1 ms, on NVLink; rank 0 has waited since `first` ms."""
    builder = TraceBuilder()
    for rank, (pid, start) in enumerate([(100, first), (200, 40)]):
        builder.gpu("NVIDIA A100-SXM4-40GB", board=rank, device=0, pid=pid)
        for index in range(3):
            at = index * 100 * MS
            text = f"all_reduce bytes={1 << 20} group=0 rank={rank} size=2 seq={index}"
            builder.label(text, at + 2, at + 9, pid=pid)
            builder.kernel(at, at + 10 * MS, launch=(at, at + 1), pid=pid)
            how: dict[str, Any] = {"launch": (at + 3, at + 4), "stream": 20, "pid": pid}
            builder.kernel(at + start * MS, at + 41 * MS, ALL_REDUCE, **how)
            builder.kernel(at + 41 * MS, at + 90 * MS, launch=(at + 10, at + 11), pid=pid)
    return builder


PROGRAMS = {
    "late input": late_input(),
    "late input, not PyTorch": late_input("gemm"),
    "late input of a send": late_input(name=SEND_RECV),  # alone it may be an all-to-all
    "late input of a send to a known peer": late_input(name=SEND_RECV, peer=1),
    "late input of an all-gather": late_input(name=ALL_GATHER),
    "launched late": launched_late(),
    "queued": queued("gemm"),
    "queued buckets of DDP": queued(TORCH),
    "on the stream of compute": on_the_stream_of_compute(ALL_REDUCE),
    "a send on the stream of compute": on_the_stream_of_compute(SEND_RECV),
    "longer than compute": longer_than_compute(),
    "needed at once": needed(),
    "needed at once after another one": needed(before="awaited"),
    "not needed beside another one before it": needed(before="outstanding"),
    "not needed beside another one": needed(other=True),
    "not needed beside compute": needed(compute=True),
    "begins before its launch": disagreeing_clocks(is_read_early=False),
    "is read too early": disagreeing_clocks(is_read_early=True),
    "a late rank": a_late_rank(),
    "a missing rank": a_missing_rank(),
    "late in two steps": late_in_two_steps(),
    "late since another rank is": late_since_another_is(),
    "two ranks are late by turns": late_by_turns(2),
    "three ranks are late by turns": late_by_turns(3),
    "waits on NVLink": over_nvlink(10),
    "a slow NVLink": over_nvlink(40),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    with closing(
        analyze(PROGRAMS[name].write(tmp_path), options=Options(savings=False), jobs=1)
    ) as found:
        results = of_whole_windows(found)
    claims = [claim for one in results.values() for claim in exposed_communication.findings(one)]
    for claim in claims:
        assert isinstance(claim, Finding)
        parts = (claim.metrics[reason.metric] or 0 for reason in Reason)
        assert claim.metrics["exposed_ns"] == sum(map(int, parts))
    kept(claims)


def test_what_compute_needs_at_once_is_hidden_and_not_shortened(tmp_path: Path) -> None:
    assert assumed(needed().write(tmp_path)) == ("perfect-overlap",)  # as many bytes as before


def test_remedies_are_for_reasons_of_the_usual_steps(tmp_path: Path, kept: Kept) -> None:
    """Rank 1 begins the first two steps late; in others 2 ms have no compute left beside them."""
    builder = late_steps(2, 20, lambda step: {1: 60 * MS * (step < 2)}, by_launch=True)
    found = closed_analysis(builder.write(tmp_path)).findings
    kept(one for one in found if one.id == exposed_communication.ID)


@pytest.mark.parametrize(("each_us", "is_slow"), [(30, False), (130, True)])
def test_what_may_be_latency_tells_nothing_of_a_link(each_us: int, is_slow: bool) -> None:
    """Ten all-gathers of 2 MiB."""
    gb_per_s = (2 << 20) / (1000 * each_us)
    transfer = Transfer(10, 0, 10_000 * each_us, gb_per_s, gb_per_s, None, None, None, "intra-node")
    rate = known(link_rate("AllGather", {("AllGather", None): transfer}, {"intra-node": 300.0}))
    assert rate.is_slow == is_slow


@pytest.mark.parametrize(
    ("uncertainty", "known"),
    [
        ([0, 0, 0], 90),
        ([29, 29, 29], 90),
        ([30, 0, 0], 60),  # what clocks cannot tell is not counted
        ([30, 30, 0], None),  # … and could be more than what is
        ([30, 30, 30], None),
        ([1 << 40] * 3, None),
    ],
)
def test_waits_that_clocks_cannot_tell(
    tmp_path: Path, uncertainty: list[int], known: int | None
) -> None:
    with ranks_of(two_ranks(TraceBuilder(), 100, 10 * MS).write(tmp_path)) as (rank,):
        operations = exposed_communication.run(rank, rank.window).operations
    assert operations is not None
    waits = RankWaits(
        place=np.arange(3),
        start_ns=np.arange(3) * 100 * MS + 10 * MS,
        wait_ns=np.full(3, 30 * MS),
        last=np.ones(3, np.int64),
        uncertainty_ns=np.array(uncertainty) * MS,
    )
    waiting = operations.waiting_by(waits, (4, 9))
    if known is None:
        assert waiting == CLOCKS
    else:
        assert not isinstance(waiting, str)
        assert waiting.unpacked.ns.sum() == known * MS
        assert waiting.unpacked.last[-1] == 9
    nothing = RankWaits(*[np.empty(0, np.int64)] * 5)
    assert operations.waiting_by(nothing, (4, 9)) == UNMATCHED


def assert_agreement(path: Path, window: Window | None = None) -> None:
    """Compare a rank's own reasons with the reference, without the other ranks."""
    matched = read(path)
    for rank in matched:
        with ranks_of(path) as ranks:
            (own,) = [
                other
                for other in ranks
                if other.device is not None
                and (other.process, other.key.device) == (rank.process, rank.device)
            ]
            result = exposed_communication.run(own, window or own.window)
            span = None if window is None else (window.start_ns, window.end_ns)
            expected = plain.measured(rank, span, {})
            assert result.operations is not None
            found = result.operations.by_reason.sum(axis=1).tolist()
            assert result.metrics.exposed_ns == expected.exposed_ns == sum(found)
            assert {reason.metric: found[reason] for reason in Reason} == {
                **expected.reasons, "waiting_ns": 0,
            }  # fmt: skip


def assert_waiting_agrees(analysis: Analysis, path: Path) -> None:
    expected = plain.reference(path)
    place = {rank.rank: (rank.process, rank.device) for rank in analysis.run.ranks}
    for rank, result in of_whole_windows(analysis).items():
        assert result.operations is not None
        process, device = place[rank]
        assert device is not None
        of_rank = expected[process, device]
        found = result.operations.by_reason.sum(axis=1).tolist()
        for reason in Reason:
            assert found[reason] == (of_rank.reasons[reason.metric] or 0), reason
        is_known = not isinstance(result.operations.waiting, str)
        # A rank without any such operation has nothing to say.
        if len(result.operations.exposure):
            assert is_known == (of_rank.reasons["waiting_ns"] is not None)


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert_agreement(sample)
    with analysis_of(sample) as analysis:
        assert_waiting_agrees(analysis, sample)


def test_real_exports_agree_with_the_reference(real_trace: Path, tmp_path: Path) -> None:
    path = on_one_clock(real_trace, tmp_path / "t.sqlite")
    with ranks_of(path) as ranks:
        windows = [rank.window for rank in ranks if rank.device is not None]
    if not windows:
        return
    assert_agreement(path)
    low = min(window.start_ns for window in windows)
    length = max(window.end_ns for window in windows) - low
    assert_agreement(path, Window(low + length // 3, low + 2 * length // 3))
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        assert_waiting_agrees(analysis, path)


def generated(seed: int) -> TraceBuilder:
    """Return operations of three streams by two threads, with events, ties and missing launches."""
    random_ = random.Random(seed)
    builder, host = TraceBuilder(), 0
    gpu = {7: 100, 20: 100, 21: 100}
    has_events = seed % 3 > 0
    for _ in range(random_.randrange(5, 60)):
        host += random_.choice([0, 1, 5, 20_000])
        stream, tid = random_.choice([7, 7, 20, 20, 21]), random_.choice([1000, 1000, 1001])
        start = max(gpu[stream], host) + random_.choice([0, 0, 3, 15_000, 25_000])
        end = start + random_.choice([0, 7, 400, 30_000])
        gpu[stream] = end if random_.random() < 0.95 else gpu[stream]
        launch: Any = (host, host + random_.choice([0, 2, 9_000]))
        if random_.random() < 0.05:
            launch = False
        how: dict[str, Any] = {"launch": launch, "stream": stream, "tid": tid}
        kind = random_.random()
        if kind < 0.45:
            builder.kernel(start, end, **how)
        elif kind < 0.85:
            builder.kernel(start, end, random_.choice([ALL_REDUCE, SEND_RECV]), **how)
        elif kind < 0.92:
            builder.memcpy(start, end, "PtoP", source=0, destination=1, **how)
        elif kind < 0.96:
            builder.memcpy(start, end, **how)
        else:
            builder.graph(start, end, **how)
        if has_events and stream != 7 and random_.random() < 0.5:
            wait(record(builder, 9, stream, host + 1), 9, 7, host + 2)
        while has_events and random_.random() < 0.3:
            event = random_.randrange(4)
            if random_.random() < 0.6:
                record(builder, event, random_.choice([7, 20, 21, 84]), host + 1)
            else:
                wait(builder, event, random_.choice([7, 20, 21]), host + 2)
    return builder


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(2, range(60)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    path = generated(seed).write(tmp_path)
    assert_agreement(path)
    assert_agreement(path, Window(20_000, 120_000))


@pytest.mark.long
def test_generated_exports_have_all_reasons(tmp_path: Path) -> None:
    """Otherwise their agreement would say little."""
    total = dict.fromkeys(Reason, 0)
    for seed in range(60):
        with ranks_of(generated(seed).write(tmp_path / f"{seed}.sqlite")) as (rank,):
            result = exposed_communication.run(rank, rank.window)
        assert result.operations is not None
        for reason, ns in zip(Reason, result.operations.by_reason.sum(axis=1), strict=True):
            total[reason] += int(ns > 0)
    assert all(num >= 3 for reason, num in total.items() if reason is not Reason.WAITING), total
