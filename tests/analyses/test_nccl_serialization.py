"""Communication that waited in line: by hand, by the simulator's truth, by the reference."""

import random
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.reference import readiness
from tests.reference.communication import kernels_of, uses
from tests.support.builders import (
    ALL_REDUCE,
    SEND_RECV,
    TraceBuilder,
    call,
    label,
    prepare,
    record,
    wait,
)
from tests.support.claims import measured_numbers, results_of
from tests.support.kept_claims import Kept
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import collectives, nccl_serialization
from traceprof.run.opening import Window

US, MS = 1_000, 1_000_000


results = partial(results_of, nccl_serialization.run)


def result(builder: TraceBuilder, tmp_path: Path, window: Window | None = None) -> Any:
    (found,) = results(builder.write(tmp_path), window)
    return found


def assert_agreement(path: Path, *, has_labels: bool = False) -> None:
    """Compare numbers of this analysis, and of `collectives`, with the reference.

    It reads no labels, which tell the number of ranks.
    """
    expected, whole = kernels_of(path), readiness.reference(path)
    with ranks_of(path) as ranks:
        for rank in ranks:
            kernels = expected.get((rank.pid, rank.key.device), [])
            window = rank.window
            for numbers, waits in (
                (nccl_serialization.run(rank, window), whole),
                (nccl_serialization.run(rank, _middle(window)), readiness.reference(
                    path, (_middle(window).start_ns, _middle(window).end_ns)
                )),
            ):  # fmt: skip
                if rank.device is not None:
                    reference = asdict(waits[rank.process, rank.device])
                    del reference["num_queued"]
                    assert measured_numbers(numbers, reference) == reference
            rows = [structs.asdict(use) for use in collectives.run(rank, window).uses]
            for row, other in zip(rows, uses(kernels), strict=True):
                for name in ("algbw_gb_per_s", "busbw_gb_per_s"):
                    rate, expected_rate = row.pop(name), other.pop(name)
                    if rate is None or expected_rate is None:
                        assert rate == expected_rate or has_labels
                    else:
                        assert rate == pytest.approx(expected_rate, rel=1e-12)
                # The rest is of the GPU's name, or of other ranks.
                assert {name: row[name] for name in other} == other


def _middle(window: Window) -> Window:
    third = window.length_ns // 3
    return Window(window.start_ns + third, window.end_ns - third)


def sends(*, communicators: tuple[int, int], peers: tuple[int, int]) -> TraceBuilder:
    """Launch two sends at once: the second waits 40 ms behind the first, 20 of them exposed.

    first   |====|            10-50 ms, launched at 1
    second       |====|       50-90 ms, launched at 5
    compute |=====      ===|  10-30, 90-100
    """
    builder = prepare(TraceBuilder()).kernel(10 * MS, 30 * MS).kernel(90 * MS, 100 * MS)
    for index in range(2):
        host = (1 + 4 * index) * MS
        values = communicators[index], 64, peers[index]
        call(builder, "ncclSend", host - US, host + US, *values, schema=902)
        start = (10 + 40 * index) * MS
        builder.kernel(start, start + 40 * MS, SEND_RECV, launch=(host, host + 5), stream=20)
    return builder


def of_two_groups() -> TraceBuilder:
    builder = prepare(TraceBuilder(), schemas=())
    for index, group in enumerate(("0", "pp")):
        label(builder, f"all_reduce bytes=64 group={group} seq=1", index * MS, (index + 1) * MS)
        start, host = (10 + 40 * index) * MS, index * MS + US
        builder.kernel(start, start + 40 * MS, ALL_REDUCE, launch=(host, host), stream=20)
    return builder


def of_unknown_dependence() -> TraceBuilder:
    builder = TraceBuilder().kernel(10 * MS, 50 * MS, ALL_REDUCE, launch=(0, 1))
    return builder.kernel(50 * MS, 90 * MS, ALL_REDUCE, launch=(2, 3))


def small_behind_large(*, is_needed: bool) -> TraceBuilder:
    """Without labels and event records: a small reduction is launched after a large one.

    7   |##|            |####|        1, 2, 7, 9   or   |##||##############|    1, 2, 9
    20      |########|##|    |##|     2, 6, 7, 9, 10        |########|##|  |##|
    """
    builder = TraceBuilder()
    for step in range(8):
        at = step * 11 * MS
        builder.nvtx(f"step {step}", at, at + MS)
        builder.kernel(at + MS, at + 2 * MS, launch=(at + 1, at + 2))
        for place, (begin, end) in enumerate([(2, 6), (6, 7), (9, 10)]):
            call, start = at + 3 + 2 * place, at + begin * MS + 3
            builder.kernel(start, at + end * MS, ALL_REDUCE, launch=(call, call + 1), stream=20)
        begin = at + (7 if is_needed else 2) * MS + 1
        builder.kernel(begin, at + 9 * MS, launch=(at + 11, at + 12))
    return builder


def five_at_once() -> TraceBuilder:
    """The sixth waits behind five: 5 + 15 + 25 + 35 + 45 ns in all."""
    builder = TraceBuilder()
    for start in range(100, 160, 10):
        builder.kernel(start, start + 10, ALL_REDUCE, launch=(0, 105))
    return builder


def with_events() -> TraceBuilder:
    """The second is launched at 20, when the first runs, but its input ends at 150.

    7   |##compute#########|          ends at 150
    20       |####A####|####B####|    100, 200, 300
    """
    builder = TraceBuilder().kernel(50, 150, launch=(1, 2))
    builder.kernel(100, 200, ALL_REDUCE, launch=(5, 6), stream=20)
    builder.kernel(200, 300, ALL_REDUCE, launch=(18, 20), stream=20)
    return wait(record(builder, 1, 7, 15), 1, 20, 16)


def without_launches() -> TraceBuilder:
    builder = TraceBuilder().kernel(0, 100, ALL_REDUCE).kernel(100, 200, ALL_REDUCE)
    return builder.without("CUPTI_ACTIVITY_KIND_RUNTIME")


def on_the_compute_stream(kernel: str) -> TraceBuilder:
    builder = TraceBuilder()
    for index in range(4):
        builder.kernel(100 * index, 100 * index + 60)
        builder.kernel(100 * index + 60, 100 * index + 100, kernel)
    return builder.kernel(400, 410, ALL_REDUCE, stream=20)


def beside_a_helper() -> TraceBuilder:
    """One kernel that computes makes no compute stream."""
    builder = TraceBuilder().kernel(0, 1, stream=20)
    for index in range(1, 20):
        builder.kernel(10 * index, 10 * index + 9, ALL_REDUCE, stream=20)
    return builder


PROGRAMS = {
    "of two communicators": sends(communicators=(7, 8), peers=(1, 1)),
    "to two peers": sends(communicators=(7, 7), peers=(1, 2)),
    "to one peer": sends(communicators=(7, 7), peers=(1, 1)),
    "of two groups": of_two_groups(),
    "of unknown dependence": of_unknown_dependence(),
    "needed before a large one": small_behind_large(is_needed=True),
    "not needed before a large one": small_behind_large(is_needed=False),
    "five at once": five_at_once(),
    "with events": with_events(),
    "without launches": without_launches(),
    "without communication": TraceBuilder().kernel(0, 5),
    "on the compute stream": on_the_compute_stream(ALL_REDUCE),
    "sends on the compute stream": on_the_compute_stream(SEND_RECV),
    "beside a helper kernel": beside_a_helper(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    kept(nccl_serialization.findings(result(PROGRAMS[name], tmp_path)))


@pytest.mark.parametrize(("gap", "blocked"), [(0, 1), (20_000, 1), (20_001, 0), (-5, 1)])
def test_it_counts_only_what_follows_closely(tmp_path: Path, gap: int, blocked: int) -> None:
    builder = TraceBuilder().kernel(MS, 2 * MS, ALL_REDUCE, launch=(0, 1))
    builder.kernel(2 * MS + gap, 3 * MS, ALL_REDUCE, launch=(2, 3))
    assert result(builder, tmp_path).metrics.num_blocked == blocked


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert_agreement(sample, has_labels=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(2, range(12)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    random_, has_events = random.Random(seed), seed % 2 == 1
    builder = prepare(TraceBuilder(), schemas=(901, 902, 903))
    call(builder, "ncclCommInitRank", 0, 1, 7, 4, 0, 0, schema=903)
    host, gpu = 10, {20: 50_000, 21: 60_000, 7: 10_000}
    for _ in range(random_.randrange(1, 25)):
        stream = random_.choice([20, 20, 21, 7])
        tid = random_.choice([1000, 1001])
        is_grouped, kernels = random_.random() < 0.6, []
        if is_grouped:
            call(builder, "ncclGroupStart", host, host + 1, tid=tid)
        for _ in range(random_.randrange(1, 4) if is_grouped else 1):
            host += 10
            communicator, size = random_.choice([7, 8]), random_.choice([64, 4096, 1 << 22])
            peer = random_.choice([1, 2])
            name = random_.choice(["AllReduce", "AllGather", "Send", "Recv"])
            exchanges = name in ("Send", "Recv")
            values = (communicator, size, peer) if exchanges else (communicator, size)
            said = () if random_.random() < 0.1 else values
            schema = 902 if exchanges else 901
            call(builder, f"nccl{name}", host, host + 8, *said, schema=schema, tid=tid)
            kernels.append(SEND_RECV if exchanges else ALL_REDUCE.replace("AllReduce", name))
        if is_grouped:
            host += 10
            call(builder, "ncclGroupEnd", host, host + 8, tid=tid)
            kernels = [
                kernel
                for kernel in dict.fromkeys(kernels)
                for _ in range(random_.choice([1, 1, 2]))
            ]
        for name in kernels:
            launch: Any = (host + 2, host + 4) if random_.random() < 0.9 else False
            start = max(gpu[stream] + random_.choice([0, 0, 15_000, 25_000]), host)
            gpu[stream] = start + random_.choice([0, 500, 40_000])
            builder.kernel(start, gpu[stream], name, launch=launch, stream=stream, tid=tid)
        if random_.random() < 0.5:
            builder.kernel(gpu[7], gpu[7] + 9_000, stream=7, tid=random_.choice([1000, 1001]))
            gpu[7] += 9_000
        if has_events and random_.random() < 0.7:
            event, streams = random_.randrange(3), random_.sample([7, 20, 21], 2)
            wait(record(builder, event, streams[0], host), event, streams[1], host + 1)
        host += random_.choice([20, 30_000])
    assert_agreement(builder.write(tmp_path))


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    assert_agreement(real_trace)
